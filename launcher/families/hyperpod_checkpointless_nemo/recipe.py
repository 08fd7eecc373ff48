"""A recipe of checkpointless training, typed: NeMo 2 with Megatron core.

Source of bounds and choices: the parameters that the published templates of these recipes have.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from launcher.model.base_model import BatchSize, NonNegativeInt, Passed, PositiveInt, TextForm
from launcher.model.checkpointing import Content
from launcher.model.composition import RUN_NAME, ValueSources
from launcher.model.recipe import TimedRun, Trainer, named_model
from launcher.model.recipe_keys import BatchKeys, RecipeKeys
from launcher.model.regional_images import ImageRecipe
from launcher.runtime.model_configs import known

_PROGRAM = r"^/\S+\.py$"
_FOLDERS = {
    "TRAIN_DIR": "dataset.dataset_path",
    "EXP_DIR": "exp_manager.exp_dir",
    "LOG_DIR": "log_dir",
}
"""Source: the variables of the published launcher scripts."""


class NemoTrainer(Trainer):
    """Processes and nodes, and how long NeMo trains; further keys are those of its Trainer."""

    model_config = ConfigDict(extra="allow")

    num_nodes: Annotated[int, Field(ge=1, le=128)]
    """Nodes of the job, 1 to 128. Two at least: a lost node is restored from another's memory."""
    # The published template asks for 1,000 steps at least; a trial of fewer is just as valid.
    max_steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Optimizer steps after which training ends."""
    val_check_interval: Annotated[int, Field(ge=1, le=10_000)]
    """Optimizer steps between two validations."""
    log_every_n_steps: Annotated[int, Field(ge=1, le=1000)]
    """Optimizer steps between two logged values."""
    accumulate_grad_batches: Literal[1]
    """Always 1: Megatron accumulates by data.global_batch_size itself."""


class Strategy(Passed):
    """How model, optimizer and samples are split over the ranks; other keys are those of NeMo's MegatronStrategy."""

    tensor_model_parallel_size: BatchSize
    """Ranks that share each layer. Keep it within a node."""
    pipeline_model_parallel_size: BatchSize
    """Groups of ranks that have a part of the layers each."""
    context_parallel_size: BatchSize
    """Ranks that share the sequence of a sample."""
    expert_model_parallel_size: BatchSize | None = None
    """Mixture-of-experts models only. Ranks that share the experts."""
    virtual_pipeline_model_parallel_size: BatchSize | None = None
    """Parts of the layers that a rank of a pipeline has; null for one."""
    num_distributed_optimizer_instances: BatchSize
    """Copies of weights and optimizer states, at least 2: a lost rank reads its part from another copy."""
    sequence_parallel: bool | None = None
    """true splits the sequence where layers are not split; needs tensor_model_parallel_size above 1."""


class Data(Passed):
    """Samples of a step, and tokens of a sample."""

    global_batch_size: BatchSize
    """Samples of an optimizer step, over all ranks. Part of the training's outcome."""
    micro_batch_size: BatchSize
    """Samples of a forward pass on one rank."""
    seq_length: Literal[1024, 2048, 4096, 8192, 16384, 32768]
    """Tokens of a sample."""


class Dataset(Passed):
    """The training data."""

    dataset_path: str | None
    """Folder or file of the samples, as the pods see it: JSON, compressed JSON or Arrow. Required."""
    num_workers: NonNegativeInt
    """Processes that read samples, of each rank."""


class MemoryMap(Passed):
    """The data loader that keeps batches in memory, so that a restart does not read them again."""

    cache_dir: str
    """Folder of the batches, in the node's memory."""
    checkpoint_frequency: PositiveInt
    """Optimizer steps between two saves of the loader's place."""
    prefetch_length: PositiveInt
    """Batches that are read in advance."""
    lookback_length: PositiveInt
    """Batches that are kept after their step."""


class OptimizerConfig(Passed):
    """Megatron's OptimizerConfig."""

    lr: Annotated[float, Field(ge=1e-6, le=1e-3)]
    """Peak learning rate, 1e-6 to 1e-3."""
    use_distributed_optimizer: Literal[True]
    """Always true: copies of its parts are what a lost rank is restored from."""


class Scheduler(Passed):
    """Schedule of the learning rate."""

    warmup_steps: NonNegativeInt
    """Optimizer steps over which the learning rate rises to its peak."""
    min_lr: Annotated[float, Field(ge=0)]
    """Learning rate at the end."""


class Optim(Passed):
    """The optimizer and its schedule."""

    config: OptimizerConfig
    """Megatron's OptimizerConfig."""
    lr_scheduler: Scheduler
    """Schedule of the learning rate."""


class Experiment(Passed):
    """NeMo's experiment manager."""

    exp_dir: str | None
    """Folder of the experiment, as the pods see it. Required."""


class RestoreConfig(Passed):
    """The weights that training starts from."""

    path: str | None
    """Folder of the weights in NeMo's form, as the pods see it. Required."""


class Resume(Passed):
    """How training continues, and what it starts from."""

    restore_config: RestoreConfig | None = None
    """The weights that training starts from; left out in pre-training."""


