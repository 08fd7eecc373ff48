"""The keys of `cluster.sm_jobs_config` for rules: each has the launcher's name, some also the estimator's.

Every compilation imports this; the first rule that needs the typed settings imports those.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.backends.sagemaker.estimator_names import SDK_NAMES
from launcher.rules import rule

if TYPE_CHECKING:
    from launcher.backends.sagemaker.training_options import SmJobs
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.cluster_options import HasOptions

JOBS = "cluster.sm_jobs_config"
KWARGS = f"{JOBS}.additional_estimator_kwargs"
API = "Amazon SageMaker API, CreateTrainingJob"
SCRIPT = "recipes.training_cfg"


def needs(*keys: str) -> tuple[str, ...]:
    """Return the paths of keys, and of the estimator's names for them."""
    same = (name for name, path in SDK_NAMES.items() if any(path == k or path.startswith(f"{k}.") for k in keys))
    return (*(f"{JOBS}.{key}" for key in keys), *(f"{KWARGS}.{name}" for name in same))


def sm_rule(code: str, *keys: str, more: tuple[str, ...] = (), source: str) -> Callable[[Any], Any]:
    """Register a rule about keys of `sm_jobs_config`."""
    return rule(code, *needs(*keys), *more, source=source)


def given_jobs(job: "HasOptions") -> "SmJobs":
    """Return the typed keys of a checked recipe or a planned job, as given."""
    from launcher.backends.sagemaker.training_options import Settings
    from launcher.model.cluster_options import options_of

    return options_of(job, Settings).sm_jobs_config


def jobs_of(checked: "CheckedRecipe") -> "SmJobs":
    """Return the typed keys, the estimator's names resolved."""
    from launcher.backends.sagemaker.training_options import effective

    return effective(given_jobs(checked))


def path_of(checked: "CheckedRecipe", key: str) -> str:
    """Return the path under which a key was given: its own name, or the estimator's."""
    given = given_jobs(checked).additional_estimator_kwargs
    for name, path in SDK_NAMES.items():
        if path == key and getattr(given, name, None) is not None:
            return f"{KWARGS}.{name}"
    return f"{JOBS}.{key}"
