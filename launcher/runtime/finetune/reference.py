"""The reference of preference optimization: the model before training.

With adapters it is the same model without them. Where all weights train, its log-probabilities are computed once,
before the first step, and kept in a file: they are needed in every epoch, and a second model is not.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.durable import write_atomically
from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.prepared import PreparedPairs
from launcher.runtime.finetune.dpo import PairRows, Reference


def without_adapters(root: nn.Module) -> Reference:
    """Return the reference that the same model gives with its adapters disabled.

    Args:
        root: A `TokenScorer`, possibly in DistributedDataParallel or after fully_shard.
    """
    scorer = root.module if isinstance(root, nn.parallel.DistributedDataParallel) else root

    def reference(pairs: PreparedPairs, rows: PairRows) -> torch.Tensor:
        with torch.no_grad(), scorer.model.disable_adapter():  # type: ignore[union-attr, operator]  # PEFT's
            log_probs, _ = scorer(rows.batch)
        return rows.sums(log_probs)

    return reference


def from_file(files: dict[int, Path]) -> Reference:
    """Return the reference that was computed before.

    Args:
        files: Of `precomputed`, by the identity of the pairs.
    """
    tables = {pairs: np.load(path, mmap_mode="r") for pairs, path in files.items()}

    def reference(pairs: PreparedPairs, rows: PairRows) -> torch.Tensor:
        found = torch.from_numpy(tables[id(pairs)][rows.indices])
        return found.to(rows.batch.ids.device)

    return reference


def precomputed(root: nn.Module, pairs: PreparedPairs, batcher: Batcher, file: Path, micro: int) -> Path:
    """Compute the log-probabilities of all pairs unless `file` holds them; return `file`. Collective.

    Args:
        root: The model before training.
        pairs: Whose answers are scored.
        batcher: Makes rows.
        file: Receives them, shape `(pairs, 2)`, in 32 bits; visible to all ranks.
        micro: Pairs in a forward pass.
    """
    if process_group.share(file.exists()):
        return file
    mine = torch.zeros((len(pairs), 2))
    root.eval()  # training sets it back: no dropout in the reference
    with torch.no_grad():
        for indices, is_filler in dealt(len(pairs), micro):
            rows = PairRows(pairs, indices, batcher)
            log_probs, _ = root(rows.batch)
            if not is_filler:
                mine[list(indices)] = rows.sums(log_probs).float().cpu()
    if dist.is_initialized():
        dist.all_reduce(mine)  # of every pair, one rank has other numbers than 0
    if process_group.rank() == 0:
        write_atomically(file, lambda opened: np.save(opened, mine.numpy()))
    process_group.barrier()
    return file


def dealt(num_samples: int, micro: int) -> Iterator[tuple[Sequence[int], bool]]:
    """Yield this rank's batches of a pass over all samples, and whether a batch is a filler.

    All ranks get as many batches: under `fully_shard` a forward pass is collective.
    """
    rank, ranks = process_group.rank(), process_group.world_size()
    for start in range(0, num_samples, micro * ranks):
        indices = range(start + rank * micro, min(start + (rank + 1) * micro, num_samples))
        yield (indices, False) if len(indices) else (range(1), True)
