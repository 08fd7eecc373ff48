"""The parts of a request for a training job: channels, hyperparameters and variables. Pure.

Source: how recipes and scripts reach the container: SageMaker Python SDK 2.257.6, PyTorch(training_recipe=) and
Framework.hyperparameters.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.backends.sagemaker.keys import jobs_of
from launcher.common.names import BASE_CONFIG
from launcher.families import interface
from launcher.model.config_tree import get
from launcher.model.environment import plain_variables
from launcher.model.instances import canonical
from launcher.model.interface import BUNDLE_CONFIGS, Entry
from launcher.model.parallelism import smp

if TYPE_CHECKING:
    from launcher.backends.sagemaker.training_options import Channel, FileSystem, InstanceGroup, SmJobs
    from launcher.model.checked_recipe import CheckedRecipe

START = "start.sh"
"""File beside the recipe that starts the program in images that do not start it themselves."""

RECIPE_CHANNEL = "recipe"
RECIPE_DIR = f"/opt/ml/input/data/{RECIPE_CHANNEL}"
"""Where the container finds the recipe. Source: SDK 2.257.6, sagemaker_recipe_local_path."""

DEFAULT_CHANNEL = "training"
"""Channel of an unnamed input. Source: SDK 2.257.6, _Job._format_inputs_to_input_config."""

DEFAULT_MAX_RUNTIME_S = 86400
"""Source: StoppingCondition, MaxRuntimeInSeconds: one day, unless the request says otherwise."""

STOP_S = 110
"""Seconds that torchrun (2.12 or later) gives workers after SIGTERM, otherwise 30. SageMaker sends SIGKILL after 120.

Source: Amazon SageMaker API, StopTrainingJob; torch.distributed.run: --shutdown-timeout.
"""

CHECKPOINTS, TENSORBOARD = "/opt/ml/checkpoints", "/opt/ml/output/tensorboard"
"""Folders of the container that are copied to S3. Source: CheckpointConfig, TensorBoardOutputConfig: LocalPath."""

_FSX = "FSxLustre"
_SLASHES = 3
"""Number of slashes in the URI of an object, at least."""
_HASH_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of a request, for a job that is being checked or is planned.

    Args:
        jobs: `cluster.sm_jobs_config`, the estimator's names resolved.
        tree: The complete composed configuration.
        entry: The command that starts the program in the container, from the recipe's family.
        nodes: Number of instances.
        processes: Worker processes per instance.
        instance_type: With its `ml.` prefix.
        variables: Environment variables that the family sets for the workers.
    """

    jobs: "SmJobs"
    tree: Mapping[str, Any] = field(repr=False)
    entry: Entry
    nodes: int
    processes: int
    instance_type: str
    image: str | None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """A channel of the request.

    Args:
        path: Dotted path of the key that defines it; "" for the recipe's own.
        mode: Its own mode; None for the job's.
        source: DataSource of the API.
        more: Its other members, by the API's names.
    """

    name: str
    path: str
    mode: str | None
    source: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)


def of_draft(checked: "CheckedRecipe") -> Plan:
    """Return the inputs for a job that is being checked, as far as they are known."""
    return Plan(
        jobs_of(checked),
        checked.composition.tree,
        interface(checked.recipe.run.model_type, checked.trainer).entry,
        checked.recipe.trainer.num_nodes,
        checked.devices,
        canonical(checked.launch.instance_type or ""),
        checked.launch.container,
    )


def is_started(plan: Plan) -> bool:
    """Return whether the launcher itself starts the program in the container, since SageMaker does not."""
    return plan.entry is Entry.LAUNCHER and not plan.jobs.container_entrypoint


def has_toolkit(plan: Plan) -> bool:
    """Return whether the image's sagemaker-training toolkit starts the program and reads the hyperparameters.

    Source: SageMaker Python SDK 2.257.6: `Framework` is for images with the toolkit, `Estimator` for any other.
    """
    jobs = plan.jobs
    if jobs.toolkit is not None:
        return jobs.toolkit
    if jobs.container_entrypoint or jobs.algorithm_name or is_serverless(jobs):
        return False
    return plan.entry is not Entry.LAUNCHER


def is_serverless(jobs: "SmJobs") -> bool:
    """Return whether AWS runs a recipe of its own, on instances of its choice."""
    return any(value is not None for value in jobs.serverless.model_dump().values())


def groups(jobs: "SmJobs") -> "list[InstanceGroup]":
    """Return the instance groups; none if all instances are of one type."""
    return list(jobs.instance_groups or ())


