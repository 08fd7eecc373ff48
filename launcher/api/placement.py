"""The placement of a model-parallel job's ranks, of a recipe or of given numbers."""

from typing import TYPE_CHECKING

from launcher.api.arguments import number_of
from launcher.common.problems import ProblemsFound, fail, raise_any
from launcher.model.parallelism.ranks import Placement, Rank, columns, host_names, spans

if TYPE_CHECKING:
    from launcher.api.composed import Composed
    from launcher.model.checked_recipe import CheckedRecipe

__all__ = ["Placement", "Rank", "columns", "of_numbers", "of_recipe", "placeable", "spans"]

_STRATEGIES = ("cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
_MOST_RANKS = 1 << 16
"""Maximum ranks of a table: one line each, and as many numbers in the groups below it."""
_READ = (
    *("recipes.distribution", "recipes.trainer", "recipes.training_cfg", "recipes.run", "instance_type"),
    *("recipes.elastic_policy", "recipes.scale_config"),
)
"""Keys that determine the placement; other errors of a recipe are left to `recipes check`."""


def of_numbers(
    processes: int, hosts: int = 1, partitions: int = 1, tensor: int = 1, strategy: str = "cluster"
) -> Placement:
    """Return the placement of ranks on hosts with this number of processes each.

    Raises:
        ProblemsFound: The strategy is unknown, or the numbers do not fit (E243, E801).
    """
    if strategy not in _STRATEGIES:
        allowed = ", ".join(_STRATEGIES)
        raise fail("E801", "--strategy", "is not a placement strategy", value=strategy, allowed=allowed)
    for name, number in (("processes", processes), ("hosts", hosts), ("partitions", partitions), ("tensor", tensor)):
        number_of(number, "E801", name)
    world, parts = hosts * processes, partitions * tensor
    _check_count(world)
    if world % parts:
        message = f"{world} ranks are not a multiple of {parts} (partitions × tensor parallel degree)"
        raise fail("E243", "--partitions", message, value=partitions)
    return Placement(host_names(hosts), processes, partitions, tensor, strategy)


def placeable(found: "Composed") -> "CheckedRecipe":
    """Return the typed recipe if the values that determine its placement are valid.

    Raises:
        ProblemsFound: The others, each with its origin.
    """
    from launcher.model.validation import with_origin
    from launcher.planning.check import examine

    checked, problems = examine(found.composition)
    if checked is None:
        raise ProblemsFound(with_origin(found.composition, problems))
    faults = [problem for problem in problems if problem.path.startswith(_READ) and problem.code != "E240"]
    raise_any(with_origin(found.composition, faults))
    return checked


def of_recipe(found: "Composed", checked: "CheckedRecipe") -> Placement:
    """Return the placement of a recipe at the size that is asked for, by default its smallest.

    Raises:
        ProblemsFound: It enables no MPI (E801), or has no such size (E803).
    """
    distribution = getattr(checked.recipe, "distribution", None)
    if distribution is None or not distribution.is_mpi:
        message = "distribution.mpi is not enabled in the recipe: the agent places its ranks"
        raise fail("E801", found.target.name, message, remedy="docs/model-parallelism.md has an example")
    split, tensor = distribution.degrees
    sizes = [scale.nodes for scale in checked.sizes]
    num_hosts = found.target.among(sizes) or min(sizes)
    _check_count(num_hosts * checked.devices)
    return Placement(host_names(num_hosts), checked.devices, split, tensor, distribution.strategy)


def _check_count(num_ranks: int) -> None:
    if num_ranks > _MOST_RANKS:
        allowed = f"at most {_MOST_RANKS}"
        raise fail("E801", "recipes ranks", f"{num_ranks} ranks are too many to print", allowed=allowed)
