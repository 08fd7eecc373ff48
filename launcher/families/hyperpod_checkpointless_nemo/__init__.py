"""Training that recovers from its peers' memory: NeMo's program in HyperPod's image for checkpointless training.

Source: the published checkpointless recipes; AWS, Checkpointless training in Amazon SageMaker HyperPod.
"""

from launcher.families.hyperpod_checkpointless_nemo.recipe import Recipe
from launcher.model import start_script
from launcher.model.config_tree import get
from launcher.model.interface import Interface
from launcher.model.job_spec import JobSpec

__all__ = ["INTERFACES", "Recipe"]

_RECOVERY = {"HPCT_USE_ROOTLESS": "1", "INPROCESS_RESTART": "1", "INPROCESS_RESTART_TIMEOUT": "1800"}
"""Communication without a root process; recovery within the processes, and the seconds they wait for each other.

Source: the published checkpointless recipes; AWS, In-process recovery and checkpointless training.
"""


def _script(job: JobSpec) -> str:
    """Return the path of the program in the image."""
    return str(get(job.config, "git.entry_script") or get(job.config, "recipes.entry_script"))


_WORKERS = start_script.workers(
    lambda job: (_script(job), "--config-name=config.yaml"), _script, env=lambda job: _RECOVERY
)
INTERFACES = {
    # Its pods request 32 GB and use most of the node: the weights, and batches in memory.
    None: Interface(roles=(_WORKERS,), runs_as_root=True, memory_is_minimum=True, accelerator="gpu")
}
