"""verl's recipes: where the launcher finds its keys, and what a checkpoint holds."""

from collections.abc import Mapping
from typing import Any, ClassVar

from launcher.families.verl.sections import ModelSource, Parallelism, RayCluster, TrainingConfig
from launcher.model.checkpointing import Content
from launcher.model.composition import ValueSources
from launcher.model.recipe import Mlflow, RecipeBase, named_model
from launcher.model.recipe_keys import Lora, RecipeKeys
from launcher.model.regional_images import RegionalImages
from launcher.runtime.model_configs import beginning, is_on_hub, known

_DATA = {
    "TRAIN_DATA": "training_config.data.train_files",
    "VAL_DATA": "training_config.data.val_files",
    "EXP_DIR": "training_config.trainer.default_local_dir",
}
"""Variables of every script. Source: the published launcher's scripts."""


class Recipe(RecipeBase):
    """A recipe that verl trains: GRPO on a Ray cluster, SFT and DPO by processes of their own."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        mlflow="training_config.mlflow",
        training_dir="training_config.trainer.default_local_dir",
        inputs=(
            *("training_config.data.train_files", "training_config.data.val_files", "training_config.model.path"),
            *("training_config.actor_rollout_ref.model.path", "training_config.critic.model.path"),
        ),
        examples={"training_config.data.train_files": "/data/train.parquet"},
        often_changed=tuple(
            f"training_config.{key}"
            for key in (
                *("data.train_files", "data.val_files", "data.train_batch_size", "data.max_length"),
                *("data.max_prompt_length", "data.max_response_length"),
                *("model.path", "model.lora_rank", "model.lora_alpha", "optim.lr"),
                *("actor_rollout_ref.model.path", "actor_rollout_ref.model.lora_rank"),
                *("actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.ppo_mini_batch_size"),
                *("actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.tensor_model_parallel_size"),
                *("trainer.total_epochs", "trainer.save_freq", "trainer.test_freq", "trainer.resume_mode"),
                "trainer.default_local_dir",
            )
        ),
        passed=("training_config",),
        launcher_only=("images",),
    )
    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "verl_grpo": {
            **_DATA,
            "ACTOR_MODEL_PATH": "training_config.actor_rollout_ref.model.path",
            "CRITIC_MODEL_PATH": "training_config.critic.model.path",
            "REWARD_MODEL_PATH": "training_config.reward_model.model.path",
        },
        "verl_offline": {**_DATA, "MODEL_NAME_OR_PATH": "training_config.model.path"},
    }
    fixed_size: ClassVar[str] = "its keys name one size, and verl's checkpoints load at no other number of ranks"

    images: RegionalImages | None = None
    """The published images, by region."""
    ray_cluster: RayCluster | None = None
    """GRPO only. Processors and memory of the Ray cluster's pods."""
    training_config: TrainingConfig
    """verl's complete configuration."""

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return whether a recipe generates its samples."""
        return "verl_grpo" if "actor_rollout_ref" in recipe["training_config"] else "verl_offline"

    @property
    def mlflow(self) -> Mlflow:
        """How the job is tracked."""
        return self.training_config.mlflow

    @property
    def source(self) -> ModelSource | None:
        """The model that is trained; None if the recipe has no technique's section."""
        roles = self.training_config.actor_rollout_ref
        return roles.model if roles else self.training_config.model

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained: those of FSDP by PEFT's names, those of Megatron in all linear layers."""
        if (source := self.source) is None:
            return None
        path = f"training_config.{'actor_rollout_ref.model' if self.training_config.actor_rollout_ref else 'model'}"
        if own := source.lora and source.lora.rank:
            return Lora(f"{path}.lora", {"r": own, "target_modules": "all-linear", "bias": "none"})
        keys = ("target_modules", "target_parameters", "exclude_modules")
        values = {"r": source.lora_rank, "bias": "none", **{key: getattr(source, key) for key in keys}}
        return Lora(path, values, source.lora_adapter_path) if source.lora_rank else None

    @property
    def parallelism(self) -> Parallelism | None:
        """How the trained model is divided among GPUs."""
        if (roles := self.training_config.actor_rollout_ref) is None:
            return self.training_config.engine
        actor = roles.actor
        if actor.strategy == "megatron":
            return actor.megatron
        own = actor.ulysses_sequence_parallel_size
        return actor.fsdp_config and actor.fsdp_config.model_copy(update={"ulysses_sequence_parallel_size": own})

    def image(self, cluster: str, region: str | None) -> str | None:
        """Return the published image for a choice of `cluster` in a region."""
        return self.images.address(cluster, region, is_for_any=True) if self.images else None

    def image_regions(self, cluster: str) -> tuple[str, ...]:
        """Return the regions that have the published image for a choice of `cluster`."""
        return self.images.regions(cluster) if self.images else ()

    def published_model(self, sources: ValueSources) -> str:
        """Return the published model whose name the recipe's begins with."""
        return beginning(self.source.path) if self.source else ""

    def counted_model(self, sources: ValueSources) -> str:
        """Return the published model that has as many weights, whose name a folder of weights hides."""
        if self.source is None or is_on_hub(self.source.path):
            return self.published_model(sources)
        section = "actor_rollout_ref.model" if self.training_config.actor_rollout_ref else "model"
        return named_model(sources, f"recipes.training_config.{section}.path")

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return what a checkpoint of verl holds: the weights or the adapters, and the state of the optimizer.

        Under FSDP in 16 bits, Adam's moments have 16 bits too.

        Source: torch.optim.Adam: moments have the parameter's type; Megatron-LM, distributed optimizer.
        """
        from launcher.checkpointing import architecture  # few compiles need it

        config = config or known(published_model)
        weights = architecture.weights(config) if config else ()
        total = sum(weight.parameters for weight in weights)
        training, roles = self.training_config, self.training_config.actor_rollout_ref
        saved = architecture.lora_parameters(weights, self.lora.values) if self.lora else total
        checkpoint = roles.actor.checkpoint if roles else training.checkpoint
        is_resumed = checkpoint is None or "optimizer" in checkpoint.save_contents
        dtype, optimizer = _formats(self.parallelism)
        return Content(saved, dtype, optimizer if is_resumed else "none", "fsdp", total or None)


def _formats(parallelism: Parallelism | None) -> tuple[str, str]:
    """Return the formats of weights and of the optimizer's state, as keys of `DTYPES` and `OPTIMIZERS`."""
    if parallelism and parallelism.tensor_model_parallel_size:
        return "bfloat16", "adam_fp32_master"
    is_full = parallelism is None or parallelism.model_dtype in (None, "fp32", "float32")
    return ("float32", "adam_fp32") if is_full else ("bfloat16", "adam_16bit")
