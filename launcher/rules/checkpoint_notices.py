"""What a launch says of its checkpoints: where a save will not fit the time, the memory or the risk it is given."""

import math
from collections.abc import Iterable, Iterator

from launcher.checkpointing.forecast import WAYS, Forecast, forecast
from launcher.checkpointing.sizes import GIB, SERVICE_HOST_COPIES, memory_needed
from launcher.common.problems import Notice
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.checkpointing import (
    MEMORY_KEPT,
    MEMORY_STEPS,
    PERSISTENT_STEPS,
    REPLICAS,
    S3,
    Checkpointing,
)

_READS_IT_ITSELF = "llm_finetuning_aws"
_MINUTE_S = 60
_LEAST_GOODPUT = 0.005
"""What is shown as 0 %."""
_AGENTS_TIMEOUT_S = 15
"""What workers have to save where the job says nothing, or 0.

Source: hyperpod-elastic-agent 1.1.3, run.py: --shutdown-timeout.
"""


def notices(checked: CheckedRecipe) -> Iterator[Notice]:
    """Yield what the user should know of a checked recipe's checkpoints."""
    section = checked.recipe.checkpointing
    if section and section.has_tiers:
        yield from _of_tiers(checked, section)
    if (_is_timed(checked) or section) and (expected := forecast(checked)):
        yield from of_forecast(checked, expected)


def of_forecast(checked: CheckedRecipe, expected: Forecast) -> Iterator[Notice]:
    """Yield where a forecast does not fit what the recipe asks for."""
    yield from _too_slow_to_stop(checked, expected)
    yield from _too_large_for_memory(checked, expected)
    yield from _too_little_lasts(expected)
    yield from _too_much_at_risk(expected)
    yield from _too_slow_for_the_pace(expected)


def _of_tiers(checked: CheckedRecipe, section: Checkpointing) -> Iterator[Notice]:
    if checked.recipe.run.model_type == _READS_IT_ITSELF and checked.backend != "local":
        yield Notice(
            "N133", "recipes.checkpointing is for the image's own program to read; save_steps is its own key"
        )
    is_s3 = bool(section.persistent and section.persistent.path.startswith(S3))
    if is_s3 and checked.backend == "k8s" and checked.settings.service_account_name is None:
        yield Notice(
            "N134", "the pods reach the bucket with their node's role: no cluster.service_account_name is given"
        )


def _is_timed(checked: CheckedRecipe) -> bool:
    return bool(checked.elastic and checked.elastic.use_graceful_shutdown)


def _too_slow_to_stop(checked: CheckedRecipe, expected: Forecast) -> Iterator[Notice]:
    if checked.elastic is None or not _is_timed(checked):
        return
    given = checked.elastic.graceful_shutdown_timeout
    limit, own = (given, "") if given else (_AGENTS_TIMEOUT_S, ", the agent's own as none is given")
    late = {n: s for n in expected.sizes if (s := expected.copy_s(n) + expected.persistent_s(n)) > limit}
    if late:
        worst = max(late.values())
        yield Notice(
            "N130",
            f"a checkpoint of {_gib(expected.content.total_bytes)} takes up to {worst:.0f} s at {_nodes(late)},"
            f" longer than graceful_shutdown_timeout={limit}{own}: a scale event would lose it"
            f" (at {expected.persistent_rate:g} GB/s a node; recipes checkpoint says more)",
        )


def _too_large_for_memory(checked: CheckedRecipe, expected: Forecast) -> Iterator[Notice]:
    section = expected.section
    if section.memory is None or checked.instance is None:
        return
    kept = section.memory.retention or MEMORY_KEPT
    replicas = REPLICAS if section.replicas is None else section.replicas
    # The service has a part of the memory for itself; what the pods stage is beside it.
    copies = SERVICE_HOST_COPIES if checked.backend == "k8s" else 1
    total, percent = checked.instance.memory_gib * GIB, section.memory_percent or 100
    for nodes in expected.sizes:
        size, neighbours = expected.share(nodes).node_written, min(replicas, nodes - 1)
        need = memory_needed(size, kept, neighbours, copies)
        own = memory_needed(size, kept, neighbours, 0 if checked.backend == "k8s" else copies)
        if need > total or own > total * percent // 100:
            yield Notice(
                "N131",
                f"{kept} checkpoints in memory, their replicas and {copies} host copies need up to {_gib(need)} on a"
                f" node at {nodes} nodes, {_gib(own)} of them in the tier; {checked.instance.name} has {_gib(total)},"
                f" and {percent} % for the tier are {_gib(total * percent // 100)}",
            )


def _too_little_lasts(expected: Forecast) -> Iterator[Notice]:
    lost = [
        (nodes, way)
        for nodes in expected.sizes
        for way in WAYS
        if (saving := expected.saving(way, nodes)).goodput(saving.interval_s) < _LEAST_GOODPUT
    ]
    for nodes in dict.fromkeys(nodes for nodes, _ in lost):
        ways = "; ".join(way for each, way in lost if each == nodes)
        yield Notice(
            "N138",
            f"at {nodes} nodes failures come faster than saving and restarting: 0 % of all time makes progress that"
            f" lasts ({ways})",
        )


def _too_much_at_risk(expected: Forecast) -> Iterator[Notice]:
    section = expected.section
    most = section.max_lost_work_minutes
    if most is None:
        return
    if section.persistent is None or expected.step_s is None:
        missing = "persistent" if section.persistent is None else "estimate.step_s"
        yield Notice("N132", f"max_lost_work_minutes={most:g} says nothing without recipes.checkpointing.{missing}")
        return
    steps = section.persistent.frequency or PERSISTENT_STEPS
    save_s = max(expected.persistent_s(nodes) for nodes in expected.sizes)
    lost = (steps * expected.step_s + save_s) / _MINUTE_S
    if lost > most:
        unit = (section.memory.frequency or MEMORY_STEPS) if section.memory else 1
        fits = int((most * _MINUTE_S - save_s) // expected.step_s) // unit * unit
        how = (
            f"persistent.frequency={fits} keeps to it"
            if fits > 0
            else f"saving every {unit} steps does not keep to it"
        )
        yield Notice(
            "N132",
            f"saving to persistent storage every {steps} steps risks {lost:.1f} minutes of work with all nodes,"
            f" more than max_lost_work_minutes={most:g}; {how}",
        )


def _too_slow_for_the_pace(expected: Forecast) -> Iterator[Notice]:
    if expected.step_s is None:
        return
    tiers = (
        ("memory", expected.section.memory, MEMORY_STEPS, expected.memory_s),
        ("persistent", expected.section.persistent, PERSISTENT_STEPS, expected.persistent_s),
    )
    for name, tier, default, seconds in tiers:
        steps = tier and (tier.frequency or default)
        longest = max(map(seconds, expected.sizes))
        if steps and steps * expected.step_s < longest:
            enough = math.ceil(longest / expected.step_s)
            yield Notice(
                "N135",
                f"a save to the {name} tier takes about {longest:.0f} s, and the next is due after"
                f" {steps * expected.step_s:.0f} s: {name}.frequency={enough} gives it time",
            )


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"


def _nodes(sizes: Iterable[int]) -> str:
    listed = ", ".join(map(str, sizes))
    return f"{listed} node{'' if listed == '1' else 's'}"
