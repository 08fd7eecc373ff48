"""Arguments that published scripts pass to the SDK's estimator: aliases of the keys of sm_jobs_config."""

from typing import Annotated

from pydantic import Field

from launcher.backends.sagemaker import members
from launcher.model.base_model import Listed, Model


class SdkTag(Model):
    """A tag as the SDK spells it."""

    Key: members.TagKey
    """The tag's key: at most 128 characters, not beginning with aws:."""
    Value: members.TagValue
    """The tag's value: at most 256 characters."""


class SdkMetric(Model):
    """A metric as the SDK spells it."""

    Name: members.MetricName
    """The metric's name in CloudWatch."""
    Regex: members.MetricRegex
    """Regular expression that finds its value in a line of the log."""


class EstimatorArguments(Model):
    """Arguments that published scripts pass to the SDK's estimator, each an alias of a key of sm_jobs_config."""

    role: members.RoleArn | None = None
    """The same as role."""
    max_run: members.MaxRuntime | None = None
    """The same as stopping_condition.max_runtime_s."""
    max_wait: members.MaxWait | None = None
    """The same as stopping_condition.max_wait_s."""
    use_spot_instances: bool | None = None
    """The same as spot."""
    max_retry_attempts: members.Retries | None = None
    """The same as max_retries."""
    keep_alive_period_in_seconds: members.KeepAlive | None = None
    """The same as keep_alive_s."""
    volume_size: members.VolumeSize | None = None
    """The same as volume_size_gb."""
    volume_kms_key: members.KmsKey | None = None
    """The same as volume_kms_key there."""
    output_kms_key: members.KmsKey | None = None
    """The same as output_kms_key there."""
    input_mode: members.Mode | None = None
    """The same as input_mode there."""
    subnets: members.Subnets | None = None
    """The same as vpc.subnets."""
    security_group_ids: members.SecurityGroups | None = None
    """The same as vpc.security_group_ids."""
    encrypt_inter_container_traffic: bool | None = None
    """The same as encrypt_traffic."""
    enable_network_isolation: bool | None = None
    """The same as network_isolation."""
    checkpoint_s3_uri: members.S3Uri | None = None
    """The same as checkpoints.s3_uri."""
    checkpoint_local_path: members.KeptFolder | None = None
    """The same as checkpoints.local_path."""
    code_location: members.S3Uri | None = None
    """The same as recipe_path."""
    source_dir: str | None = None
    """The same as source_dir there."""
    training_plan: members.PlanArn | None = None
    """The same as training_plan_arn."""
    hyperparameters: members.Scalars | None = None
    """The same as hyperparameters there."""
    metric_definitions: Annotated[Listed[SdkMetric], Field(max_length=40)] | None = None
    """The same as metric_definitions there."""
    container_entry_point: members.Words | None = None
    """The same as container_entrypoint."""
    container_arguments: members.Words | None = None
    """The same as container_arguments there."""
    tags: Annotated[Listed[SdkTag], Field(max_length=50)] | None = None
    """The same as tags there."""
