"""SageMaker training jobs."""

JOBS = "cluster.sm_jobs_config"
"""The key of a training job's own keys."""
