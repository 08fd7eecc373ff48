"""Training jobs of SageMaker: the sources of the data, and the network to reach them."""

from collections import Counter
from collections.abc import Iterator

from launcher.backends.sagemaker import JOBS, request
from launcher.backends.sagemaker.keys import API, jobs_of, sm_rule
from launcher.backends.sagemaker.training_options import SmJobs
from launcher.common.problems import Problem
from launcher.common.syntax import is_below
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.rules import MakeProblem
from launcher.rules.checkpointing import persistent_path

_INPUT = "How Amazon SageMaker Provides Training Information"
_REFUSED_NAMES = {
    request.RECIPE_CHANNEL: "is the name of the recipe's channel",
    **dict.fromkeys((".", ".."), "is not a valid folder name"),
}
"""Names that a channel cannot have, and why."""

PERSISTENT = "recipes.checkpointing.persistent.path"
_DATA = "/opt/ml/input/data"
"""Source: Amazon SageMaker API, Channel: ChannelName."""


@sm_rule("E372", "inputs", "input_mode", more=("recipes.run",), source=f"{API}: Channel, S3DataSource; {_INPUT}")
def modes_suit_their_sources(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each mode reads only some sources; others are refused, or are read in a way that is not intended."""
    jobs = jobs_of(checked)
    for path, channel in request.of_draft(checked).channels.items():
        mode = channel.get("InputMode") or jobs.input_mode
        for key, message, value, allowed in request.misfits(channel, mode):
            yield problem(request.key_of(path, key), message, value=value, allowed=allowed)


@sm_rule("E373", "inputs", source=f"{API}: Channel; {_INPUT}")
def channels_have_one_source(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A channel is a location in S3 or a folder of a file system."""
    inputs = jobs_of(checked).inputs
    if inputs.s3 and inputs.file_system:
        message = "is given together with inputs.s3"
        remedy = f"{JOBS}.inputs.channels accepts both kinds, by name"
        yield problem(f"{JOBS}.inputs.file_system", message, remedy=remedy)
    for name, channel in (inputs.channels or {}).items():
        path = f"{JOBS}.inputs.channels.{name}"
        sources = sum(map(bool, (channel.s3, channel.file_system, channel.dataset_arn)))
        if sources != 1:
            message = "has two sources" if sources else "has no source"
            yield problem(path, message, allowed="one of s3, file_system and dataset_arn")
        elif not channel.s3 and (channel.accept_eula is not None or channel.hub_content_arn):
            yield problem(path, "accept_eula and hub_content_arn apply only to s3")
        if channel.file_system and (channel.distribution != "FullyReplicated" or channel.instance_groups):
            allowed = "neither distribution nor instance_groups"
            yield problem(path, "every host mounts the complete file system", allowed=allowed)


@sm_rule("E374", "inputs", "input_mode", more=("recipes.run",), source=f"{API}: InputDataConfig; {_INPUT}")
def channels_have_their_own_places(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """At most 20 channels, the recipe's included, each with its own folder or FIFOs."""
    jobs = jobs_of(checked)
    found = request.of_draft(checked).channels
    most = 20
    if len(found) + 1 > most:
        message = f"has {len(found)} channels beside that of the recipe's file"
        yield problem(f"{JOBS}.inputs", message, allowed=f"at most {most - 1}")
    names = {path: channel["ChannelName"] for path, channel in found.items()}
    times = Counter(names.values())
    streamed = {names[path] for path, each in found.items() if (each.get("InputMode") or jobs.input_mode) == "Pipe"}
    for path, name in names.items():
        if name in _REFUSED_NAMES:
            yield problem(path, _REFUSED_NAMES[name], value=name, allowed="another name")
        elif times[name] > 1 and ".channels." in path:
            yield problem(path, "is also the name of another channel", value=name)
        base, _, epoch = name.rpartition("_")
        if epoch.isdigit() and base in streamed:
            message = f"is also the name of FIFO {epoch} of channel {base}"
            yield problem(path, message, value=name, allowed="another name")


@sm_rule("E375", "inputs", "vpc", "image_access", source=f"{API}: VpcConfig, TrainingImageConfig")
def networks_are_given(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """File systems and private registries are reached through your own VPC, which needs subnets and groups.

    On this machine a folder takes the place of a file system.
    """
    jobs = jobs_of(checked)
    given = [key for key in ("subnets", "security_group_ids") if getattr(jobs.vpc, key)]
    if len(given) == 1:
        other = "security_group_ids" if given == ["subnets"] else "subnets"
        message = f"is missing: a VPC needs both, not only {given[0]}"
        yield problem(f"{JOBS}.vpc.{other}", message, remedy=f"{JOBS}.vpc.{other}=[…]")
    if given or described(checked.backend).runs_here:
        return
    remedy = f'"{JOBS}.vpc={{subnets:[subnet-…],security_group_ids:[sg-…]}}"'
    for channel in request.channels(jobs).values():
        if "FileSystemDataSource" in channel["DataSource"]:
            message = f"channel {channel['ChannelName']} is a file system, which needs a VPC"
            yield problem(f"{JOBS}.vpc", message, remedy=remedy)
            break
    if jobs.image_access.mode == "Vpc":
        yield problem(f"{JOBS}.vpc", "image_access.mode=Vpc needs a VPC", remedy=remedy)


@sm_rule("E265", "checkpoints", "inputs", more=("recipes.checkpointing",), source=f"{API}: CheckpointConfig, Channel")
def path_outlives_the_container(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Files that a container writes outside the folders that the service keeps are lost with it."""
    path = persistent_path(checked)
    if not path or not path.startswith("/"):
        return
    jobs = jobs_of(checked)
    places = [jobs.checkpoints.local_path or request.CHECKPOINTS] if jobs.checkpoints.s3_uri else []
    places += [
        f"{_DATA}/{channel['ChannelName']}"
        for channel in request.channels(jobs).values()
        if channel["DataSource"].get("FileSystemDataSource", {}).get("FileSystemAccessMode") == "rw"
    ]
    if not any(is_below(path, place) for place in places):
        yield problem(
            PERSISTENT,
            "is not in a folder of the container that is kept: checkpoints would be lost with it",
            value=path,
            allowed=", ".join(f"{place}/…" for place in places) or "s3://bucket/prefix",
            remedy=kept_remedy(jobs, "s3://<bucket>/<folder>"),
        )


def kept_remedy(jobs: SmJobs, uri: str) -> str:
    """Return the words that put checkpoints in the folder that is copied to S3, to `uri` if none is."""
    own = f"{PERSISTENT}={jobs.checkpoints.local_path or request.CHECKPOINTS}"
    return own if jobs.checkpoints.s3_uri else f"{JOBS}.checkpoints.s3_uri={uri} {own}"
