"""Sections of sm_jobs_config that become members of CreateTrainingJob; the API's names are aliases of their keys.

A section without any given key is left out of the request.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from launcher.backends.sagemaker.members import (
    Count,
    S3Uri,
    VolumeSize,
    absolute_path,
    held,
    image,
    kept_folder,
    named,
)
from launcher.model.base_model import Listed, Model, default

Folder = Annotated[str, held("DebugRuleConfigurations[].LocalPath"), AfterValidator(absolute_path)]
Tensors = Annotated[str, held("DebugHookConfig.LocalPath"), AfterValidator(kept_folder)]
RuleName = Annotated[str, held("DebugRuleConfigurations[].RuleConfigurationName")]
RuleImage = Annotated[str, held("DebugRuleConfigurations[].RuleEvaluatorImage"), AfterValidator(image)]
RuleInstance = Annotated[str, held("DebugRuleConfigurations[].InstanceType")]
RuleParameter = dict[
    Annotated[str, held("DebugRuleConfigurations[].RuleParameters{key}")],
    Annotated[str, held("DebugRuleConfigurations[].RuleParameters{value}")],
]
HookParameter = dict[
    Annotated[str, held("DebugHookConfig.HookParameters{key}")],
    Annotated[str, held("DebugHookConfig.HookParameters{value}")],
]
ExperimentName = Annotated[str, held("ExperimentConfig.ExperimentName")]
UltraServer = Annotated[str, held("ResourceConfig.InstancePlacementConfig.PlacementSpecifications[].UltraServerId")]
GroupArn = Annotated[str, held("ModelPackageConfig.ModelPackageGroupArn")]
PackageArn = Annotated[str, held("ModelPackageConfig.SourceModelPackageArn")]
BaseModelArn = Annotated[str, held("ServerlessJobConfig.BaseModelArn")]
EvaluatorArn = Annotated[str, held("ServerlessJobConfig.EvaluatorArn")]
SequenceLength = Annotated[str, held("ServerlessJobConfig.SequenceLength")]


class Placed(Model):
    """Instances of one UltraServer."""

    instance_count: Annotated[Count, named("InstanceCount")]
    """Number of the job's instances on it, at least 1."""
    ultra_server_id: Annotated[UltraServer | None, named("UltraServerId")] = None
    """The UltraServer's id; any UltraServer when left out."""


class Placement(Model):
    """Where instances of an UltraServer are placed."""

    multiple_jobs: Annotated[bool | None, named("EnableMultipleJobs")] = default(None)
    """true lets other jobs run on the same UltraServer."""
    specifications: Annotated[
        Annotated[Listed[Placed], Field(max_length=10)] | None, named("PlacementSpecifications")
    ] = default(None)
    """[{instance_count, ultra_server_id}], at most 10."""


class Collection(Model):
    """Tensors that are saved together."""

    name: Annotated[str, held("DebugHookConfig.CollectionConfigurations[].CollectionName"), named("CollectionName")]
    """Name of the collection, such as losses."""
    parameters: Annotated[HookParameter | None, named("CollectionParameters")] = None
    """{name: text}, such as {save_interval: '50'}; at most 20."""


class WatchRule(Model):
    """A rule that runs beside the job and watches what Debugger saves."""

    name: Annotated[RuleName, named("RuleConfigurationName")]
    """Name of the rule; unique."""
    image: Annotated[RuleImage, named("RuleEvaluatorImage")]
    """Image that evaluates the rule."""
    instance_type: Annotated[RuleInstance | None, named("InstanceType")] = None
    """Processing instance for a rule of your own, with ml."""
    volume_size_gb: Annotated[VolumeSize | None, named("VolumeSizeInGB")] = None
    """Disk size of that instance in GB."""
    local_path: Annotated[Folder | None, named("LocalPath")] = None
    """Folder in its container; /opt/ml/processing/output/rule/ when left out."""
    output_path: Annotated[S3Uri | None, named("S3OutputPath")] = None
    """s3:// folder for its results."""
    parameters: Annotated[Annotated[RuleParameter, Field(max_length=100)] | None, named("RuleParameters")] = None
    """{name: text} for the rule, at most 100."""


