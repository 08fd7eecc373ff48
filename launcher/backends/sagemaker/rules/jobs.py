"""Training jobs of SageMaker: constraints between members of a request, beyond lengths and patterns.

Constraints on a single member are checked in its type (`backends/sagemaker/members.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import attrgetter
from pathlib import PurePosixPath

from launcher.backends.sagemaker import JOBS, constraints, request
from launcher.backends.sagemaker.constraints import ECR_IMAGE, FILE
from launcher.backends.sagemaker.keys import (
    API,
    KWARGS,
    SCRIPT,
    aliases,
    given_jobs,
    jobs_of,
    path_of,
    sm_rule,
)
from launcher.common.problems import Notice, Problem
from launcher.common.secret_forms import holds_credentials
from launcher.common.suggestions import did_you_mean
from launcher.common.syntax import IMAGE_FORM, is_image
from launcher.model import aws_regions
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import leaves
from launcher.model.instances import canonical
from launcher.model.job_spec import OPEN
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.custom import is_script, nodes_key

_DECISIONS = "docs/decisions.md, Training jobs of SageMaker"

_SERVERLESS = ("accept_eula", "technique", "peft", "evaluation_type", "evaluator_arn", "sequence_length")
"""Keys of `serverless` that define how a model is customized or evaluated."""
_OF_CONTAINERS = (
    *("algorithm_name", "checkpoints.s3_uri", "container_arguments", "container_entrypoint", "encrypt_traffic"),
    *("environment", "image_access.mode", "instance_groups", "keep_alive_s", "metric_definitions"),
    *("metrics_time_series", "network_isolation", "placement.multiple_jobs", "placement.specifications"),
    *("source_dir", "spot", "tensorboard_config.output_path", "toolkit", "training_plan_arn", "volume_kms_key"),
)
"""Keys that describe the containers and instances of a job."""
_PLACES = ("output_path", "recipe_path", "inputs", "checkpoints", "tensorboard_config", "debugger", "profiler")
"""Keys that name folders in S3."""


@sm_rule("E370", "role", "output_path", source=f"{API}: required members")
def required_keys_are_given(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job acts as a role and writes its results somewhere; neither has a default. Locally it runs as you."""
    jobs = jobs_of(checked)
    examples = {"output_path": "s3://<bucket>/<folder>"}
    if not described(checked.backend).runs_here:
        examples = {"role": "arn:aws:iam::<account>:role/<name>", **examples}
    for key, example in examples.items():
        if not getattr(jobs, key):
            yield problem(f"{JOBS}.{key}", "is missing: a training job needs it", remedy=f"{JOBS}.{key}={example}")


