"""A byte-level language model trained by `launcher.runtime`: small enough for a laptop's processor."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.common.names import ENTRYPOINT
from launcher.model.base_model import Model, NonNegativeInt, PositiveInt, Seed
from launcher.model.checkpointing import Content
from launcher.model.interface import Interface, agent_workers
from launcher.model.training_args import BatchArgs, TrainingRecipe, TrainingSection

Fraction = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Model):
    """A causal transformer; sizes in features, one token per byte."""

    vocab_size: PositiveInt
    """Distinct tokens. 256 covers every byte; the tokens of the data are bytes."""
    hidden_size: PositiveInt
    """Features per token; a multiple of num_heads. Parameters and time grow with its square."""
    num_layers: PositiveInt
    """Transformer blocks."""
    num_heads: PositiveInt
    """Attention heads of each block; a divisor of hidden_size."""
    dropout: Fraction
    """Part of the activations set to zero in training, 0 to below 1."""


class Data(Model):
    """A text file; `builtin:` ones ship with the runtime. `limit` in samples."""

    name: str
    """A label; ignored."""
    file_path: Annotated[str, Field(min_length=1)]
    """Text file on this machine, or builtin:NAME for one that ships with the runtime."""
    limit: PositiveInt | None
    """Use only the first so many samples, of max_len bytes each; null for all."""


class Datasets(Model):
    """The training data."""

    train_data: Data
    """The training text."""


class TrainingArgs(BatchArgs):
    """Optimizer, lengths and checkpoints. `max_len` in tokens, `save_steps` in optimizer steps."""

    ring_attn_size: Literal[1]  # this trainer keeps a sample on one rank
    """Always 1: this trainer keeps a sample on one rank."""
    adam_betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)]
    """AdamW's two decay rates of the running means, of gradients and of their squares."""
    load_checkpoint: bool
    """true resumes from a checkpoint in training_dir. false removes it and starts over; restarts within the job
    still resume."""
    logging_steps: PositiveInt
    """Optimizer steps between two printed lines. metrics.jsonl and MLflow have every step."""
    log_samples: bool
    """true records which samples each rank trained on, under run/samples/. For checking data order."""
    lr_scheduler: Literal["cosine", "constant"]
    """Schedule of the learning rate after warm-up: cosine falls to zero at the end, constant stays."""
    lr_warmup_ratio: Fraction
    """Fraction of all samples over which the learning rate rises from zero to its peak, 0 to below 1."""
    max_ckpt_num: PositiveInt
    """Checkpoints kept; older ones are removed."""
    max_epochs: PositiveInt
    """Passes over the data; a scale event in the middle of one repeats and skips nothing."""
    max_len: PositiveInt
    """Tokens per sample, which are bytes. Memory and time grow with it."""
    max_skipped_steps: NonNegativeInt | None = None
    """Steps in a row that may be skipped since their loss or gradients are not finite; one more ends the job.
    null: 3."""
    max_norm: Annotated[float, Field(gt=0)]
    """Gradients with a larger norm are scaled down to it, against jumps in the loss."""
    min_step_seconds: Annotated[float, Field(ge=0)]
    """Minimum duration of an optimizer step; 0 for no limit. A rehearsal uses it to keep the pace of the real job."""
    save_steps: NonNegativeInt
    """Optimizer steps between two checkpoints; 0 saves only at the end. A fault loses at most so many."""
    seed: Seed
    """Seed of weights, sample order and dropout. The same seed and batch give the same sample order at any size."""
    strategy: Literal["ddp", "fsdp2"]
    """ddp keeps all parameters on each rank; fsdp2 shards parameters, gradients and optimizer state over all ranks,
    for models that do not fit."""
    weight_decay: Annotated[float, Field(ge=0)]
    """AdamW's decoupled weight decay; 0 turns it off."""


class TrainingConfig(TrainingSection):
    """`training_config` as `launcher.runtime` reads it."""

    model_settings: ModelConfig = Field(alias="model_config")
    """The transformer's size."""
    datasets: Datasets
    """The training text."""
    training_args: TrainingArgs
    """Optimizer, batch, checkpoints, logging."""


class Recipe(TrainingRecipe):
    """A recipe that `launcher.runtime` trains."""

    training_config: TrainingConfig

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return the kind of every recipe: a text to learn, and a place for checkpoints."""
        return "tiny"

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return what `launcher.runtime` saves: weights and AdamW's moments in 32 bits."""
        from launcher.checkpointing.architecture import num_parameters  # few compiles need it

        args = self.training_config.training_args
        own = _num_parameters(self.training_config.model_settings, args.max_len)
        saved = num_parameters(config) if config else own
        return Content(
            saved, "float32", "adam_fp32", "fsdp" if args.strategy == "fsdp2" else "ddp", saved, is_dealt=True
        )


def _num_parameters(model: ModelConfig, max_len: int) -> int:
    """Return the parameters of `launcher.runtime.model.TinyLM`."""
    hidden = model.hidden_size
    block = 12 * hidden * hidden + 9 * hidden  # attention 4, feed-forward 8; two norms with biases, two biases
    return (2 * model.vocab_size + max_len) * hidden + model.num_layers * block + 2 * hidden


_WORKERS = agent_workers(lambda job: ("-m", ENTRYPOINT))
INTERFACES = {
    None: Interface(roles=(_WORKERS,), cuts_uneven_shares=True, modules=lambda job: ("launcher.runtime.trainer",))
}
