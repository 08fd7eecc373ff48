"""The size with which a job on this machine starts in its scenario."""

from launcher.backends.local.simulation import local_options
from launcher.model.job_spec import JobSpec


def initial_nodes(job: JobSpec) -> int | None:
    """Return the first number of nodes of a job in its scenario; None without one, or if it never gets enough.

    In a scenario a job takes the largest of its sizes that fits, whatever size its recipe starts with.
    """
    if local_options(job).scenario is None and not local_options(job).events:
        return None
    # Start-up time: their pydantic models take 30 ms to build, and most launches have no scenario.
    from launcher.backends.local.rehearsal import Progress, advance, begin
    from launcher.backends.local.scenario_files import resolve

    scenario, problems = resolve(job)
    if scenario is None or problems:
        return None
    cluster = begin(scenario)
    for now_s in sorted({0.0, *(event.at.seconds for event in scenario.events if event.at.seconds is not None)}):
        cluster, _ = advance(cluster, Progress(now_s, 0, 0), 0)
        if fitting := [point.nodes for point in job.scales if point.nodes <= cluster.capacity]:
            return max(fitting)
    return None
