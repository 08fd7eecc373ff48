"""Arguments that published scripts pass to the SDK's estimator: aliases of the keys of sm_jobs_config."""

from typing import Annotated

from pydantic import Field

from launcher.backends.sagemaker.members import (
    KeepAlive,
    KeptFolder,
    KmsKey,
    MaxRuntime,
    MaxWait,
    MetricName,
    MetricRegex,
    Mode,
    PlanArn,
    Retries,
    RoleArn,
    S3Uri,
    Scalars,
    SecurityGroups,
    Subnets,
    TagKey,
    TagValue,
    VolumeSize,
    Words,
)
from launcher.model.base_model import Listed, Model


class SdkTag(Model):
    """A tag as the SDK spells it."""

    Key: TagKey
    """The tag's key: at most 128 characters, not beginning with aws:."""
    Value: TagValue
    """The tag's value: at most 256 characters."""


class SdkMetric(Model):
    """A metric as the SDK spells it."""

    Name: MetricName
    """The metric's name in CloudWatch."""
    Regex: MetricRegex
    """Regular expression that finds its value in a line of the log."""


class EstimatorArguments(Model):
    """Arguments that published scripts pass to the SDK's estimator, each an alias of a key of sm_jobs_config."""

    role: RoleArn | None = None
    """The same as role."""
    max_run: MaxRuntime | None = None
    """The same as stopping_condition.max_runtime_s."""
    max_wait: MaxWait | None = None
    """The same as stopping_condition.max_wait_s."""
    use_spot_instances: bool | None = None
    """The same as spot."""
    max_retry_attempts: Retries | None = None
    """The same as max_retries."""
    keep_alive_period_in_seconds: KeepAlive | None = None
    """The same as keep_alive_s."""
    volume_size: VolumeSize | None = None
    """The same as volume_size_gb."""
    volume_kms_key: KmsKey | None = None
    """The same as volume_kms_key there."""
    output_kms_key: KmsKey | None = None
    """The same as output_kms_key there."""
    input_mode: Mode | None = None
    """The same as input_mode there."""
    subnets: Subnets | None = None
    """The same as vpc.subnets."""
    security_group_ids: SecurityGroups | None = None
    """The same as vpc.security_group_ids."""
    encrypt_inter_container_traffic: bool | None = None
    """The same as encrypt_traffic."""
    enable_network_isolation: bool | None = None
    """The same as network_isolation."""
    checkpoint_s3_uri: S3Uri | None = None
    """The same as checkpoints.s3_uri."""
    checkpoint_local_path: KeptFolder | None = None
    """The same as checkpoints.local_path."""
    code_location: S3Uri | None = None
    """The same as recipe_path."""
    source_dir: str | None = None
    """The same as source_dir there."""
    training_plan: PlanArn | None = None
    """The same as training_plan_arn."""
    hyperparameters: Scalars | None = None
    """The same as hyperparameters there."""
    metric_definitions: Annotated[Listed[SdkMetric], Field(max_length=40)] | None = None
    """The same as metric_definitions there."""
    container_entry_point: Words | None = None
    """The same as container_entrypoint."""
    container_arguments: Words | None = None
    """The same as container_arguments there."""
    tags: Annotated[Listed[SdkTag], Field(max_length=50)] | None = None
    """The same as tags there."""
