"""Trainings of small models on real ranks, and what they leave: losses, samples taken, trained parameters."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from runtime_ranks import fork_ranks, run_ranks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from launcher.runtime.finetune import trainer
from launcher.runtime.finetune.settings import settings_of
from launcher.runtime.process_group import Place

from .cases import inputs, preload, prepared

State = dict[str, torch.Tensor]


class Recording(trainer.FineTuning):
    """Records which samples this rank trains on, by step, and dies in a step if it is told to."""

    dies_in_step = 0
    has_begun = False
    """Whether steps have begun: before them, a preference training computes its reference."""

    def _batches(self):
        self.has_begun = True
        for rows in super()._batches():
            yield rows
            if self.job.step + 1 == self.dies_in_step:
                os.kill(os.getpid(), signal.SIGKILL)

    def _record(self, indices: list[int]) -> None:
        with (self.run_dir / f"taken-{self.place.rank}").open("a") as file:
            file.write(json.dumps([self.job.step + 1, indices]) + "\n")

    def recorded(self) -> "Recording":
        """Return itself, with an objective that records its batches."""
        outcome = self.objective.outcome

        def record(root, samples, rows):
            if root.training:
                self._record(self.job.sampler.stream.indices(self.job.batch.positions).tolist())
            return outcome(root, samples, rows)

        self.objective.outcome = record
        return self


def made(place: Place, config: dict[str, Any], folder: Path, samples: Any, validation: Any = None, stop: int = 0):
    """Return a training of `config` that only its last rank is asked to stop, at the end of step `stop`."""
    settings = settings_of(config, place.world_size)
    training = Recording(
        settings,
        inputs(config, folder),
        place,
        folder,
        prepared(samples, validation),
        lambda: training.has_begun and training.job.step + 1 == stop and place.rank == place.world_size - 1,
    )
    return training.recorded()


def train(
    folder: Path,
    ranks: int,
    config: dict[str, Any],
    samples: Any,
    validation: Any = None,
    *,
    stop: int = 0,
    per_node: int = 0,
    watch: Callable[[Recording], Any] | None = None,
) -> Any:
    """Train on `ranks` ranks, to the end or to step `stop`; return the trained parameters, or what `watch` returns.

    Args:
        per_node: Ranks on a node; 0 for all.
        watch: Called before training; returns what is called after it and gives rank 0's result.
    """
    preload(config)
    folder.mkdir(exist_ok=True)

    def work(place: Place) -> Any:
        torch.use_deterministic_algorithms(True)
        if per_node:
            place = replace(place, local_rank=place.rank % per_node, local_world_size=per_node)
        training = made(place, config, folder, samples, validation, stop)
        result = watch(training) if watch else None
        assert training.run() is not bool(stop)
        return result() if result else trained(training)

    return run_ranks(ranks, work, folder)[0]


def killed(folder: Path, ranks: int, config: dict[str, Any], samples: Any, *, step: int) -> None:
    """Train on `ranks` ranks of which the last is killed in `step`; the others end with an error."""
    preload(config)
    folder.mkdir(exist_ok=True)

    def work(place: Place) -> None:
        training = made(place, config, folder, samples)
        training.dies_in_step = step if place.rank == ranks - 1 else 0
        training.run()

    children = fork_ranks(ranks, work, folder)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes[-1] == -signal.SIGKILL and 0 not in codes


def trained(training: trainer.FineTuning) -> State:
    """Return the complete trained parameters. Collective."""
    names = {name for name, parameter in training.root.named_parameters() if parameter.requires_grad}
    state = get_model_state_dict(training.root, options=StateDictOptions(full_state_dict=True))
    return {name: value.clone() for name, value in state.items() if name in names or f"module.{name}" in names}


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return every line of the metrics, with those of the trainer among them."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line | line.get("further", {}) for line in found]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step, of its last attempt."""
    return list({line["step"]: line for line in lines(folder) if "loss" in line}.values())


def losses(folder: Path) -> list[float]:
    """Return the loss of each step."""
    return [line["loss"] for line in metrics(folder)]


def taken(folder: Path) -> list[int]:
    """Return the samples that all ranks took."""
    lines = [line for path in folder.glob("taken-*") for line in path.read_text().splitlines()]
    return [index for line in lines for index in json.loads(line)[1]]