def _named_apart(rules: Any) -> Any:
    """Refuse two rules of the same name. Source: DebugRuleConfiguration, ProfilerRuleConfiguration: unique names."""
    names = [each.name for each in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two rules have the same name: {', '.join(twice)}")
    return rules


Rules = Annotated[Listed[WatchRule], Field(max_length=20), AfterValidator(_named_apart)]


class Debugger(Model):
    """SageMaker Debugger: tensors to save, and rules that watch them."""

    output_path: Annotated[S3Uri | None, named("S3OutputPath")] = default(None)
    """s3:// folder for tensors. Required by local_path, hook_parameters and collections."""
    local_path: Annotated[Tensors | None, named("LocalPath")] = default(None)
    """Folder in the container that tensors are written to; /opt/ml/output/tensors when null."""
    hook_parameters: Annotated[Annotated[HookParameter, Field(max_length=20)] | None, named("HookParameters")] = (
        default(None)
    )
    """{name: text} for Debugger's hook, at most 20."""
    collections: Annotated[
        Annotated[Listed[Collection], Field(max_length=20)] | None, named("CollectionConfigurations")
    ] = default(None)
    """[{name, parameters}] of tensors to save, at most 20."""
    rules: Rules | None = default(None)
    """[{name, image, parameters, …}], at most 20."""


class Profiler(Model):
    """SageMaker Debugger's system profiler."""

    disabled: Annotated[bool | None, named("DisableProfiler")] = default(None)
    """true turns it off, even where AWS enables it by default."""
    output_path: Annotated[S3Uri | None, named("S3OutputPath")] = default(None)
    """s3:// folder for its measurements."""
    interval_ms: Annotated[
        Literal[100, 200, 500, 1000, 5000, 60000] | None, named("ProfilingIntervalInMilliseconds")
    ] = default(None)
    """Milliseconds between two measurements; 500 when null."""
    parameters: Annotated[Annotated[HookParameter, Field(max_length=20)] | None, named("ProfilingParameters")] = (
        default(None)
    )
    """{name: text} for the profiler, at most 20."""
    rules: Rules | None = default(None)
    """[{name, image, parameters, …}], at most 20."""


class Experiment(Model):
    """The SageMaker experiment that the job is part of."""

    experiment_name: Annotated[ExperimentName | None, named("ExperimentName")] = default(None)
    """Name of an existing experiment."""
    trial_name: Annotated[ExperimentName | None, named("TrialName")] = default(None)
    """Name of an existing trial of it."""
    component_name: Annotated[ExperimentName | None, named("TrialComponentDisplayName")] = default(None)
    """Name under which the job is shown in it."""
    run_name: Annotated[ExperimentName | None, named("RunName")] = default(None)
    """Run of the experiment."""


class ModelPackage(Model):
    """Where the trained model is registered."""

    group_arn: Annotated[GroupArn | None, named("ModelPackageGroupArn")] = default(None)
    """ARN of the model package group."""
    source_arn: Annotated[PackageArn | None, named("SourceModelPackageArn")] = default(None)
    """ARN of the model package that the job starts from. Needs group_arn."""


class Serverless(Model):
    """A job on instances of AWS's choice, with AWS's own recipe; it has no container."""

    base_model_arn: Annotated[BaseModelArn | None, named("BaseModelArn")] = default(None)
    """ARN of the model in a hub that is customized or evaluated."""
    accept_eula: Annotated[bool | None, named("AcceptEula")] = default(None)
    """true accepts the model's license."""
    job_type: Annotated[Literal["FineTuning", "Evaluation"] | None, named("JobType")] = default(None)
    """Kind of job. Required with base_model_arn."""
    technique: Annotated[Literal["SFT", "DPO", "RLVR", "RLAIF"] | None, named("CustomizationTechnique")] = default(
        None
    )
    """How a model is fine-tuned."""
    peft: Annotated[Literal["LORA"] | None, named("Peft")] = default(None)
    """LORA trains adapters; null trains all weights."""
    evaluation_type: Annotated[
        Literal["LLMAJEvaluation", "CustomScorerEvaluation", "BenchmarkEvaluation"] | None, named("EvaluationType")
    ] = default(None)
    """How a model is evaluated."""
    evaluator_arn: Annotated[EvaluatorArn | None, named("EvaluatorArn")] = default(None)
    """ARN of the evaluator, for your own scorer or reward."""
    sequence_length: Annotated[SequenceLength | None, named("SequenceLength")] = default(None)
    """Maximum sequence length in thousands of tokens, such as 8K."""