def recipe_channel(jobs: "SmJobs", name: str, recipe: Mapping[str, str]) -> ChannelPlan:
    """Return the channel that brings the recipe. Its URI contains a digest of its content."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:_HASH_LENGTH]
    place = f"{(jobs.recipe_path or jobs.output_path or '').rstrip('/')}/{name}/recipe/{digest}/"
    return ChannelPlan(RECIPE_CHANNEL, "", "File", _s3(place, "S3Prefix", "FullyReplicated"))


def channels(jobs: "SmJobs") -> list[ChannelPlan]:
    """Return the user's channels: those of `inputs.s3`, the file system's, and those of `inputs.channels`."""
    path, inputs = "cluster.sm_jobs_config.inputs", jobs.inputs
    found = [
        ChannelPlan(name, f"{path}.s3.{name}", None, _s3(uri, "S3Prefix", "FullyReplicated"))
        for name, uri in (inputs.s3 or {}).items()
    ]
    if inputs.file_system:
        found.append(ChannelPlan(DEFAULT_CHANNEL, f"{path}.file_system", "File", _files(inputs.file_system)))
    for name, channel in (inputs.channels or {}).items():
        source = _source(channel)
        mode = channel.mode or ("File" if channel.file_system else None)
        found.append(ChannelPlan(name, f"{path}.channels.{name}", mode, source, _more(channel)))
    return found


def _source(channel: "Channel") -> dict[str, Any]:
    """Return a channel's DataSource; {} if it has none."""
    if channel.file_system and not channel.s3:
        return _files(channel.file_system)
    if channel.dataset_arn and not channel.s3:
        return {"DatasetSource": {"DatasetArn": channel.dataset_arn}}
    if not channel.s3:
        return {}
    source = _s3(channel.s3, channel.s3_data_type, channel.distribution)
    lists = {"AttributeNames": channel.attribute_names, "InstanceGroupNames": channel.instance_groups}
    source["S3DataSource"] |= {key: list(value) for key, value in lists.items() if value}
    if channel.accept_eula is not None:
        source["S3DataSource"]["ModelAccessConfig"] = {"AcceptEula": channel.accept_eula}
    if channel.hub_content_arn:
        source["S3DataSource"]["HubAccessConfig"] = {"HubContentArn": channel.hub_content_arn}
    return source


def _more(channel: "Channel") -> dict[str, Any]:
    seed = channel.shuffle_seed
    members = {
        "ContentType": channel.content_type,
        "CompressionType": channel.compression,
        "RecordWrapperType": channel.record_wrapper,
        "ShuffleConfig": None if seed is None else {"Seed": seed},
    }
    return {name: value for name, value in members.items() if value is not None}


def _s3(uri: str, kind: str, distribution: str) -> dict[str, Any]:
    return {"S3DataSource": {"S3DataType": kind, "S3Uri": uri, "S3DataDistributionType": distribution}}


def _files(system: "FileSystem") -> dict[str, Any]:
    return {
        "FileSystemDataSource": {
            "FileSystemId": system.id,
            "FileSystemAccessMode": system.access,
            "FileSystemType": "EFS" if system.type == "EFS" else _FSX,
            "DirectoryPath": system.directory_path,
        }
    }


