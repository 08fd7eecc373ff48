"""Compile training recipes into reviewable bundles and launch them."""

NAME = "recipe-launcher"
VERSION = "0.1.0"


def identity() -> str:
    """Return the name and the version of this program, as `--version` prints them."""
    return f"{NAME} {VERSION}"
