"""A recipe of the training adapter for NeMo, typed: a Hugging Face model, sharded by PyTorch FSDP.

Source of allowed words: the adapter's conf/config_schemas.py, and for precisions its utils/fsdp_utils.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from launcher.model.base_model import BatchSize, NonNegativeInt, Passed, PositiveInt, Seed
from launcher.model.checkpointing import Content, Sharding
from launcher.model.config_tree import get
from launcher.model.recipe import RecipeBase, TimedRun, Trainer
from launcher.model.recipe_keys import RecipeKeys

Precision = Literal["bf16", 16, 32]


class AdapterTrainer(Trainer):
    """Processes and nodes, and how long the adapter trains; further keys are those of NeMo's Trainer."""

    model_config = ConfigDict(extra="allow")

    accelerator: Literal["gpu", "auto"] = "gpu"
    """Kind of device."""
    precision: Precision = "bf16"
    """Type of numbers in computation if model.precision is null."""
    max_steps: PositiveInt
    """Optimizer steps after which training ends."""
    log_every_n_steps: PositiveInt
    """Optimizer steps between two logged values."""
    val_check_interval: PositiveInt
    """Optimizer steps between two validations."""


class DataFolders(Passed):
    """Where the samples are, and their form."""

    train_dir: list[str] | str | None
    """Folder of the training samples, or several, as the job sees them. Required unless use_synthetic_data."""
    val_dir: list[str] | str | None
    """Folder of the validation samples, or several."""
    dataset_type: Literal["hf", "synthetic"]
    """Form of the samples."""
    use_synthetic_data: bool
    """true trains on made-up samples, to try a job."""


class Schedule(Passed):
    """Schedule of the learning rate."""

    name: Literal["CosineAnnealing"] = "CosineAnnealing"
    """Form of the schedule; the adapter knows this one."""
    warmup_steps: NonNegativeInt
    """Optimizer steps over which the learning rate rises to its peak."""
    min_lr: Annotated[float, Field(ge=0)]
    """Learning rate at the end."""


class Optimizer(Passed):
    """The optimizer and its schedule."""

    name: Literal["adamw"] = "adamw"
    """Optimizer; the adapter knows this one."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [0.9, 0.98]
    """Decay rates of the two moments. Source: PyTorch, AdamW."""
    lr: Annotated[float, Field(gt=0)]
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled weight decay; 0 turns it off."""
    sched: Schedule
    """Schedule of the learning rate."""


class ModelSettings(Passed):
    """The model, and how it is trained and sharded."""

    hf_model_name_or_path: Annotated[str, Field(min_length=1)]
    """Model by its name on the Hugging Face Hub, or its folder."""
    max_context_width: PositiveInt
    """Tokens of a sample."""
    train_batch_size: BatchSize
    """Samples of one rank in a step."""
    val_batch_size: BatchSize
    """Samples of one rank in a step of a validation."""
    do_finetune: bool
    """true starts from the model's weights, false from random ones."""
    shard_degree: BatchSize
    """Ranks that share one copy of weights and optimizer states, a divisor of all ranks."""
    sharding_strategy: Literal["hybrid_shard", "_hybrid_shard_zero2", "full_shard", "shard_grad_op", "no_shard"]
    """How FSDP shards: hybrid_shard within groups of shard_degree ranks."""
    auto_wrap_policy: Literal["transformer_auto_wrap_policy", "size_based_auto_wrap_policy"] = (
        "transformer_auto_wrap_policy"
    )
    """What is gathered at once: each layer, or parts of at least a size."""
    backward_fetch_policy: Literal["backward_pre", "backward_post"] = "backward_pre"
    """When the next part is gathered in the backward pass: before the gradients of this one, or after them."""
    precision: Precision | None = None
    """Type of numbers in computation; null: trainer.precision."""
    activation_checkpointing: bool
    """true recomputes activations in the backward pass: far less memory, about a third more time."""
    optim: Optimizer
    """The optimizer and its schedule."""
    data: DataFolders
    """Where the samples are, and their form."""
    seed: Seed
    """Seed of weights and sample order."""


class Experiment(Passed):
    """Folders, loggers and checkpoints."""

    exp_dir: str | None
    """Folder of the experiment, as the job sees it; storage that every node reaches. Required."""
    resume_from_checkpoint: str | None
    """Folder of a checkpoint to continue from."""


class Recipe(RecipeBase):
    """A recipe of the training adapter for NeMo."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        inputs=("model.hf_model_name_or_path", "model.data.train_dir", "model.data.val_dir"),
        results=("exp_manager.exp_dir",),
        examples={"exp_manager.exp_dir": "/fsx/results", "model.data.train_dir": "/fsx/data"},
        often_changed=(
            *("trainer.max_steps", "trainer.log_every_n_steps", "exp_manager.exp_dir"),
            *("exp_manager.checkpoint_callback_params.every_n_train_steps", "model.hf_model_name_or_path"),
            *("model.max_context_width", "model.train_batch_size", "model.shard_degree", "model.optim.lr"),
            *("model.data.train_dir", "model.data.val_dir", "model.data.use_synthetic_data"),
        ),
        passed=("trainer", "model", "exp_manager"),
        launcher_only=("run.hf_access_token", "display_name", "version", "instance_types", "clusters"),
    )
    fixed_size: ClassVar[str] = (
        "jobs of the training adapter do not change their size: its program has no elastic form"
    )

    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "pretraining": {
            "TRAIN_DIR": "model.data.train_dir",
            "VAL_DIR": "model.data.val_dir",
            "EXP_DIR": "exp_manager.exp_dir",
            "MODEL_NAME_OR_PATH": "model.hf_model_name_or_path",
        }
    }

    clusters: list[str]
    """Choices of `cluster` that the published launcher starts it on."""
    run: TimedRun
    """Name of the job, its family, and its time."""
    trainer: AdapterTrainer
    """Processes and nodes, and how long the adapter trains."""
    model: ModelSettings
    """The model, and how it is trained and sharded."""
    exp_manager: Experiment
    """Folders, loggers and checkpoints."""
    distributed_backend: Literal["nccl", "smddp"]
    """Library of collective communication."""
    use_smp_model: bool
    """true takes the model of SageMaker's model parallel library in place of Hugging Face's."""

    @classmethod
    def left_to_launch(cls, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the keys that a recipe leaves to each launch; made-up samples have no folder."""
        has_data = get(config, "recipes.model.data.use_synthetic_data") is not True
        return {key: value for key, value in super().left_to_launch(config).items() if has_data or "data" not in key}

    def refusal(self, cluster: str) -> str | None:
        """Return why a choice of `cluster` cannot run it: its published forms are for Slurm and Kubernetes."""
        return None if cluster in self.clusters else "the training adapter runs on Slurm and Kubernetes only"

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return what the adapter saves: all weights and the optimizer's states."""
        from launcher.checkpointing.architecture import num_parameters  # few compiles need it
        from launcher.runtime import model_configs

        config = config or model_configs.known(self.model.hf_model_name_or_path)
        sharding: Sharding = "hsdp" if "hybrid" in self.model.sharding_strategy else "fsdp"
        return Content(num_parameters(config) if config else 0, "bfloat16", "adam_fp32_master", sharding)
