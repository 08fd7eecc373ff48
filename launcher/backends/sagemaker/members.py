"""Types of values for single members of CreateTrainingJob, with their bounds."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from launcher.backends.sagemaker.constraints import member
from launcher.backends.sagemaker.documented import FILE, absolute_path, kept_folder, kms_key, metric_regex, s3_uri
from launcher.model.base_model import Listed


def _is_free(key: str) -> str:
    """Refuse a tag's key that is reserved for Amazon. Source: Tagging AWS resources, Tag naming limits."""
    if key.lower().startswith("aws:"):
        raise ValueError("tags that begin with aws: are reserved for Amazon")
    return key


RoleArn = Annotated[str, AfterValidator(member("RoleArn"))]
S3Uri = Annotated[
    str,
    Field(pattern=r"^((s3|https)://[^/]+|file:///)"),
    AfterValidator(lambda uri: uri if uri.startswith(FILE) else member("OutputDataConfig.S3OutputPath")(uri)),
    AfterValidator(s3_uri),
]
"""A folder of this machine is for cluster=sm_local; a rule refuses it in a training job on AWS."""
KmsKey = Annotated[str, AfterValidator(member("OutputDataConfig.KmsKeyId")), AfterValidator(kms_key)]
KeptFolder = Annotated[str, AfterValidator(member("CheckpointConfig.LocalPath")), AfterValidator(kept_folder)]
VolumeSize = Annotated[int, Field(ge=1, le=16384), AfterValidator(member("ResourceConfig.VolumeSizeInGB"))]
"""Source: ResourceConfig: volumes are gp2; Amazon EBS, General Purpose SSD volumes: 1 GiB to 16 TiB."""
Seed = Annotated[int, AfterValidator(member("InputDataConfig[].ShuffleConfig.Seed"))]
Count = Annotated[int, Field(ge=1), AfterValidator(member("ResourceConfig.InstanceGroups[].InstanceCount"))]
MaxRuntime = Annotated[int, Field(le=28 * 86400), AfterValidator(member("StoppingCondition.MaxRuntimeInSeconds"))]
"""Source: StoppingCondition: the maximum is 28 days, which only the description states."""
MaxWait = Annotated[int, AfterValidator(member("StoppingCondition.MaxWaitTimeInSeconds"))]
MaxPending = Annotated[int, AfterValidator(member("StoppingCondition.MaxPendingTimeInSeconds"))]
Retries = Annotated[int, AfterValidator(member("RetryStrategy.MaximumRetryAttempts"))]
KeepAlive = Annotated[int, AfterValidator(member("ResourceConfig.KeepAlivePeriodInSeconds"))]
GroupName = Annotated[str, AfterValidator(member("ResourceConfig.InstanceGroups[].InstanceGroupName"))]
PlanArn = Annotated[str, AfterValidator(member("ResourceConfig.TrainingPlanArn"))]
Subnet = Annotated[str, AfterValidator(member("VpcConfig.Subnets[]"))]
SecurityGroup = Annotated[str, AfterValidator(member("VpcConfig.SecurityGroupIds[]"))]
Subnets = Annotated[Listed[Subnet], Field(min_length=1, max_length=16)]
SecurityGroups = Annotated[Listed[SecurityGroup], Field(min_length=1, max_length=5)]
TagKey = Annotated[str, AfterValidator(_is_free), AfterValidator(member("Tags[].Key"))]
TagValue = Annotated[str, AfterValidator(member("Tags[].Value"))]
Tags = Annotated[dict[TagKey, TagValue], Field(max_length=50)]
Variable = Annotated[str, AfterValidator(member("Environment{key}"))]
VariableValue = Annotated[str, AfterValidator(member("Environment{value}"))]
Environment = Annotated[dict[Variable, VariableValue], Field(max_length=100)]
Hyperparameter = Annotated[str, AfterValidator(member("HyperParameters{key}"))]
Word = Annotated[str, AfterValidator(member("AlgorithmSpecification.ContainerArguments[]"))]
Words = Annotated[Listed[Word], Field(min_length=1, max_length=100)]
ChannelName = Annotated[str, AfterValidator(member("InputDataConfig[].ChannelName"))]
_SOURCE = "InputDataConfig[].DataSource"
HubArn = Annotated[str, AfterValidator(member(f"{_SOURCE}.S3DataSource.HubAccessConfig.HubContentArn"))]
DatasetArn = Annotated[str, AfterValidator(member(f"{_SOURCE}.DatasetSource.DatasetArn"))]
Mode = Literal["File", "Pipe", "FastFile"]
ChannelText = Annotated[str, AfterValidator(member("InputDataConfig[].ContentType"))]
Attribute = Annotated[str, AfterValidator(member("InputDataConfig[].DataSource.S3DataSource.AttributeNames[]"))]
Attributes = Annotated[Listed[Attribute], Field(min_length=1, max_length=16)]
_FILES = f"{_SOURCE}.FileSystemDataSource"
FileSystemId = Annotated[str, AfterValidator(member(f"{_FILES}.FileSystemId"))]
DirectoryPath = Annotated[str, AfterValidator(member(f"{_FILES}.DirectoryPath")), AfterValidator(absolute_path)]
_REGISTRY = "AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAuthConfig"
CredentialsArn = Annotated[str, AfterValidator(member(f"{_REGISTRY}.TrainingRepositoryCredentialsProviderArn"))]
MlflowArn = Annotated[str, AfterValidator(member("MlflowConfig.MlflowResourceArn"))]
MlflowName = Annotated[str, AfterValidator(member("MlflowConfig.MlflowRunName"))]
MetricName = Annotated[str, AfterValidator(member("AlgorithmSpecification.MetricDefinitions[].Name"))]
MetricRegex = Annotated[
    str, AfterValidator(member("AlgorithmSpecification.MetricDefinitions[].Regex")), AfterValidator(metric_regex)
]
AlgorithmName = Annotated[str, AfterValidator(member("AlgorithmSpecification.AlgorithmName"))]
Scalars = dict[Hyperparameter, str | int | float | bool]
Groups = Annotated[Listed[GroupName], Field(min_length=1, max_length=5)]