@sm_rule("E371", "algorithm_name", "serverless", more=("container",), source=f"{API}: AlgorithmSpecification")
def one_image(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job runs an image or an algorithm; given both or neither, it would fail after being accepted.

    On this machine the installed software takes the image's place.
    """
    name, image = jobs_of(checked).algorithm_name, checked.launch.container
    if name and image:
        message = "is given together with an image"
        yield problem(f"{JOBS}.algorithm_name", message, value=name, remedy="container=null")
    needs_none = described(checked.backend).runs_here or request.is_serverless(jobs_of(checked))
    is_missing = not (name or image or needs_none or checked.trainer == OPEN)
    if is_missing and checked.hides_image:
        yield problem("container", "is null or empty, but a job needs an image", value=image, remedy="leave it out")
    elif is_missing:
        remedy = "container=<account>.dkr.ecr.<region>.amazonaws.com/<name>:<tag>"
        yield problem("container", "is missing, and the recipe defines no image", remedy=remedy)
    if image:
        faults = list(constraints.faults(image, "AlgorithmSpecification.TrainingImage"))
        for fault in faults:
            yield problem("container", fault.message, value=fault.value, allowed=fault.allowed)
        if not faults and not is_image(image):
            shown = {} if holds_credentials(image) else {"value": image}
            yield problem("container", "is not an image reference", allowed=IMAGE_FORM, **shown)


@sm_rule("E612", "region", more=("container",), source="Amazon SageMaker, Use your own algorithms: image in ECR")
def regions_agree(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A training job runs in a region that exists, with an image of that region's registry."""
    region, of_image = jobs_of(checked).region, aws_regions.of_image(checked.launch.container or "")
    if region and not aws_regions.exists(region):
        near = did_you_mean(region, aws_regions.known())
        remedy = near or "pip install --upgrade boto3, if it is a new one"
        yield problem(f"{JOBS}.region", "no such region of AWS is known", value=region, remedy=remedy)
    elif region and of_image and of_image != region:
        message = f"the image is in {of_image}: a job takes it from its own region, which is {region}"
        remedy = f"{JOBS}.region={of_image}, or the image of {region}"
        yield problem("container", message, value=checked.launch.container, remedy=remedy)


@sm_rule("E376", "stopping_condition", "spot", source=f"{API}: StoppingCondition, EnableManagedSpotTraining")
def spot_jobs_say_how_long(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A spot job needs a time limit for waiting and training, at least its limit for training; others do not wait."""
    jobs = jobs_of(checked)
    limit = jobs.stopping_condition
    runtime = limit.max_runtime_s or request.DEFAULT_MAX_RUNTIME_S
    path = path_of(checked, "stopping_condition.max_wait_s")
    if jobs.spot and limit.max_wait_s is None:
        remedy = f"{JOBS}.stopping_condition.max_wait_s={runtime}"
        yield problem(path, "is missing: a spot job needs it", remedy=remedy)
    elif limit.max_wait_s is not None and not jobs.spot:
        yield problem(path, "only a spot job waits", value=limit.max_wait_s, remedy=f"{JOBS}.spot=true")
    elif limit.max_wait_s is not None and limit.max_wait_s < runtime:
        message = f"is less than max_runtime_s, {runtime}"
        yield problem(path, message, value=limit.max_wait_s, allowed=f"at least {runtime}")


@sm_rule("E369", *_PLACES, source="docs/sagemaker.md")
def folders_are_of_this_machine(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """file:// names a folder of this machine, which a training job on AWS cannot reach; only AWS reads https://."""
    jobs, is_here = jobs_of(checked), described(checked.backend).runs_here
    for path, value in leaves(jobs.model_dump(include=set(_PLACES), exclude_none=True), JOBS):
        if not isinstance(value, str):
            continue
        if is_here and value.startswith("https://"):
            message = "is not in a store that this machine supports"
            yield problem(path, message, value=value, allowed="s3://bucket/key or file:///path")
        elif not is_here and value.startswith(FILE):
            remedy = "s3://…, or cluster=sm_local"
            yield problem(path, "is a folder of this machine, which the job cannot reach", value=value, remedy=remedy)
    key = "recipe_path" if jobs.recipe_path else "output_path"
    place = getattr(jobs, key) or ""
    if not is_here and place.startswith("https://"):
        path, message, remedy = path_of(checked, key), "is where the recipe is uploaded", f"{JOBS}.{key}=s3://…"
        yield problem(path, message, value=place, allowed="s3://bucket/folder", remedy=remedy)


@sm_rule(
    "E377",
    *("spot", "keep_alive_s", "instance_groups", "training_plan_arn"),
    source=f"{API}: ResourceConfig; SageMaker AI, Managed warm pools, Use training plans",
)
def capacity_is_of_one_kind(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Spot capacity, reserved capacity and warm pools exclude each other; a warm pool has one instance type."""
    jobs = jobs_of(checked)
    if jobs.spot and jobs.keep_alive_s:
        yield problem(path_of(checked, "keep_alive_s"), "spot instances are not kept warm", value=jobs.keep_alive_s)
    if jobs.spot and jobs.training_plan_arn:
        path, message = path_of(checked, "training_plan_arn"), "reserved capacity cannot be spot capacity"
        yield problem(path, message, value=jobs.training_plan_arn, remedy=f"{JOBS}.spot=false")
    if jobs.keep_alive_s and jobs.instance_groups:
        message = "instances of several types are not kept warm"
        yield problem(path_of(checked, "keep_alive_s"), message, value=jobs.keep_alive_s)


@sm_rule(
    "E378",
    *("instance_groups", "inputs", "placement"),
    more=("instance_type", "recipes.trainer", SCRIPT, "recipes.distribution"),
    source=f"{API}: InstanceGroup; SageMaker Python SDK 2.257.6, validate_distribution",
)
def groups_add_up(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Group names are unique, references name existing groups, and the groups add up to the planned instances."""
    jobs, path = jobs_of(checked), f"{JOBS}.instance_groups"
    groups = jobs.instance_groups or ()
    names = [group.name for group in groups]
    for at, channel in request.channels(jobs).items():
        for name in channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames", ()):
            if name not in names:
                allowed = ", ".join(names) or "none without instance_groups"
                yield problem(f"{at}.instance_groups", "no such group exists", value=name, allowed=allowed)
    nodes = checked.recipe.trainer.num_nodes
    placed = sum(each.instance_count for each in jobs.placement.specifications or ())
    if placed > nodes:
        message = f"places {placed} instances; the job is planned for {nodes}"
        yield problem(f"{JOBS}.placement.specifications", message, value=placed)
    for name in [name for name, times in Counter(names).items() if times > 1]:
        yield problem(path, "two groups have the same name", value=name)
    if not groups:
        return
    count = sum(group.instance_count for group in groups)
    if count != nodes:
        message = f"have {count} instances in total; the job is planned for {nodes}"
        yield problem(path, message, value=count, remedy=f"{nodes_key(checked)}={count}")
    types = {canonical(group.instance_type) for group in groups}
    if canonical(checked.launch.instance_type) not in types:
        yield problem(path, "none has the planned instance_type", value=checked.launch.instance_type)


@sm_rule("E379", "instance_groups", more=("instance_type",), source=f"{API}: ResourceConfig, InstanceType")
def instances_train(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """HyperPod has instance types that training jobs lack. A type that a recipe describes may be newer."""
    known = constraints.instance_types()
    named = {"instance_type": checked.instance.name} if checked.instance else {}
    groups = enumerate(jobs_of(checked).instance_groups or ())
    named |= {f"{JOBS}.instance_groups.{i}.instance_type": group.instance_type for i, group in groups}
    for path, name in named.items():
        instance = checked.instance_of(name)
        if canonical(name) not in known and (instance is None or instance.use):
            remedy = did_you_mean(canonical(name), sorted(known))
            yield problem(path, "training jobs do not run on that type", value=name, remedy=remedy)


@sm_rule(
    "E380",
    *("volume_kms_key", "volume_size_gb", "instance_groups"),
    more=("instance_type",),
    source=f"{API}: VolumeKmsKeyId, VolumeSizeInGB",
)
def local_disks_are_as_they_are(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Instances with local disks use these alone: they encrypt them themselves, and refuse a larger size."""
    jobs, disks = jobs_of(checked), _local_disks(checked)
    if jobs.volume_kms_key and disks:
        path = path_of(checked, "volume_kms_key")
        yield problem(
            path, f"{', '.join(disks)} encrypts its local disk itself", remedy=f"{JOBS}.volume_kms_key=null"
        )
    for name, size in disks.items():
        if (jobs.volume_size_gb or 0) > size:
            path = path_of(checked, "volume_size_gb")
            message = f"{name} uses its local disk of {size} GB alone"
            yield problem(path, message, value=jobs.volume_size_gb, allowed=f"at most {size}")


def _local_disks(checked: CheckedRecipe) -> dict[str, int]:
    """Return the local disks in GB of the job's instance types that have one."""
    groups = jobs_of(checked).instance_groups or ()
    types = [group.instance_type for group in groups] or [checked.launch.instance_type]
    return {found.name: found.nvme_gb for found in map(checked.instance_of, sorted(types)) if found and found.nvme_gb}


@notice_rule("N184", source=f"{API}: VolumeSizeInGB")
def own_disks_have_own_sizes(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A size that is typed for an instance with a local disk has no effect."""
    checked = planned.checked
    if checked.is_explicit(path_of(checked, "volume_size_gb")):
        for name, size in _local_disks(checked).items():
            yield notice(f"volume_size_gb has no effect: {name} uses its local disk of {size} GB alone")


@notice_rule("N185", source=f"{API}: TrainingImageConfig")
def other_registries_need_access(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The service pulls images from Amazon ECR, unless a private registry is given."""
    image = planned.job.image or ""
    is_pulled = image and not described(planned.checked.backend).runs_here
    if is_pulled and jobs_of(planned.checked).image_access.mode != "Vpc" and not ECR_IMAGE.fullmatch(image):
        private = f"for a private registry: {JOBS}.image_access.mode=Vpc"
        yield notice(f"{image} is not an image of Amazon ECR, the only place SageMaker pulls from; {private}")


@sm_rule(
    "E381",
    *("tensorboard_config", "checkpoints", "mlflow", "image_access", "debugger", "model_package", "serverless"),
    source=f"{API}: TensorBoardOutputConfig, CheckpointConfig, MlflowConfig, TrainingImageConfig, DebugHookConfig",
)
def details_have_their_subject(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A detail of a feature that is off would silently have no effect."""
    jobs = jobs_of(checked)
    pairs = (
        ("tensorboard_config", "container_logs_path", "output_path"),
        ("checkpoints", "local_path", "s3_uri"),
        ("mlflow", "experiment_name", "resource_arn"),
        ("mlflow", "run_name", "resource_arn"),
        ("image_access", "credentials_provider_arn", "mode"),
        *(("debugger", key, "output_path") for key in ("local_path", "hook_parameters", "collections")),
        ("model_package", "source_arn", "group_arn"),
        *(("serverless", key, "base_model_arn") for key in _SERVERLESS),
        ("serverless", "base_model_arn", "job_type"),
    )
    for section, detail, subject in pairs:
        held = getattr(jobs, section)
        if getattr(held, detail) and not getattr(held, subject):
            path = path_of(checked, f"{section}.{detail}")
            yield problem(path, f"needs {section}.{subject}", value=getattr(held, detail))
    if jobs.checkpoints.s3_uri and jobs.tensorboard_config.output_path:  # which are two places in S3
        kept = PurePosixPath(jobs.checkpoints.local_path or request.CHECKPOINTS)
        logs = PurePosixPath(jobs.tensorboard_config.container_logs_path or request.TENSORBOARD)
        if kept.is_relative_to(logs) or logs.is_relative_to(kept):
            path, message = path_of(checked, "checkpoints.local_path"), "overlaps the folder of TensorBoard's logs"
            yield problem(path, f"{message}, {logs}", value=str(kept))
    if jobs.image_access.credentials_provider_arn and jobs.image_access.mode == "Platform":
        message = "credentials_provider_arn needs a private registry"
        yield problem(f"{JOBS}.image_access.mode", message, value="Platform", allowed="Vpc")


@rule("E387", f"{JOBS}.recipe_overrides", source=_DECISIONS)
def overrides_are_overrides(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """There is one way to override a recipe; overrides applied later would escape every check."""
    for name, value in (given_jobs(checked).recipe_overrides or {}).items():
        path = f"{JOBS}.recipe_overrides.{name}"
        yield problem(path, "recipe keys are overridden like any other key", value=value, remedy=f"recipes.{name}=…")


@rule("E388", JOBS, source=_DECISIONS)
def keys_are_given_once(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The estimator's names are aliases of the launcher's keys, so each key is given under one name."""
    jobs = given_jobs(checked)
    for name, path, value in aliases(jobs):
        if checked.is_explicit(f"{JOBS}.{path}"):
            message = f"{path}, which is the same key, is given too"
            yield problem(f"{KWARGS}.{name}", message, value=value, allowed="one of them")
    tags = getattr(jobs.additional_estimator_kwargs, "tags", None) or ()
    for key, times in Counter(tag.Key for tag in tags).items():
        if times > 1:
            yield problem(f"{KWARGS}.tags", "two tags have the same key", value=key)


@sm_rule(
    "E336",
    *("serverless", *(key.partition(".")[0] for key in _OF_CONTAINERS)),
    more=("container", "recipes.run.model_type", "recipes.training_cfg"),
    source=f"{API}: ServerlessJobConfig",
)
def serverless_jobs_have_no_container(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """AWS runs its own recipe on instances of its choice: keys that describe a container would have no effect."""
    jobs = jobs_of(checked)
    if not request.is_serverless(jobs):
        return
    message, path = "describes a container, which a serverless job does not have", f"{JOBS}.serverless"
    if described(checked.backend).runs_here:
        yield problem(path, "serverless jobs run on AWS only", remedy="cluster=sm_jobs")
    if not is_script(checked):
        remedy = "recipes=training/custom/script, and the job's own hyperparameters"
        yield problem(path, "AWS runs its own recipe, not this one", remedy=remedy)
    for key in _OF_CONTAINERS:
        if (value := attrgetter(key)(jobs)) not in (None, False):
            path, nothing = path_of(checked, key), "false" if value is True else "null"
            yield problem(path, message, value=value, remedy=f"{path}={nothing}")
    if checked.launch.container:
        yield problem("container", message, value=checked.launch.container, remedy="container=null")
    script, path = checked.recipe.training_cfg, f"{SCRIPT}.entry_script"
    if script and script.entry_script:
        yield problem(path, message, value=script.entry_script, remedy=f"{path}=null")


@notice_rule("N170", source=_DECISIONS)
def spot_job_saves_nothing(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Spot capacity can be reclaimed at any time, and without checkpoints all work is lost."""
    jobs = request.of_job(planned.job).jobs
    if jobs.spot and not jobs.checkpoints.s3_uri:
        yield notice("spot=true without checkpoints.s3_uri: an interrupted job restarts from its first step")


@notice_rule("N172", source=_DECISIONS)
def instances_are_not_chosen(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A serverless job runs on instances of AWS's choice, which the plan cannot know."""
    if request.is_serverless(request.of_job(planned.job).jobs):
        yield notice("AWS chooses the instances of a serverless job: the plan's instances have no effect")


@notice_rule("N171", source=_DECISIONS)
def names_become_one(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The toolkit puts names of channels and hyperparameters in capitals, which makes some of them equal."""
    plan = request.of_job(planned.job)
    channels = [channel["ChannelName"] for channel in plan.channels.values()]
    parameters = request.hyperparameters(plan) if request.has_toolkit(plan) else ()
    # Source: sagemaker-training toolkit 5.1.4, SM_CHANNEL_…
    for kind, prefix, names in (
        ("channels", "SM_CHANNEL_", (*channels, request.RECIPE_CHANNEL)),
        ("hyperparameters", "SM_HP_", parameters),
    ):
        alike = defaultdict(list)
        for name in names:
            alike[name.upper()].append(name)
        for upper, same in alike.items():
            if len(same) > 1:
                yield notice(f"{kind} {' and '.join(same)} differ only by case: {prefix}{upper} holds one of them")
