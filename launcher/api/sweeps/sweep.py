"""A sweep as a value: started by `launcher.sweep`, opened by any later process."""

import collections
import contextlib
import dataclasses
import html
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.api.arguments import checked, of_type, text_of
from launcher.api.job import Job
from launcher.api.plan import Plan, of_words
from launcher.api.session import Session
from launcher.api.sweeps import checking
from launcher.api.sweeps.record import (
    PICTURE_FILE,
    SUCCEEDED,
    SWEEP_FILE,
    Description,
    SweepFolder,
    Trial,
)
from launcher.api.tables import Table, html_table
from launcher.bundle import store as bundles
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.config.dimensions import DIRECTIONS, GRID, SAMPLERS, Dimension, typed
from launcher.config.dimensions import points as grid_points
from launcher.job_store import tracking
from launcher.model.context import job_name
from launcher.model.following import Deadline
from launcher.model.job_spec import JobState

if TYPE_CHECKING:
    from launcher.api.sweeps.engine import Engine

_DIGITS = 6
_DEFAULTS = {"seed": 0, "startup_trials": 5, "warmup_steps": 0}
_OF_SPACE = {"trials": 20, "sampler": SAMPLERS[0]}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.A)
_NAME_ALLOWED = "1 to 200 letters, digits, '.', '_' and '-', the first a letter or digit"


@dataclass(frozen=True, slots=True)
class Best:
    """The trial with the best objective.

    Args:
        overrides: Those that differ between trials; `launcher.compile` takes them, with those of the sweep's plan.
        job: Its job.
    """

    number: int
    value: float
    overrides: tuple[str, ...]
    job: Job

    @property
    def text(self) -> str:
        """The overrides, quoted for a shell."""
        return shlex.join(self.overrides)


@checked()
@dataclass(frozen=True)
class Sweep:
    """Jobs over a grid or a search space.

    Args:
        folder: Of its records, `results/<name>`; its jobs are beside it.
    """

    folder: Path

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @cached_property
    def _files(self) -> SweepFolder:
        return SweepFolder(self.folder)

    @property
    def description(self) -> Description:
        """What it was asked to do."""
        return self._files.description

    def _every(self) -> tuple[Trial, ...]:
        return tuple(self._files.trials().values())

    @property
    def trials(self) -> Table:
        """One row for each trial so far: its number, state, objective, values, job, and why it did not succeed."""
        description = self.description
        return Table(_row(description, trial) for trial in self._every())

    @property
    def is_finished(self) -> bool:
        """Whether every trial has ended."""
        every = self._every()
        return len(every) >= self.description.trials and all(trial.is_finished for trial in every)

    @property
    def best(self) -> Best | None:
        """The trial with the best objective; None before one has succeeded, and without an objective."""
        found = self.description.best(self._every())
        if found is None:
            return None
        return Best(found.number, found.value or 0.0, found.overrides, Job(found.folder))

    def changes(self, timeout: float | None = None) -> Iterator[Mapping[str, Any]]:
        """Run it, and yield the row of each trial when its job runs and when it has ended.

        Without this loop, or if it is interrupted, no further trial starts; jobs that run keep running. Another call,
        in any process, resumes.

        Args:
            timeout: Seconds; None never gives up.

        Raises:
            JobTimeout: It has not ended in that time; jobs that run keep running.
            ProblemsFound: Another process runs it (E722), a job cannot be launched, or no job writes the objective.
        """
        with self._files.driving():
            engine = self._engine()
            for trial in engine.run(Deadline(timeout)):
                yield _row(engine.description, trial)
            self._conclude(engine, is_cancelled=False)

    def wait(self, timeout: float | None = None) -> "Sweep":
        """Run it to its end and return it; the argument and exceptions are those of `changes`."""
        collections.deque(self.changes(timeout), maxlen=0)
        return self

    def cancel(self) -> None:
        """Cancel every job of it that has not ended; no further one is launched until `wait` or `changes`.

        Raises:
            ProblemsFound: Another process runs it (E722), or a cluster refuses.
        """
        with self._files.driving():
            engine, is_cancelled = self._engine(), not self.is_finished
            engine.cancel()
            self._conclude(engine, is_cancelled=is_cancelled)

    def picture(self, path: Path | str | None = None) -> Path:
        """Draw its trials as parallel coordinates; return the file.

        Args:
            path: A `.svg` or `.png` file; None for `sweep.svg` in its folder.

        Raises:
            ProblemsFound: matplotlib is missing, or the file cannot be written (E709).
        """
        from launcher.api.sweeps import sweep_picture

        path = self.folder / PICTURE_FILE if path is None else Path(text_of(path, "E709", "path"))
        sweep_picture.draw(self.description, self._every(), path)
        return path

    def _engine(self) -> "Engine":
        from launcher.api.sweeps.engine import Engine

        description = self.description
        plan = of_words(description.overrides, Session(Path(description.cwd)))
        return Engine(plan, description, self._files)

    def _conclude(self, engine: "Engine", *, is_cancelled: bool) -> None:
        """Draw the picture and close the MLflow run."""
        picture = None
        with contextlib.suppress(ProblemsFound):
            picture = self.picture()
        if engine.parent is None:
            return
        has_success = any(trial.state == SUCCEEDED for trial in engine.trials.values())
        state = JobState.CANCELLED if is_cancelled else JobState.SUCCEEDED if has_success else JobState.FAILED
        best, tags, metric = self.best, {}, None
        if best and engine.description.objective:
            values = dict(zip(engine.description.dimensions, engine.trials[best.number].values, strict=True))
            tags = {each.label: str(value) for each, value in values.items()}
            metric = (engine.description.objective, best.value)
        tracking.finish_parent(engine.parent, state, tags, metric, picture)

    def _repr_html_(self) -> str:
        rows = self.trials
        head = list(rows[0]) if rows else []
        table = html_table(head, [["" if cell is None else str(cell) for cell in row.values()] for row in rows])
        best = self.best
        line = f"<p>best: <code>{html.escape(best.text)}</code></p>" if best else ""
        picture = ""
        if self.description.objective and rows:
            from launcher.api.sweeps import sweep_picture

            with contextlib.suppress(ProblemsFound):
                picture = sweep_picture.svg(self.description, self._every())
        return f"<p><b>{html.escape(self.name)}</b></p>{table}{line}{picture}"


