"""Checks that the instance type exists, suits the recipe and has the devices, and notices about it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from launcher.common.problems import Notice, Problem
from launcher.common.suggestions import did_you_mean
from launcher.common.texts import counted
from launcher.model import instances
from launcher.model.backend_registry import described, is_serverless
from launcher.model.checked_recipe import PROCESSES, CheckedRecipe
from launcher.model.composition import Composition
from launcher.model.config_tree import get
from launcher.model.family_registry import interface
from launcher.model.recipe import InstanceSpec
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_TABLE = "launcher/model/instances.csv"
_SPECS = instances.SPECS
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_UNKNOWN = "is not an instance type of the table"
_COMPARED = {
    "accelerators": "accelerators",
    "processes": "processes",
    "efa": "EFA devices",
    "vcpus": "vCPUs",
    "memory_gib": "GiB",
}
_KINDS = {"accelerator_resource": "accelerators", "architecture": "processors"}


@rule("E230", "instance_type", "recipes.instance_types", _SPECS, source=_TABLE)
def instance_is_known(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A type's devices determine the batch; the recipe must describe a type that the table lacks."""
    if (
        described(checked.backend).instances is None
        or checked.instance is not None
        or _is_described(checked, checked.launch.instance_type)
    ):
        return
    name, allowed = instances.canonical(checked.launch.instance_type), _allowed(checked)
    types = ", ".join(allowed) or f"one of the {len(instances.table())} types that recipes instances lists"
    yield problem(
        "instance_type",
        _UNKNOWN,
        value=checked.launch.instance_type,
        allowed=f"{types}; or describe it: '++{_SPECS}=[{_example(name)}]'",
        remedy=did_you_mean(name, allowed or list(instances.table())),
    )


