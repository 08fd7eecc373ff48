"""Whether the chosen instance type exists, suits the recipe and has the devices."""

from collections.abc import Callable, Iterator

from launcher import instances
from launcher.check import Draft
from launcher.nearest import did_you_mean
from launcher.problems import Problem
from launcher.rules import rule

_TABLE = "launcher/instances.yaml"


@rule("E230", "instance_type", "recipes.instance_types", source=_TABLE)
def instance_is_known(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """An instance type that does not exist is refused before a cluster is asked for it."""
    if draft.backend != "local" and draft.instance is None:
        name = instances.canonical(draft.launch.instance_type)
        yield problem(
            "instance_type",
            "is not an instance type this program knows",
            value=draft.launch.instance_type,
            allowed=", ".join(_allowed(draft)),
            remedy=did_you_mean(name, _allowed(draft)),
        )


@rule("E231", "instance_type", "recipes.instance_types", source="the recipe's own instance_types")
def instance_is_listed(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A recipe lists what it was tried on; its batch fits in those devices' memory."""
    if draft.instance and draft.instance.name not in _allowed(draft):
        yield problem(
            "instance_type",
            "is not among the recipe's instance_types",
            value=draft.instance.name,
            allowed=", ".join(_allowed(draft)),
            remedy=f'"recipes.instance_types=[{draft.instance.name}]" if you know that it fits',
        )


@rule("E233", "recipes.instance_types", source=_TABLE)
def listed_instances_are_known(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A misspelt type in a recipe's list would refuse the one that was meant."""
    known = list(instances.table())
    for i, name in enumerate(draft.recipe.instance_types):
        if instances.canonical(name) not in known:
            yield problem(
                f"recipes.instance_types.{i}",
                "is not an instance type this program knows",
                value=name,
                remedy=did_you_mean(instances.canonical(name), known),
            )


@rule("E232", "instance_type", "recipes.trainer.devices", source=_TABLE)
def devices_exist(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A node cannot run more processes than it has devices for."""
    if draft.instance and draft.instance.processes and draft.devices > draft.instance.processes:
        yield problem(
            "recipes.trainer.devices",
            f"{draft.instance.name} has {draft.instance.accelerators} accelerators",
            value=draft.devices,
            allowed=f"1 to {draft.instance.processes}",
            remedy=f"recipes.trainer.devices={draft.instance.processes}",
        )


def _allowed(draft: Draft) -> list[str]:
    """Return the instance types a recipe may run on; one that lists none may run on any."""
    return [instances.canonical(name) for name in draft.recipe.instance_types] or list(instances.table())
