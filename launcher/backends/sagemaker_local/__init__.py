"""SageMaker training jobs on this machine: the container contract of the service, kept by processes."""
