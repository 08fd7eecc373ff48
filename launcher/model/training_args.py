"""The shape that several families share: `training_config` with `training_args` and `mlflow`.

A family of another shape subclasses `RecipeBase` and defines where its batch is.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from launcher.model.base_model import BatchSize, Model
from launcher.model.recipe import Mlflow, RecipeBase
from launcher.model.recipe_keys import BatchKeys, RecipeKeys, UnevenBatch

ARGS = "training_config.training_args"
"""Path of the optimizer's and the batch's keys."""
BATCH_KEYS = BatchKeys(
    train_batch_size=f"{ARGS}.train_batch_size",
    micro_train_batch_size=f"{ARGS}.micro_train_batch_size",
    learning_rate=f"{ARGS}.learning_rate",
    uneven_batch=f"{ARGS}.uneven_batch",
    sample_groups=(f"{ARGS}.ring_attn_size",),
)


class BatchArgs(Model):
    """The part of `training_args` that the planner reads; a family's own arguments extend it."""

    train_batch_size: BatchSize
    """Samples per optimizer step over all ranks. Part of the training's outcome: keep it the same at every size, and
    scale the learning rate when you change it."""
    micro_train_batch_size: BatchSize
    """Samples per forward pass on one rank. Larger is faster and needs more device memory; the outcome stays the
    same, as accumulation makes up the difference."""
    learning_rate: Annotated[float, Field(gt=0)]
    """Peak learning rate, after warm-up. An override of this key applies at every size."""
    ring_attn_size: BatchSize
    """Ranks that share the sequence of one sample; a divisor of the ranks at every size. Raise it if one sample
    does not fit in a device's memory: it leaves fewer data-parallel ranks."""
    training_dir: str
    """Folder of checkpoints and results, as the job sees it; storage that every node and every restart reaches."""
    override_training_dir: bool
    """true continues in the same folder after every restart, which an elastic job needs: it resumes from what it
    wrote there."""
    uneven_batch: UnevenBatch | None = None
    """How samples are distributed if they do not divide over the ranks. Default: evenly."""

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that share one sample, by its sequence."""
        return self.ring_attn_size


class TrainingSection(Model):
    """The part of `training_config` that these families have; a family adds the rest."""

    training_args: BatchArgs
    """Optimizer, batch, checkpoints, logging."""
    mlflow: Mlflow
    """The job's MLflow run."""
    force_rerun: bool
    """Passed unchanged to the training image, which handles results of an earlier run; the published recipes
    leave it false, except three. The runtime of tiny_lm does not read it."""


class TrainingRecipe(RecipeBase):
    """A recipe with `training_config.training_args`."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        batch=BATCH_KEYS,
        mlflow="training_config.mlflow",
        same_folder=f"{ARGS}.override_training_dir",
        training_dir=f"{ARGS}.training_dir",
        left_to_image=(f"{ARGS}.training_dir",),
    )

    training_config: TrainingSection
    """The section for the training program."""

    @property
    def batch(self) -> BatchArgs:
        """The numbers of the batch."""
        return self.training_config.training_args

    @property
    def mlflow(self) -> Mlflow:
        """How the job is tracked."""
        return self.training_config.mlflow
