"""Types of values for single members of CreateTrainingJob: the API's bounds, and those that only AWS's pages state.

Pure: a validator returns its argument, or raises ValueError with the reason.
"""

import posixpath
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from launcher.backends.sagemaker.constraints import FILE, bucket_and_key, member
from launcher.common import syntax
from launcher.model.base_model import Listed, TextForm

INPUT, MODEL = "/opt/ml/input", "/opt/ml/model"
"""Folders that SageMaker itself fills or uploads. Source: Amazon SageMaker, Training storage folders."""
_SYSTEM = ("/proc", "/sys", "/dev")

_KMS_KEY = re.compile(
    r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key/|(?=alias/)))?"
    r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}|alias/[a-zA-Z0-9/_-]+)"
)
"""Source: Amazon SageMaker API, OutputDataConfig: KmsKeyId; AWS KMS, Key identifiers."""
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")


def held(path: str) -> AfterValidator:
    """Return the validator of a value that must be within the bounds of the member at `path`."""
    return AfterValidator(member(path))


def named(name: str) -> Any:
    """Return the field whose value becomes the member of that name."""
    return Field(serialization_alias=name)


def s3_uri(uri: str) -> str:
    """Require an S3 URI to have a valid bucket name; a rule checks folders of this machine."""
    if uri.startswith(FILE):
        return uri
    if fault := syntax.bucket_fault(bucket_and_key(uri)[0]):
        raise ValueError(fault)
    return uri


def kept_folder(path: str) -> str:
    """Require that a container's folder copied to S3 does not overlap those that SageMaker itself fills.

    Source: Amazon SageMaker API, CheckpointConfig, TensorBoardOutputConfig, DebugHookConfig: LocalPath.
    """
    absolute_path(path)
    for own in (INPUT, MODEL):
        if syntax.is_below(path, own) or syntax.is_below(own, path):
            raise ValueError(f"{path} overlaps {own}, which SageMaker itself fills or uploads: /opt/ml/checkpoints")
    if any(syntax.is_below(path, own) for own in _SYSTEM):
        raise ValueError(f"{path} cannot hold files: /opt/ml/checkpoints")
    return path


def absolute_path(path: str) -> str:
    """Require a path to begin with / and to have no `.`, `..` or empty parts."""
    if not path.startswith("/") or posixpath.normpath(path).strip("/") != path.strip("/"):
        raise ValueError("must be an absolute path without . and .. parts")
    return path


def image(name: str) -> str:
    """Require an image to be a valid image reference."""
    if not syntax.is_image(name):
        raise ValueError(f"is not an image reference: {syntax.IMAGE_FORM}")
    return name


def metric_regex(expression: str) -> str:
    """Require a metric's expression to compile and to have a group, which captures the number.

    Source: SageMaker AI, Define training metrics. Groups may be named as in Python or as in Java.
    """
    form = syntax.compiled(_NAMED_GROUP.sub("(?P<", expression))
    if isinstance(form, str):
        raise ValueError(f"is not a regular expression: {form}")
    if not form.groups:
        raise ValueError("has no group that captures the number: loss=([0-9.]+)")
    return expression


def kms_key(key: str) -> str:
    """Require a key to have one of the forms of KMS key identifiers."""
    if not _KMS_KEY.fullmatch(key):
        raise ValueError("must be a KMS key's id or ARN, alias/<name>, or the ARN of an alias")
    return key


def _is_free(key: str) -> str:
    """Refuse a tag's key that is reserved for Amazon. Source: Tagging AWS resources, Tag naming limits."""
    if key.lower().startswith("aws:"):
        raise ValueError("tags that begin with aws: are reserved for Amazon")
    return key


