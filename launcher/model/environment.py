"""The variables a job's workers get, from the composed configuration. Secrets are only referenced by name."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.common import variables
from launcher.common.problems import Problem
from launcher.model.config_tree import get

SEVERAL_NODES = {
    "NCCL_SOCKET_IFNAME": "^lo,docker0,veth_def_agent",
    "NCCL_IGNORE_DISABLED_P2P": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_DIST_INIT_BARRIER": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
"""Variables of a job of several nodes with accelerators. Source: the LLMFT image's interface, and the published
launcher's script for Slurm."""
SECRET_KEYS = {"HF_TOKEN": "recipes.run.hf_access_token", "GIT_TOKEN": "git.token"}
"""Variable that carries each secret of the recipe. HF_TOKEN is what the Hugging Face libraries read."""


_MLFLOW = {"MLFLOW_TRACKING_URI": "tracking_uri", "MLFLOW_RUN_ID": "run_id"}
"""Variable to key of a recipe's section `mlflow`. Source: MLflow, Environment variables."""


def mlflow_variables(section: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that direct a program's own calls of MLflow to the job's run; none if it has no run."""
    if section.get("enabled") is False or not section["run_id"]:
        return {}
    return {variable: section[key] for variable, key in _MLFLOW.items()}


def plain_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's variables that are written unchanged."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (config.get("env_vars") or {}).items()
        if value is not None and not isinstance(value, Mapping)
    }


def secret_variables(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the variables that hold secrets, each with the reference to its value."""
    return {name: ref for name, _, ref in secret_references(config)}


def secret_references(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield variable, dotted path and reference of every secret that the configuration names."""
    named = {name: (path, get(config, path)) for name, path in SECRET_KEYS.items()}
    given = config.get("env_vars")
    own = given if isinstance(given, Mapping) else {}  # a check also asks for those of a faulty configuration
    named |= {name: (f"env_vars.{name}", value) for name, value in own.items()}
    yield from ((name, path, ref) for name, (path, ref) in named.items() if isinstance(ref, Mapping))


def notified(config: Mapping[str, Any]) -> list[str]:
    """Return the variables with the addresses of messages, which the process that follows the job sends."""
    return [ref["env"] for ref in config.get("notify") or () if ref.get("env")]


def unset_secrets(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a Problem (E448) for each secret that this process's environment lacks, from which the job gets it."""
    for name, path, reference in secret_references(config):
        source = reference.get("env")
        if source and source not in variables.current():
            remedy = f"export {source}=… before the launch"
            yield Problem("E448", path, f"the variable {source}, which holds {name}, is not set", remedy=remedy)
