"""How the closed program of the published image is started.

Source: the published LLMFT image and recipes.
"""

from pathlib import Path
from typing import Any

from launcher.model.config_tree import get
from launcher.model.interface import CONFIG_MOUNT, WORKERS, Entry, Interface, Role
from launcher.model.job_spec import JobSpec

_MODULE = "amzn_awsllm_fine_tuning.train_hp"
"""Source: the published recipes' git.entry_module."""


def _image_env(job: JobSpec) -> dict[str, str]:
    """Return the environment that the published LLMFT image reads.

    Source: the variables of that image's start script.
    """
    git = job.config["git"]
    script_args = f"--config-path={CONFIG_MOUNT}" + ("" if job.elastic else " --config-name=config.yaml")
    env = {
        "GIT_REPO_URL": _repository(git),
        "GIT_BRANCH": git["branch"] or "",
        "GIT_COMMIT": git["commit"] or "",
        "GIT_UPDATE_ADAPTER": "true" if git["update_adapter"] else "",
        "NODES": str(job.initial_nodes),
        "NTASKS_PER_NODE": str(job.nproc_per_node),
        "SCRIPT_PATH": git["entry_script"] or f"-m {git['entry_module'] or _MODULE}",
        "SCRIPT_ARGS": script_args,
        "PRE_SCRIPT_COMMANDS": ";".join(get(job.config, "recipes.pre_script") or ()),
        "POST_SCRIPT_COMMANDS": ";".join(get(job.config, "recipes.post_script") or ()),
        "INSTANCE_TYPE": (job.resources.instance_type or "").removeprefix("ml."),  # its EFA set-up compares EC2 names
    }
    if getattr(job.settings, "use_hyperpod_pytorch_job", True):
        env["USE_HYPERPODRUN"] = "true"
    if not getattr(job.settings, "queue_name", None):  # a Kueue queue names the job itself
        env["JOB_NAME"] = job.name
    return env


def _repository(git: dict[str, Any]) -> str:
    """Return the repository's address; a token is expanded by Kubernetes from the variable before it."""
    url = git["repo_url_or_path"] or ""
    if git["token"] and url.startswith("https://"):
        return url.replace("https://", "https://oauth2:$(GIT_TOKEN)@", 1)
    return url


def _program(job: JobSpec) -> tuple[str, ...]:
    """Return the script or the module that the image's start script would start."""
    if script := get(job.config, "git.entry_script"):
        return (str(Path(job.cwd, script)),)
    return "-m", get(job.config, "git.entry_module") or _MODULE


_WORKERS = Role(
    name=WORKERS,
    program=_program,
    image_command=lambda job: ("/opt/bin/scripts/train-script-gpu.sh",),
    image_env=_image_env,
    image_log="/data/training.log",
)
INTERFACE = Interface(
    roles=(_WORKERS,), runs_as_root=True, accelerator="gpu", entry=Entry.RECIPE, has_own_checkpoints=True
)
