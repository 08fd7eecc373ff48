"""Text files as rows of byte tokens."""

from pathlib import Path

import torch

from launcher.common import names


class NotEnoughText(ValueError):
    """The data file holds less than one sample."""


def data_file(path: str) -> Path:
    """Return the file that a recipe's `file_path` names; `builtin:NAME` ships with this package."""
    if path.startswith(names.BUILTIN_DATA):
        return Path(__file__).parent / "data" / path.removeprefix(names.BUILTIN_DATA)
    return Path(path)


def load_tokens(path: Path, max_len: int, limit: int | None = None) -> torch.Tensor:
    """Return the file's bytes as samples of `max_len` tokens and the token after them.

    Args:
        path: File of any encoding; a byte is a token.
        max_len: Tokens a model sees of a sample.
        limit: Maximum samples to return; None for all.

    Returns:
        Token ids, shape `(num_samples, max_len + 1)`. Consecutive samples share one token; an incomplete last one is
        omitted.

    Raises:
        NotEnoughText: The file is shorter than one sample.
    """
    text = bytearray(path.read_bytes())
    num_samples = (len(text) - 1) // max_len
    if num_samples < 1:
        raise NotEnoughText(f"{path} holds {len(text)} bytes; a sample takes {max_len + 1}")
    return torch.frombuffer(text, dtype=torch.uint8).unfold(0, max_len + 1, max_len)[:limit].to(torch.int64)
