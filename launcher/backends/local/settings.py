"""The `cluster` section of cluster=local."""

from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.recipe import Listed, Model


class Settings(Model):
    """Every key of cluster=local. Events are typed with their scenario: their models cost every launch 30 ms."""

    command: Listed[str] | None
    """Words after the agent's options, such as a script of your own and its arguments; null trains with the family's
    own program."""
    container_mounts: Listed[str] | None
    """Slurm's key, accepted so that one script serves every cluster; nothing reads it here."""
    contract: Literal["sagemaker"] | None = None
    """sagemaker runs the job as a SageMaker training job would run, on this machine, and adds the keys below
    cluster.sm_jobs_config; null, the default, runs the launcher's own agents."""
    scenario: Annotated[str, Field(min_length=1)] | None = None
    """What happens to the simulated cluster: a name of recipes_collection/scenarios, or a YAML file. Left out:
    nothing does."""
    events: Listed[dict[str, Any]] | None = None
    """Further events, or events without a file: [{at: {step: 20}, capacity: 3}]."""
