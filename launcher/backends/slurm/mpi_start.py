"""How MPI starts the ranks of a script on a job's nodes. Pure."""

import json
from dataclasses import dataclass

from launcher.backends.slurm.options import Settings
from launcher.model.config_tree import get
from launcher.model.job_spec import JobSpec
from launcher.model.parallelism import mpi
from launcher.model.parallelism.smp import hyperparameters

_D = "recipes.distribution"
_MODEL_PARALLEL = "SM_HP_MP_PARAMETERS"
"""Variable from which the model parallel library reads its parameters. Source: sagemaker-training toolkit 5.1.4."""


@dataclass(frozen=True, slots=True)
class MpiStart:
    """The start of a job's ranks.

    Args:
        mpirun_words: Further words of mpirun; None if srun starts the ranks.
        srun_words: Further words of srun.
    """

    mpirun_words: tuple[str, ...] | None
    srun_words: tuple[str, ...] = ()


def of(job: JobSpec, options: Settings) -> MpiStart | None:
    """Return how MPI starts a job's ranks; None if it does not."""
    if get(job.config, f"{_D}.mpi.enabled") is not True:
        return None
    if options.mpi == "mpirun":
        return MpiStart(_options(job)[1])
    return MpiStart(None, (f"--mpi={options.mpi}", "--distribution=block"))


def environment(job: JobSpec) -> dict[str, str]:
    """Return the variables that a distribution adds to every process."""
    tree = get(job.config, _D)
    if not tree:
        return {}
    debug = _options(job)[0]
    given = hyperparameters(tree, job.nproc_per_node, "").get("mp_parameters")
    return {
        **({"NCCL_DEBUG": debug} if debug else {}),
        **({_MODEL_PARALLEL: json.dumps(json.loads(given))} if given else {}),
    }


def _options(job: JobSpec) -> tuple[str | None, tuple[str, ...]]:
    """Return NCCL_DEBUG of the recipe's MPI options, None if they do not set it, and the other words for mpirun."""
    return mpi.parted((get(job.config, f"{_D}.mpi.custom_mpi_options") or "").split())
