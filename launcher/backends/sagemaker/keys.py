"""The keys of `cluster.sm_jobs_config` for rules: each has the launcher's name, some also the estimator's."""

from collections.abc import Callable, Iterator
from typing import Any

from launcher.backends.sagemaker import JOBS as JOBS
from launcher.backends.sagemaker.training_options import EstimatorArguments, Metric, Settings, SmJobs
from launcher.model.base_model import HasOptions, options_of
from launcher.rules import rule

KWARGS = f"{JOBS}.additional_estimator_kwargs"
API = "Amazon SageMaker API, CreateTrainingJob"
SCRIPT = "recipes.training_cfg"

SDK_NAMES = {name: str(field.serialization_alias) for name, field in EstimatorArguments.model_fields.items()}
"""The estimator's name of a key, to the launcher's."""


def sm_rule(code: str, *keys: str, more: tuple[str, ...] = (), source: str) -> Callable[[Any], Any]:
    """Register a rule about keys of `sm_jobs_config`, under their own names and the estimator's."""
    same = (name for name, path in SDK_NAMES.items() if any(path == k or path.startswith(f"{k}.") for k in keys))
    return rule(code, *(f"{JOBS}.{k}" for k in keys), *(f"{KWARGS}.{name}" for name in same), *more, source=source)


def given_jobs(job: HasOptions) -> SmJobs:
    """Return the typed keys of a checked recipe or a planned job, as given."""
    return options_of(job, Settings).sm_jobs_config


def jobs_of(job: HasOptions) -> SmJobs:
    """Return the typed keys, the estimator's names resolved."""
    return effective(given_jobs(job))


def aliases(jobs: SmJobs) -> Iterator[tuple[str, str, Any]]:
    """Yield the estimator's name, the launcher's key and the value of each key that is given under the former."""
    for name, path in SDK_NAMES.items():
        if (value := getattr(jobs.additional_estimator_kwargs, name, None)) is not None:
            yield name, path, value


def path_of(job: HasOptions, key: str) -> str:
    """Return the path under which a key was given: its own name, or the estimator's."""
    names = (name for name, path, _ in aliases(given_jobs(job)) if path == key)
    return next((f"{KWARGS}.{name}" for name in names), f"{JOBS}.{key}")


def effective(job: SmJobs) -> SmJobs:
    """Return the keys, with those given under the estimator's names resolved."""
    for name, path, value in aliases(job):
        if name == "tags":
            value = {tag.Key: tag.Value for tag in value}
        elif name == "metric_definitions":
            # Not validated again: rules also read these keys when others of the job are faulty.
            value = [Metric.model_construct(name=metric.Name, regex=metric.Regex) for metric in value]
        section, _, key = path.rpartition(".")
        if section:
            key, value = section, getattr(job, section).model_copy(update={key: value})
        job = job.model_copy(update={key: value})
    return job
