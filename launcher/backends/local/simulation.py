"""The `cluster` section of cluster=local."""

from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.model.base_model import ClusterOptions, HasOptions, Listed, Model, StartCommand, default, options_of

PositiveSeconds = Annotated[float, Field(gt=0, le=1e7)]


class Hang(Model):
    """Time limits after which a job with running workers counts as hanging. The node of a rank that is known to hang
    is replaced; otherwise the job is restarted from its newest checkpoint.

    Source: names of HyperPod's runPolicy.logMonitoringConfiguration; here the steps are watched, not log lines.
    """

    expectedStartCutOffInSeconds: PositiveSeconds | None = None
    """Seconds from a start of the workers to the first step, and for a checkpoint. Default: ten times the longest
    start, at least 1200 (60 where workers stay), or ten times the longest save, at least cluster.collective_timeout;
    no limit before the first one."""
    expectedRecurringFrequencyInSeconds: PositiveSeconds | None = None
    """Seconds between two steps. Default: ten times the longest of the last 50 steps, at least
    cluster.collective_timeout and twice the longest step of the launch."""
    otherWorkCutOffInSeconds: PositiveSeconds | None = None
    """Seconds for each of an evaluation, an export, and the script's work after its last step. Default: no
    limit."""
    stopPattern: Annotated[str, Field(min_length=1)] | None = None
    """Regular expression, from the start of a line of rank 0's output, after which monitoring ends."""


class Settings(ClusterOptions):
    """Every key of cluster=local. Events are typed with their scenario: their models cost every launch 30 ms."""

    command: StartCommand[str] | None = default(None)
    """Words after the agent's options, such as your own script and its arguments; null trains with the family's
    own program."""
    container_mounts: Listed[str] | None = default(None)
    """Slurm's key, accepted so that one script works with every cluster; ignored here."""
    contract: Literal["sagemaker"] | None = None
    """sagemaker runs the job on this machine like a SageMaker training job, and adds the keys below
    cluster.sm_jobs_config; null, the default, runs the launcher's own agents."""
    scenario: Annotated[str, Field(min_length=1)] | None = None
    """Events of the simulated cluster: a name of recipes_collection/scenarios, or a YAML file. Default:
    none."""
    hang: Hang | None = None
    """Time limits after which the job counts as hanging; null takes the defaults of the keys below."""
    collective_timeout: PositiveSeconds | None = None
    """Seconds that a collective of the workers may take before it fails; 600 when left out. On other clusters set the
    variable RECIPES_COLLECTIVE_TIMEOUT in env_vars."""
    events: Listed[dict[str, Any]] | None = None
    """Further events, or events without a file: [{at: {step: 20}, capacity: 3}]."""

    @property
    def has_scenario(self) -> bool:
        """Whether the job plays a scenario. Its models take 30 ms to build, which other launches do not wait for."""
        return self.scenario is not None or bool(self.events)


def local_options(job: HasOptions) -> Settings:
    """Return the options of a checked recipe or a planned job on this machine."""
    return options_of(job, Settings)
