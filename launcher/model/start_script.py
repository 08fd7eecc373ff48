"""The start script of the published images: how it is started, with program, repository and commands in variables.

Source: the variables of the start script in the published LLMFT image, whose chart starts other images too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.model.config_tree import get
from launcher.model.interface import CONFIG_MOUNT, WORKERS, Role
from launcher.model.job_spec import JobSpec

_START_SCRIPT = ("/opt/bin/scripts/train-script-gpu.sh",)
"""Start command of the images."""
_LOG = "/data/training.log"
GIT_URL = "GIT_REPO_URL"
"""The one variable that refers to another: to that of the token."""


def as_commands(value: Sequence[str] | None) -> list[str]:
    """Return the commands that a recipe runs before or after training; some recipes have them in one text."""
    return [value] if isinstance(value, str) else list(value or ())


def workers(
    program: Callable[[JobSpec], tuple[str, ...]],
    default: Callable[[JobSpec], str],
    env: Callable[[JobSpec], dict[str, str]] = lambda job: {},
) -> Role:
    """Return the workers of a program that the start script starts.

    Args:
        program: As of `Role`.
        default: Returns what the script starts if `git` names no other: the path of a script, or `-m` and a module.
        env: As of `Role`.
    """
    return Role(
        WORKERS,
        program,
        image_command=lambda job: _START_SCRIPT,
        image_env=lambda job: _variables(job, default(job)),
        env=env,
        reads_git=True,
        image_log=_LOG,
    )


def _variables(job: JobSpec, default: str) -> dict[str, str]:
    git = job.config["git"]
    script_args = f"--config-path={CONFIG_MOUNT}" + ("" if job.elastic else " --config-name=config.yaml")
    module = f"-m {git['entry_module']}" if git["entry_module"] else default
    env = {
        GIT_URL: _repository(git),
        "GIT_BRANCH": git["branch"] or "",
        "GIT_COMMIT": git["commit"] or "",
        "GIT_UPDATE_ADAPTER": "true" if git["update_adapter"] else "",
        "NODES": str(job.initial_nodes),
        "NTASKS_PER_NODE": str(job.nproc_per_node),
        "SCRIPT_PATH": git["entry_script"] or module,
        "SCRIPT_ARGS": script_args,
        "PRE_SCRIPT_COMMANDS": ";".join(as_commands(get(job.config, "recipes.pre_script"))),
        "POST_SCRIPT_COMMANDS": ";".join(as_commands(get(job.config, "recipes.post_script"))),
        "INSTANCE_TYPE": (job.resources.instance_type or "").removeprefix("ml."),  # its EFA set-up compares EC2 names
    }
    if getattr(job.settings, "use_hyperpod_pytorch_job", True):
        env["USE_HYPERPODRUN"] = "true"
    if not getattr(job.settings, "queue_name", None):  # a Kueue queue names the job itself
        env["JOB_NAME"] = job.name
    return env


def _repository(git: Mapping[str, Any]) -> str:
    """Return the repository's address; a token is expanded by Kubernetes from the variable before it."""
    url = git["repo_url_or_path"] or ""
    if git["token"] and url.startswith("https://"):
        return url.replace("https://", "https://oauth2:$(GIT_TOKEN)@", 1)
    return url
