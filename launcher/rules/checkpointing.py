"""Checks of checkpoint tiers: against the job, the cluster, each other, and the available time and memory."""

import math
import re
from collections.abc import Iterable, Iterator

from launcher.checkpointing.forecast import GIB, SERVICE_HOST_COPIES, WAYS, memory_needed
from launcher.common.names import DEFAULT_GRACEFUL_TIMEOUT_S
from launcher.common.problems import Notice, Problem
from launcher.common.syntax import bucket_fault
from launcher.model.backend import MemoryKeeper
from launcher.model.backend_registry import choices, described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.family_registry import interface
from launcher.rules import SIZES, MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.elasticity import LIMITS, refuses_elastic
from launcher.runtime.tiers.tier_settings import S3, bucket_and_key

KEY = "recipes.checkpointing"
_CHECKPOINTING = "docs/checkpointing.md"
_PAGE = "AWS, Accelerate your model training with managed tiered checkpointing on Amazon SageMaker HyperPod"
_PREFIX = r"[A-Za-z0-9!_.'()/-]*"
"""Source: Amazon S3, Naming objects: safe characters, without the one that policies take for any other."""
_MINUTE_S = 60
_LEAST_GOODPUT = 0.005
"""Shown as 0 %."""


@rule("E208", *SIZES, KEY, source=LIMITS)
def not_tiered(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Managed tiered checkpointing is tied to one world size."""
    section = checked.recipe.checkpointing
    if section and section.has_tiers:
        tiers = [name for name in ("memory", "persistent") if getattr(section, name)]
        yield from refuses_elastic(checked, problem, f"{KEY}.{tiers[0]}", "managed tiered checkpointing")


@rule("E260", KEY, source=f"{_PAGE}, Best practices")
def frequencies_fit(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A persistent checkpoint is a memory tier's checkpoint that is also written out, so its steps are a multiple."""
    section = checked.recipe.checkpointing
    if not section or not section.memory or not section.persistent:
        return
    often, seldom = section.memory.steps, section.persistent.steps
    if seldom % often:
        near = max(1, round(seldom / often)) * often
        yield problem(
            f"{KEY}.persistent.frequency",
            f"{seldom} steps are not a multiple of the memory tier's {often}",
            value=seldom,
            allowed=f"{often}, {2 * often}, {3 * often}, …",
            remedy=f"{KEY}.persistent.frequency={near}",
        )


@rule("E261", f"{KEY}.persistent", source="Amazon S3, General purpose bucket naming rules")
def path_is_reached(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Checkpoints go to a bucket of S3 or to a folder, which a container knows by an absolute path."""
    path = persistent_path(checked)
    if path is None:
        return
    allowed = "s3://bucket/prefix, or an absolute path such as /fsx/checkpoints"
    if path.startswith(S3):
        bucket, prefix = bucket_and_key(path)
        if fault := bucket_fault(bucket):
            yield problem(f"{KEY}.persistent.path", fault, value=path, allowed=allowed)
        elif not re.fullmatch(_PREFIX, prefix):
            message = "has a prefix with characters that are special in a policy or an address"
            yield problem(f"{KEY}.persistent.path", message, value=path, allowed="letters, digits, and !_.'()-/")
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        yield problem(f"{KEY}.persistent.path", "is not a supported kind of storage", value=path, allowed=allowed)
    elif not (path.startswith("/") or described(checked.backend).files.are_shared(checked.settings)):
        yield problem(f"{KEY}.persistent.path", "must be an absolute path", value=path, allowed=allowed)


@rule("E263", KEY, "cluster", source=f"{_PAGE}, Conclusion")
def cluster_has_memory_tier(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The memory tier is a service of HyperPod on EKS; this machine simulates it."""
    section = checked.recipe.checkpointing
    if section and section.memory and described(checked.backend).memory_tier is None:
        yield problem(
            f"{KEY}.memory",
            f"cluster={described(checked.backend).choice} has no memory tier",
            allowed=choices(lambda each: each.memory_tier is not None),
            remedy=f"{KEY}.memory=null",
        )


@rule("E264", KEY, source="docs/checkpointing.md, The section")
def settings_have_a_tier(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A setting of a missing tier would silently have no effect."""
    section = checked.recipe.checkpointing
    if not section:
        return
    is_s3 = bool(section.persistent and section.persistent.path.startswith(S3))
    memory, s3 = (section.memory, "memory"), (is_s3, "persistent.path=s3://bucket/prefix")
    needs = {
        **{"replicas": memory, "memory_percent": memory, "s3_endpoint": s3, "s3_checksums": s3, "kms_key": s3},
        **{"patience_s": (section.has_tiers, "memory, or .persistent"), "role_arn": s3},
    }
    for key, (has, what) in needs.items():
        value = getattr(section, key)
        if value is not None and not has:
            yield problem(f"{KEY}.{key}", f"has no effect without {KEY}.{what}", value=value)


def persistent_path(checked: CheckedRecipe) -> str | None:
    """Return where the persistent tier writes; None without one."""
    section = checked.recipe.checkpointing
    return section.persistent.path if section and section.persistent else None


@notice_rule("N133", source=_CHECKPOINTING)
def image_reads_the_section(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The program of an image interprets the section itself."""
    recipe = planned.checked.recipe
    is_read = interface(planned.checked).has_own_checkpoints and planned.checked.is_in_container
    if is_read and recipe.checkpointing and recipe.checkpointing.has_tiers:
        yield notice("the image's own program reads recipes.checkpointing; its own key is save_steps")


@notice_rule("N199", source="docs/resize.md")
def copies_are_never_made(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Copies with neighbours are for workers that stay."""
    section = planned.checked.recipe.checkpointing
    if section and section.copy_every and planned.job.in_place_timeout_s is None:
        yield notice(f"{KEY}.copy_every has no effect: the workers of this job do not stay when it changes its size")


@notice_rule("N130", source=_CHECKPOINTING)
def saving_takes_longer_than_stopping(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A scale event waits graceful_shutdown_timeout for a checkpoint; work that is not saved by then is lost."""
    checked, expected = planned.checked, planned.forecast
    policy = checked.elastic
    if expected is None or policy is None or not policy.use_graceful_shutdown:
        return
    given = policy.graceful_shutdown_timeout
    limit, own = (given, "") if given else (DEFAULT_GRACEFUL_TIMEOUT_S, ", the agent's own as none is given")
    late = {n: s for n in expected.sizes if (s := expected.copy_s(n) + expected.persistent_s(n)) > limit}
    if late:
        worst = max(late.values())
        yield notice(
            f"a checkpoint of {_gib(expected.content.total_bytes)} takes up to {worst:.0f} s at {_nodes(late)},"
            f" longer than graceful_shutdown_timeout={limit}{own}: a scale event would lose it"
            f" (at {expected.persistent_rate:g} GB/s a node; see: recipes checkpoint)",
        )


@notice_rule("N131", source=_CHECKPOINTING)
def memory_is_too_small(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A node's memory must hold every checkpoint that the memory tier keeps on it."""
    expected, instance = planned.forecast, planned.checked.instance
    memory = expected.section.memory if expected else None
    if expected is None or memory is None or instance is None:
        return
    section, kept = expected.section, memory.kept
    # The service has a part of the memory for itself; what the pods stage is beside it.
    is_service = described(planned.checked.backend).memory_tier is MemoryKeeper.SERVICE
    copies, in_tier = (SERVICE_HOST_COPIES, 0) if is_service else (1, 1)
    total, percent = instance.memory_gib * GIB, section.memory_percent or 100
    for nodes in expected.sizes:
        size, neighbours = expected.share(nodes).node_written, min(section.num_replicas, nodes - 1)
        need = memory_needed(size, kept, neighbours, copies)
        own = memory_needed(size, kept, neighbours, in_tier)
        if need > total or own > total * percent // 100:
            yield notice(
                f"{kept} checkpoints in memory, their replicas and {copies} host copies need up to {_gib(need)} on a"
                f" node at {nodes} nodes, {_gib(own)} of them in the tier; {instance.name} has {_gib(total)},"
                f" and {percent} % for the tier are {_gib(total * percent // 100)}",
            )


@notice_rule("N138", source=_CHECKPOINTING)
def failures_outrun_saving(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A job that fails before it can save and restart never completes."""
    if (expected := planned.forecast) is None:
        return
    lost = [
        (nodes, way)
        for nodes in expected.sizes
        for way in WAYS
        if (saving := expected.saving(way, nodes)).goodput(saving.interval_s) < _LEAST_GOODPUT
    ]
    for nodes in dict.fromkeys(nodes for nodes, _ in lost):
        ways = "; ".join(way for each, way in lost if each == nodes)
        yield notice(
            f"at {nodes} nodes failures come faster than saving and restarting: 0 % of the time is"
            f" lasting progress ({ways})",
        )


@notice_rule("N132", source=_CHECKPOINTING)
def too_much_work_is_at_risk(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Losing all nodes loses the work since the last save to persistent storage."""
    expected = planned.forecast
    if expected is None or expected.section.max_lost_work_minutes is None:
        return
    section, most = expected.section, expected.section.max_lost_work_minutes
    if section.persistent is None or expected.step_s is None:
        missing = "persistent" if section.persistent is None else "estimate.step_s"
        yield notice(f"max_lost_work_minutes={most:g} has no effect without recipes.checkpointing.{missing}")
        return
    steps = section.persistent.steps
    save_s = max(expected.persistent_s(nodes) for nodes in expected.sizes)
    lost = (steps * expected.step_s + save_s) / _MINUTE_S
    if lost <= most:
        return
    unit = section.memory.steps if section.memory else 1
    fits = int((most * _MINUTE_S - save_s) // expected.step_s) // unit * unit
    how = f"persistent.frequency={fits} suffices" if fits > 0 else f"saving every {unit} steps does not suffice"
    yield notice(
        f"saving to persistent storage every {steps} steps risks {lost:.1f} minutes of work with all nodes,"
        f" more than max_lost_work_minutes={most:g}; {how}",
    )


@notice_rule("N135", source=_CHECKPOINTING)
def saves_overlap(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A save that is still running when the next one is due delays training."""
    expected = planned.forecast
    if expected is None or expected.step_s is None:
        return
    tiers = (
        ("memory", expected.section.memory, expected.memory_s),
        ("persistent", expected.section.persistent, expected.persistent_s),
    )
    for name, tier, seconds in tiers:
        longest = max(map(seconds, expected.sizes))
        if tier and (due_s := tier.steps * expected.step_s) < longest:
            enough = math.ceil(longest / expected.step_s)
            yield notice(
                f"a save to the {name} tier takes about {longest:.0f} s, and the next is due after"
                f" {due_s:.0f} s: {name}.frequency={enough} leaves enough time",
            )


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _nodes(sizes: Iterable[int]) -> str:
    listed = ", ".join(map(str, sizes))
    return f"{listed} node{'' if listed == '1' else 's'}"