class NemoModel(Passed):
    """NeMo's configuration of the model; other keys are those of its class."""

    num_moe_experts: PositiveInt | None = None
    """Experts of each layer, for a mixture-of-experts model."""


class ModelSettings(Passed):
    """The model."""

    config: NemoModel
    """NeMo's configuration of the model."""


class Section(Passed):
    """A section that NeMo reads as it is."""


class Samples(NamedTuple):
    """The batch, as the planner reads it: Megatron deals samples evenly."""

    train_batch_size: int
    micro_train_batch_size: int
    learning_rate: float
    uneven_batch: None = None
    ranks_per_sample: int = 1


class Recipe(ImageRecipe):
    """A checkpointless recipe."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        results=("exp_manager.exp_dir",),
        batch=BatchKeys("data.global_batch_size", "data.micro_batch_size", "optim.config.lr", "data.uneven_batch"),
        inputs=("dataset.dataset_path", "resume.restore_config.path"),
        examples={
            "dataset.dataset_path": "/data/train",
            "log_dir": "/data/logs",
            "exp_manager.exp_dir": "/data/results",
            "resume.restore_config.path": "/data/model",
        },
        often_changed=(
            *("trainer.max_steps", "trainer.val_check_interval", "trainer.log_every_n_steps", "log_dir"),
            *("dataset.dataset_path", "exp_manager.exp_dir", "resume.restore_config.path"),
            *("data.global_batch_size", "data.micro_batch_size", "data.seq_length", "optim.config.lr"),
            *("optim.lr_scheduler.warmup_steps", "strategy.tensor_model_parallel_size"),
            *("strategy.pipeline_model_parallel_size", "strategy.num_distributed_optimizer_instances"),
        ),
        passed=(
            *("trainer", "strategy", "data", "dataset", "mmap", "optim", "exp_manager", "resume", "model"),
            *("log", "ddp", "plugins", "callbacks"),
        ),
        launcher_only=("images", "run.hf_access_token", "entry_script"),
    )
    elsewhere: ClassVar[str] = "checkpointless training runs on HyperPod with Kubernetes only"
    fixed_size: ClassVar[str] = (
        "checkpointless training keeps its size: AWS, Checkpointless training, Special considerations, excludes"
        " elastic training"
    )

    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "checkpointless": {**_FOLDERS, "MODEL_NAME_OR_PATH": "resume.restore_config.path"},
        "checkpointless_pretraining": _FOLDERS,
    }

    run: TimedRun
    """Name of the job, its family, and its time."""
    trainer: NemoTrainer
    """Processes and nodes, and how long NeMo trains."""
    entry_script: Annotated[str, TextForm(pattern=_PROGRAM, words="an absolute path that ends in .py")]
    """Path of the program in the image, which is one of a model and a technique."""
    pre_script: list[str] | str | None = None  # type: ignore[assignment]  # these recipes have one text
    """Shell commands that each pod runs before training: a list, or one text."""
    log_dir: str | None
    """Folder of logs and checkpoints, as the pods see it. Required."""
    model: ModelSettings
    """The model, in NeMo's own form."""
    strategy: Strategy
    """How model, optimizer and samples are split over the ranks."""
    data: Data
    """Samples of a step, and tokens of a sample."""
    dataset: Dataset
    """The training data."""
    mmap: MemoryMap
    """The data loader that keeps batches in memory."""
    optim: Optim
    """The optimizer and its schedule."""
    exp_manager: Experiment
    """NeMo's experiment manager."""
    resume: Resume
    """How training continues, and what it starts from."""
    log: Section
    """NeMo's logger and its checkpoints, which are a second line behind the peers' memory."""
    ddp: Section
    """Megatron's data parallelism."""
    plugins: Section
    """NeMo's plugin for the number format."""
    callbacks: list[dict[str, Any]]
    """Callbacks of the program, in Hydra's form: `_target_` names the class, the other keys are its arguments."""

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return whether a recipe starts from weights."""
        return "checkpointless" if "restore_config" in recipe["resume"] else "checkpointless_pretraining"

    @property
    def batch(self) -> Samples:
        """The numbers of the batch."""
        return Samples(self.data.global_batch_size, self.data.micro_batch_size, self.optim.config.lr)

    @property
    def model_parallel_size(self) -> int:
        """Ranks that work on one batch, each with a part of the model or of the sequence."""
        strategy = self.strategy
        parts = strategy.tensor_model_parallel_size * strategy.pipeline_model_parallel_size
        return parts * strategy.context_parallel_size

    def published_model(self, sources: ValueSources) -> str:
        """Return the published model that the recipe is of: the one its files name."""
        return named_model(sources, RUN_NAME)

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return what NeMo saves in its own checkpoints; of adapters, nothing is known."""
        from launcher.checkpointing.architecture import num_parameters  # few compiles need it

        config = config or known(published_model)
        total = num_parameters(config) if config else 0
        saved = 0 if "_peft_" in self.entry_script else total
        return Content(saved, "bfloat16", "adam_fp32_master", "fsdp", total or None)
