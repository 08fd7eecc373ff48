"""Whether the chosen instance type exists, suits the recipe and has the devices."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from launcher.common.problems import Problem
from launcher.common.suggestions import did_you_mean
from launcher.families import interface
from launcher.model import instance_specs, instances
from launcher.model.checked_recipe import CheckedRecipe
from launcher.rules import rule

_TABLE = "launcher/model/instances.csv"
_SPECS = instance_specs.KEY
_UNKNOWN = "is not an instance type of the table"
_NAME = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")


@rule("E230", "instance_type", "recipes.instance_types", _SPECS, source=_TABLE)
def instance_is_known(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The devices of a type decide the batch; one that the table lacks is described by the recipe."""
    if (
        checked.backend == "local"
        or checked.instance is not None
        or _is_described(checked, checked.launch.instance_type)
    ):
        return
    name = instances.canonical(checked.launch.instance_type)
    yield problem(
        "instance_type",
        _UNKNOWN,
        value=checked.launch.instance_type,
        allowed=f"{_allowed_words(checked)}; or describe it: '++{_SPECS}=[{_example(name)}]'",
        remedy=did_you_mean(name, _allowed(checked) or list(instances.table())),
    )


@rule("E231", "instance_type", "recipes.instance_types", _SPECS, source="the recipe's own instance_types")
def instance_is_listed(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A recipe lists what it was tried on; its batch fits in those devices' memory."""
    allowed, lack = _allowed(checked), _lack(checked)
    if checked.instance and allowed and checked.instance.name not in allowed:
        remedy = f'"recipes.instance_types=[{checked.instance.name}]" if you know that it fits'
        yield problem(
            "instance_type",
            "is not among the recipe's instance_types" + (f", and {lack}" if lack else ""),
            value=checked.instance.name,
            allowed=", ".join(allowed),
            remedy=None if lack else remedy,
        )


@rule("E235", "instance_type", "recipes.instance_types", "recipes.run.model_type", _SPECS, source=_TABLE)
def program_finds_its_accelerators(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A program for GPUs fails on an instance without any, after the instance was waited and paid for."""
    allowed, lack = _allowed(checked), _lack(checked)
    if checked.instance and lack and (not allowed or checked.instance.name in allowed):
        kind = interface(checked.recipe.run.model_type).accelerator
        needed = instances.RESOURCES[kind] if kind else None
        fitting = [name for name in allowed if _resource(checked, name) == needed]
        yield problem(
            "instance_type",
            f"{lack}, which {checked.recipe.run.model_type} trains on",
            value=checked.instance.name,
            allowed=", ".join(fitting) or "recipes instances --accelerator NVIDIA lists the types",
        )


@rule("E233", "recipes.instance_types", _SPECS, source=_TABLE)
def listed_instances_are_known(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A misspelt type in a recipe's list would refuse the one that was meant."""
    known = list(instances.table())
    for i, name in enumerate(checked.recipe.instance_types):
        if instances.canonical(name) not in known and not _is_described(checked, name):
            yield problem(
                f"recipes.instance_types.{i}",
                _UNKNOWN,
                value=name,
                allowed=f"recipes instances lists all; {_SPECS} describes others",
                remedy=did_you_mean(instances.canonical(name), known),
            )


@rule("E234", _SPECS, source=_TABLE)
def descriptions_are_complete(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A job depends on these values, so the description of a type gives what the table lacks."""
    specs = checked.recipe.instance_specs or ()
    keys = ", ".join(instance_specs.InstanceSpec.model_fields)
    for i, spec in enumerate(specs):
        if lacking := instance_specs.missing(spec):
            yield problem(
                f"{_SPECS}.{i}",
                f"the description of {spec.name} lacks {', '.join(lacking)}, and so does the table",
                allowed=keys,
                remedy=_example(spec.name),
            )
    for name, count in Counter(instances.canonical(spec.name) for spec in specs).items():
        if count > 1:
            yield problem(_SPECS, f"{name} is described {count} times", allowed="one description of each type")


@rule("E232", "instance_type", "recipes.trainer.devices", _SPECS, source=_TABLE)
def devices_exist(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A node cannot run more processes than it has devices for."""
    if checked.instance and checked.instance.processes and checked.devices > checked.instance.processes:
        yield problem(
            "recipes.trainer.devices",
            f"{checked.instance.name} has {checked.instance.accelerators} accelerators",
            value=checked.devices,
            allowed=f"1 to {checked.instance.processes}",
            remedy=f"recipes.trainer.devices={checked.instance.processes}",
        )


def _lack(checked: CheckedRecipe) -> str:
    """Return in words which accelerators the recipe's program needs and the instance does not have; "" for none."""
    kind = interface(checked.recipe.run.model_type).accelerator
    if checked.instance is None or kind is None or checked.instance.accelerator_resource == instances.RESOURCES[kind]:
        return ""
    has = f"{checked.instance.name} has {checked.instance.accelerator or 'no accelerators'}"
    return f"{has}, not {'NVIDIA GPUs' if kind == 'gpu' else 'Trainium chips'}"


def _resource(checked: CheckedRecipe, name: str) -> str | None:
    instance = checked.instance_of(name)
    return instance.accelerator_resource if instance else None


def _is_described(checked: CheckedRecipe, name: str) -> bool:
    specs = checked.recipe.instance_specs or ()
    return any(instances.canonical(spec.name) == instances.canonical(name) for spec in specs)


def _example(name: str) -> str:
    """Return a description of a type, of any where the name cannot be one."""
    return instance_specs.EXAMPLE % (name if _NAME.fullmatch(instances.canonical(name)) else "p9.48xlarge")


def _allowed(checked: CheckedRecipe) -> list[str]:
    """Return the instance types a recipe may run on: those it lists or describes; none if it may run on any."""
    listed = [instances.canonical(name) for name in checked.recipe.instance_types]
    described = [instances.canonical(spec.name) for spec in checked.recipe.instance_specs or ()]
    return list(dict.fromkeys([*listed, *described])) if listed else []


def _allowed_words(checked: CheckedRecipe) -> str:
    return ", ".join(_allowed(checked)) or f"one of the {len(instances.table())} types that recipes instances lists"
