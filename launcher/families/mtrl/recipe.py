"""A recipe of multi-turn reinforcement learning, typed.

Source of bounds and choices: the parameters that the published templates of these recipes have.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from launcher.model.base_model import NonNegativeInt, Passed, PositiveInt
from launcher.model.recipe import Run
from launcher.model.recipe_keys import RecipeKeys
from launcher.model.regional_images import ImageRecipe

PassCounts = Annotated[list[PositiveInt], Field(min_length=1)]
Decay = Annotated[float, Field(ge=0, le=0.999999)]
Conversations = Annotated[int, Field(ge=1, le=128)]
AdvantageMethod = Literal[
    "monte_carlo",
    "group_based",
    "group_based_per_turn",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "opo",
    "grpo_passk",
    "gpg",
]


class MtrlRun(Run):
    """Name of the job, its family, and the model that an evaluation compares with."""

    base_model_name: str | None = None
    """Evaluation only. Name of the model that the adapters were trained from. Required there."""


class ModelSettings(Passed):
    """The model, its adapters and their optimizer."""

    model_name: str
    """Model by its name on the Hugging Face Hub or in SageMaker; for an evaluation also trained adapters. Needed."""
    max_sequence_length: PositiveInt | None = None
    """Tokens of a conversation, all turns together. Longer ones are cut. Memory grows with it."""
    lora_rank: Annotated[int, Field(ge=16, le=64)] | None = None
    """Rank of the adapters, 16 to 64, for Nova models to 32. Higher learns more and takes more memory."""
    lora_alpha: Annotated[int, Field(ge=16, le=128)] | None = None
    """Scale of the adapters, 16 to 128: their output is multiplied by lora_alpha / lora_rank."""
    lora_plus_lr_ratio: Annotated[float, Field(ge=1, le=100)] | None = None
    """Nova models only. Learning rate of the adapters' second factor over that of the first, 1 to 100."""
    learning_rate: Annotated[float, Field(ge=0, le=0.01)] | None = None
    """Learning rate, to 0.01. Lower it when the reward collapses."""
    adam_beta1: Decay | None = None
    """Adam's decay rate of the running mean of gradients."""
    adam_beta2: Decay | None = None
    """Adam's decay rate of the running mean of their squares."""
    adam_eps: Annotated[float, Field(ge=1e-16, le=0.01)] | None = None
    """Adam's bound of the divisor, 1e-16 to 0.01."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = None
    """Decoupled weight decay, 0 to 1; 0 turns it off."""
    grad_clip_norm: Annotated[float, Field(ge=0, le=100)] | None = None
    """Norm at which gradients are clipped, to 100; 0 turns it off."""


class Batch(Passed):
    """How many conversations a step trains on, and how many are held for one prompt."""

    training_batch_size: Literal[8, 16, 32, 64, 128] | None = None
    """Conversations of an optimizer step, a multiple of group_size: 32, 64 or 128, for Nova models 8 to 64."""
    group_size: Annotated[int, Field(ge=2, le=32)] | None = None
    """Conversations that are held for each prompt, 2 to 32; their rewards are compared with each other."""
    val_batch_size: PositiveInt | None = None
    """Validation prompts; null for all."""
    val_group_size: Conversations | None = None
    """Conversations that are held for each validation prompt."""
    val_random_sample: bool | None = None
    """true validates on a random part of the prompts, if val_batch_size is less than all."""
    eval_batch_size: PositiveInt | None = None
    """Evaluation only. Prompts; null for all."""
    eval_group_size: Conversations | None = None
    """Evaluation only. Conversations that are held for each prompt, 1 to 128."""
    eval_random_sample: bool | None = None
    """Evaluation only. true evaluates on a random part of the prompts."""


class Rl(Passed):
    """The loss, and how rewards become advantages."""

    advantage_method: AdvantageMethod
    """How rewards become advantages; group_based compares the conversations of one prompt."""
    advantage_normalization: bool
    """true divides the advantages of a group by their deviation."""
    gamma: Annotated[float, Field(ge=0, le=1)]
    """Discount of a reward for each turn before it; 1 for none."""
    loss_fn: Literal["importance_sampling", "ppo", "cispo"]
    """The loss. ppo clips the ratio of new to old probabilities, cispo its weight."""
    clip_low_threshold: Annotated[float, Field(ge=0, le=1)]
    """Lower bound of that ratio, 0 to 1."""
    clip_high_threshold: Annotated[float, Field(ge=1, le=10)]
    """Upper bound of that ratio, 1 to 10."""


class Sampling(Passed):
    """How answers are sampled."""

    max_tokens: Annotated[int, Field(ge=512, le=8192)]
    """Tokens of one answer, 512 to 8192, and no more than model.max_sequence_length."""
    temperature: Annotated[float, Field(ge=0, le=2)]
    """0 takes the most likely token, up to 2 for more variety. Conversations of one prompt differ only above 0."""
    top_p: Annotated[float, Field(ge=0, le=1)]
    """Tokens are sampled from the most likely ones with this probability together; 1 for all."""


class Metrics(Passed):
    """What is reported of conversations."""

    pass_k_values: PassCounts
    """Numbers k for pass@k: the probability that one of k conversations succeeds."""
    success_threshold: float
    """Reward from which a conversation counts as a success."""


class Rollout(Passed):
    """The conversations with your agent."""

    max_concurrency: Annotated[int, Field(ge=32, le=96)]
    """Conversations at a time, 32 to 96. Your agent must bear as many."""
    timeout: Annotated[float, Field(ge=300, le=86400)]
    """Seconds after which a conversation counts as failed, 300 to 86400."""
    max_retries: Annotated[int, Field(ge=1, le=10)]
    """How often a failed conversation is held again, 1 to 10."""
    rollout_tps: PositiveInt
    """Conversations that are begun in a second, at most."""


class Schedule(Passed):
    """Length of the training. Intervals in steps."""

    epochs: Annotated[int, Field(ge=1, le=30)]
    """Passes over the prompts, 1 to 30."""
    max_steps: Annotated[int, Field(ge=1, le=1000)]
    """Steps after which training ends in any case, 1 to 1000."""
    save_every: Annotated[int, Field(ge=0, le=100)]
    """Steps between two checkpoints, to 100; 0: at the end only."""
    val_every: Annotated[int, Field(ge=0, le=100)]
    """Steps between two validations, to 100; 0: none."""
    val_at_start: bool
    """true validates before the first step too, to compare with."""


class Async(Passed):
    """Training and conversations at the same time."""

    max_steps_off_policy: Annotated[int, Field(ge=0, le=10)]
    """Steps that the policy of a conversation may be behind, 0 to 10. 0 waits for every conversation; more is faster
    and less exact."""


class DataFilter(Passed):
    """Conversations that repeat themselves are left out."""

    max_filter_rate: Annotated[float, Field(ge=0, le=1)]
    """Largest part of a batch that may be left out."""
    max_repeated_tokens: NonNegativeInt
    """Repetitions of one token from which a conversation is left out."""
    max_ngram_size: PositiveInt
    """Tokens of the longest sequences whose repetitions count."""


class Recipe(ImageRecipe):
    """A recipe of multi-turn RL. Training has rl, schedule and async_config, an evaluation has none of them."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        inputs=("model.model_name",),
        examples={"model.model_name": "my-model", "run.base_model_name": "my-model"},
        often_changed=(
            *("model.model_name", "model.learning_rate", "model.lora_rank", "model.max_sequence_length"),
            *("batch.training_batch_size", "batch.group_size", "batch.eval_batch_size", "batch.eval_group_size"),
            *("rl.advantage_method", "rl.loss_fn", "sampling_params.max_tokens", "sampling_params.temperature"),
            *("eval_sampling_params.max_tokens", "eval_sampling_params.temperature", "schedule.epochs"),
            *("schedule.max_steps", "schedule.save_every", "eval_metrics_config.success_threshold"),
            *("rollout.max_concurrency", "rollout.timeout", "rollout.max_retries"),
        ),
        passed=(
            *("model", "batch", "rl", "sampling_params", "val_sampling_params", "eval_sampling_params"),
            *("val_metrics_config", "eval_metrics_config", "rollout", "schedule", "async_config", "data_filter"),
        ),
        launcher_only=("trainer", "version", "instance_types", "images", "run.results_dir", "run.hf_access_token"),
    )
    elsewhere: ClassVar[str] = "multi-turn RL has an image for training jobs of SageMaker only"
    fixed_size: ClassVar[str] = "jobs of multi-turn RL do not change their size: their image has no elastic agent"

    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "mtrl": {"MODEL_NAME_OR_PATH": "model.model_name"},
        "mtrl_evaluation": {"MODEL_NAME_OR_PATH": "model.model_name", "BASE_MODEL_NAME": "run.base_model_name"},
    }

    recipe_version: str
    """Version of the published recipe, which the program reads."""
    run: MtrlRun
    """Name of the job, and its family."""
    model: ModelSettings
    """The model, its adapters and their optimizer."""
    batch_settings: Batch = Field(alias="batch")
    """How many conversations a step trains on, and how many are held for one prompt."""
    rollout: Rollout
    """The conversations with your agent."""
    rl: Rl | None = None
    """The loss, and how rewards become advantages. Training only."""
    sampling_params: Sampling | None = None
    """How answers are sampled in training."""
    val_sampling_params: Sampling | None = None
    """How answers are sampled in validation."""
    eval_sampling_params: Sampling | None = None
    """How answers are sampled in an evaluation."""
    val_metrics_config: Metrics | None = None
    """What is reported of a validation."""
    eval_metrics_config: Metrics | None = None
    """What is reported of an evaluation."""
    schedule: Schedule | None = None
    """Length of the training. Training only."""
    async_config: Async | None = None
    """Training and conversations at the same time. Training only."""
    data_filter: DataFilter | None = None
    """Which conversations are left out. Nova models only."""

    @property
    def is_training(self) -> bool:
        """Whether it trains, rather than evaluates."""
        return self.rl is not None

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return whether a recipe trains or evaluates."""
        return "mtrl" if "rl" in recipe else "mtrl_evaluation"
