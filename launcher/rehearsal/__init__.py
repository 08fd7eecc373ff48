"""Rehearses a Ray job on this machine: a real Ray cluster of the bundle's shape, with simulated accelerators."""
