"""Families of recipes: one module or package for each, which `launcher/model/family_registry.py` finds by name."""
