"""Names shared by the launcher and the training container. Standard library only."""

import os
from pathlib import Path

CONFIG_DIR = "configs"
"""Folder of a bundle that holds one resolved configuration per cluster size."""

BASE_CONFIG = "config.yaml"
"""Configuration of a job whose size has no file of its own."""

ENV_RUN_DIR = "RECIPES_RUN_DIR"
"""Environment variable: folder the running job may write to (logs, metrics, checkpoints)."""

ENV_MASTER_ADDR = "RECIPES_MASTER_ADDR"
"""Environment variable: address of a training job's first host, if its name does not resolve."""

ENV_EARLIER_STARTS = "RECIPES_EARLIER_STARTS"
"""Environment variable of a worker: starts of the job's workers before those that its agent counts; 0 if unset."""

ENV_SAVES_ON_TERM = "RECIPES_SAVES_ON_TERM"
"""Environment variable of a worker: set where SIGTERM, too, means to save and stop, since the job then resumes."""

ENV_IN_PLACE = "RECIPES_IN_PLACE"
"""Environment variable of a worker: set where workers stay in their processes while the job changes its size."""

ENV_COPY_EVERY = "RECIPES_COPY_EVERY"
"""Environment variable of a worker that stays: optimizer steps between two copies of its rows at a neighbour."""

NOTICE, SAVE, RESIZE, LEAVE, ABORT = "notice", "save", "resize", "leave", "abort"
"""What an operator tells workers that stay, before it stops them: to save; that they remain, with the state; that
others do, and they leave; or that one is lost, so that no collective ends."""

ENV_LAUNCH_ID = "RECIPES_LAUNCH_ID"
"""Environment variable of a worker: different for each launch of a bundle, the same for its restarts."""

ENV_CHECKPOINTING = "RECIPES_CHECKPOINTING"
"""Environment variable of a user's own script: the recipe's compiled section `checkpointing`, as JSON."""

ENV_NODE_MEMORY = "RECIPES_NODE_MEMORY"
"""Environment variable of a worker: folder in its node's shared memory for checkpoints, lost with the node."""

ENV_MEMORY_SERVICE = "RECIPES_MEMORY_SERVICE"
"""Environment variable of a worker: address of the cluster's service that keeps checkpoints in memory; empty for
none. If it is not set, a pod with the vendor's library uses the vendor's own address."""

ENV_CHECKPOINT_OWNER = "RECIPES_CHECKPOINT_OWNER"
"""Environment variable of a worker: identifies the job that owns a checkpoint namespace, if its name or run folder is
not unique. The same for a job's restarts."""

ENV_CHECKPOINT_PATIENCE = "RECIPES_CHECKPOINT_PATIENCE"
"""Environment variable of a worker: seconds that replace the recipe's checkpointing.patience_s."""

ENV_COORDINATION = "HYPERPOD_SIGNAL_COORDINATION"
"""Environment variable of a worker: `distributed` if a stop signal must end training with a checkpoint, agreed
between all ranks; with anything else the signal is ignored.

Source: hyperpod_elastic_agent 1.1.3, elastic_event_handler.py: _VALID_COORDINATION_MODES.
"""

GRACEFUL_ENV = {ENV_COORDINATION: "distributed"}
"""Variables of the workers of a job that shuts down gracefully."""

DEFAULT_GRACEFUL_TIMEOUT_S = 15
"""The agent's time between SIGUSR1 and SIGKILL, in which workers save, if the job sets none, or 0.

Source: hyperpod_elastic_agent 1.1.3, run.py: --shutdown-timeout.
"""

AGENT_PORT = 8080
"""Source: HyperPod training operator: the agent's port."""

ENV_TORCHRUN_PATIENCE = "PET_SHUTDOWN_TIMEOUT"
"""Environment variable of torchrun: seconds between SIGTERM and SIGKILL for its workers, otherwise 30; versions
before torch 2.12 ignore it.

Source: torch.distributed.run: --shutdown-timeout.
"""

SHARED_MEMORY = Path("/dev/shm")
"""Folder of files that are in memory. Source: shm_overview(7)."""

ENV_WARM_SOCKET = "RECIPES_WARM_SOCKET"
"""Environment variable of a worker on this machine: name of the socket of its job's warm process."""

ENTRYPOINT = "launcher.runtime.entrypoint"
"""Module that trains a recipe in a container, or as a fork of a warm process."""

FINE_TUNING = "llm_finetuning_aws"
"""The `run.model_type` of recipes that `launcher.runtime.finetune` trains."""

WARM_MODULE = "launcher.runtime.warm"
"""Module whose process the workers of a job on this machine are forked from."""

RUN_DIR = "run"
"""Folder under a local bundle that the job writes to; not part of the bundle's digest."""

