"""Describes cluster=sm_jobs, SageMaker training jobs. The keys of the section are in `training_options`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from launcher.backends.sagemaker import JOBS
from launcher.model.backend import Backend, BackendDescription, LaunchMode
from launcher.model.capabilities import Doctor, Files, Instances, Programs, RuntimeLimit, Secrets
from launcher.model.job_spec import Bundle, JobSpec, ResultKind

if TYPE_CHECKING:
    from launcher.backends.sagemaker.training_options import Settings
    from launcher.model.checked_recipe import CheckedRecipe

TrainingOptions = TypeVar("TrainingOptions", bound="Settings")
"""The typed section of a backend that runs training jobs."""

_SECONDS_PER_HOUR = 3600
_WORDS, _NAMED = ("container_entrypoint", "container_arguments"), ("environment", "hyperparameters", "tags")
"""Keys of a training job's request that are lists of words, and those that are mappings of values."""


class _Files(Files["Settings"]):
    def channels(self, options: "Settings") -> tuple[str, ...]:
        """Return the names of the job's own channels."""
        from launcher.backends.sagemaker import request
        from launcher.backends.sagemaker.keys import effective

        return tuple(each["ChannelName"] for each in request.channels(effective(options.sm_jobs_config)).values())

    def outputs(self, bundle: Bundle) -> Iterator[tuple[ResultKind, str]]:
        """Yield the artefacts that the service uploads at the end, and its copy of the folder of checkpoints."""
        from launcher.backends.sagemaker import request
        from launcher.bundle.store import json_of

        sent = json_of(bundle, request.REQUEST)
        yield "model", request.model_uri(sent)
        yield "output", f"{request.output_uri(sent)}/output.tar.gz"
        if "CheckpointConfig" in sent:
            yield "checkpoints", sent["CheckpointConfig"]["S3Uri"]


class _Instances(Instances["Settings"]):
    def spot_keys(self, options: "Settings") -> Iterator[tuple[str, object]]:
        """Yield the key that selects spot capacity, by the launcher's name and by the estimator's."""
        jobs = options.sm_jobs_config
        if getattr(jobs, "spot", None) is True:
            yield f"{JOBS}.spot", True
        if getattr(getattr(jobs, "additional_estimator_kwargs", None), "use_spot_instances", None) is True:
            yield f"{JOBS}.additional_estimator_kwargs.use_spot_instances", True

    def groups(self, options: "Settings") -> tuple[tuple[str, int], ...]:
        """Return the job's instance groups."""
        groups = options.sm_jobs_config.instance_groups or ()
        return tuple((each.instance_type, each.instance_count) for each in groups)


class _InstancesOnAws(_Instances):
    price_use: ClassVar[str | None] = "training"

    def chosen_by_service(self, options: "Settings") -> bool:
        """Return whether the job is serverless."""
        from launcher.backends.sagemaker import request

        return request.is_serverless(options.sm_jobs_config)

    def limit(self, options: "Settings") -> RuntimeLimit:
        """Return the stopping condition, and how long a warm pool is kept."""
        from launcher.backends.sagemaker.keys import effective
        from launcher.backends.sagemaker.request import DEFAULT_MAX_RUNTIME_S

        jobs = effective(options.sm_jobs_config)
        limit_s = jobs.stopping_condition.max_runtime_s or DEFAULT_MAX_RUNTIME_S
        key = f"{JOBS}.stopping_condition.max_runtime_s"
        return RuntimeLimit(limit_s / _SECONDS_PER_HOUR, key, (jobs.keep_alive_s or 0) / _SECONDS_PER_HOUR)


class _Programs(Programs["Settings"]):
    has_ray: ClassVar[bool] = True
    starts_by_mpi: ClassVar[bool] = True
    toolkit_key: ClassVar[str | None] = f"{JOBS}.toolkit"

    def needs_script(self, checked: "CheckedRecipe") -> bool:
        """Return whether the toolkit in the image starts the job's script."""
        from launcher.backends.sagemaker import request

        return request.has_toolkit(request.of_draft(checked))

    def are_replaced(self, options: "Settings") -> bool:
        """Return whether an entrypoint, an algorithm or a serverless recipe of AWS's own is given."""
        from launcher.backends.sagemaker import request
        from launcher.backends.sagemaker.keys import effective

        return request.is_replaced(effective(options.sm_jobs_config))


class _Secrets(Secrets):
    sources: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[str] = "let the job's role read it from Secrets Manager"
    url_keys: ClassVar[tuple[str, ...]] = (JOBS,)

    def values(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the mappings of the request, and the parameters of Debugger and its rules."""
        yield from _given(checked, *_NAMED)
        from launcher.backends.sagemaker.keys import given_jobs

        jobs = given_jobs(checked)
        yield f"{JOBS}.debugger.hook_parameters", jobs.debugger.hook_parameters or {}
        yield f"{JOBS}.profiler.parameters", jobs.profiler.parameters or {}
        for name in ("debugger", "profiler"):
            for i, each in enumerate(getattr(jobs, name).rules or ()):
                yield f"{JOBS}.{name}.rules.{i}.parameters", each.parameters or {}

    def words(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the words of the container's start command."""
        yield from _given(checked, *_WORDS)


class TrainingJobDescription(BackendDescription[TrainingOptions]):
    """Describes jobs that a SageMaker request defines, wherever they run."""

    title: ClassVar[str] = "SageMaker training jobs"
    files: ClassVar[Files[Any]] = _Files()
    instances: ClassVar[Instances[Any] | None] = _Instances()
    programs: ClassVar[Programs[Any]] = _Programs()
    secrets: ClassVar[Secrets] = _Secrets()

    def region(self, options: TrainingOptions) -> str | None:
        """Return the region of the job."""
        from launcher.backends.sagemaker.keys import effective

        return effective(options.sm_jobs_config).region

    def launch_mode(self, options: TrainingOptions) -> LaunchMode:
        """Return the section's own `wait`."""
        return LaunchMode(is_followed=options.sm_jobs_config.wait is True)


class SageMakerDescription(TrainingJobDescription["Settings"]):
    """Describes training jobs on AWS."""

    name: ClassVar[str] = "sm_jobs"
    choice: ClassVar[str] = "sm_jobs"
    cluster_types: ClassVar[tuple[str, ...]] = ("sm_jobs",)
    examples: ClassVar[tuple[str, ...]] = (
        f"{JOBS}.role=arn:aws:iam::123456789012:role/training",
        f"{JOBS}.output_path=s3://my-bucket/results",
        f"{JOBS}.inputs.s3={{train: s3://my-bucket/train}}",
    )
    instances: ClassVar[Instances[Any] | None] = _InstancesOnAws()

    def load(self) -> Backend:
        """Return the backend that runs training jobs on AWS."""
        from launcher.backends.sagemaker.backend import BACKEND

        return BACKEND

    def doctor(self) -> Doctor:
        """Return the examination of an account by the API of AWS."""
        from launcher.backends.sagemaker.doctor import SageMakerDoctor

        return SageMakerDoctor()

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.sagemaker.training_options import Settings

        return Settings

    def job_kind(self, job: JobSpec) -> str:
        """Return a plan's name for a training job."""
        return "SageMaker training job"


def _given(checked: "CheckedRecipe", *keys: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the keys that are given."""
    from launcher.backends.sagemaker.keys import jobs_of, path_of

    jobs = jobs_of(checked)
    yield from ((path_of(checked, key), value) for key in keys if (value := getattr(jobs, key)))


DESCRIPTION = SageMakerDescription()
