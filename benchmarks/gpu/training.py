"""One training, measured: by the open trainer, or by TRL's, of the same model, samples, batch and optimizer."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu import devices
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.shapes import Shape, Training, training_of
from benchmarks.trl_sft import trl_trainer
from launcher.common import names
from launcher.runtime import process_group
from launcher.runtime.finetune.trainer import FineTuning
from launcher.runtime.process_group import Place, place_from_env

WARMUP_STEPS = 2
OURS, TRL = "ours", "trl"


class Enough(Exception):
    """The training was measured for long enough."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a training is measured.

    Args:
        seconds: After the steps that do not count.
        steps: At most.
    """

    seconds: float
    steps: int


@dataclass(slots=True)
class Measured:
    """What was seen of one training.

    Args:
        steps_s: Duration of each optimizer step that counts.
        build_s: Until the trainer was ready to train.
        peak: Most bytes of device memory; None on the CPU.
        losses: Of all steps; of TRL's trainer none are read.
        config: Of the model, as in config.json.
    """

    steps_s: list[float] = field(default_factory=list)
    build_s: float = 0.0
    peak: int | None = None
    losses: list[float] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """Median duration of a step."""
        return statistics.median(self.steps_s)


class Meter:
    """Notes the end of each optimizer step.

    Args:
        pace: How long to measure.
        budget: Of the stage, which ends a measurement, too.
        where: The device, whose work is waited for.
    """

    def __init__(self, pace: Pace, budget: Budget, where: torch.device):
        self._pace, self._budget, self._where = pace, budget, where
        self.times: list[float] = []

    def tick(self) -> bool:
        """Note the time; return whether that is enough."""
        devices.wait_for(self._where)
        self.times.append(time.perf_counter())
        counted = self.times[WARMUP_STEPS - 1 :]
        if len(counted) < 2:
            return False
        is_over = counted[-1] - counted[0] >= self._pace.seconds or self._budget.left == 0
        return is_over or len(counted) > self._pace.steps

    def tick_or_end(self, *_: Any) -> None:
        """Note the time.

        Raises:
            Enough: That is enough.
        """
        if self.tick():
            raise Enough

    @property
    def steps_s(self) -> list[float]:
        """Duration of each step that counts."""
        counted = self.times[WARMUP_STEPS - 1 :]
        return [after - before for before, after in zip(counted, counted[1:], strict=False)]


Run = Callable[[Training, Place, Meter, Path], list[float]]
"""Trains until the meter has enough; returns the losses."""


def measured(who: str, shape: Shape, pace: Pace, budget: Budget, *, tiny: bool) -> Measured:
    """Return what a training of `shape` by `who` measures.

    Raises:
        torch.OutOfMemoryError: It does not fit into the device's memory.
        ModuleNotFoundError: TRL is not installed.
    """
    place = joined()
    devices.free(place.device)
    try:
        return _measured(RUNS[who], shape, place, Meter(pace, budget, place.device), tiny=tiny)
    finally:
        devices.free(place.device)


def _measured(run: Run, shape: Shape, place: Place, meter: Meter, *, tiny: bool) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        training = training_of(shape, Path(folder), tiny=tiny)
        began = time.perf_counter()
        losses = run(training, place, meter, Path(folder))
        first = meter.times[0] - began if meter.times else 0.0
        return Measured(meter.steps_s, first, devices.peak_bytes(place.device), losses, training.inputs.config)


def joined() -> Place:
    """Return the place of this process, alone in its process group."""
    return place_from_env() if dist.is_initialized() else process_group.join()


def ours(training: Training, place: Place, meter: Meter, folder: Path) -> list[float]:
    """Train with the open trainer."""
    trained(training, place, meter, folder)
    return losses_in(folder)


def trained(training: Training, place: Place, meter: Meter, folder: Path) -> FineTuning:
    """Return the open trainer after as many steps as are enough. Collective.

    It is left in the midst of training: nothing is saved or exported.
    """
    trainer = FineTuning(training.settings, training.inputs, place, folder, training.data)
    trainer.optimizer.register_step_post_hook(meter.tick_or_end)
    with suppress(Enough):
        trainer.run()
    return trainer


def losses_in(folder: Path) -> list[float]:
    """Return the losses of the steps that a training wrote down."""
    records = [json.loads(line) for line in (folder / names.METRICS_FILE).read_text().splitlines()]
    return [each["loss"] for each in records if each.get("loss") is not None]


def theirs(training: Training, place: Place, meter: Meter, folder: Path) -> list[float]:
    """Train with TRL's trainer of supervised fine-tuning."""
    trl_trainer(
        training.inputs,
        training.settings,
        training.data.train,
        folder,
        place.device,
        meter.tick,
        max_steps=10**6,
    ).train()
    return []


RUNS: dict[str, Run] = {OURS: ours, TRL: theirs}
