"""Rows of tokens from samples, padded or one after the other in one row, and made ahead of their use."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from launcher.runtime.finetune.data.workers import in_order
from launcher.runtime.finetune.models import language_model
from launcher.runtime.finetune.token_scores import TokenBatch

Sample = tuple[np.ndarray, np.ndarray]
"""Token ids, and whether each is trained; both of shape `(length,)`."""


DEPTH = 2
"""Batches that wait for their use. Our own choice: one hides the time of making one, the other its variation."""

Item = TypeVar("Item")
Made = TypeVar("Made")


Masked = Callable[[TokenBatch], TokenBatch]
"""Returns a packed row with masks that keep its samples apart."""


def layer_masks(model: nn.Module, dtype: torch.dtype | None = None) -> Masked | None:
    """Return what gives packed samples the masks that they need; None where transformers' are right.

    `dtype` is the one that the model computes in; None for that of its parameters.

    Source: transformers, `models/gpt_oss/modeling_gpt_oss.py`: positions are not handed to the masks.
    """
    inner = language_model(model)
    if inner.config.model_type != "gpt_oss":
        return None
    return partial(with_masks, window=inner.config.sliding_window, dtype=dtype or inner.dtype)


@dataclass(frozen=True, slots=True)
class Batcher:
    """Makes rows of the samples of a rank's micro batch, in the memory of the CPU and then on their device.

    Args:
        packs: Whether all samples go into one row, rather than each into a row of its own.
        masks: Of an architecture that needs them to keep samples apart.
    """

    device: torch.device
    packs: bool = False
    masks: Masked | None = None

    def laid_out(self, samples: Sequence[Sample]) -> TokenBatch:
        """Return the rows of `samples` in the memory of the CPU; pinned if they go to an accelerator."""
        batch = packed(samples) if self.packs and len(samples) > 1 else padded(samples)
        return batch if self.device.type == "cpu" else batch.moved(torch.Tensor.pin_memory)

    def placed(self, batch: TokenBatch) -> TokenBatch:
        """Return rows on the device. The copy from pinned memory waits for nothing, and nothing waits for it."""
        batch = batch.moved(self.to_device)
        return self.masks(batch) if self.masks and batch.positions is not None else batch

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device of the rows."""
        return tensor.to(self.device, non_blocking=True)


def padded(samples: Sequence[Sample]) -> TokenBatch:
    """Return one row for each sample, filled up on the right to the longest.

    Rows without padding have no mask, so that attention keeps its fast causal path.
    """
    rows = [torch.from_numpy(tokens.astype(np.int64)) for tokens, _ in samples]
    ids = pad_sequence(rows, batch_first=True)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    starts = [number * ids.shape[1] for number in range(len(samples))]
    return _batch(samples, ids, starts, mask=None if bool(mask.all()) else mask)


def packed(samples: Sequence[Sample]) -> TokenBatch:
    """Return one row with the samples one after the other; positions begin anew with each.

    Source: transformers finds the borders by the positions where no mask is given, `masking_utils`.
    """
    ids = torch.cat([torch.from_numpy(tokens.astype(np.int64)) for tokens, _ in samples])[None]
    positions = torch.cat([torch.arange(len(tokens)) for tokens, _ in samples])[None]
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in samples[:-1])]).tolist()
    return _batch(samples, ids, starts, positions=positions)


def with_masks(batch: TokenBatch, *, window: int, dtype: torch.dtype) -> TokenBatch:
    """Return a packed row with additive masks, of which sliding layers see `window` tokens, the current one included.

    A mask is 0 where a token is seen and the least number elsewhere, shape `(1, 1, length, length)`.
    """

    def additive(sees: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
        return mask.masked_fill(~sees, torch.finfo(dtype).min)[None, None]

    assert batch.positions is not None
    place = batch.positions[0]
    sample = (place == 0).cumsum(0)
    sees = (sample[:, None] == sample[None, :]) & (place[:, None] >= place[None, :])
    near = sees & (place[:, None] - place[None, :] < window)
    return replace(batch, mask={"full_attention": additive(sees), "sliding_attention": additive(near)})


def _batch(
    samples: Sequence[Sample],
    ids: torch.Tensor,
    starts: Sequence[int],
    *,
    mask: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> TokenBatch:
    counted = [np.flatnonzero(trained[1:]) for _, trained in samples]
    sources = torch.from_numpy(np.concatenate([start + each for start, each in zip(starts, counted, strict=True)]))
    numbers = torch.from_numpy(np.repeat(np.arange(len(samples)), [len(each) for each in counted]))
    return TokenBatch(
        ids=ids,
        mask=mask,
        positions=positions,
        sources=sources,
        targets=ids.flatten()[sources + 1],
        samples=numbers,
        num_samples=len(samples),
    )


def ahead(items: Iterable[Item], make: Callable[[Item], Made], device: torch.device) -> Iterator[Made]:
    """Yield what `make` returns for each item; it is called up to `DEPTH` items ahead, in another thread.

    The items are drawn in this thread.
    """
    # A thread starts with the first accelerator as its current one, and pinning memory would take memory there.
    prepare = (lambda: torch.cuda.set_device(device)) if device.type == "cuda" else None
    drawn = iter(items)  # kept to the end: a sampler forgets the draws of an iterator that is no longer in use
    with ThreadPoolExecutor(1, "batches", prepare) as thread:
        yield from in_order((thread.submit(make, item) for item in drawn), DEPTH)
