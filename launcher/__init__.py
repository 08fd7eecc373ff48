"""Compile training recipes into reviewable bundles and launch them."""
