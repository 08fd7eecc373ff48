"""Imports that take seconds, as fast as they can be."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Import without garbage collections, which find nothing and take a sixth of the time of importing PyTorch."""
    gc.disable()
    try:
        yield
        gc.freeze()  # later collections do not look at modules either, and their pages stay shared with forks
    finally:
        gc.enable()
