"""The backends by the name of their `cluster`, each loaded when it is chosen."""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

_BACKENDS = {
    "local": "local",
    "contract": "sagemaker_local",
    "k8s": "kubernetes",
    "slurm": "slurm",
    "sm_jobs": "sagemaker",
}
"""Package under `launcher.backends` of each choice of `cluster`; `contract` is local's cluster.contract=sagemaker."""


SPELLINGS = {"contract": "local cluster.contract=sagemaker"}
"""How a user chooses a backend that is no cluster of its own."""


def backend_module(cluster: str, part: str) -> ModuleType | None:
    """Return the module `part` of a cluster's backend package, or None when it has none yet."""
    name = f"launcher.backends.{_BACKENDS[cluster]}.{part}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


_SETTINGS = {
    "local": "simulation",
    "contract": "contract_options",
    "k8s": "job_options",
    "slurm": "options",
    "sm_jobs": "training_options",
}


_RULES = {
    "contract": ("unsupported",),
    "k8s": ("job_rules", "pod_rules", "operator_rules", "security", "stopping"),
    "sm_jobs": ("job_rules", "input_rules", "script_rules", "tier_rules", "notices"),
}


def rule_modules(cluster: str) -> tuple[str, ...]:
    """Return the modules of the rules that are only about a cluster."""
    clusters = ("sm_jobs", "contract") if cluster == "contract" else (cluster,)
    return tuple(f"launcher.backends.{_BACKENDS[each]}.{name}" for each in clusters for name in _RULES.get(each, ()))


def settings_model(cluster: str) -> Any:
    """Return the pydantic model of a cluster's section."""
    module = backend_module(cluster, _SETTINGS[cluster])
    return module.Settings


def backends() -> tuple[str, ...]:
    """Return the names that jobs are recorded under."""
    return tuple(_BACKENDS)
