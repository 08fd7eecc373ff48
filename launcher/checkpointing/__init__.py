"""Checkpoints before a job runs: their sizes, how often to save, the tiers, and what a cluster needs for them."""
