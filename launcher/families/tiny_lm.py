"""A byte-level language model trained by `launcher.runtime`: small enough for a laptop's processor."""

from typing import Annotated, Literal

from pydantic import Field

from launcher.contract import ENTRYPOINT
from launcher.families import Interface
from launcher.recipe import BatchArgs, Model, NonNegativeInt, PositiveInt, RecipeBase, TrainingBase
from launcher.specs import JobSpec

Fraction = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Model):
    """A causal transformer; sizes in features, one token a byte."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    dropout: Fraction


class Data(Model):
    """A text file; `builtin:` ones ship with the runtime. `limit` in samples."""

    name: str
    file_path: Annotated[str, Field(min_length=1)]
    limit: PositiveInt | None


class Datasets(Model):
    """What is trained on."""

    train_data: Data


class TrainingArgs(BatchArgs):
    """Optimizer, lengths and checkpoints. `max_len` in tokens, `save_steps` in optimizer steps."""

    ring_attn_size: Literal[1]  # this trainer keeps a sample on one rank
    adam_betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)]
    load_checkpoint: bool
    logging_steps: PositiveInt
    log_samples: bool
    lr_scheduler: Literal["cosine", "constant"]
    lr_warmup_ratio: Fraction
    max_ckpt_num: PositiveInt
    max_epochs: PositiveInt
    max_len: PositiveInt
    max_norm: Annotated[float, Field(gt=0)]
    save_steps: NonNegativeInt
    seed: int
    strategy: Literal["ddp", "fsdp2"]
    weight_decay: Annotated[float, Field(ge=0)]


class TrainingConfig(TrainingBase):
    """`training_config` as `launcher.runtime` reads it."""

    model_settings: ModelConfig = Field(alias="model_config")
    datasets: Datasets
    training_args: TrainingArgs


class Recipe(RecipeBase):
    """A recipe that `launcher.runtime` trains."""

    training_config: TrainingConfig


_PROGRAM = ("-m", ENTRYPOINT)


def _image_command(job: JobSpec) -> tuple[str, ...]:
    """Return the agent as process 1 of an image that has this package; the operator tells it the real size."""
    agent = ("hyperpodrun", "--nnodes=1", f"--nproc-per-node={job.nproc_per_node}", "--rdzv-backend=hyperpod")
    return (*agent, *_PROGRAM, "--config-path=/config")


INTERFACE = Interface(
    program=_PROGRAM, image_command=_image_command, image_env=lambda job: {"NNODES": str(job.initial_nodes)}
)