RoleArn = Annotated[str, held("RoleArn")]
_S3_URI = r"^((s3|https)://[^/]+|file:///)"
S3Uri = Annotated[
    str,
    TextForm(pattern=_S3_URI, words="an S3 URI such as s3://bucket/folder"),
    AfterValidator(lambda uri: uri if uri.startswith(FILE) else member("OutputDataConfig.S3OutputPath")(uri)),
    AfterValidator(s3_uri),
]
"""A folder of this machine is for cluster=sm_local; a rule refuses it in a training job on AWS."""
KmsKey = Annotated[str, held("OutputDataConfig.KmsKeyId"), AfterValidator(kms_key)]
KeptFolder = Annotated[str, held("CheckpointConfig.LocalPath"), AfterValidator(kept_folder)]
VolumeSize = Annotated[int, Field(ge=1, le=16384), held("ResourceConfig.VolumeSizeInGB")]
"""Source: ResourceConfig: volumes are gp2; Amazon EBS, General Purpose SSD volumes: 1 GiB to 16 TiB."""
_REGION = r"^[a-z]{2,4}(-[a-z]+)+-[0-9]+$"
Region = Annotated[str, TextForm(pattern=_REGION, words="a region such as us-west-2")]
Seed = Annotated[int, held("InputDataConfig[].ShuffleConfig.Seed")]
Count = Annotated[int, Field(ge=1), held("ResourceConfig.InstanceGroups[].InstanceCount")]
MaxRuntime = Annotated[int, Field(le=28 * 86400), held("StoppingCondition.MaxRuntimeInSeconds")]
"""Source: StoppingCondition: the maximum is 28 days, which only the description states."""
MaxWait = Annotated[int, held("StoppingCondition.MaxWaitTimeInSeconds")]
MaxPending = Annotated[int, held("StoppingCondition.MaxPendingTimeInSeconds")]
Retries = Annotated[int, held("RetryStrategy.MaximumRetryAttempts")]
KeepAlive = Annotated[int, held("ResourceConfig.KeepAlivePeriodInSeconds")]
GroupName = Annotated[str, held("ResourceConfig.InstanceGroups[].InstanceGroupName")]
PlanArn = Annotated[str, held("ResourceConfig.TrainingPlanArn")]
Subnet = Annotated[str, held("VpcConfig.Subnets[]")]
SecurityGroup = Annotated[str, held("VpcConfig.SecurityGroupIds[]")]
Subnets = Annotated[Listed[Subnet], Field(min_length=1, max_length=16)]
SecurityGroups = Annotated[Listed[SecurityGroup], Field(min_length=1, max_length=5)]
TagKey = Annotated[str, AfterValidator(_is_free), held("Tags[].Key")]
TagValue = Annotated[str, held("Tags[].Value")]
Tags = Annotated[dict[TagKey, TagValue], Field(max_length=50)]
Variable = Annotated[str, held("Environment{key}")]
VariableValue = Annotated[str, held("Environment{value}")]
Environment = Annotated[dict[Variable, VariableValue], Field(max_length=100)]
Hyperparameter = Annotated[str, held("HyperParameters{key}")]
Word = Annotated[str, held("AlgorithmSpecification.ContainerArguments[]")]
Words = Annotated[Listed[Word], Field(min_length=1, max_length=100)]
ChannelName = Annotated[str, held("InputDataConfig[].ChannelName")]
_SOURCE = "InputDataConfig[].DataSource"
HubArn = Annotated[str, held(f"{_SOURCE}.S3DataSource.HubAccessConfig.HubContentArn")]
DatasetArn = Annotated[str, held(f"{_SOURCE}.DatasetSource.DatasetArn")]
Mode = Literal["File", "Pipe", "FastFile"]
ChannelText = Annotated[str, held("InputDataConfig[].ContentType")]
Attribute = Annotated[str, held("InputDataConfig[].DataSource.S3DataSource.AttributeNames[]")]
Attributes = Annotated[Listed[Attribute], Field(min_length=1, max_length=16)]
_FILES = f"{_SOURCE}.FileSystemDataSource"
FileSystemId = Annotated[str, held(f"{_FILES}.FileSystemId")]
DirectoryPath = Annotated[str, held(f"{_FILES}.DirectoryPath"), AfterValidator(absolute_path)]
_REGISTRY = "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAuthConfig"
CredentialsArn = Annotated[str, held(f"{_REGISTRY}.TrainingRepositoryCredentialsProviderArn")]
MlflowArn = Annotated[str, held("MlflowConfig.MlflowResourceArn")]
MlflowName = Annotated[str, held("MlflowConfig.MlflowRunName")]
MetricName = Annotated[str, held("AlgorithmSpecification.MetricDefinitions[].Name")]
MetricRegex = Annotated[str, held("AlgorithmSpecification.MetricDefinitions[].Regex"), AfterValidator(metric_regex)]
AlgorithmName = Annotated[str, held("AlgorithmSpecification.AlgorithmName")]
Scalars = dict[Hyperparameter, str | int | float | bool]
Groups = Annotated[Listed[GroupName], Field(min_length=1, max_length=5)]
Folder = Annotated[str, held("DebugRuleConfigurations[].LocalPath"), AfterValidator(absolute_path)]
Tensors = Annotated[str, held("DebugHookConfig.LocalPath"), AfterValidator(kept_folder)]
RuleName = Annotated[str, held("DebugRuleConfigurations[].RuleConfigurationName")]
RuleImage = Annotated[str, held("DebugRuleConfigurations[].RuleEvaluatorImage"), AfterValidator(image)]
RuleInstance = Annotated[str, held("DebugRuleConfigurations[].InstanceType")]
_RuleKey = Annotated[str, held("DebugRuleConfigurations[].RuleParameters{key}")]
_RuleValue = Annotated[str, held("DebugRuleConfigurations[].RuleParameters{value}")]
RuleParameters = Annotated[dict[_RuleKey, _RuleValue], Field(max_length=100)]
HookParameter = dict[
    Annotated[str, held("DebugHookConfig.HookParameters{key}")],
    Annotated[str, held("DebugHookConfig.HookParameters{value}")],
]
HookParameters = Annotated[HookParameter, Field(max_length=20)]
CollectionName = Annotated[str, held("DebugHookConfig.CollectionConfigurations[].CollectionName")]
Interval = Literal[100, 200, 500, 1000, 5000, 60000]
ExperimentName = Annotated[str, held("ExperimentConfig.ExperimentName")]
UltraServer = Annotated[str, held("ResourceConfig.InstancePlacementConfig.PlacementSpecifications[].UltraServerId")]
GroupArn = Annotated[str, held("ModelPackageConfig.ModelPackageGroupArn")]
PackageArn = Annotated[str, held("ModelPackageConfig.SourceModelPackageArn")]
BaseModelArn = Annotated[str, held("ServerlessJobConfig.BaseModelArn")]
EvaluatorArn = Annotated[str, held("ServerlessJobConfig.EvaluatorArn")]
Technique = Literal["SFT", "DPO", "RLVR", "RLAIF"]
Evaluation = Literal["LLMAJEvaluation", "CustomScorerEvaluation", "BenchmarkEvaluation"]
SequenceLength = Annotated[str, held("ServerlessJobConfig.SequenceLength")]