def _row(description: Description, trial: Trial) -> Mapping[str, Any]:
    own = {description.objective: trial.value} if description.objective else {}
    values, job = values_of(description, trial), trial.folder.name if trial.job else None
    return {"trial": trial.number, "state": trial.state, **own, **values, "job": job, "reason": trial.reason}


def values_of(description: Description, trial: Trial) -> Mapping[str, str | float]:
    """Return the values of a trial, as the types that their texts write, by the labels of their dimensions."""
    return {each.label: typed(value) for each, value in zip(description.dimensions, trial.values, strict=True)}


def sweep(
    plan: Plan,
    grid: Mapping[str, Any] | None = None,
    *,
    space: Mapping[str, Any] | None = None,
    objective: str | None = None,
    direction: str = "minimize",
    trials: int | None = None,
    parallel: int = 1,
    sampler: str | None = None,
    pruner: str | None = None,
    startup_trials: int | None = None,
    warmup_steps: int | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Sweep:
    """Check and describe a sweep over a plan's recipe; `wait` or `changes` of what it returns runs it.

    The same call again returns the same sweep, which resumes.

    Args:
        grid: Lists of values by key; every combination is a job.
        space: Lists of values, or `"interval(1e-5, 1e-3)"`, `"tag(log, interval(…))"`, `"range(8, 65, 8)"` by key;
            Optuna chooses.
        objective: A metric of the jobs. Its last value counts.
        direction: `minimize` or `maximize`.
        trials: Number of jobs of a space, 20 if None; a grid has as many as it has combinations.
        parallel: How many jobs run at the same time. A grid on a cluster with job arrays is submitted at once, and
            limited by `cluster.array_parallelism`.
        sampler: Of a space, `tpe` or `random`; None for the first.
        pruner: `median` cancels a trial whose objective is worse than the median of the others at the same step.
        startup_trials: Trials that must have ended before, 5 if None.
        warmup_steps: The first step at which a trial may be pruned, 0 if None.
        seed: Of the sampler, 0 if None.
        name: Of its folder under the results folder; None for one that the arguments determine.

    Raises:
        ProblemsFound: Every fault of it and of its jobs; nothing was written.
    """
    return described(
        plan,
        checking.dimensions(grid, space),
        is_grid=grid is not None,
        objective=objective,
        direction=direction,
        trials=trials,
        parallel=parallel,
        sampler=sampler,
        pruner=pruner,
        startup_trials=startup_trials,
        warmup_steps=warmup_steps,
        seed=seed,
        name=name,
    )


def described(plan: Plan, dimensions: Sequence[Dimension], *, name: str | None = None, **settings: Any) -> Sweep:
    """Do what `sweep` does, for dimensions that were read already."""
    of_type(Plan, plan, "E725", "plan", "a plan, which launcher.compile returns")
    faults = list[Problem]()
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        faults.append(Problem("E725", "name", "is not the name of a folder", value=name, allowed=_NAME_ALLOWED))
    for is_unread, keys, kind in (
        (settings["is_grid"], ("trials", "sampler", "seed"), "on a grid"),
        (settings["pruner"] is None, ("startup_trials", "warmup_steps"), "without a pruner"),
    ):
        unread = [key for key in keys if is_unread and settings[key] is not None]
        faults += [Problem("E725", key, f"has no effect {kind}", value=settings[key]) for key in unread]
    wanted = _description(plan, tuple(dimensions), settings)
    first = checking.checked(plan, wanted, faults).job
    own = f"sweep-{wanted.digest[:_DIGITS]}"
    files = SweepFolder(
        first.base_results_dir.absolute() / (name or job_name(first.config["recipes"]["run"]["name"], own))
    )
    if (files.path / SWEEP_FILE).exists():
        return _continued(files, wanted)
    if files.path.exists():
        raise fail("E721", str(files.path), "exists already, and is not a sweep", remedy="another name")
    bundles.refuse_unwritable(files.path)
    tags = {"sweep": files.path.name, "objective": wanted.objective or ""}
    if parent := tracking.start_parent(first, plan.context, files.path.name, tags):
        wanted = dataclasses.replace(wanted, parent_run=(parent.tracking_uri, parent.run_id))
    files.describe(wanted)
    return Sweep(files.path)


def _description(plan: Plan, dimensions: tuple[Dimension, ...], settings: dict[str, Any]) -> Description:
    """Return the description of a sweep, with the number of its trials.

    Raises:
        ProblemsFound: The grid is too large (E002).
    """
    # NumPy's numbers are numbers.
    settings = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in settings.items()}
    defaults = _DEFAULTS if settings["is_grid"] else _DEFAULTS | _OF_SPACE
    settings |= {key: value for key, value in defaults.items() if settings[key] is None}
    if settings["is_grid"]:
        settings |= {"trials": len(grid_points(dimensions)), "sampler": GRID}
    return Description(plan.overrides, str(plan.context.cwd), dimensions, **settings)


