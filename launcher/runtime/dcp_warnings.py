"""Warnings of torch.distributed.checkpoint that do not apply here."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_group_warning() -> Iterator[None]:
    """Suppress the warning that there is no process group: a script of one process needs none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield
