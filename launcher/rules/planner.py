"""Notices about `scale_config: auto`: what it planned, and why it has no effect."""

from collections.abc import Iterator

from launcher.common.problems import Notice
from launcher.model.size_plan import spans
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule

_PLANNER = "docs/decisions.md, The planner"


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
    if (plan := planned.checked.size_plan) and plan.accumulated:
        what = f"uneven shares take several passes at {spans(plan.accumulated)} nodes"
        yield notice(
            f"{what}: the training code must split them by micro_train_batch_size, as the built-in code does"
        )


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
