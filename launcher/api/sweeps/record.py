"""The folder of a sweep: its description, and what became of each trial.

`sweep.json` describes the sweep, `trials.jsonl` has a line for each change of a trial, of which the last counts, and
`study.db` is the sampler's own memory. Whoever runs the sweep holds the lock of the folder.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.common import os_errors
from launcher.common.locks import locked
from launcher.common.problems import fail
from launcher.config.dimensions import Dimension
from launcher.model.typed_json import as_type
from launcher.runtime.durable import append_json, write_text

SWEEP_FILE, TRIALS_FILE, STUDY_FILE, PICTURE_FILE = "sweep.json", "trials.jsonl", "study.db", "sweep.svg"
STATES = ("waiting", "running", "succeeded", "pruned", "failed", "cancelled")
WAITING, RUNNING, SUCCEEDED, PRUNED, FAILED, CANCELLED = STATES
_CHANGEABLE = ("parallel", "trials", "parent_run")
"""What another call for the same sweep may change."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a sweep was asked to do.

    Args:
        overrides: Those that every job has.
        cwd: The folder in which relative paths start.
        is_grid: Whether every combination is run; else a sampler chooses.
        objective: The metric to optimise; None for a grid that only runs.
        trials: Number of jobs.
        parallel: How many run at the same time.
        seed: Of the sampler.
        pruner: `median` or None.
        startup_trials: Trials that must have ended before one is pruned.
        warmup_steps: The first step at which a trial may be pruned.
        parent_run: The MLflow run of the sweep: its store and id; None without tracking.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    overrides: tuple[str, ...]
    cwd: str
    dimensions: tuple[Dimension, ...]
    is_grid: bool
    objective: str | None
    direction: str
    trials: int
    parallel: int
    sampler: str
    seed: int
    pruner: str | None
    startup_trials: int
    warmup_steps: int
    parent_run: tuple[str, str] | None = None

    @property
    def digest(self) -> str:
        """The same for calls that continue each other, as hexadecimal digits."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in _CHANGEABLE}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @property
    def sign(self) -> int:
        """1 if smaller values of the objective are better, else -1."""
        return 1 if self.direction == "minimize" else -1

    def best(self, trials: Iterable["Trial"]) -> "Trial | None":
        """Return the trial with the best objective; None before one has succeeded, and without an objective."""
        done = [trial for trial in trials if trial.state == SUCCEEDED and trial.value is not None]
        return min(done, key=lambda trial: self.sign * (trial.value or 0.0)) if done and self.objective else None


@dataclass(frozen=True, slots=True)
class Trial:
    """One job of a sweep.

    Args:
        number: From 0.
        values: The value of each dimension, in their order.
        overrides: Those by which it differs from other trials; they compile to its job after the sweep's own.
        state: waiting, running, succeeded, pruned, failed or cancelled.
        value: The objective at the last step that reported it.
        reason: Why it did not succeed.
        job: The folder of its bundle.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    number: int
    values: tuple[str | int | float, ...]
    overrides: tuple[str, ...]
    state: str = WAITING
    value: float | None = None
    step: int | None = None
    reason: str | None = None
    job: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.state not in (WAITING, RUNNING)

    @property
    def folder(self) -> Path:
        """The folder of its bundle, which is on record before its job is launched."""
        return Path(self.job or "")


@dataclass(frozen=True)
class SweepFolder:
    """The files of a sweep."""

    path: Path

    @property
    def description(self) -> Description:
        """What it was asked to do.

        Raises:
            ProblemsFound: The file is damaged (E721).
        """
        try:
            found = as_type(Description, json.loads((self.path / SWEEP_FILE).read_text(encoding="utf-8")))
            if min(found.trials, found.parallel) < 1:
                raise ValueError("a number is below 1")
            return found
        except (OSError, ValueError, RecursionError) as error:
            raise fail("E721", str(self.path / SWEEP_FILE), f"is not the description of a sweep: {error}") from error

    def describe(self, description: Description) -> None:
        """Write a description; the folder is created.

        Raises:
            ProblemsFound: The disk refuses.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / SWEEP_FILE, json.dumps(dataclasses.asdict(description), indent=2) + "\n")
        except OSError as error:
            raise os_errors.refused("E721", str(self.path), error, self.path) from error

    def trials(self) -> dict[int, Trial]:
        """Return the trials by their number, as they are on disk; a line that a killed process left is skipped."""
        found: dict[int, Trial] = {}
        with contextlib.suppress(FileNotFoundError), (self.path / TRIALS_FILE).open("rb") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    trial = as_type(Trial, json.loads(line))
                    found[trial.number] = trial
        return dict(sorted(found.items()))

    def note(self, trial: Trial) -> None:
        """Record a trial as it is now."""
        append_json(self.path / TRIALS_FILE, dataclasses.asdict(trial))

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Be the one who runs the sweep.

        Raises:
            ProblemsFound: Another process is (E722).
        """
        with locked(self.path / SWEEP_FILE, waits=False) as is_mine:
            if not is_mine:
                remedy = "end that process with Ctrl-C; jobs that run keep running"
                raise fail("E722", str(self.path), "the sweep is run by another process", remedy=remedy)
            yield


def short(labels: Sequence[str]) -> list[str]:
    """Return the last words of the labels of dimensions; where several share theirs, the labels."""
    last = [label.rpartition(".")[2] for label in labels]
    return [word if last.count(word) == 1 else label for word, label in zip(last, labels, strict=True)]
