"""Notices about jobs on this machine."""

from collections.abc import Iterator

from launcher.backends.local.simulation import local_options
from launcher.common.problems import Notice
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule

_OF_CHECKPOINTS = ("slow_checkpoint", "bit_rot")


@notice_rule("N192", source="docs/rehearsal.md")
def events_have_no_effect(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Workers that stay save no checkpoint when the job changes its size, and load none after a fault."""
    job = planned.job
    if job.in_place_timeout_s is None or not local_options(job).has_scenario:
        return
    from launcher.backends.local.scenario_files import resolve

    scenario, _ = resolve(job)
    events = scenario.events if scenario else []
    if found := [key for key in _OF_CHECKPOINTS if any(getattr(event, key) for event in events)]:
        yield notice(
            f"{' and '.join(found)} of the scenario: no effect while the workers stay, since they save and load no"
            " checkpoint; to see it: recipes.elastic_policy.resize=restart"
        )
