"""The reference of preference optimization: the model before training.

With adapters it is the same model without them. Where all weights train, its log-probabilities are computed once,
before the first step, and kept in a file: they are needed in every epoch, and a second model is not. The file is
a `.npy` of 64 bits with its checksum at the end. NaN stands for pairs not computed yet, so that a start at any number
of ranks continues the work of an interrupted one.
"""

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.checksums import checksum, of_json
from launcher.runtime.durable import write_atomically
from launcher.runtime.finetune import adapters
from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.fingerprints import fingerprints
from launcher.runtime.finetune.data.prepared import Prepared, PreparedPairs
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.objectives import PairRows, Reference
from launcher.runtime.finetune.parallel import reshard
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.weight_files import PICKLED, weight_files

CHECKSUM_BYTES = 16
_FORMAT = 2
"""Of the files; a part of their names."""
_MEMORY = ".weights.json"
"""Among the prepared data: the fingerprints of weights."""
PARTS = 20
"""Parts in which a table is written while it is computed: a kill loses one of them."""


def without_adapters(root: nn.Module) -> Reference:
    """Return the reference that the same model gives with its adapters disabled."""
    scorer = root.module if isinstance(root, nn.parallel.DistributedDataParallel) else root

    def reference(pairs: PreparedPairs, rows: PairRows) -> torch.Tensor:
        with torch.no_grad(), adapters.disabled(scorer):
            log_probs, _ = scorer(rows.batch)
        return rows.sums(log_probs)

    return reference


class Precomputed:
    """The reference that `root`, the model before training, gives before the first step."""

    def __init__(self, root: nn.Module, batcher: Batcher, data: Prepared, settings: Settings, inputs: Inputs):
        self._root, self._batcher, self._data, self._settings, self._inputs = root, batcher, data, settings, inputs
        self._tables: dict[int, torch.Tensor] = {}

    def prepare(self, stopping: Callable[[], bool]) -> bool:
        """Compute what no file holds; return False if a stop interrupts that. Collective, as `stopping` is."""
        micro, data, inputs = self._settings.shares.micro, self._data, self._inputs
        identity = process_group.of_first_rank(lambda: _identity(self._settings, inputs))
        for name, pairs in (("train", data.train), ("validation", data.validation)):
            if isinstance(pairs, PreparedPairs):
                file = inputs.prepared / f"reference-{name}-{data.digest}-{identity}.npy"
                table = precomputed(self._root, pairs, self._batcher, file, micro, stopping)
                if table is None:
                    return False
                self._tables[id(pairs)] = table
        return True

    def __call__(self, pairs: PreparedPairs, rows: PairRows) -> torch.Tensor:
        return rows.on_device(self._tables[id(pairs)][rows.indices])


def _identity(settings: Settings, inputs: Inputs) -> str:
    """Return what the model before training is known by: the content of its files, or how it is made up."""
    described: list[Any] = [_FORMAT, dict(inputs.config)]
    if inputs.weights:
        files = weight_files(inputs.weights) or sorted(inputs.weights.glob(PICKLED))
        described.append(fingerprints(files, inputs.prepared, _MEMORY))
    else:
        described.append(settings.seed)
    return of_json(described)[:16]


def precomputed(
    root: nn.Module,
    pairs: PreparedPairs,
    batcher: Batcher,
    file: Path,
    micro: int,
    stopping: Callable[[], bool],
) -> torch.Tensor | None:
    """Return the log-probabilities of all pairs, in 64 bits, shape `(pairs, 2)`; None if a stop interrupts this.

    Collective. Pairs that `file` holds are not computed again. The others are added to it in parts, and at a stop, by
    the first rank.

    Args:
        root: The model before training.
        micro: Pairs in a forward pass.
        stopping: Returns whether a rank was asked to stop; collective.
    """
    table = _read(file, len(pairs)) if process_group.rank() == 0 else None
    if table is None:
        table = torch.full((len(pairs), 2), torch.nan, dtype=torch.float64)
    if dist.is_initialized():
        dist.broadcast(table, src=0)
    missing = torch.isnan(table).any(dim=1).nonzero().flatten()
    rounds = list(dealt(len(missing), micro))
    part = -(-len(rounds) // PARTS)
    mine = torch.zeros_like(table)
    root.eval()  # training sets it back: no dropout in the reference
    is_stopped = False
    for number, (places, is_filler) in enumerate(rounds, 1):
        indices = missing[list(places)].tolist()
        with torch.no_grad():
            rows = PairRows(pairs, indices, batcher)
            log_probs, _ = root(rows.batch)
        if not is_filler:
            mine[indices] = rows.sums(log_probs).cpu()
        is_stopped = stopping()
        if is_stopped or number % part == 0 or number == len(rounds):
            done = missing[: number * micro * process_group.world_size()]
            found = process_group.summed(mine)  # of every pair, one rank has other numbers than 0
            table[done] = found[done]
            _write(file, table)
        if is_stopped:
            break
    reshard(root)
    return None if is_stopped else table


def _read(file: Path, num_pairs: int) -> torch.Tensor | None:
    """Return the table of a file; None if it is missing or damaged, so that it is computed again."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        print(f"{file}: cannot be read ({error}); the reference is computed again", file=sys.stderr, flush=True)
        return None
    data, stored = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if checksum(data) == stored:
        table = torch.from_numpy(np.load(io.BytesIO(data)))
        if table.shape == (num_pairs, 2) and table.dtype == torch.float64:
            return table
    print(f"{file}: damaged; the reference is computed again", file=sys.stderr, flush=True)
    return None


def _write(file: Path, table: torch.Tensor) -> None:
    """Write the first rank's table, with the pairs that another job has added to the file meanwhile."""
    if process_group.rank():
        return
    other = _read(file, len(table))
    buffer = io.BytesIO()
    np.save(buffer, (table if other is None else torch.where(torch.isnan(table), other, table)).numpy())
    data = buffer.getvalue()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda opened: opened.write(data + checksum(data)))
    except OSError as error:  # it only saves time after a restart
        print(f"{file}: the reference cannot be kept for a restart ({error})", file=sys.stderr, flush=True)


def dealt(num_samples: int, micro: int) -> Iterator[tuple[Sequence[int], bool]]:
    """Yield this rank's batches of a pass over all samples, and whether a batch is a filler.

    All ranks get as many batches: under `fully_shard` a forward pass is collective.
    """
    rank, ranks = process_group.rank(), process_group.world_size()
    for start in range(0, num_samples, micro * ranks):
        indices = range(start + rank * micro, min(start + (rank + 1) * micro, num_samples))
        yield (indices, False) if len(indices) else (range(1), True)
