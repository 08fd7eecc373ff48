"""CreateTrainingJob: a checked recipe or a planned job as the request that starts it. Pure.

Source: Amazon SageMaker API 2017-07-24, CreateTrainingJob; how recipes and scripts reach the container: SageMaker
Python SDK 2.257.6, PyTorch(training_recipe=) and Framework.hyperparameters.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.backends.sagemaker import JOBS
from launcher.backends.sagemaker.keys import jobs_of
from launcher.backends.sagemaker.members import s3_uri
from launcher.backends.sagemaker.training_options import Channel, FileSystem, SmJobs
from launcher.common.names import BASE_CONFIG, CONFIG_DIR, ENV_TORCHRUN_PATIENCE
from launcher.common.templating import render_template
from launcher.model import ray_script
from launcher.model.base_model import Model
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import get
from launcher.model.environment import plain_variables
from launcher.model.family_registry import interface
from launcher.model.instances import canonical
from launcher.model.interface import BUNDLE_CONFIGS, CONFIG_MOUNT, Entry, Interface
from launcher.model.job_spec import JobSpec
from launcher.model.parallelism import smp

REQUEST = "request.json"

START = "start.sh"
"""File beside the recipe that starts the program in images that do not start it themselves."""
RAY = "ray.sh"
"""File beside it that starts a host's part of a Ray cluster, in which the first host runs the program."""

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
        processes: Worker processes per instance.
        instance_type: With its `ml.` prefix.
        variables: Environment variables that the family sets for the workers.
        parameters: Hyperparameters that the family's program reads.
        channels: Those of the user and the recipe: dotted path of the key that defines it, to the channel.
    """

    jobs: SmJobs
    tree: Mapping[str, Any] = field(repr=False)
    entry: Entry
    nodes: int
    processes: int
    instance_type: str
    image: str | None
    variables: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def of_draft(checked: CheckedRecipe) -> Plan:
    """Return the inputs for a job that is being checked, as far as they are known."""
    family, jobs = interface(checked), jobs_of(checked)
    return Plan(
        jobs,
        checked.composition.tree,
        family.entry,
        checked.recipe.trainer.num_nodes,
        checked.devices,
        canonical(checked.launch.instance_type or ""),
        checked.launch.container,
        _config_path(family),
        family.hyperparameters(checked.recipe_tree, jobs.role or ""),
        channels=_all_channels(checked, jobs),
    )


def of_job(job: JobSpec) -> Plan:
    """Return the inputs of a planned job's request."""
    family, jobs = interface(job), jobs_of(job)
    return Plan(
        jobs,
        job.config,
        family.entry,
        job.initial_nodes,
        job.nproc_per_node,
        job.resources.instance_type or "",
        job.image,
        {**_config_path(family), **family.workers.env(job)},
        family.hyperparameters(job.recipe_tree, jobs.role or ""),
        _all_channels(job, jobs),
    )


def _config_path(family: Interface) -> dict[str, str]:
    """Return the variable that names the configuration, for a program that reads one."""
    return {family.config_variable: f"{RECIPE_DIR}/{BASE_CONFIG}"} if family.config_variable else {}