def _continued(files: SweepFolder, wanted: Description) -> Sweep:
    """Return a sweep that exists, with the number of trials and of parallel jobs that are wanted now."""
    known = files.description
    if known.digest != wanted.digest:
        message = "is another sweep: its recipe, values or objective differ"
        raise fail("E721", str(files.path), message, remedy="another name, or the arguments of that sweep")
    changed = dataclasses.replace(known, trials=wanted.trials, parallel=wanted.parallel)
    if changed != known:
        with files.driving():
            files.describe(changed)
    return Sweep(files.path)


def in_folder(results: Path) -> tuple[Sweep, ...]:
    """Return the sweeps of a results folder by name, also those whose records are damaged."""
    with contextlib.suppress(OSError):
        names = sorted(filter(bundles.is_shown, os.listdir(results)))
        return tuple(Sweep(results / name) for name in names if (results / name / SWEEP_FILE).is_file())
    return ()


def of_folder(results: Path, name: str) -> Sweep | None:
    """Return the sweep of a results folder that has a name, without leaving that folder; None if there is none."""
    with contextlib.suppress(OSError):
        if bundles.is_shown(name) and (results / name / SWEEP_FILE).is_file():
            return Sweep(results / name)
    return None


def attach_sweep(sweep: str | os.PathLike[str]) -> Sweep:
    """Return a sweep by its folder, or its name under `results`.

    Raises:
        ProblemsFound: No such sweep exists, or its description is damaged (E721).
    """
    name, results = text_of(sweep, "E721", "sweep"), bundles.RESULTS
    for folder in (Path(name), Path(results, name)):
        if os.path.isfile(folder / SWEEP_FILE):  # Path's own raises for a name that is too long
            found = Sweep(folder.absolute())
            _ = found.description
            return found
    raise fail("E721", name, f"is neither the folder of a sweep nor a sweep under {results}/")


def of_command_line(words: Sequence[str], session: Session) -> Sweep:
    """Return the sweep that a command line with the syntax of Hydra's Optuna sweeper describes.

    Raises:
        ProblemsFound: Every word that is not understood, and every fault that `sweep` finds.
    """
    from launcher.config import search_space  # which imports Hydra

    found = search_space.read(words)
    settings: dict[str, Any] = dict.fromkeys(("objective", "pruner", *_DEFAULTS, *_OF_SPACE))
    settings |= {"direction": DIRECTIONS[0], "parallel": 1, **found.settings}
    is_grid = settings["sampler"] == GRID
    if is_grid:
        settings["sampler"] = None
    try:
        return described(of_words(found.fixed, session), found.dimensions, is_grid=is_grid, **settings)
    except ProblemsFound as error:
        raise ProblemsFound(tuple(map(search_space.as_typed, error.problems)), error.outcome) from error
