"""What a stage writes down: one JSON file with its measurements, the machine and the versions of libraries."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Budget

LIBRARIES = (
    *("torch", "triton", "transformers", "peft", "trl", "accelerate", "datasets", "tokenizers", "safetensors"),
    *("huggingface_hub", "numpy", "hyperpod-elastic-agent", "hydra-core", "pydantic", "fastapi"),
)
"""Whose versions are written down; None for those that are not installed."""

DONE, PARTIAL, FAILED, LATE, RUNNING = "done", "partial", "failed", "out of time", "running"
"""States of a stage: everything was measured; only some of it; nothing; its budget ended first; it still runs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure.

    Args:
        name: What was measured.
        value: Median over `rounds`; None where it could not be measured.
        unit: Of the value.
        rounds: Every value, in the order of measurement.
        floor: What cannot be beaten, or what it is compared with, in the same unit; None for none.
        floor_name: What the floor is.
        ratio: Value to floor.
        goal: The value to reach; None for none.
        goal_is_least: Whether more is better.
        shape: Sizes of the work.
        note: Why there is no value, or what limits its meaning.
    """

    name: str
    value: float | None
    unit: str
    rounds: Sequence[float] = ()
    floor: float | None = None
    floor_name: str = ""
    ratio: float | None = None
    goal: float | None = None
    goal_is_least: bool = True
    shape: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def meets_goal(self) -> bool | None:
        """Whether the goal is reached; None without a goal or a value."""
        if self.goal is None or self.value is None:
            return None
        return self.value >= self.goal if self.goal_is_least else self.value <= self.goal


def median_of(name: str, unit: str, rounds: Sequence[float], **more: Any) -> Measurement:
    """Return the measurement of several rounds; with a `floor`, also the ratio to it.

    Args:
        name: What was measured.
        unit: Of the values.
        rounds: The values; none for a measurement that was not made.
        more: Further fields of the measurement.
    """
    value = statistics.median(rounds) if rounds else None
    floor = more.get("floor")
    if value is not None and floor:
        more.setdefault("ratio", value / floor)
    return Measurement(name, value, unit, tuple(rounds), **more)


class Results:
    """The measurements of one stage, written after each of them: what was measured survives any end.

    Args:
        stage: Its name.
        file: Receives the JSON; its folder is created.
        budget: Of the stage.
        tiny: Whether shapes are tiny, so that the figures mean nothing.
    """

    def __init__(self, stage: str, file: Path, budget: Budget, *, tiny: bool):
        self.stage, self.file, self.budget, self.tiny = stage, file, budget, tiny
        self.measurements: list[Measurement] = []
        self.problems: list[str] = []
        self.facts: dict[str, Any] = {}
        self._started = time.time()
        self.write(RUNNING)

    def add(self, *measurements: Measurement) -> None:
        """Append measurements and write the file."""
        self.measurements += measurements
        self.write(RUNNING)

    def problem(self, what: str) -> None:
        """Note that something could not be measured, and write the file."""
        self.problems.append(what)
        self.write(RUNNING)

    def finish(self) -> str:
        """Write the file for the last time; return the state of the stage."""
        has_value = any(each.value is not None for each in self.measurements)
        state = DONE if has_value and not self.problems else PARTIAL if has_value else FAILED
        self.write(state)
        return state

    def write(self, state: str) -> None:
        """Write everything so far, atomically."""
        record = {
            "stage": self.stage,
            "state": state,
            "problems": self.problems,
            "tiny": self.tiny,
            "started": self._started,
            "seconds": round(self.budget.spent, 3),
            "budget_s": self.budget.seconds,
            "machine": machine(),
            "versions": versions(),
            "facts": self.facts,
            "measurements": [asdict(each) | {"meets_goal": each.meets_goal} for each in self.measurements],
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_name(f".{self.file.name}.partial")
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.file)


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the libraries."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    import torch  # start-up time: a table is made without it

    found: dict[str, Any] = {"processors": os.cpu_count(), "architecture": platform.machine(), "gpus": 0}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpus": torch.cuda.device_count(),
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found