def render(job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a job's bundle, path to text; the recipe's channel provides `configs`."""
    plan = of_job(job)
    start = _start_files(job, plan.processes) if is_started(plan) else {}
    request = build(plan, job.name, {**configs, **start})
    return {REQUEST: json.dumps(request, indent=2, ensure_ascii=False) + "\n", **start}


def _start_files(job: JobSpec, processes: int) -> dict[str, str]:
    """Return the files that start a job's program on its hosts."""
    family = interface(job)
    program = family.first.program(job)
    text = render_template(
        "sagemaker/start.sh.j2",
        processes=processes,
        program=program,
        configs=CONFIG_MOUNT,
        ray_file=RAY if family.is_ray else None,
        patience_s=ray_script.PATIENCE_S,
    )
    return {START: text, **({RAY: ray_script.render(job.name, processes, program[0])} if family.is_ray else {})}


def build(plan: Plan, name: str, recipe: Mapping[str, str]) -> dict[str, Any]:
    """Return the request; `recipe` holds the files of the recipe's channel, file name to text."""
    jobs, found = plan.jobs, [*plan.channels.values()]
    if not is_serverless(jobs):  # which runs a recipe of AWS
        found.append(recipe_channel(jobs, name, recipe))
    has_instances = not is_serverless(jobs)
    request = {
        "AlgorithmSpecification": _algorithm(plan) if has_instances else None,
        "HyperParameters": hyperparameters(plan),
        "Environment": environment(plan) if has_instances else None,
        "InputDataConfig": found,
        "OutputDataConfig": {
            "S3OutputPath": jobs.output_path,
            **_given({"KmsKeyId": jobs.output_kms_key, "CompressionType": jobs.output_compression}),
        },
        "ResourceConfig": _resources(plan) if has_instances else None,
        "StoppingCondition": {"MaxRuntimeInSeconds": DEFAULT_MAX_RUNTIME_S, **_api(jobs.stopping_condition)},
        "RetryStrategy": _given({"MaximumRetryAttempts": jobs.max_retries}),
        "CheckpointConfig": _api(jobs.checkpoints),
        "TensorBoardOutputConfig": _api(jobs.tensorboard_config),
        "VpcConfig": _api(jobs.vpc),
        "MlflowConfig": _api(jobs.mlflow),
        "EnableManagedSpotTraining": jobs.spot if has_instances else None,
        "EnableNetworkIsolation": jobs.network_isolation if has_instances else None,
        "EnableInterContainerTrafficEncryption": jobs.encrypt_traffic if has_instances else None,
        "Tags": [{"Key": key, "Value": value} for key, value in (jobs.tags or {}).items()],
    }
    # Source: SDK 2.257.6, PyTorch._setup_for_nova_recipe: a program that is the image's own is not profiled.
    unwatched = {"ProfilerConfig": {"DisableProfiler": True}} if plan.entry is Entry.IMAGE else {}
    return {"TrainingJobName": name, "RoleArn": jobs.role, **_given(request)} | unwatched | members(jobs)


def _algorithm(plan: Plan) -> dict[str, Any]:
    """Return what the instances run."""
    jobs, access = plan.jobs, plan.jobs.image_access
    provider = _given({"TrainingRepositoryCredentialsProviderArn": access.credentials_provider_arn})
    pulled = {"TrainingRepositoryAccessMode": access.mode, "TrainingRepositoryAuthConfig": provider}
    start = ["/bin/bash", f"{RECIPE_DIR}/{START}"]
    return _given(
        {
            "AlgorithmName": jobs.algorithm_name,
            "TrainingImage": plan.image,
            "TrainingInputMode": jobs.input_mode,
            "ContainerEntrypoint": start if is_started(plan) else jobs.container_entrypoint,
            "ContainerArguments": jobs.container_arguments,
            "MetricDefinitions": [_api(metric) for metric in jobs.metric_definitions or ()],
            "TrainingImageConfig": _given(pulled),
            "EnableSageMakerMetricsTimeSeries": jobs.metrics_time_series,
        }
    )


def _resources(plan: Plan) -> dict[str, Any]:
    """Return the instances and their disks."""
    jobs = plan.jobs
    groups = [
        {
            "InstanceGroupName": group.name,
            "InstanceType": canonical(group.instance_type),
            "InstanceCount": group.instance_count,
        }
        for group in jobs.instance_groups or ()
    ]
    one = {"InstanceType": plan.instance_type, "InstanceCount": plan.nodes}
    others = {
        "VolumeSizeInGB": jobs.volume_size_gb,
        "VolumeKmsKeyId": jobs.volume_kms_key,
        "KeepAlivePeriodInSeconds": jobs.keep_alive_s,
        "TrainingPlanArn": jobs.training_plan_arn,
        "InstancePlacementConfig": _api(jobs.placement),
    }
    return {**({"InstanceGroups": groups} if groups else one), **_given(others)}


def is_started(plan: Plan) -> bool:
    """Return whether the launcher itself starts the program in the container, since SageMaker does not."""
    return plan.entry is Entry.LAUNCHER and not plan.jobs.container_entrypoint


def has_toolkit(plan: Plan) -> bool:
    """Return whether the image's sagemaker-training toolkit starts the program and reads the hyperparameters.

    Source: SageMaker Python SDK 2.257.6: `Framework` is for images with the toolkit, `Estimator` for any other.
    """
    if plan.jobs.toolkit is not None:
        return plan.jobs.toolkit
    return plan.entry in (Entry.RECIPE, Entry.SCRIPT) and not is_replaced(plan.jobs)


def is_replaced(jobs: SmJobs) -> bool:
    """Return whether an entrypoint, an algorithm or a serverless recipe of AWS's own replaces the image's program."""
    return bool(jobs.container_entrypoint or jobs.algorithm_name) or is_serverless(jobs)


def is_serverless(jobs: SmJobs) -> bool:
    """Return whether AWS runs a recipe of its own, on instances of its choice."""
    return bool(_api(jobs.serverless))


def recipe_channel(jobs: SmJobs, name: str, recipe: Mapping[str, str]) -> dict[str, Any]:
    """Return the channel that brings the recipe. Its URI contains a digest of its content."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:_HASH_LENGTH]
    place = f"{(jobs.recipe_path or jobs.output_path or '').rstrip('/')}/{name}/recipe/{digest}/"
    return {"ChannelName": RECIPE_CHANNEL, "InputMode": "File", "DataSource": _s3(place)}


def channels(jobs: SmJobs) -> dict[str, dict[str, Any]]:
    """Return the user's channels: those of `inputs.s3`, the file system's, and those of `inputs.channels`.

    Returns:
        Dotted path of the key that defines it, to the channel as a member of InputDataConfig.
    """
    path, inputs = f"{JOBS}.inputs", jobs.inputs
    found: dict[str, dict[str, Any]] = {
        f"{path}.s3.{name}": {"ChannelName": name, "DataSource": _s3(uri)} for name, uri in (inputs.s3 or {}).items()
    }
    if inputs.file_system:
        source = _files(inputs.file_system)
        found[f"{path}.file_system"] = {"ChannelName": DEFAULT_CHANNEL, "InputMode": "File", "DataSource": source}
    for name, channel in (inputs.channels or {}).items():
        members = {
            "ChannelName": name,
            "InputMode": channel.mode or ("File" if channel.file_system else None),
            "DataSource": _source(channel),
            "ContentType": channel.content_type,
            "CompressionType": channel.compression,
            "RecordWrapperType": channel.record_wrapper,
            "ShuffleConfig": None if channel.shuffle_seed is None else {"Seed": channel.shuffle_seed},
        }
        found[f"{path}.channels.{name}"] = {key: value for key, value in members.items() if value is not None}
    return found


def _all_channels(job: CheckedRecipe | JobSpec, jobs: SmJobs) -> dict[str, dict[str, Any]]:
    """Return the user's channels, and those of what the recipe names in S3 unless the user's have the same names."""
    found = channels(jobs)
    own = {each["ChannelName"] for each in found.values()}
    for name, key in interface(job).channels.items():
        uri = get(job.recipe_tree, key)
        if name not in own and isinstance(uri, str) and uri.startswith("s3://"):
            found[f"recipes.{key}"] = {"ChannelName": name, "DataSource": _s3(uri)}
    return found


def key_of(path: str, key: str) -> str:
    """Return the path of a channel's key; a channel that is only a URI has its own path for each."""
    return f"{path}.{key}" if ".channels." in path else path


def _source(channel: Channel) -> dict[str, Any]:
    """Return a channel's DataSource; {} if it has none."""
    if not channel.s3 and channel.file_system:
        return _files(channel.file_system)
    if not channel.s3:
        return {"DatasetSource": {"DatasetArn": channel.dataset_arn}} if channel.dataset_arn else {}
    source = _s3(channel.s3, channel.s3_data_type, channel.distribution)
    lists = {"AttributeNames": channel.attribute_names, "InstanceGroupNames": channel.instance_groups}
    source["S3DataSource"] |= {key: list(value) for key, value in lists.items() if value}
    if channel.accept_eula is not None:
        source["S3DataSource"]["ModelAccessConfig"] = {"AcceptEula": channel.accept_eula}
    if channel.hub_content_arn:
        source["S3DataSource"]["HubAccessConfig"] = {"HubContentArn": channel.hub_content_arn}
    return source


def _s3(uri: str, kind: str = "S3Prefix", distribution: str = "FullyReplicated") -> dict[str, Any]:
    return {"S3DataSource": {"S3DataType": kind, "S3Uri": uri, "S3DataDistributionType": distribution}}


def _files(system: FileSystem) -> dict[str, Any]:
    return {
        "FileSystemDataSource": {
            "FileSystemId": system.id,
            "FileSystemAccessMode": system.access,
            "FileSystemType": "EFS" if system.type == "EFS" else "FSxLustre",
            "DirectoryPath": system.directory_path,
        }
    }


def misfits(channel: Mapping[str, Any], mode: str) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield what a channel's mode, its own or the job's, does not support: key, message, value and allowed values.

    Source: Amazon SageMaker API, Channel and S3DataSource; How Amazon SageMaker Provides Training Information.
    """
    source = channel["DataSource"]
    if "FileSystemDataSource" in source and mode != "File":
        yield "mode", f"{mode} mode reads S3, but a file system is mounted", mode, "File"
    objects = source.get("S3DataSource")
    if objects is None:
        return
    kind, uri, names = objects["S3DataType"], objects["S3Uri"], objects.get("AttributeNames")
    try:
        s3_uri(uri)  # a recipe may have any text
    except ValueError as error:
        yield "s3", str(error), uri, None
    is_augmented = kind == "AugmentedManifestFile"
    if (is_augmented or kind == "ManifestFile") and (uri.endswith("/") or uri.count("/") < _SLASHES):
        yield "s3", f"{kind} must be one object, but this is a folder", uri, "s3://bucket/folder/data.manifest"
    if mode == "FastFile" and kind != "S3Prefix":
        yield "s3_data_type", "FastFile mode supports prefixes only", kind, "S3Prefix"
    elif mode == "FastFile" and not uri.endswith("/"):
        message = "FastFile mode needs a folder, and a prefix without a final slash may end inside a name"
        yield "s3", message, uri, f"{uri}/, or File mode"
    if not is_augmented and names is not None:
        yield "attribute_names", f"belong to an augmented manifest; this is {kind}", names, None
    elif is_augmented and mode != "Pipe":
        yield "s3_data_type", f"{mode} mode cannot read an augmented manifest", kind, "mode: Pipe"
    elif is_augmented and not names:
        yield "attribute_names", "are missing: the attributes of each line to stream", None, "[source-ref, …]"
    for key, member in (("compression", "CompressionType"), ("record_wrapper", "RecordWrapperType")):
        if channel.get(member) not in (None, "None") and mode != "Pipe":
            yield key, f"is for Pipe mode, not for {mode} mode", channel[member], "None"


def environment(plan: Plan) -> dict[str, str]:
    """Return the container's environment variables; `environment` replaces defaults of `env_vars` alone (E383)."""
    patience = {ENV_TORCHRUN_PATIENCE: str(STOP_S)}
    own = {name: text for name, text in (plan.jobs.environment or {}).items() if name not in plan.variables}
    return {**patience, **plan.variables, **plain_variables(plan.tree), **own}


def hyperparameters(plan: Plan) -> dict[str, str]:
    """Return the hyperparameters of the image, the script and the user, each as text.

    Source: How Amazon SageMaker Provides Training Information: `"eta": "0.001"`; SDK 2.257.6, to_json; SDK 3.20.0,
    safe_serialize.
    """
    # The toolkit reads each as JSON, so a quoted text remains a text; any other program reads it unchanged.
    is_json = has_toolkit(plan) and plan.jobs.pysdk_launch_executor != "model_trainer"
    found = {
        name: value if isinstance(value, str) and not is_json else json.dumps(value) for name, value in _values(plan)
    }
    return found | _distribution(plan)


def _values(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield the hyperparameters, except those of the distribution; later ones replace earlier ones."""
    if plan.entry in (Entry.RECIPE, Entry.IMAGE):
        yield "sagemaker_recipe_local_path", f"{RECIPE_DIR}/{BASE_CONFIG}"
    elif plan.entry is Entry.SCRIPT:
        script = get(plan.tree, "recipes.training_cfg")
        if has_toolkit(plan):
            yield "sagemaker_program", script["entry_script"]
            if plan.jobs.source_dir:
                yield "sagemaker_submit_directory", plan.jobs.source_dir
        for name, value in (pair for argument in script["script_args"] or () for pair in argument.items()):
            # The toolkit capitalizes booleans, as Python does; other clusters use lower case, which a text preserves.
            text = str(value).lower() if isinstance(value, bool) else value
            yield name.lstrip("-"), RECIPE_DIR if value == BUNDLE_CONFIGS else text
    yield from plan.parameters.items()
    yield from (plan.jobs.hyperparameters or {}).items()


def _distribution(plan: Plan) -> dict[str, str]:
    """Return how a script's processes are started: by the recipe's distribution, else by torchrun."""
    if plan.entry is not Entry.SCRIPT or not has_toolkit(plan):
        return {}
    tree = get(plan.tree, "recipes.distribution") or {}
    found = smp.hyperparameters(tree, plan.processes, plan.instance_type)
    is_stated = any(get(tree, f"{name}.enabled") is True for name in ("mpi", "smdistributed.dataparallel"))
    if not is_stated and not tree.get("torch_distributed") and plan.nodes * plan.processes > 1:
        found |= {"sagemaker_torch_distributed_enabled": "true"}
        found |= {"sagemaker_instance_type": json.dumps(plan.instance_type)}
    names = [group.name for group in plan.jobs.instance_groups or ()]
    if found and len(names) > 1:  # else each group would train on its own
        found["sagemaker_distribution_instance_groups"] = json.dumps(names)
    return found


def recipe_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a bundle's recipe channel, file name to text."""
    return {
        path.removeprefix(f"{CONFIG_DIR}/"): text
        for path, text in files.items()
        if path in (START, RAY) or path.startswith(CONFIG_DIR)
    }


def members(jobs: SmJobs) -> dict[str, Any]:
    """Return the request's members that come from sections and switches, except those of ResourceConfig."""
    switches = (
        ("RemoteDebugConfig", "EnableRemoteDebug", jobs.remote_debug),
        ("InfraCheckConfig", "EnableInfraCheck", jobs.infra_check),
        ("SessionChainingConfig", "EnableSessionTagChaining", jobs.session_tag_chaining),
    )
    found = {
        "DebugHookConfig": _api(jobs.debugger),
        "ProfilerConfig": _api(jobs.profiler),
        "ExperimentConfig": _api(jobs.experiment),
        "ModelPackageConfig": _api(jobs.model_package),
        "ServerlessJobConfig": _api(jobs.serverless),
        "DebugRuleConfigurations": [_api(rule) for rule in jobs.debugger.rules or ()],
        "ProfilerRuleConfigurations": [_api(rule) for rule in jobs.profiler.rules or ()],
        **{name: {switch: is_on} for name, switch, is_on in switches if is_on is not None},
    }
    return _given(found)


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that have a value; false and 0 are values."""
    return {name: value for name, value in members.items() if value or isinstance(value, bool | int)}


def _api(section: Model) -> dict[str, Any]:
    """Return the given keys of a section by the API's names, without its rules, which have a member of their own."""
    return section.model_dump(by_alias=True, exclude_none=True, exclude={"rules"})


def output_uri(request: Mapping[str, Any]) -> str:
    """Return the URI of a job's output."""
    return f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/output"


def model_uri(request: Mapping[str, Any]) -> str:
    """Return the S3ModelArtifacts of DescribeTrainingJob."""
    is_plain = request["OutputDataConfig"].get("CompressionType") == "NONE"
    return f"{output_uri(request)}/{'model/' if is_plain else 'model.tar.gz'}"
