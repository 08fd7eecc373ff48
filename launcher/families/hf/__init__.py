"""Pre-training of a Hugging Face model by SageMaker's training adapter for NeMo, from its repository.

Source: the published recipe of a custom model; its code: examples/custom_model of the adapter's repository.
"""

from pathlib import Path

from launcher.families.hf.recipe import Recipe
from launcher.model import start_script
from launcher.model.config_tree import get
from launcher.model.interface import Interface
from launcher.model.job_spec import JobSpec

__all__ = ["INTERFACES", "Recipe"]

_SCRIPT = "examples/custom_model/custom_pretrain.py"
"""Path of the program in the adapter's repository."""
_CONFIG_NAME = "--config-name=config.yaml"


def _program(job: JobSpec) -> tuple[str, ...]:
    if module := get(job.config, "git.entry_module"):
        return "-m", str(module), _CONFIG_NAME
    return str(Path(job.cwd, get(job.config, "git.entry_script") or _SCRIPT)), _CONFIG_NAME


_WORKERS = start_script.workers(_program, lambda job: _SCRIPT)
INTERFACES = {None: Interface(roles=(_WORKERS,), runs_as_root=True, accelerator="gpu")}
