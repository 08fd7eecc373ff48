"""Notices about a training job that SageMaker would accept unchanged."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from launcher.backends.sagemaker import default_values, request
from launcher.common.problems import Notice
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule

_TRAINING_JOBS = "docs/decisions.md, Training jobs of SageMaker"


@notice_rule("N170", source=_TRAINING_JOBS)
def spot_job_saves_nothing(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Spot capacity can be reclaimed at any time, and without checkpoints all work is lost."""
    jobs = request.of_job(planned.job).jobs
    if jobs.spot and not jobs.checkpoints.s3_uri:
        yield notice("spot=true without checkpoints.s3_uri: an interrupted job restarts from its first step")


@notice_rule("N172", source=_TRAINING_JOBS)
def instances_are_not_chosen(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A serverless job runs on instances of AWS's choice, which the plan cannot know."""
    if default_values.is_serverless(request.of_job(planned.job).jobs):
        yield notice("AWS chooses the instances of a serverless job: the plan's instances have no effect")


@notice_rule("N171", source=_TRAINING_JOBS)
def names_become_one(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The toolkit puts names of channels and hyperparameters in capitals, which makes some of them equal."""
    plan = request.of_job(planned.job)
    channels = [channel.name for channel in default_values.channels(plan.jobs)]
    found = [*_alike("channels", "SM_CHANNEL_", [*channels, default_values.RECIPE_CHANNEL])]
    if default_values.has_toolkit(plan):
        found += _alike("hyperparameters", "SM_HP_", default_values.hyperparameters(plan))
    yield from map(notice, found)


def _alike(kind: str, prefix: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a message for names that differ only by case.

    Source: sagemaker-training toolkit 5.1.4, SM_CHANNEL_…
    """
    groups = defaultdict(list)
    for name in names:
        groups[name.upper()].append(name)
    for upper, same in groups.items():
        if len(same) > 1:
            yield f"{kind} {' and '.join(same)} differ only by case: {prefix}{upper} holds one of them"
