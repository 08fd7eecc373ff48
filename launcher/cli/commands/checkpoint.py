"""The command that estimates the size of checkpoints and how often to save them."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import (
    AsJson,
    Overrides,
    Picture,
    SizedRecipe,
    Target,
    composed,
    say_unknown_instance,
)
from launcher.cli.output import print_json, say_picture
from launcher.common import console
from launcher.common.problems import fail, raise_any

if TYPE_CHECKING:
    from launcher.checkpointing.forecast import Forecast
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.checkpointing import Estimate

_ABOUT_THE_FORECAST = ("N130", "N131", "N132", "N135", "N138")
_RATES = ("copy", "memory", "persistent", "storage")


_Parameters = Annotated[
    float | None,
    typer.Option(metavar="N", min=1, help="Number of saved parameters, such as 70e9, instead of counting."),
]
_Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A model's config.json, to count parameters from.", dir_okay=False),
]
_Failures = Annotated[
    float | None, typer.Option("--failures-per-node-hour", metavar="X", help="Failures of one node per hour.")
]
_Mtbf = Annotated[
    float | None, typer.Option("--mtbf-hours", metavar="H", help="Alternatively, hours between failures of the job.")
]
_Bandwidth = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TIER=GB/S", help="memory, persistent or copy, per node; storage, for all nodes. Repeatable."
    ),
]
_Restart = Annotated[
    float | None, typer.Option("--restart-s", metavar="S", help="Seconds from a failure until training resumes.")
]
_Step = Annotated[float | None, typer.Option("--step-s", metavar="S", help="Seconds of one optimizer step.")]


def checkpoint(
    recipe: SizedRecipe,
    overrides: Overrides = None,
    parameters: _Parameters = None,
    config: _Config = None,
    rate: _Failures = None,
    mtbf: _Mtbf = None,
    bandwidth: _Bandwidth = None,
    restart: _Restart = None,
    step: _Step = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the size of checkpoints and how often to save. Bytes of each rank, the best interval, the goodput."""
    from launcher import rules
    from launcher.checkpointing import picture as pictures
    from launcher.checkpointing import report
    from launcher.model.context import LaunchContext
    from launcher.planning.check import check
    from launcher.planning.job_planner import plan

    target = Target.read(recipe)
    checked = check(composed(target.name, overrides))
    say_unknown_instance(checked.composition)
    sizes = [scale.nodes for scale in checked.sizes]
    nodes = target.among(sizes) or max(sizes)
    given = {"failures_per_node_hour": _rate(rate, mtbf, nodes), "restart_s": restart, "step_s": step}
    given |= {"parameters": _whole(parameters), **_bandwidths(bandwidth or ())}
    expected = _forecast(checked, target.name, _estimate(checked, given), config)
    if picture is not None:
        pictures.draw(expected, nodes, target.name.rpartition("/")[2], picture)
    job = plan(checked, LaunchContext.read())
    found = [notice for notice in rules.notices(checked, job, expected) if notice.code in _ABOUT_THE_FORECAST]
    if as_json:
        print_json(report.as_json(expected, nodes) | {"notices": found})
        return
    console.say_all(report.lines(expected, nodes))
    for notice in found:
        console.show_notice(notice)
    say_picture(picture)


def _rate(rate: float | None, mtbf_hours: float | None, nodes: int) -> float | None:
    """Return the failures of one node per hour."""
    if rate is not None and mtbf_hours is not None:
        message = "a node's failure rate and the job's are two forms of the same value"
        raise fail("E801", "recipes checkpoint", message, allowed="one of --failures-per-node-hour and --mtbf-hours")
    if mtbf_hours is not None and not 1e-9 <= mtbf_hours * nodes <= 1e9:
        allowed = "a finite number of hours above 0, from 1e-9 to 1e9 with all nodes together"
        raise fail("E801", "--mtbf-hours", "is not a valid time", value=mtbf_hours, allowed=allowed)
    return 1 / (mtbf_hours * nodes) if mtbf_hours else rate


def _whole(number: float | None) -> float | None:
    """Return a number without its fraction; anything else unchanged, for validation to refuse."""
    return round(number) if number is not None and math.isfinite(number) else number


def _bandwidths(words: Sequence[str]) -> dict[str, float]:
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            rate = float(value)
        except ValueError:
            name = ""
        if name not in _RATES:
            allowed = ", ".join(f"{each}=GB/S" for each in _RATES)
            raise fail("E801", "--bandwidth", "is not a tier with its rate", value=word, allowed=allowed)
        found[f"{name}_gb_per_s"] = rate
    return found


def _estimate(checked: "CheckedRecipe", given: Mapping[str, Any]) -> "Estimate":
    """Return the recipe's estimate, with the values of the command line in its place."""
    from launcher.model.checkpointing import Estimate
    from launcher.model.validation import type_problems

    section = checked.recipe.checkpointing
    own = section.estimate.model_dump() if section and section.estimate else {}
    said = {key: value for key, value in given.items() if value is not None}
    estimate: Estimate
    estimate, problems = type_problems(Estimate, own | said, "recipes.checkpointing.estimate")
    raise_any(problems)
    return estimate


def _forecast(checked: "CheckedRecipe", name: str, estimate: "Estimate", config: Path | None) -> "Forecast":
    from launcher.checkpointing.architecture import UnknownArchitecture
    from launcher.checkpointing.forecast import forecast
    from launcher.model.config_tree import get
    from launcher.rules.naming import MODEL

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
