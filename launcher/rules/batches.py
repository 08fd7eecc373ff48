"""The distribution of the samples of one optimizer step at every size, in the recipe or as `auto` planned it."""

import math
from collections.abc import Iterator, Sequence

from launcher.common.problems import Notice, Problem
from launcher.common.texts import counted
from launcher.model.checked_recipe import CheckedRecipe, SizedBatch, SizedRecipe
from launcher.model.config_tree import get, size_of
from launcher.model.family_registry import interface
from launcher.model.job_spec import BatchSplit
from launcher.model.size_plan import spans
from launcher.rules import BATCH, SIZES, MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.batch_remedies import adds_up, is_complete, remedy

_NEEDS = (BATCH, "recipes.trainer", "recipes.distribution", "instance_type", *SIZES)
_CHECKS = "docs/decisions.md, Checks"
_PLANNER = "docs/decisions.md, The planner"
_SOURCE = "AWS, Using elastic training in Amazon SageMaker HyperPod, Uneven Batch Size"


def planned(checked: CheckedRecipe) -> tuple[SizedRecipe, ...]:
    """Return the sizes that the job may take, except those that are themselves faulty."""
    if checked.instance and checked.instance.processes and checked.devices > checked.instance.processes:
        return ()  # reported separately; the arithmetic would only repeat it
    return tuple(scale for scale in checked.sizes if not scale.is_faulty)


def planned_batches(checked: CheckedRecipe) -> tuple[SizedBatch, ...]:
    """Return the batches of the sizes that the job may take."""
    return tuple(found for size in planned(checked) if (found := checked.batch_of(size)))


def _divided(checked: CheckedRecipe) -> tuple[SizedBatch, ...]:
    """Return the batches that can be checked: none while some ranks do not divide into groups."""
    return () if _undivided(checked) else planned_batches(checked)


def _undivided(checked: CheckedRecipe) -> list[SizedRecipe]:
    return [s for s in planned(checked) if s.nodes * checked.devices % s.recipe.ranks_per_sample]


