"""SageMaker's container contract on this machine: what a training job's containers find, hear and leave."""
