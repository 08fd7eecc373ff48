"""Sweeps: jobs over a grid or a search space, run some at a time, pruned by their metrics, and resumed."""
