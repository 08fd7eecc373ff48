"""How the closed program of the published image is started.

Source: the published LLMFT image and recipes.
"""

from pathlib import Path

from launcher.model import start_script
from launcher.model.config_tree import get
from launcher.model.interface import WORKERS, Entry, Interface, Role
from launcher.model.job_spec import JobSpec

_MODULE = "amzn_awsllm_fine_tuning.train_hp"
"""Source: the published recipes' git.entry_module."""


def _program(job: JobSpec) -> tuple[str, ...]:
    """Return the script or the module that the image's start script would start."""
    if script := get(job.config, "git.entry_script"):
        return (str(Path(job.cwd, script)),)
    return "-m", get(job.config, "git.entry_module") or _MODULE


_WORKERS = Role(
    name=WORKERS,
    program=_program,
    image_command=lambda job: start_script.START_SCRIPT,
    image_env=lambda job: start_script.variables(job, f"-m {_MODULE}"),
    image_log="/data/training.log",
)
INTERFACE = Interface(
    roles=(_WORKERS,), runs_as_root=True, accelerator="gpu", entry=Entry.RECIPE, has_own_checkpoints=True
)
