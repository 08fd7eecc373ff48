"""How SFT and DPO are started: a process for each GPU, with verl's complete configuration in a file.

Source: verl 0.7, verl.trainer.sft_trainer, which torchrun starts; Hydra, command-line flags.
"""

from launcher.families.verl.ray import CONFIG, own_configs
from launcher.model.config_tree import get
from launcher.model.environment import mlflow_variables
from launcher.model.interface import Interface, agent_workers
from launcher.model.job_spec import JobSpec

_PROGRAM = ("-m", "verl.trainer.sft_trainer", "--config-name", CONFIG)


def _env(job: JobSpec) -> dict[str, str]:
    return mlflow_variables(get(job.scales[0].config, "training_config.mlflow"))


INTERFACE = Interface(
    roles=(agent_workers(lambda job: _PROGRAM, env=_env),),
    runs_as_root=True,
    accelerator="gpu",
    has_own_checkpoints=True,
    own_configs=own_configs,
)
MEGATRON = INTERFACE._replace(
    only_trainer="Megatron divides each layer among GPUs, and the open trainer shards by FSDP"
)
