"""Hooks of a script between the steps of its job: evaluation, the end of an epoch, and a final export.

Each is repeated after a crash until it has succeeded; marks beside the checkpoints record that. A training that
starts without a checkpoint removes them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from launcher.runtime import process_group, randomness
from launcher.runtime.durable import write_text

HOOKED = "hooked"
"""Mark: the last step after which all hooks that were due succeeded."""

EXPORTED = "exported"
"""Mark: the step whose export succeeded."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of a script that all ranks call between two optimizer steps, at the same step.

    They do not affect the random numbers of training, and their time does not count as a step's. A failing hook ends
    the job like any exception. After a restart it is called again, so it must be safe to repeat.

    Args:
        evaluate: Returns metrics by name, of which the first rank's count, or None.
        evaluate_every: Optimizer steps between two evaluations; 0 for only at the ends of epochs.
        evaluate_epochs: Whether to evaluate at the end of each epoch, too, and so after the last step.
        epoch_end: Receives the number of completed epochs, after the step with an epoch's last sample.
        export: Called once training is finished, after its last checkpoint, until it has succeeded once.
    """

    evaluate: Callable[[], Mapping[str, object] | None] | None = None
    evaluate_every: int = 0
    evaluate_epochs: bool = True
    epoch_end: Callable[[int], None] | None = None
    export: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every < 0:
            raise ValueError(f"evaluate_every={self.evaluate_every} must be 0 or more")

    @property
    def are_given(self) -> bool:
        """Whether there is any."""
        return any((self.evaluate, self.epoch_end, self.export))

    def calls_after(self, step: int, epochs: range) -> list[Callable[[], Mapping[str, object] | None]]:
        """Return the hooks due after `step`, in which `epochs` ended: `epoch_end` for each, then the evaluation."""
        calls: list[Callable[[], Any]] = []
        if self.epoch_end:
            calls += [partial(_without_metrics, self.epoch_end, epoch) for epoch in epochs]
        is_due = (self.evaluate_every and step % self.evaluate_every == 0) or (self.evaluate_epochs and epochs)
        if self.evaluate and is_due:
            calls.append(self.evaluate)
        return calls


def _without_metrics(hook: Callable[[int], None], epoch: int) -> None:
    """Call a hook and ignore its result, which is not a metric even if it is a mapping."""
    hook(epoch)


class Marks:
    """The hooks that have succeeded, in two files beside the checkpoints. Every method is collective."""

    def __init__(self, folder: Path, *, is_used: bool):
        self._folder, self._is_used = folder, is_used
        self._steps: dict[str, int] = {}
        self._group: dist.ProcessGroup | None = None

    def read(self, *, is_new: bool) -> None:
        """Read the marks; if this training `is_new`, remove those of an earlier one."""
        for path in (self._folder / HOOKED, self._folder / EXPORTED) if process_group.rank() == 0 else ():
            if is_new:
                path.unlink(missing_ok=True)
            text = path.read_text(encoding="utf-8").strip() if path.exists() else ""
            self._steps[path.name] = int(text) if text.isdecimal() else 0
        if self._is_used:
            self._steps = process_group.share(self._steps)
            # Created while all ranks are alive: if a hook kills one later, the others notice.
            self._group = self._group or process_group.patient_group()

    def reached(self, name: str) -> int:
        return self._steps.get(name, 0)

    def put(self, name: str, step: int) -> None:
        """Set a mark once every rank has called this; it is on disk before any rank continues."""
        process_group.barrier(self._group)
        if process_group.rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_text(self._folder / name, f"{step}\n")
        process_group.barrier(self._group)
        self._steps[name] = step


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Put the states of the random number generators back at the end."""
    states = randomness.state()
    try:
        yield
    finally:
        randomness.restore(states)


def epochs_ended(start: int, stop: int, num_samples: int) -> range:
    """Return the epochs, counted from 1, whose last sample lies between two cursors."""
    return range(start // num_samples + 1, stop // num_samples + 1)
