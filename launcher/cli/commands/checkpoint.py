"""The command that estimates the size of checkpoints and how often to save them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.commands.arguments import AsJson, Overrides, Picture, SizedRecipe
from launcher.cli.output import print_json, say_picture
from launcher.common import console
from launcher.common.problems import fail

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
    from launcher.api import checkpoints
    from launcher.api.composed import composed

    found = composed(recipe, overrides)
    checked = found.checked
    console.show_notice(*found.notices, stderr=True)
    nodes = found.target.among(sizes := [scale.nodes for scale in checked.sizes]) or max(sizes)
    given = {
        "failures_per_node_hour": checkpoints.failure_rate(rate, mtbf, nodes),
        **{"restart_s": restart, "step_s": step, "parameters": parameters},
        **_bandwidths(bandwidth or ()),
    }
    outlook = checkpoints.outlook(checked, found.target.name, nodes, given, config)
    if picture is not None:
        outlook.draw(picture)
    if as_json:
        print_json(outlook.as_json)
        return
    console.say_all(outlook.lines)
    console.show_notice(*outlook.notices)
    say_picture(picture)


def _bandwidths(words: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            rate = float(value)
        except ValueError:
            name = ""
        if name not in _RATES:
            allowed = ", ".join(f"{each}=GB/S" for each in _RATES)
            raise fail("E801", "--bandwidth", "is not a tier with its rate", value=word, allowed=allowed)
        if f"{name}_gb_per_s" in found:
            raise fail("E801", "--bandwidth", "has two rates of one tier", value=word, allowed="one of them")
        found[f"{name}_gb_per_s"] = rate
    return found
