"""Notices about instance types: of a job that passes every check, and of a type that the table lacks."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from launcher.common.problems import Notice
from launcher.model import instance_specs
from launcher.model.config_tree import get
from launcher.model.instances import Instance, canonical, table

if TYPE_CHECKING:
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.composition import Composition

_LABELS = ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type")
_COMPARED = {
    "accelerators": "accelerators",
    "processes": "processes",
    "efa": "EFA devices",
    "vcpus": "vCPUs",
    "memory_gib": "GiB",
}


def notices(checked: "CheckedRecipe") -> Iterator[Notice]:
    """Yield the notices about a checked job's instance type."""
    if checked.backend == "local":
        yield from unknown(checked.composition)
        return
    if (instance := checked.instance) is None:
        return  # a Problem of its own
    yield from _described(checked, instance)
    yield from _selected(checked)
    nodes = max(scale.nodes for scale in checked.sizes)
    if instance.architecture == "arm64" and checked.backend in ("k8s", "sm_jobs"):
        image = checked.launch.container or "the image"
        yield Notice("N162", f"{instance.name} has arm64 processors: {image} must be built for arm64")
    if instance.use == ("training",) and getattr(checked.settings, "use_hyperpod_pytorch_job", False):
        yield Notice("N163", f"HyperPod clusters have no {instance.name}: it is a type of training jobs")
    if nodes > 1 and instance.accelerators and not instance.efa and checked.backend in ("k8s", "sm_jobs"):
        yield Notice("N164", f"{instance.name} has no EFA: nodes exchange gradients over TCP")


def unknown(composition: "Composition") -> Iterator[Notice]:
    """Yield a notice where a configuration, checked or not, has an instance type that the table lacks."""
    name, specs = composition.tree.get("instance_type"), get(composition.tree, instance_specs.KEY)
    described = [str(get(spec, "name")) for spec in specs] if isinstance(specs, list) else []
    if isinstance(name, str) and canonical(name) not in {*table(), *map(canonical, described)}:
        is_here = composition.backend == "local"
        consequence = "cluster=local does not use it" if is_here else "a launch is refused unless it is described"
        yield Notice("N160", f"instance_type={name} is not an instance type of the table; {consequence}")


def unknown_nodes(instance_types: Iterable[str | None]) -> Iterator[Notice]:
    """Yield a notice of the instance types of a cluster's nodes that the table lacks."""
    if names := sorted({name for name in instance_types if name and canonical(name) not in table()}):
        yield Notice(
            "N160", f"not in the table of instance types: {', '.join(names)}; {instance_specs.KEY} describes them"
        )


def _described(checked: "CheckedRecipe", instance: Instance) -> Iterator[Notice]:
    known = table().get(instance.name)
    if known is None:
        values = ", ".join(f"{getattr(instance, key)} {words}" for key, words in _COMPARED.items())
        yield Notice("N161", f"{instance.name} is not in the table: as described, {values}")
    elif known != instance:
        pairs = ((words, getattr(known, key), getattr(instance, key)) for key, words in _COMPARED.items())
        changed = ", ".join(f"{new} {words}, not {old}" for words, old, new in pairs if old != new)
        yield Notice("N161", f"{instance.name} differs from the table as described: {changed or 'its processors'}")


def _selected(checked: "CheckedRecipe") -> Iterator[Notice]:
    """Yield a notice for each type of a job's node selection that neither the table nor the recipe has."""
    selector = getattr(checked.settings, "label_selector", None)
    for terms in (selector.required, selector.preferred) if selector else ():
        for label in _LABELS:
            for name in (terms or {}).get(label, ()):
                if checked.instance_of(name) is None:
                    yield Notice("N160", f"cluster.label_selector names {name}, which is not in the table")
