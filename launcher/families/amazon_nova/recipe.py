"""The typed Nova recipe."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from launcher.families.amazon_nova.sections import (
    Evaluation,
    Images,
    Inference,
    NovaRun,
    PpoProgram,
    Processor,
    RewardEnvironment,
    TrainingConfig,
)
from launcher.families.amazon_nova.techniques import PPO_SECTIONS, Technique, technique_of
from launcher.model.base_model import NodeCount
from launcher.model.checkpointing import Content
from launcher.model.config_tree import get
from launcher.model.recipe_keys import RecipeKeys
from launcher.model.regional_images import ImageRecipe

_FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:reward"
_EXAMPLES = {
    "run.data_s3_path": "s3://my-bucket/data.jsonl",
    "run.output_s3_path": "s3://my-bucket/results/",
    "run.reward_lambda_arn": _FUNCTION,
    "rl_env.reward_lambda_arn": _FUNCTION,
    "training_config.customer_bucket": "my-bucket",
    "training_config.kms_key": "my-key",
}
_LAUNCHER_ONLY = (
    *("display_name", "version", "instance_types", "images", "node_counts", "trainer"),
    *("run.results_dir", "run.hf_access_token"),
)
_DATA_PATH = "recipes.run.data_s3_path"
_ON_OWN_DATA = ("gen_qa", "llm_judge", "rubric_llm_judge", "rft_eval")
"""Tasks of an evaluation that have no questions of their own."""
_NOT_RENDERED = {
    Technique.RFT: "the NATS cluster that joins its programs is not rendered yet (docs/nova.md)",
}


class Recipe(ImageRecipe):
    """A Nova recipe: which sections it has depends on its technique."""

    keys: ClassVar[RecipeKeys] = RecipeKeys(
        inputs=("run.model_name_or_path", "run.data_s3_path", "run.validation_data_s3_path"),
        results=("run.output_s3_path",),
        examples=_EXAMPLES,
        often_changed=(
            "rl_env.reward_lambda_arn",
            *("training_config.max_length", "training_config.global_batch_size", "training_config.max_steps"),
            *("training_config.trainer.max_epochs", "training_config.trainer.max_steps"),
            *("training_config.optim_config.lr", "training_config.model.optim.lr"),
            *("training_config.distillation_data", "training_config.maxNumberOfPrompts"),
            *("training_config.customer_bucket", "training_config.kms_key"),
            *("evaluation.task", "evaluation.strategy", "evaluation.subtask"),
            *("inference.max_new_tokens", "inference.temperature", "inference.top_p", "inference.top_k"),
            *("processor.lambda_arn", "processor.aggregation"),
        ),
        passed=("run", "training_config", "evaluation", "inference", "processor", "rl_env", *PPO_SECTIONS),
        launcher_only=_LAUNCHER_ONLY,
    )
    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "nova": {
            "DATA_S3_PATH": "run.data_s3_path",
            "OUTPUT_S3_PATH": "run.output_s3_path",
            "MODEL_WEIGHTS": "run.model_name_or_path",
            "REWARD_LAMBDA_ARN": "run.reward_lambda_arn",
        }
    }
    fixed_size: ClassVar[str] = "Nova's programs cannot restart at another size"

    @classmethod
    def left_to_launch(cls, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return what a recipe leaves to each launch: training jobs have channels and a place for results."""
        left, task = dict(super().left_to_launch(config)), get(config, "recipes.evaluation.task")
        jobs = get(config, "cluster.sm_jobs_config") or {}
        if (task and task not in _ON_OWN_DATA) or any((jobs.get("inputs") or {}).values()):
            left.pop(_DATA_PATH, None)
        if jobs:
            left.pop("recipes.run.output_s3_path", None)
        return left

    run: NovaRun
    """The model, the data, the nodes, and how the job is tracked."""
    images: Images
    """The published images."""
    node_counts: Annotated[list[NodeCount], Field(min_length=1)] | None = None
    """Values of run.replicas that the model can be spread over. Default: any."""
    training_config: TrainingConfig | None = None
    """What the program trains."""
    ppo_reward: PpoProgram | None = None
    """The reward model of PPO."""
    ppo_critic: PpoProgram | None = None
    """The critic model of PPO."""
    ppo_anchor: PpoProgram | None = None
    """The model that the policy of PPO is compared with."""
    ppo_actor_generation: PpoProgram | None = None
    """The generation of answers in PPO."""
    ppo_actor_train: PpoProgram | None = None
    """The training of the policy in PPO."""
    evaluation: Evaluation | None = None
    """What an evaluation measures."""
    inference: Inference | None = None
    """How an evaluation generates answers."""
    processor: Processor | None = None
    """Your own AWS Lambda function that scores the answers of an evaluation."""
    rl_env: RewardEnvironment | None = None
    """The reward function of an evaluation by rewards."""

    def refusal(self, cluster: str) -> str | None:
        """Return why a choice of `cluster` cannot run the recipe; None if it can.

        Source: the published recipes, launcher and images: HyperPod on EKS and SageMaker training jobs only.
        """
        if self.images.exists(cluster):
            return None
        technique = technique_of(self.model_dump(warnings=False))
        if technique in _NOT_RENDERED:
            return f"{technique.value}: {_NOT_RENDERED[technique]}"
        return f"the program of Nova's {technique.value} is closed, and no image of it is published for this cluster"

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return no content: the size of the closed models is unknown."""
        return Content(0, "bfloat16", "adam_fp32_master", "fsdp")
