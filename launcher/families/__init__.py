"""Families of recipes: one module or package each, found by name."""
