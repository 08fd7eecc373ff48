"""Composition: recipes and overrides become one configuration, and every value keeps its origin."""
