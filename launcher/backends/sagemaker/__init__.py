"""SageMaker training jobs."""