@rule("E231", "instance_type", "recipes.instance_types", _SPECS, source="the recipe's own instance_types")
def instance_is_listed(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A recipe lists the types it was tested on; its batch fits into their memory."""
    allowed, lack = _allowed(checked), _lack(checked)
    if checked.instance and allowed and checked.instance.name not in allowed:
        remedy = None if lack else f'"recipes.instance_types=[{checked.instance.name}]" if you know that it fits'
        if not checked.is_explicit("instance_type"):
            fitting = _fitting(checked, allowed)
            remedy = f"instance_type={fitting[0]}" if fitting else None
        yield problem(
            "instance_type",
            "is not among the recipe's instance_types" + (f", and {lack}" if lack else ""),
            value=checked.instance.name,
            allowed=", ".join(allowed),
            remedy=remedy,
        )


@rule("E235", "instance_type", "recipes.instance_types", "recipes.run.model_type", _SPECS, source=_TABLE)
def program_finds_its_accelerators(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A program for GPUs fails on an instance without any, after waiting for the instance and paying for it."""
    allowed, lack = _allowed(checked), _lack(checked)
    if checked.instance and lack and (not allowed or checked.instance.name in allowed):
        fitting = _fitting(checked, allowed)
        yield problem(
            "instance_type",
            f"{lack}, which {checked.recipe.run.model_type} trains on",
            value=checked.instance.name,
            allowed=", ".join(fitting) or "recipes instances --accelerator NVIDIA lists the types",
        )


@rule("E233", "recipes.instance_types", _SPECS, source=_TABLE)
def listed_instances_are_known(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A misspelt type in a recipe's list would exclude the intended one."""
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
def descriptions_are_complete(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job depends on these values, so the description of a type must provide those that the table lacks."""
    specs = checked.recipe.instance_specs or ()
    keys = ", ".join(InstanceSpec.model_fields)
    for i, spec in enumerate(specs):
        if lacking := instances.missing(spec):
            yield problem(
                f"{_SPECS}.{i}",
                f"the description of {spec.name} lacks {', '.join(lacking)}, and so does the table",
                allowed=keys,
                remedy=_example(spec.name),
            )
    for name, count in Counter(instances.canonical(spec.name) for spec in specs).items():
        if count > 1:
            yield problem(_SPECS, f"{name} is described {count} times", allowed="one description of each type")


@rule("E232", "instance_type", *PROCESSES, _SPECS, source=_TABLE)
def devices_exist(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A node cannot run more processes than it has devices for."""
    if checked.instance and checked.instance.processes and checked.devices > checked.instance.processes:
        path = next(filter(checked.is_explicit, reversed(PROCESSES)), "recipes.trainer.devices")
        yield problem(
            path,
            f"{checked.instance.name} has {checked.instance.accelerators} accelerators",
            value=checked.devices,
            allowed=f"1 to {checked.instance.processes}",
            remedy=f"{path}={checked.instance.processes}",
        )


def _fitting(checked: CheckedRecipe, names: Sequence[str]) -> list[str]:
    """Return the instance types that have the accelerators which the recipe's program needs, if it needs any."""
    kind = _accelerator(checked)
    found = [(name, checked.instance_of(name)) for name in names]
    return [
        name
        for name, instance in found
        if kind is None or (instance and instance.accelerator_resource == instances.RESOURCES[kind])
    ]


def _lack(checked: CheckedRecipe) -> str:
    """Describe the accelerators that the recipe's program needs and the instance lacks; "" for none."""
    kind = _accelerator(checked)
    if checked.instance is None or kind is None or checked.instance.accelerator_resource == instances.RESOURCES[kind]:
        return ""
    has = f"{checked.instance.name} has {checked.instance.accelerator or 'no accelerators'}"
    return f"{has}, not {'NVIDIA GPUs' if kind == 'gpu' else 'Trainium chips'}"


def _accelerator(checked: CheckedRecipe) -> str | None:
    """Return the kind of accelerator that the recipe's program needs; None if it runs without."""
    return None if checked.is_rehearsal else interface(checked).accelerator


def _is_described(checked: CheckedRecipe, name: str) -> bool:
    specs = checked.recipe.instance_specs or ()
    return any(instances.canonical(spec.name) == instances.canonical(name) for spec in specs)


def _example(name: str) -> str:
    """Return an example description of a type; of another type if the name is invalid."""
    is_valid = re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", instances.canonical(name))
    return instances.SPEC_EXAMPLE % (name if is_valid else "p9.48xlarge")


def _allowed(checked: CheckedRecipe) -> list[str]:
    """Return the instance types a recipe may run on: those it lists or describes; none if it may run on any."""
    listed = [instances.canonical(name) for name in checked.recipe.instance_types]
    described = [instances.canonical(spec.name) for spec in checked.recipe.instance_specs or ()]
    return list(dict.fromkeys([*listed, *described])) if listed else []


@notice_rule("N160", source=_TABLE)
def instance_types_are_unknown(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An instance type that the table lacks may be a typo, even if nothing uses it."""
    checked = planned.checked
    if described(checked.backend).instances is None:
        yield from unknown(checked.composition)
        return
    selector = getattr(checked.settings, "label_selector", None)
    for terms in (selector.required, selector.preferred) if selector else ():
        for label in instances.INSTANCE_LABELS:
            for name in (terms or {}).get(label, ()):
                if checked.instance_of(name) is None:
                    yield notice(f"cluster.label_selector names {name}, which is not in the table")


def unknown(composition: Composition) -> Iterator[Notice]:
    """Yield a notice if a configuration, checked or not, has an instance type that the table lacks."""
    name, specs = composition.tree.get("instance_type"), get(composition.tree, _SPECS)
    own = [str(get(spec, "name")) for spec in specs] if isinstance(specs, list) else []
    if isinstance(name, str) and instances.canonical(name) not in {
        *instances.table(),
        *map(instances.canonical, own),
    }:
        backend = described(composition.backend)
        unused = f"cluster={backend.choice} does not use it"
        consequence = "a launch is refused unless it is described" if backend.instances else unused
        yield Notice("N160", f"instance_type={name} is not an instance type of the table; {consequence}")


def unknown_nodes(instance_types: Iterable[str | None]) -> Iterator[Notice]:
    """Yield a notice of the instance types of a cluster's nodes that the table lacks."""
    lacking = {name for name in instance_types if name and instances.canonical(name) not in instances.table()}
    if lacking:
        yield Notice(
            "N160", f"not in the table of instance types: {', '.join(sorted(lacking))}; {_SPECS} describes them"
        )


@notice_rule("N161", source=_TABLE)
def description_differs(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The recipe's description of a type overrides the table."""
    instance = planned.checked.instance
    if instance is None:
        return
    known = instances.table().get(instance.name)
    if known is None:
        values = ", ".join(f"{getattr(instance, key)} {words}" for key, words in _COMPARED.items())
        yield notice(f"{instance.name} is not in the table: as described, {values}")
    elif known != instance:
        yield notice(f"{instance.name} differs from the table as described: {', '.join(_changes(known, instance))}")


def _changes(known: instances.Instance, own: instances.Instance) -> Iterator[str]:
    """Yield what a description of a type changes, and what the table has, if it is known."""
    for key, words in (_COMPARED | _KINDS).items():
        old, new = getattr(known, key), getattr(own, key)
        if new != old and new is not None:  # None without accelerators, whose number is named
            yield f"{new} {words}" + ("" if old in (None, "") else f", not {old}")


@notice_rule("N162", source=_TABLE)
def image_must_be_for_arm(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Images are mostly built for x86_64, and do not start on arm64."""
    instance, image = planned.checked.instance, planned.job.image or "the image"
    if instance and instance.architecture == "arm64" and not described(planned.checked.backend).runs_here:
        yield notice(f"{instance.name} has arm64 processors: {image} must be built for arm64")


@notice_rule("N164", source=_TABLE)
def nodes_have_no_efa(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Without EFA the exchange between nodes is many times slower than within one."""
    instance, nodes = planned.checked.instance, planned.job.scales[-1].nodes
    if instance is None or described(planned.checked.backend).runs_here:
        return
    if nodes > 1 and instance.accelerators and not instance.efa:
        yield notice(f"{instance.name} has no EFA: nodes exchange gradients over TCP")


@notice_rule("N103", source="docs/decisions.md, Checks")
def devices_are_lowered(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The instance has fewer accelerators than the recipe's devices; the batch follows the real number."""
    checked, stated = planned.checked, planned.checked.recipe.trainer.devices
    if checked.instance and checked.devices != stated:
        yield notice(f"{checked.devices} processes per node, as {checked.instance.name} has; the recipe has {stated}")


@notice_rule("N128", source=_TABLE)
def accelerators_are_idle(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Accelerators that no process uses are still billed."""
    checked = planned.checked
    idle = checked.instance.accelerators - planned.job.resources.accelerators if checked.instance else 0
    if checked.instance and idle and not is_serverless(checked):
        of = f"{checked.instance.accelerators} accelerators of {checked.instance.name}"
        yield notice(f"{idle} of {of} stay idle: trainer.devices is {checked.devices}")


@notice_rule("N193", source="CUDA C++ Programming Guide, CUDA Environment Variables: CUDA_VISIBLE_DEVICES")
def devices_are_hidden(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Each process uses the device of its number, which the variable may hide from it."""
    checked = planned.checked
    value = (checked.launch.env_vars or {}).get(_VISIBLE)
    if isinstance(value, str | int) and checked.instance and checked.instance.accelerators:
        shown = [each for each in str(value).split(",") if each.strip()]
        if len(shown) < checked.devices:
            devices = counted(len(shown), "device")
            yield notice(f"env_vars.{_VISIBLE}={value} shows {devices} to the {checked.devices} ranks of a node")