def misfits(
    source: Mapping[str, Any], channel: Mapping[str, Any], mode: str
) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield what a channel's mode does not support: the launcher's key, message, value and allowed values.

    Args:
        source: The channel's DataSource.
        channel: Its other members.
        mode: Its own mode, or the job's.

    Source: Amazon SageMaker API, Channel and S3DataSource; How Amazon SageMaker Provides Training Information.
    """
    if "FileSystemDataSource" in source:
        if mode != "File":
            yield "mode", f"{mode} mode reads S3, but a file system is mounted", mode, "File"
        return
    objects = source.get("S3DataSource")
    if objects is None:
        return
    yield from _object_misfits(objects["S3DataType"], objects["S3Uri"], mode)
    yield from _attribute_misfits(objects["S3DataType"], objects.get("AttributeNames"), mode)
    for key, member in (("compression", "CompressionType"), ("record_wrapper", "RecordWrapperType")):
        if channel.get(member) not in (None, "None") and mode != "Pipe":
            yield key, f"is for Pipe mode, not for {mode} mode", channel[member], "None"


def _object_misfits(kind: str, uri: str, mode: str) -> Iterator[tuple[str, str, Any, str | None]]:
    if kind in ("ManifestFile", "AugmentedManifestFile") and (uri.endswith("/") or uri.count("/") < _SLASHES):
        yield "s3", f"{kind} must be one object, but this is a folder", uri, "s3://bucket/folder/data.manifest"
    if mode == "FastFile" and kind != "S3Prefix":
        yield "s3_data_type", "FastFile mode supports prefixes only", kind, "S3Prefix"
    elif mode == "FastFile" and not uri.endswith("/"):
        yield (
            "s3",
            "FastFile mode needs a folder, and a prefix without a final slash may end inside a name",
            uri,
            f"{uri}/",
        )


def _attribute_misfits(kind: str, names: Any, mode: str) -> Iterator[tuple[str, str, Any, str | None]]:
    if kind != "AugmentedManifestFile":
        if names is not None:
            yield "attribute_names", f"belong to an augmented manifest; this is {kind}", names, None
    elif mode != "Pipe":
        yield "s3_data_type", f"{mode} mode cannot read an augmented manifest", kind, "mode: Pipe"
    elif not names:
        yield "attribute_names", "are missing: the attributes of each line to stream", None, "[source-ref, …]"


def environment(plan: Plan) -> dict[str, str]:
    """Return the container's environment variables; `env_vars` overrides `environment`, as published."""
    patience = {"PET_SHUTDOWN_TIMEOUT": str(STOP_S)}
    return {**patience, **(plan.jobs.environment or {}), **plan.variables, **plain_variables(plan.tree)}


def hyperparameters(plan: Plan) -> dict[str, str]:
    """Return the hyperparameters of the image, the script and the user, each as text."""
    is_json = has_toolkit(plan) and plan.jobs.pysdk_launch_executor != "model_trainer"
    encoded = {name: _encoded(value, is_json=is_json) for name, value in _values(plan)}
    return encoded | _distribution(plan)


def _values(plan: Plan) -> Iterator[tuple[str, Any]]:
    if plan.entry is Entry.RECIPE:
        yield "sagemaker_recipe_local_path", f"{RECIPE_DIR}/{BASE_CONFIG}"
    elif plan.entry is Entry.SCRIPT:
        script = get(plan.tree, "recipes.training_cfg")
        if has_toolkit(plan):
            yield "sagemaker_program", script["entry_script"]
            if plan.jobs.source_dir:
                yield "sagemaker_submit_directory", plan.jobs.source_dir
        yield from arguments(script)
    yield from (plan.jobs.hyperparameters or {}).items()


def arguments(script: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a script's arguments as the toolkit's hyperparameters: their names without the leading dashes.

    The toolkit capitalizes booleans, as Python does; other clusters use lower case, which a text preserves.
    """
    for argument in script["script_args"] or ():
        for name, value in argument.items():
            text = str(value).lower() if isinstance(value, bool) else value
            yield name.lstrip("-"), RECIPE_DIR if value == BUNDLE_CONFIGS else text


def _encoded(value: Any, *, is_json: bool) -> str:
    """Return a hyperparameter as text.

    The toolkit reads each as JSON, so a quoted text remains a text; any other program reads it unchanged.

    Source: How Amazon SageMaker Provides Training Information: `"eta": "0.001"`; SDK 2.257.6, to_json; SDK 3.20.0,
    safe_serialize.
    """
    return value if isinstance(value, str) and not is_json else json.dumps(value)


def _distribution(plan: Plan) -> dict[str, str]:
    """Return how a script's processes are started: by the recipe's distribution, else by torchrun."""
    if plan.entry is not Entry.SCRIPT or not has_toolkit(plan):
        return {}
    tree = get(plan.tree, "recipes.distribution") or {}
    found = smp.hyperparameters(tree, plan.processes, plan.instance_type)
    is_stated = _is_enabled(tree, "mpi") or _is_enabled(tree, "smdistributed.dataparallel")
    if not is_stated and not tree.get("torch_distributed") and plan.nodes * plan.processes > 1:
        found |= {"sagemaker_torch_distributed_enabled": "true"}
        found |= {"sagemaker_instance_type": json.dumps(plan.instance_type)}
    names = [group.name for group in groups(plan.jobs)]
    if found and len(names) > 1:  # else each group would train on its own
        found["sagemaker_distribution_instance_groups"] = json.dumps(names)
    return found


def _is_enabled(tree: Mapping[str, Any], section: str) -> bool:
    return get(tree, f"{section}.enabled") is True
