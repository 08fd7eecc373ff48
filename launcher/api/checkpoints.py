"""The size of a recipe's checkpoints and how often to save them, estimated before it is launched."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import rules
from launcher.api.arguments import text_of
from launcher.checkpointing import picture, report
from launcher.checkpointing.architecture import UnknownArchitecture
from launcher.checkpointing.forecast import Forecast, forecast
from launcher.common.problems import Notice, fail, raise_any
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.checkpointing import Estimate
from launcher.model.config_tree import get
from launcher.model.context import LaunchContext
from launcher.model.validation import type_problems
from launcher.planning.job_planner import plan
from launcher.rules.naming import MODEL

_ABOUT_THE_FORECAST = ("N130", "N131", "N132", "N135", "N138")


@dataclass(frozen=True)
class Outlook:
    """A forecast of the checkpoints of one size.

    Args:
        name: The recipe, as the user names it.
        notices: What the user should know of it.
    """

    name: str
    nodes: int
    forecast: Forecast
    notices: tuple[Notice, ...]

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """The report, each line with its style."""
        return report.lines(self.forecast, self.nodes)

    @property
    def as_json(self) -> dict[str, Any]:
        """The report as plain data: sizes in bytes, times in seconds, rates in GB/s a node."""
        return report.as_json(self.forecast, self.nodes) | {"notices": self.notices}

    def draw(self, path: Path | str) -> None:
        """Draw the goodput of the ways to save, as .png or .svg."""
        file = Path(text_of(path, "E709", "path"))
        picture.draw(self.forecast, self.nodes, self.name.rpartition("/")[2], file)


def outlook(
    checked: CheckedRecipe,
    name: str,
    nodes: int,
    given: Mapping[str, float | None],
    config: Path | str | None = None,
) -> Outlook:
    """Return the forecast of a recipe at one size.

    Args:
        given: Values in place of those of the recipe's `checkpointing.estimate`; None leaves them.
        config: A model's config.json, to count parameters from.

    Raises:
        ProblemsFound: A value is not valid, or the number of parameters is unknown (E807).
    """
    file = None if config is None else Path(text_of(config, "E807", "config"))
    expected = _forecast(checked, name, _estimate(checked, given), file)
    notices = rules.notices(checked, plan(checked, LaunchContext.read()), expected)
    return Outlook(name, nodes, expected, tuple(each for each in notices if each.code in _ABOUT_THE_FORECAST))


def failure_rate(rate: float | None, mtbf_hours: float | None, nodes: int) -> float | None:
    """Return the failures of one node per hour, which may be given as the hours between those of the job."""
    if rate is not None and mtbf_hours is not None:
        message = "a node's failure rate and the job's are two forms of the same value"
        raise fail("E801", "recipes checkpoint", message, allowed="one of --failures-per-node-hour and --mtbf-hours")
    if mtbf_hours is not None and not 1e-9 <= mtbf_hours * nodes <= 1e9:
        allowed = "a finite number of hours above 0, from 1e-9 to 1e9 with all nodes together"
        raise fail("E801", "--mtbf-hours", "is not a valid time", value=mtbf_hours, allowed=allowed)
    return 1 / (mtbf_hours * nodes) if mtbf_hours else rate


def _estimate(checked: CheckedRecipe, given: Mapping[str, float | None]) -> Estimate:
    """Return the recipe's estimate, with the given values in its place; parameters without a fraction."""
    section = checked.recipe.checkpointing
    own = section.estimate.model_dump() if section and section.estimate else {}
    said = {key: value for key, value in given.items() if value is not None}
    number = said.get("parameters")
    if isinstance(number, float) and math.isfinite(number):
        said["parameters"] = round(number)
    estimate: Estimate
    estimate, problems = type_problems(Estimate, own | said, "recipes.checkpointing.estimate")
    raise_any(problems)
    return estimate


def _forecast(checked: CheckedRecipe, name: str, estimate: Estimate, config: Path | None) -> Forecast:
    if config is not None and estimate.parameters:
        message = "both the number of parameters and a config.json to count them are given"
        raise fail("E801", "recipes checkpoint", message, allowed="one of --parameters and --config")
    model = get(checked.composition.tree, MODEL)
    if config is None and isinstance(model, str) and model and os.path.isfile(Path(model, "config.json")):
        config = Path(model, "config.json")  # of a model whose folder exists on this machine too
    try:
        expected = forecast(checked, estimate, _read(config) if config else None)
    except UnknownArchitecture as error:
        raise fail("E807", str(config), str(error), remedy="--parameters N") from error
    if expected is None:
        message = "the model's number of parameters is unknown, and so is the size of its checkpoints"
        raise fail("E807", name, message, remedy="--parameters 8e9, or --config FILE, the model's config.json")
    return expected


def _read(path: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fail("E807", str(path), f"cannot be read: {error}") from error
    if not isinstance(tree, Mapping) or not tree:
        raise fail("E807", str(path), "is not a model's config.json")
    return tree
