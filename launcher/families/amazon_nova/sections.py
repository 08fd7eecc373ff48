"""The sections of a Nova recipe, with the keys that rules and users' parameters are about.

Source of bounds: the parameters of the published recipes. What only one technique bounds is in `limits`.
"""

from typing import Annotated, Literal

from pydantic import Field

from launcher.model.base_model import NodeCount, Passed, PositiveInt, TextForm
from launcher.model.recipe import Run, TrackingUri
from launcher.model.regional_images import RegionalImages

_S3, _ARN = r"^(s3://\S.*)?$", r"^(arn:aws[a-z-]*:lambda:\S+)?$"
S3Path = Annotated[str, TextForm(pattern=_S3, words="an S3 URI such as s3://bucket/folder, or empty")]
"""An S3 URI, or empty."""
_DIGITS = r"^\d+$"
LambdaArn = Annotated[str, TextForm(pattern=_ARN, words="the ARN of a Lambda function, or empty")]
"""ARN of an AWS Lambda function, or empty."""
Fraction = Annotated[float, Field(ge=0, le=1)]
LastRate = Annotated[float, Field(ge=1e-7, le=1)]
WarmUp = Annotated[int, Field(ge=0, le=100)]
Steps = Annotated[int, Field(ge=1, le=100_000)]
Ratio = Annotated[float, Field(ge=0, le=100)]


class NovaRun(Run, Passed):
    """The model, the data, the nodes, and how the job is tracked."""

    model_name_or_path: str
    """The weights to start from: a published model such as nova-lite/prod, or s3:// of an earlier job's output."""
    replicas: NodeCount | None = None
    """Nodes of the job; of reinforcement fine-tuning on HyperPod, those that train. `node_counts` lists the numbers
    that the model can be spread over."""
    generation_replicas: NodeCount | None = None
    """Nodes that generate answers. Reinforcement fine-tuning on HyperPod."""
    rollout_worker_replicas: NodeCount | None = None
    """Nodes that ask for answers and for their rewards. Reinforcement fine-tuning on HyperPod."""
    actor_train_replicas: NodeCount | None = None
    """Nodes that train the policy. PPO."""
    actor_generation_replicas: NodeCount | None = None
    """Nodes that generate answers. PPO."""
    rm_replicas: NodeCount | None = None
    """Nodes of the reward model. PPO."""
    cm_replicas: NodeCount | None = None
    """Nodes of the critic model. PPO."""
    am_replicas: NodeCount | None = None
    """Nodes of the anchor model, which the policy is compared with. PPO."""
    data_s3_path: S3Path | None = None
    """The training data, or the questions of an evaluation: an S3 URI. A training job may take it from a channel."""
    validation_data_s3_path: S3Path | None = None
    """The data to validate on: an S3 URI. Empty: no validation."""
    output_s3_path: S3Path | None = None
    """Where results are written: an S3 URI. A training job has its own output path."""
    reward_lambda_arn: LambdaArn | None = None
    """The AWS Lambda function that rewards answers. Reinforcement fine-tuning."""
    mlflow_tracking_uri: TrackingUri | None = None
    """ARN of the MLflow tracking server that the program itself logs to. Empty: no tracking."""
    mlflow_experiment_name: str | None = None
    """Experiment of the program's run."""
    mlflow_run_name: str | None = None
    """Title of the program's run."""


class Lora(Passed):
    """Low-rank adapters. The two spellings of the LoRA+ ratio are those of different programs."""

    alpha: PositiveInt | None = None
    """Scale of the adapters. Higher learns faster and forgets more."""
    loraplus_lr_ratio: Ratio | None = None
    """LoRA+: learning rate of the adapters' second matrix over that of the first."""
    lora_plus_lr_ratio: Ratio | None = None
    """The same, as supervised fine-tuning of Nova 2 and reinforcement fine-tuning in a training job spell it."""
    adapter_dropout: Fraction | None = None
    """Part of the adapters' inputs set to zero in training."""


class Peft(Passed):
    """Which weights are trained."""

    peft_scheme: Literal["lora", "null"] | None = None
    """lora trains adapters, null all weights. One published program reads the text "null"."""
    lora_tuning: Lora | None = None
    """The adapters."""


class Schedule(Passed):
    """Schedule of the learning rate, in optimizer steps."""

    warmup_steps: WarmUp | None = None
    """Steps over which the learning rate rises to its peak."""
    min_lr: LastRate | None = None
    """The last learning rate."""


class Optimizer(Passed):
    """The optimizer."""

    lr: Fraction | None = None
    """Peak learning rate."""
    weight_decay: Fraction | None = None
    """Decoupled weight decay of the optimizer; 0 turns it off."""
    sched: Schedule | None = None
    """Schedule of the learning rate."""


class Preference(Passed):
    """Direct preference optimization."""

    beta: Annotated[float, Field(ge=0.001, le=0.1)] | None = None
    """How closely the model follows the reference: higher stays closer."""


class ModelSection(Passed):
    """Regularization, optimizer and adapters of the first generation."""

    hidden_dropout: Fraction | None = None
    """Part of the hidden states set to zero in training."""
    attention_dropout: Fraction | None = None
    """Part of the attention weights set to zero in training."""
    ffn_dropout: Fraction | None = None
    """Part of the feed-forward activations set to zero in training."""
    global_batch_size: PositiveInt | None = None
    """Samples per optimizer step. PPO."""
    optim: Optimizer | None = None
    """The optimizer."""
    peft: Peft | None = None
    """Which weights are trained."""
    dpo_cfg: Preference | None = None
    """Direct preference optimization."""