@rule("E220", *_NEEDS, source=_SOURCE)
def ranks_divide(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ranks that share a sample's sequence form complete groups."""
    for size in _undivided(checked)[:1]:
        ranks, group = size.nodes * checked.devices, size.recipe.ranks_per_sample
        found = checked.batch_of(size)
        if found is None or not found.keys.sample_groups or ranks % size.recipe.model_parallel_size:
            return  # the ranks do not form complete replicas: reported separately
        common = math.gcd(*(s.nodes * checked.devices for s in planned(checked)))
        yield problem(
            found.path(found.keys.sample_groups[0]),
            f"{ranks} ranks at {_where(checked, size)} do not divide into groups of {group}",
            value=group,
            allowed=f"a divisor of {common}, which every size's ranks are a multiple of",
        )


@rule("E221", *_NEEDS, source=_SOURCE)
def even_batches_divide(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """train_batch_size = W · micro_train_batch_size · accumulation steps, an integer."""
    batches, undivided = _divided(checked), dict[str, list[SizedBatch]]()
    for each in batches:
        if not each.uneven and not adds_up(each):
            undivided.setdefault(_batch_path(checked, each), []).append(each)
    for path, (first, *more) in undivided.items():
        total = first.batch.train_batch_size
        is_own = path.endswith(first.keys.train_batch_size)
        its = "" if is_own else f"size {first.size.nodes} has no batch of its own: "
        yield problem(
            path,
            f"{its}{total} samples per step are not a multiple of {first.data_parallel_size} data-parallel ranks"
            f" × micro batch {first.batch.micro_train_batch_size} at {_where(checked, first.size)}{_nor_at(more)}",
            value=total,
            remedy=remedy(checked, batches, [first, *more]),
        )


@rule("E222", *_NEEDS, source=_SOURCE)
def uneven_batches_are_complete(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """0 < ranks with the small share < W, and 1 <= small <= large."""
    batches = _divided(checked)
    for each in batches:
        if not each.uneven or is_complete(each):
            continue
        key, mended = each.keys.uneven_batch, remedy(checked, batches, [each])
        split, size = each.split, each.data_parallel_size
        if split is None:
            missing = [name for name, value in each.uneven.model_dump().items() if value is None]
            yield problem(each.path(key), f"lacks {', '.join(missing)}", remedy=mended)
            continue
        if not 0 < split.num_small < size:
            yield problem(
                each.path(f"{key}.num_dp_groups_with_small_batch_size"),
                f"{split.num_small} of {size} ranks cannot take the small share at {_where(checked, each.size)}",
                value=split.num_small,
                allowed=f"1 to {size - 1}",
                remedy=mended,
            )
        if not 1 <= split.small <= split.large:
            yield problem(
                each.path(f"{key}.small_local_batch_size"),
                f"small {split.small} and large {split.large} are not in order",
                value=split.small,
                allowed=f"1 to {split.large}",
                remedy=mended,
            )


@rule("E223", *_NEEDS, source=_SOURCE)
def uneven_batches_add_up(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """train_batch_size = small · num_small + large · (W - num_small)."""
    wrong: dict[str, list[tuple[SizedBatch, BatchSplit]]] = {}
    batches = _divided(checked)
    for each in batches:
        split, size = each.split, each.data_parallel_size
        if not split or not 0 < split.num_small < size or split.samples(size) == each.batch.train_batch_size:
            continue
        batch_path = f"recipes.{each.keys.train_batch_size}"
        path = batch_path if checked.is_explicit(batch_path) else each.path(each.keys.uneven_batch)
        wrong.setdefault(path, []).append((each, split))
    for path, ((first, split), *more) in wrong.items():
        size = first.data_parallel_size
        yield problem(
            path,
            f"{split.num_small}·{split.small} + {size - split.num_small}·{split.large} = {split.samples(size)},"
            f" but train_batch_size is {first.batch.train_batch_size} at {_where(checked, first.size)}"
            f"{_nor_at([each for each, _ in more])}",
            remedy=remedy(checked, batches, [first, *(each for each, _ in more)]),
        )


@rule("E224", *_NEEDS, source=_PLANNER)
def some_size_is_planned(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A planned job needs at least one size at which each rank gets a sample."""
    policy, keys = checked.elastic, checked.recipe.keys.batch
    if checked.size_plan is None or policy is None or keys is None or checked.sizes:
        return
    if checked.size_plan.entries:
        yield problem("recipes.scale_config", "every planned size is removed", value="auto")
        return
    if policy.min_nodes > policy.max_nodes:
        return
    plan, group, devices = checked.size_plan, checked.recipe.ranks_per_sample, checked.devices
    unit = group // math.gcd(devices, group)
    first = -(-policy.min_nodes // unit) * unit
    # A step leads to every size, so that each must be planned.
    last = max(plan.starved) if plan.starved and policy.replica_increment_step else first
    samples, needed = plan.basis.samples, last * devices // group
    changes = [] if first <= policy.max_nodes else [f"recipes.elastic_policy.max_nodes={first}"]
    changes += [f"recipes.{keys.train_batch_size}={needed} or more"] if needed > samples else []
    yield problem(
        "recipes.scale_config",
        f"no size from {policy.min_nodes} to {policy.max_nodes} nodes × {devices} devices can be planned:"
        f" at least {first * devices // group} data-parallel ranks, each of {counted(group, 'device')},"
        f" {samples} samples per step",
        value="auto",
        remedy="omit the step" if policy.replica_increment_step and plan.undivided else " ".join(changes),
    )


@rule("E225", *_NEEDS, source=_PLANNER)
def every_step_is_planned(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The operator may use any size that a step leads to, so none can be omitted."""
    step = checked.elastic and checked.elastic.replica_increment_step
    if not step or checked.size_plan is None or not checked.size_plan.entries:
        return
    plan, path = checked.size_plan, "recipes.elastic_policy.replica_increment_step"
    asked = [key for key, value in checked.entries.items() if value is None]
    if missing := (*plan.starved, *plan.undivided):
        last = list(plan.entries)[-1]
        remedy = f"recipes.elastic_policy.max_nodes={last}" if not plan.undivided else "omit the step"
        yield problem(
            path, f"leads to sizes that cannot be planned: {spans(sorted(missing))}", value=step, remedy=remedy
        )
    if plan.slower or asked:
        yield problem(
            path,
            "leads to every size from min_nodes on, so none can be omitted",
            value=step,
            remedy="omit the step" if plan.slower else f"keep size {', '.join(asked)}",
        )


@rule("E226", *_NEEDS, source=_PLANNER)
def corrected_sizes_are_planned(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """An override for a single size must name a planned size."""
    if checked.size_plan is None or not checked.is_elastic:
        return
    for key in checked.entries:
        if size_of(key) and key not in checked.size_plan.entries:
            yield problem(
                f"recipes.scale_config.{key}",
                "is not among the planned sizes",
                value=key,
                allowed=spans(map(int, checked.size_plan.entries)),
            )


def _where(checked: CheckedRecipe, size: SizedRecipe) -> str:
    return f"{counted(size.nodes, 'node')} × {checked.devices} devices" + (
        f" of {checked.instance.name}" if checked.instance else ""
    )


def _batch_path(checked: CheckedRecipe, each: SizedBatch) -> str:
    """Return the path where a batch that does not divide is set; for a size without one, in its own entry."""
    keys = each.keys
    is_stated = any(get(each.size.own, key) is not None for key in keys.dealt_by)
    chosen = (f"recipes.{keys.train_batch_size}", f"recipes.{keys.micro_train_batch_size}")
    if each.size.path == "recipes" or is_stated or any(map(checked.is_explicit, chosen)):
        return each.path(keys.train_batch_size)
    return each.size.path


def _nor_at(batches: Sequence[SizedBatch]) -> str:
    return f"; it fails at {spans(each.size.nodes for each in batches)} nodes too" if batches else ""


@notice_rule("N105", source=_CHECKS, is_usual=True)
def elasticity_changes_training(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Making a job elastic replaces its static batch and learning rate, which changes the training."""
    checked = planned.checked
    if not checked.is_explicit("recipes.elastic_policy.is_elastic") or not checked.is_elastic:
        return
    static, keys, changed = checked.recipe.batch, checked.recipe.keys.batch, []
    if static is None or keys is None:
        return
    for key, value in (
        (keys.train_batch_size, static.train_batch_size),
        (keys.learning_rate, static.learning_rate),
    ):
        values = {get(point.config, key) for point in planned.job.scales}
        if values != {value}:
            changed.append(f"{key.rpartition('.')[2]} {value} → {', '.join(map(str, sorted(values)))}")
    if changed:
        yield notice(f"elastic sizes change {', '.join(changed)}")


@notice_rule("N106", source=_CHECKS)
def samples_per_step_differ(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Samples per step differ between sizes, so a scale event changes the training."""
    sizes = planned.job.scales
    if len({point.samples_per_step for point in sizes}) > 1:
        counts = ", ".join(f"{point.samples_per_step} at {point.nodes}" for point in sizes)
        yield notice(f"samples per optimizer step differ between sizes: {counts}")
    rates = {point.nodes: point.learning_rate for point in sizes}
    if len(set(rates.values())) > 1:
        yield notice(
            f"learning rates differ between sizes: {', '.join(f'{rate} at {n}' for n, rate in rates.items())}"
        )


@notice_rule("N109", source=_PLANNER, is_usual=True)
def sizes_are_derived(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """scale_config: auto derives the sizes from these numbers, with their sources."""
    if plan := planned.checked.size_plan:
        yield notice(f"planned from {plan.basis.description}")


@notice_rule("N110", source=_PLANNER)
def starved_sizes_are_left_out(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """At these sizes some rank would get no sample of a step."""
    if (plan := planned.checked.size_plan) and plan.starved:
        why = f"some rank would get none of the {plan.basis.samples} samples"
        yield notice(f"{spans(plan.starved)} nodes are omitted: {why}")


@notice_rule("N111", source=_PLANNER)
def undivided_sizes_are_left_out(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Ranks that share a sample form complete groups, which these sizes do not allow."""
    if (plan := planned.checked.size_plan) and plan.undivided:
        why = "their ranks do not form complete sequence-parallel groups"
        yield notice(f"{spans(plan.undivided)} nodes are omitted: {why}")


@notice_rule("N112", source=_PLANNER)
def slower_sizes_are_left_out(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The largest local batch is as large as at a smaller size, so more nodes save no time."""
    if (plan := planned.checked.size_plan) and plan.slower:
        yield notice(f"{spans(plan.slower)} nodes are omitted: no faster than smaller ones")


@notice_rule("N113", source=_PLANNER)
def uneven_shares_take_several_passes(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Uneven shares beyond the memory bound take several passes, which training code must support."""
    if planned.checked.size_plan is None and interface(planned.checked).cuts_uneven_shares:
        return
    steps = {point.nodes: point.batch for point in planned.job.scales if point.batch}
    if sizes := [nodes for nodes, step in steps.items() if not step.split.is_even and step.grad_accumulation > 1]:
        what = f"uneven shares take several passes at {spans(sizes)} nodes"
        yield notice(
            f"{what}: the training code must split them by micro_train_batch_size, as the built-in code does"
        )


@notice_rule("N137", source=_PLANNER)
def micro_batches_do_not_cut_uneven_shares(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An uneven share is one pass unless its size sets the micro batch, so the base value saves no memory there."""
    checked, keys = planned.checked, planned.checked.recipe.keys.batch
    if keys is None:
        return
    passes = {point.nodes: point.batch.micro_batch_size for point in planned.job.scales if point.batch}
    found = [
        each
        for each in planned_batches(checked)
        if each.uneven and each.batch.micro_train_batch_size < passes[each.size.nodes]
    ]
    if not found or not checked.composition.is_given(f"recipes.{keys.micro_train_batch_size}"):  # reads files: last
        return
    name, micro = keys.micro_train_batch_size.rpartition(".")[2], found[0].batch.micro_train_batch_size
    sizes = spans(each.size.nodes for each in found)
    what = f"{name}={micro} does not split the uneven shares at {sizes} nodes, which take one pass"
    single = [each for each in found if each.size.path != "recipes"]
    own = " ".join(f"{each.own_path(keys.micro_train_batch_size)}={micro}" for each in single)
    without = " ".join(f"~{each.size.path}" for each in single)
    how = f"; to split them, if the training code does: {own}; to leave the sizes out: {without}"
    yield notice(what + (how if single else ""))


@notice_rule("N124", source=_PLANNER)
def a_static_job_has_one_size(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """auto plans the sizes of a job; a static job has only one."""
    if planned.checked.size_plan and not planned.checked.is_elastic:
        how = "++recipes.elastic_policy.is_elastic=true makes it elastic"
        yield notice(f"the job is static, so auto plans a single size: {how}")


@notice_rule("N115", source=_PLANNER)
def planner_is_without_effect(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """recipes.planner is set, but nothing is planned without scale_config: auto."""
    if planned.checked.recipe.planner and planned.checked.size_plan is None:
        yield notice("recipes.planner has no effect: scale_config is not auto")
