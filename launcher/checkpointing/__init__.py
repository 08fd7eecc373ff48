"""Checkpoints, estimated before a launch: sizes, intervals, tiers, and what a cluster needs."""
