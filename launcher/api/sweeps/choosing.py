"""Who chooses the values of the next trial: a grid, or Optuna, asked and told. Only this module imports optuna."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.api.sweeps.record import PRUNED, STUDY_FILE, SUCCEEDED, Description, Trial
from launcher.common import console
from launcher.common.problems import Problem
from launcher.config.dimensions import Dimension
from launcher.config.dimensions import points as grid_points

INSTALL = "pip install 'recipe-launcher[sweep]'"
_BUSY_TIMEOUT_S = 60
"""How long sqlite waits for another process that reads the study, such as Optuna's dashboard."""


def problems(description: Description) -> tuple[Problem, ...]:
    """Return what is missing here for a sweep."""
    if not _needs_optuna(description) or importlib.util.find_spec("optuna"):
        return ()
    return (Problem("E723", "sweep", "a sampler and a pruner need Optuna, which is not installed", remedy=INSTALL),)


def chooser(description: Description, folder: Path) -> "Grid | Study":
    """Return what chooses the trials of a sweep."""
    return Study(description, folder) if _needs_optuna(description) else Grid(description)


def _needs_optuna(description: Description) -> bool:
    return not description.is_grid or description.pruner is not None


class Grid:
    """Every combination, in order."""

    def __init__(self, description: Description):
        self._points = grid_points(description.dimensions)
        self._next = 0

    def restore(self, trials: Mapping[int, Trial]) -> None:
        """Continue after the last trial on record."""
        self._next = max(trials, default=-1) + 1

    def ask(self) -> tuple[int, tuple[str | float, ...]] | None:
        """Return the number and the values of the next combination; None if none is left."""
        if self._next == len(self._points):
            return None
        number, self._next = self._next, self._next + 1
        return number, self._points[number]

    def prunes(self, number: int, points: Sequence[tuple[int, float]]) -> bool:
        """Return False: a grid without a pruner runs every trial to its end."""
        return False

    def tell(self, trial: Trial) -> None:
        """Do nothing: a grid does not learn."""


class Study:
    """An Optuna study in the sweep's folder. Each trial's number there is its number here.

    Source: Optuna, Ask-and-Tell Interface; `optuna.pruners.MedianPruner`.
    """

    def __init__(self, description: Description, folder: Path):
        with console.without_widgets():
            import optuna
        from sqlalchemy.pool import NullPool

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._dimensions = description.dimensions
        self._points = grid_points(description.dimensions) if description.is_grid else None
        self._left = description.trials
        self._trials_wanted = description.trials
        self._has_pruner = description.pruner is not None
        self._distributions = {each.label: _distribution(optuna, each) for each in description.dimensions}
        arguments = {"poolclass": NullPool, "connect_args": {"timeout": _BUSY_TIMEOUT_S}}
        self._study = optuna.create_study(
            study_name=folder.name,
            storage=optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY_FILE}", engine_kwargs=arguments),
            pruner=_pruner(optuna, description),
            direction=optuna.study.StudyDirection[description.direction.upper()],
            load_if_exists=True,
        )
        self._study.sampler = _sampler(optuna, description, len(self._study.get_trials(deepcopy=False)))

    def restore(self, trials: Mapping[int, Trial]) -> None:
        """End trials of the study that have ended on record, or whose job was never recorded.

        The process that ran the sweep may have ended in whatever way.
        """
        states = self._optuna.trial.TrialState
        self._left = self._trials_wanted - len(trials)
        while self._study.get_trials(deepcopy=False, states=(states.WAITING,)):
            self._study.ask()  # a point of a grid that was not asked for: only a trial that runs can be ended
        for each in self._study.get_trials(deepcopy=False):
            if each.state.is_finished():
                continue
            known = trials.get(each.number)
            if known is None:
                self._study.tell(each.number, state=states.FAIL)
            elif known.is_finished:
                self.tell(known)

    def ask(self) -> tuple[int, tuple[str | float, ...]] | None:
        """Return the number and the values that the sampler chooses; None if no trial is left."""
        if self._left <= 0:
            return None
        if self._points is not None:
            point = self._points[self._trials_wanted - self._left]
            names = self._distributions
            self._study.enqueue_trial(dict(zip(names, point, strict=True)))
        self._left -= 1
        found = self._study.ask(self._distributions)
        return found.number, tuple(found.params[label] for label in self._distributions)

    def prunes(self, number: int, points: Sequence[tuple[int, float]]) -> bool:
        """Report the objective at further steps; return whether the pruner ends the trial at the last one.

        Each of both is a transaction of sqlite: without a pruner, the study keeps the last value only.
        """
        if not self._has_pruner or not points or (frozen := self._frozen(number)).state.is_finished():
            return False
        trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
        for step, value in points:
            if step not in frozen.intermediate_values:
                trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, trial: Trial) -> None:
        """Report the objective of a trial that succeeded or was pruned, or its failure."""
        if self._frozen(trial.number).state.is_finished():
            return
        states = self._optuna.trial.TrialState
        if trial.state == SUCCEEDED and trial.value is not None and math.isfinite(trial.value):
            self._study.tell(trial.number, trial.value)
        else:
            self._study.tell(trial.number, state=states.PRUNED if trial.state == PRUNED else states.FAIL)

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]


def _distribution(optuna: Any, each: Dimension) -> Any:
    if each.choices:
        return optuna.distributions.CategoricalDistribution(each.choices)
    if each.is_int:
        return optuna.distributions.IntDistribution(each.low, each.high, log=each.is_log, step=each.step or 1)
    return optuna.distributions.FloatDistribution(each.low, each.high, log=each.is_log, step=each.step)


def _sampler(optuna: Any, description: Description, past: int) -> Any:
    seed = description.seed + past  # after a resume, the same random numbers would choose the same trials again
    if description.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    # Trials that run count as bad ones: workers side by side do not all choose the same place.
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _pruner(optuna: Any, description: Description) -> Any:
    if description.pruner is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(description.startup_trials, description.warmup_steps)


def texts(dimensions: Sequence[Dimension], values: Sequence[str | float]) -> tuple[str, ...]:
    """Return the overrides of a trial."""
    return tuple(each.word(value) for each, value in zip(dimensions, values, strict=True))


def first(dimensions: Sequence[Dimension]) -> tuple[str, ...]:
    """Return the overrides of one trial, for what all trials share."""
    return texts(dimensions, [each.extremes()[0] for each in dimensions])
