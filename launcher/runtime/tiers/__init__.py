"""Checkpoints in tiers: the memory of the nodes, copies on neighbour nodes, and storage that outlives them."""
