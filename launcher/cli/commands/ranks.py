"""The command that shows the placement of a model-parallel job's ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import (
    AsJson,
    Overrides,
    Picture,
    Target,
    complete_recipe,
    composed,
    say_unknown_instance,
)
from launcher.cli.output import print_json, say_picture
from launcher.common import console
from launcher.common.problems import ProblemsFound, fail

if TYPE_CHECKING:
    from launcher.model.parallelism.ranks import Placement

_STRATEGIES = ("cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
_MOST_RANKS = 1 << 16
"""Maximum ranks of a table: one line each, and as many numbers in the groups below it."""
_READ = (
    *("recipes.distribution", "recipes.trainer", "recipes.training_cfg", "recipes.run", "instance_type"),
    *("recipes.elastic_policy", "recipes.scale_config"),
)
"""Keys that determine the placement; other errors of a recipe are left to `recipes check`."""


def ranks(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE[@NODES]]",
            help="A recipe with distribution, or one size of it. Without it, use the options below.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = None,
    hosts: Annotated[int | None, typer.Option(metavar="N", min=1, help="Hosts.")] = None,
    processes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes per host.")] = None,
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Partitions of the model.")] = None,
    tensor: Annotated[int | None, typer.Option(metavar="N", min=1, help="Tensor parallel degree.")] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="cluster, spread, or an order such as PTD.")
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Show the placement of ranks. Host, local rank and both groups of each, for a recipe or for given numbers."""
    from launcher.cli import ranks_report

    numbers = (hosts, processes, partitions, tensor, strategy)
    if recipe is None:
        placement = _of_numbers(*numbers)
    elif any(value is not None for value in numbers):
        message = "a recipe determines its own placement; the options are for use without one"
        raise fail("E801", "recipes ranks", message, remedy=f"recipes ranks {recipe} KEY=VALUE…")
    else:
        placement = _of_recipe(Target.read(recipe), overrides or ())
    if picture is not None:
        ranks_report.draw(placement, picture)
    if as_json:
        print_json(ranks_report.as_json(placement))
    else:
        console.say_all(ranks_report.lines(placement))
        say_picture(picture)


def _of_numbers(
    hosts: int | None, processes: int | None, partitions: int | None, tensor: int | None, strategy: str | None
) -> "Placement":
    from launcher.model.parallelism.ranks import Placement, host_names

    if processes is None:
        remedy = "recipes ranks --hosts 2 --processes 8 --partitions 4"
        raise fail("E801", "recipes ranks", "give a recipe, or the number of processes per host", remedy=remedy)
    strategy = strategy or "cluster"
    if strategy not in _STRATEGIES:
        allowed = ", ".join(_STRATEGIES)
        raise fail("E801", "--strategy", "is not a placement strategy", value=strategy, allowed=allowed)
    hosts, partitions, tensor = hosts or 1, partitions or 1, tensor or 1
    _check_count(hosts * processes)
    world, parts = hosts * processes, partitions * tensor
    if world % parts:
        message = f"{world} ranks are not a multiple of {parts} (partitions × tensor parallel degree)"
        raise fail("E243", "--partitions", message, value=partitions)
    return Placement(host_names(hosts), processes, partitions, tensor, strategy)


def _of_recipe(target: Target, overrides: Sequence[str]) -> "Placement":
    """Return the placement of a recipe at one of its sizes, by default its smallest."""
    from launcher.model.parallelism.ranks import Placement, host_names
    from launcher.model.validation import with_origin
    from launcher.planning.check import examine

    composition = composed(target.name, overrides)
    checked, problems = examine(composition)
    found = problems
    if checked is not None:
        found = [problem for problem in problems if problem.path.startswith(_READ) and problem.code != "E240"]
    if found or checked is None:
        raise ProblemsFound(with_origin(composition, found))
    say_unknown_instance(composition)
    distribution = getattr(checked.recipe, "distribution", None)
    if distribution is None or not distribution.is_mpi:
        message = "distribution.mpi is not enabled in the recipe: the agent places its ranks"
        raise fail("E801", target.name, message, remedy="docs/model-parallelism.md has an example")
    split, tensor = distribution.degrees
    sizes = [scale.nodes for scale in checked.sizes]
    num_hosts = target.among(sizes) or min(sizes)
    _check_count(num_hosts * checked.devices)
    return Placement(host_names(num_hosts), checked.devices, split, tensor, distribution.strategy)


def _check_count(num_ranks: int) -> None:
    if num_ranks > _MOST_RANKS:
        allowed = f"at most {_MOST_RANKS}"
        raise fail("E801", "recipes ranks", f"{num_ranks} ranks are too many to print", allowed=allowed)
