"""The command that shows the placement of a model-parallel job's ranks."""

import json
from collections.abc import Iterator, Sequence
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
from launcher.common.problems import Problem, ProblemsFound, fail

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
    from launcher.cli import ranks_picture
    from launcher.common import console

    numbers = (hosts, processes, partitions, tensor, strategy)
    if recipe is None:
        placement = _of_numbers(*numbers)
    elif any(value is not None for value in numbers):
        message = "a recipe determines its own placement; the options are for use without one"
        raise fail("E801", "recipes ranks", message, remedy=f"recipes ranks {recipe} KEY=VALUE…")
    else:
        placement = _of_recipe(Target.read(recipe), overrides or ())
    if picture is not None:
        ranks_picture.draw(placement, picture)
    if as_json:
        print(json.dumps(_as_json(placement), indent=2))
        return
    console.say_all(_lines(placement))
    if picture is not None:
        console.say(f"picture {console.shown_path(picture)}")


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
    hosts = hosts or 1
    _check_count(hosts * processes)
    world, parts = hosts * processes, (partitions or 1) * (tensor or 1)
    if world % parts:
        message = f"{world} ranks are not a multiple of {parts} (partitions × tensor parallel degree)"
        raise fail("E243", "--partitions", message, value=partitions or 1)
    return Placement(host_names(hosts), processes, partitions or 1, tensor or 1, strategy)


def _of_recipe(target: Target, overrides: Sequence[str]) -> "Placement":
    """Return the placement of a recipe at one of its sizes, by default its smallest.

    Raises:
        ProblemsFound: A key that determines the placement is invalid, or the recipe has no such size.
    """
    from launcher.model.fault_origins import with_origin
    from launcher.model.parallelism.ranks import Placement, host_names
    from launcher.planning.check import examine

    composition = composed(target.name, overrides)
    checked, problems = examine(composition)
    found = problems if checked is None else [p for p in problems if _is_about_ranks(p)]
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


def _is_about_ranks(problem: Problem) -> bool:
    return problem.path.startswith(_READ) and problem.code != "E240"


def _as_json(placement: "Placement") -> dict[str, object]:
    from launcher.model.parallelism.ranks import columns

    return {
        "hosts": placement.hosts,
        "processes_per_host": placement.processes_per_host,
        "world_size": placement.world_size,
        "partitions": placement.partitions,
        "tensor_parallel_degree": placement.tensor,
        "placement_strategy": placement.strategy,
        "replicas": placement.replicas,
        "mp_groups": placement.mp_groups,
        "dp_groups": placement.dp_groups,
        "ranks": [{name: getattr(rank, name) for name in columns(placement)} for rank in placement.ranks],
    }


def _lines(placement: "Placement") -> Iterator[tuple[str, str]]:
    """Yield the table of ranks and the members of each group, each line with its style."""
    from launcher.cli.ranks_picture import title
    from launcher.common.text_table import table
    from launcher.model.parallelism.ranks import columns, spans

    yield title(placement), "bold"
    names = columns(placement)
    rows = [names, *([str(getattr(rank, name)) for name in names] for rank in placement.ranks)]
    right = [i for i, name in enumerate(names) if name != "host"]
    for i, line in enumerate(table(rows, right)):
        yield line, "" if i else "dim"
    for name, groups in (("mp_group", placement.mp_groups), ("dp_group", placement.dp_groups)):
        yield name, "bold"
        yield from ((line, "") for line in table([(str(i), spans(g)) for i, g in enumerate(groups)], right=(0,)))
