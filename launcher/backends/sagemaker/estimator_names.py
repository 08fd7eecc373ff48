"""The names that the SageMaker Python SDK's estimator has for keys of `cluster.sm_jobs_config`."""

SDK_NAMES = {
    "role": "role",
    "max_run": "stopping_condition.max_runtime_s",
    "max_wait": "stopping_condition.max_wait_s",
    "use_spot_instances": "spot",
    "max_retry_attempts": "max_retries",
    "keep_alive_period_in_seconds": "keep_alive_s",
    "volume_size": "volume_size_gb",
    "volume_kms_key": "volume_kms_key",
    "output_kms_key": "output_kms_key",
    "input_mode": "input_mode",
    "subnets": "vpc.subnets",
    "security_group_ids": "vpc.security_group_ids",
    "encrypt_inter_container_traffic": "encrypt_traffic",
    "enable_network_isolation": "network_isolation",
    "checkpoint_s3_uri": "checkpoints.s3_uri",
    "checkpoint_local_path": "checkpoints.local_path",
    "code_location": "recipe_path",
    "source_dir": "source_dir",
    "training_plan": "training_plan_arn",
    "hyperparameters": "hyperparameters",
    "metric_definitions": "metric_definitions",
    "container_entry_point": "container_entrypoint",
    "container_arguments": "container_arguments",
    "tags": "tags",
}
"""The estimator's name of a key, to the launcher's. Source: SageMaker Python SDK 2.257.6, EstimatorBase."""