JOB_FILE = "job.json"
"""In a bundle whose job was submitted: where it runs and how to find it; not part of the bundle's digest."""

NAME_FILE = "name.txt"
"""In a bundle whose job the user has named; not part of the bundle's digest."""

RUN_ID_FILE = "mlflow.json"
"""In a bundle of a dry run that was launched later: the id of its MLflow run; not part of the bundle's digest."""

REPRODUCE_FILE = "reproduce.json"
"""In a bundle: the code, data, image and packages that its last launch used; not part of the bundle's digest."""

RUN_ID_AT_LAUNCH = "assigned-at-launch"
"""In the configurations of a dry run: replaced by the id of the MLflow run when the bundle is launched."""

ADOPTED_FILE = "adopted.json"
"""Replaces the bundle in the folder of a job that was launched elsewhere: the parts of the job that later commands
need after its cluster has deleted it."""

METRICS_FILE = "metrics.jsonl"
"""Under the run folder: one JSON object per optimizer step, written by rank 0. A step that is repeated after a fault
is listed again, with a higher attempt. Metrics of an evaluation or another hook have lines of their own, with `step`
and `further`, and without `cursor`."""

STARTS_FILE = "starts.jsonl"
"""Under the run folder: one JSON object per start of the workers, written by rank 0 after its first step."""

ACTIVITY_FILE = "activity.json"
"""Under the run folder: the activity of rank 0 between two steps, so that a long save is not mistaken for a hang."""

STACKS_DIR = "stacks"
"""Under the run folder: the stack of each rank, one folder for each start of the workers, one file for each rank."""

EXIT_NOT_FINITE = 65
"""Exit status of a worker whose training reached values that are not finite: starting it again would not help."""

STEPS = "steps"
"""Activity of rank 0 while it trains."""

CHECKPOINT = "checkpoint"
"""Activity of rank 0 while it saves. Any other value is work of the script, such as an evaluation."""

LAST_CHECKPOINT = "last checkpoint"
"""The same for a save that ends training, which waits until the slowest storage has it."""

ENV_COLLECTIVE_TIMEOUT = "RECIPES_COLLECTIVE_TIMEOUT"
"""Environment variable of a worker: seconds that a collective may take before it fails."""

COLLECTIVE_TIMEOUT_S = 600.0
"""How long a collective may take by default; torch's own default for NCCL.

Source: torch.distributed documentation, init_process_group, timeout.
"""

EVENTS_FILE = "events.jsonl"
"""Under the run folder: observations and actions of an operator of this launcher, one JSON object each."""

SCENARIO_FILE = "scenario.json"
"""In a local bundle: the events to simulate while the job runs."""

TIMELINE = "timeline"
"""Under the run folder: stem of the report on a local job's scale events (.txt, .json, .svg)."""

SHIPPED_FILE = "metrics.shipped"
"""Under the run folder: how many bytes of METRICS_FILE the tracking server has, and the number of the curve that
continues there."""

TAGS_FILE = "tags.json"
"""Under the run folder: tags that rank 0 gives the job's MLflow run, by name: sizes of model and data."""

CHECKPOINTS_FILE = "checkpoints.jsonl"
"""Under the run folder: one JSON object per published checkpoint and, where a job has tiers, per load; by rank 0."""

CHECKPOINTS_SHIPPED_FILE = "checkpoints.shipped"
"""Under the run folder: how many bytes of CHECKPOINTS_FILE the tracking server has."""

CHECKPOINT_LOG = Path("/var/log/sagemaker_checkpointing")
"""Folder of the checkpoint log in a pod with the memory tier; the file has the same name as in the run folder.

Source: AWS, managed tiered checkpointing, Best practices.
"""

SAMPLES_DIR = "samples"
"""Under the run folder, if the recipe enables it: the samples that each rank trained on."""

LOG_DIR = "logs"
"""Under the run folder: one folder per node and attempt, as the agent creates them."""

CHECKPOINT_DIR = "checkpoints"
"""Under the run folder: checkpoints of a recipe whose training_dir is empty."""

BUILTIN_DATA = "builtin:"
"""Prefix of a data file that ships with `launcher.runtime`."""


def config_name(num_nodes: int) -> str:
    """Return the file name of the configuration for a cluster of `num_nodes` nodes."""
    return f"config-n{num_nodes}.yaml"


def config_path(config_dir: Path, num_nodes: int) -> Path:
    """Return the configuration that applies at `num_nodes`: its own file, else the base one."""
    own = config_dir / config_name(num_nodes)
    return own if own.exists() else config_dir / BASE_CONFIG


def run_dir() -> Path:
    """Return the folder this job may write to (the current folder when the launcher set none)."""
    return Path(os.environ.get(ENV_RUN_DIR, "."))