class TrainerSection(Passed):
    """Length of the training; of reinforcement fine-tuning also its loss, optimizer and adapters."""

    max_epochs: Annotated[int, Field(ge=1, le=100)] | None = None
    """Passes over the data."""
    max_steps: Steps | None = None
    """Length of the training in optimizer steps."""
    save_steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Optimizer steps between two checkpoints."""
    optim_config: Optimizer | None = None
    """The optimizer. Reinforcement fine-tuning."""
    peft: Peft | None = None
    """Which weights are trained. Reinforcement fine-tuning."""


class Advantage(Passed):
    """How answers to one prompt are compared."""

    number_generation: Annotated[int, Field(ge=2, le=16)] | None = None
    """Answers to each prompt."""


class Endpoint(Passed):
    """The AWS Lambda function that rewards answers."""

    lambda_arn: LambdaArn | None = None
    """Its ARN, the same as run.reward_lambda_arn."""
    lambda_concurrency_limit: PositiveInt | None = None
    """Most calls at a time."""


class Rewards(Passed):
    """Who rewards answers."""

    api_endpoint: Endpoint | None = None
    """The AWS Lambda function that does."""


class Rollout(Passed):
    """How answers are generated, rewarded and compared."""

    advantage_strategy: Advantage | None = None
    """How answers to one prompt are compared."""
    rewards: Rewards | None = None
    """Who rewards answers."""


class Importance(Passed):
    """How the trained weights are combined with those that the training started from."""

    fine_tuned_model: Fraction | None = None
    """Weight of the trained model; 1 takes it alone."""


class TrainingConfig(Passed):
    """What the program trains; each technique has its own part of these keys."""

    max_length: Annotated[int, Field(ge=1, le=131_072)] | None = None
    """Longest sample, in tokens."""
    global_batch_size: PositiveInt | None = None
    """Samples per optimizer step over all nodes."""
    max_steps: Steps | None = None
    """Optimizer steps. Supervised fine-tuning of Nova 2."""
    save_steps: Steps | None = None
    """Optimizer steps between two checkpoints. Supervised fine-tuning of Nova 2."""
    val_check_interval: Steps | None = None
    """Optimizer steps between two validations."""
    limit_val_batches: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Batches of a validation."""
    reasoning_enabled: bool | None = None
    """Whether the samples hold reasoning, which is trained too."""
    lr_scheduler: Schedule | None = None
    """Schedule of the learning rate. Supervised fine-tuning of Nova 2."""
    optim_config: Optimizer | None = None
    """The optimizer. Supervised fine-tuning of Nova 2."""
    optim: Optimizer | None = None
    """The optimizer. Continued pre-training of Nova 2."""
    peft: Peft | None = None
    """Which weights are trained. Supervised fine-tuning of Nova 2."""
    model_importance_score: Importance | None = None
    """How the trained weights are combined with the first ones."""
    model: ModelSection | None = None
    """Regularization, optimizer and adapters of the first generation."""
    trainer: TrainerSection | None = None
    """Length of the training."""
    rollout: Rollout | None = None
    """How answers are generated and rewarded. Reinforcement fine-tuning."""
    teacherModelId: str | None = None
    """The model whose answers are collected, by its name in Amazon Bedrock. Distillation."""
    maxResponseLength: Annotated[str, TextForm(pattern=_DIGITS, words="digits, in quotes")] | None = None
    """Longest answer in tokens, as text. Distillation."""
    customer_bucket: str | None = None
    """Bucket for the answers. Distillation."""
    kms_key: str | None = None
    """Key that encrypts the answers. Distillation."""


class PpoProgram(Passed):
    """One of the programs of PPO."""

    max_length: PositiveInt | None = None
    """Longest prompt and answer, in tokens."""
    max_steps: PositiveInt | None = None
    """Optimizer steps of the policy."""
    model: ModelSection | None = None
    """Its batch, regularization and optimizer."""


class Evaluation(Passed):
    """What is measured."""

    task: Annotated[str, Field(min_length=1)]
    """The benchmark, or another kind of evaluation: gen_qa, llm_judge, rubric_llm_judge, rft_eval."""
    strategy: Annotated[str, Field(min_length=1)]
    """How questions are asked, such as zs_cot: step by step, without examples."""
    metric: Annotated[str, Field(min_length=1)]
    """What is reported, such as accuracy, or all."""
    subtask: str | None = None
    """A part of the benchmark; empty for all of it."""


class Inference(Passed):
    """How answers are generated."""

    max_new_tokens: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Longest answer in tokens."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Tokens to choose from at each step; -1 for any."""
    top_p: Fraction | None = None
    """Probability mass of the tokens to choose from."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """0 takes the likeliest token; higher is more random."""


class Processor(Passed):
    """Your own AWS Lambda function that scores answers."""

    lambda_arn: LambdaArn | None = None
    """Its ARN. Empty: the answers are compared with the expected ones."""
    lambda_type: Literal["rft", "custom_metrics"] | None = None
    """rft for a reward function, custom_metrics for one that returns metrics of its own."""
    preset_reward_function: Literal["", "prime_math", "prime_code"] | None = None
    """A reward function of the image in place of your own."""


class RewardEnvironment(Passed):
    """The reward function of an evaluation by rewards."""

    reward_lambda_arn: LambdaArn | None = None
    """ARN of the AWS Lambda function."""


class Images(RegionalImages):
    """The published images of Nova. Its programs run on no cluster without one."""

    init_container: str
    """Name and tag of the one that prepares a pod on HyperPod."""
    generation: str | None = None
    """Name and tag of the program that generates answers. PPO."""
