"""Checkpoints in tiers: the memory of the nodes, copies on neighbours, then storage that outlives them."""
