"""Compile training recipes into reviewable bundles and launch them."""

VERSION = "0.1.0"
