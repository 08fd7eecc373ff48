"""SageMaker training jobs on this machine, under the same container contract."""
