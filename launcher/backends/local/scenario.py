"""The scenario of a rehearsal on a simulated cluster: as written, and as resolved for one job."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from launcher.common.names import SCENARIO_FILE
from launcher.common.texts import counted
from launcher.model.base_model import Listed, Model, NodeCount, NonNegativeInt, PositiveInt, TextForm

PRIORITY_CLASSES = {"low-priority": 100, "normal-priority": 500, "high-priority": 1000}
"""Priority of each class if a scenario defines none; higher numbers go first.

Source: names from AWS, Using elastic training in Amazon SageMaker HyperPod, Use-case examples; numbers our own.
"""

OWN_CLASS = "normal-priority"
"""Class of a job without tiers. Source: the same page, Preemption by high priority job."""

Seconds = Annotated[float, Field(ge=0, le=1e6)]
_JOB, _CLASS = r"^[A-Za-z0-9]([-_.A-Za-z0-9]{0,62})$", r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_JOB_FORM = "at most 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
_CLASS_FORM = "lower-case letters, digits, '.' and '-', with a letter or a digit at both ends"
JobName = Annotated[str, TextForm(pattern=_JOB, words=_JOB_FORM)]
ClassName = Annotated[str, TextForm(pattern=_CLASS, words=_CLASS_FORM, max_length=253)]


class At(Model):
    """When an event happens: after a number of optimizer steps or samples, or seconds after the launch."""

    step: NonNegativeInt | None = None
    samples: NonNegativeInt | None = None
    seconds: Seconds | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "At":
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give exactly one of step, samples and seconds")
        return self

    @property
    def unit(self) -> str:
        """The unit that is given."""
        return next(name for name in ("step", "samples", "seconds") if getattr(self, name) is not None)

    @property
    def value(self) -> float:
        """The number of units."""
        return float(getattr(self, self.unit))

    def is_reached(self, step: int, samples: int, seconds: float) -> bool:
        """Return whether it is reached."""
        return {"step": step, "samples": samples, "seconds": seconds}[self.unit] >= self.value

    def __str__(self) -> str:
        return f"{self.unit} {self.value:g}" if self.unit == "step" else f"{self.value:g} {self.unit}"


class JobArrives(Model):
    """Another job, which starts once all its nodes are available."""

    name: JobName
    nodes: NodeCount
    priority: ClassName


class WorkerCrash(Model):
    """A worker is killed."""

    rank: NonNegativeInt


class AgentCrash(Model):
    """An agent is killed, and the pod with it; the node remains. `node` is its index in the job."""

    node: NonNegativeInt


class NodeLoss(Model):
    """A node is lost; if `replacement_after` is given, another one joins that many seconds later."""

    node: NonNegativeInt
    replacement_after: Seconds | None = None


class SlowSave(Model):
    """The next checkpoint before a stop takes this long."""

    seconds: Seconds


class Hang(Model):
    """A worker hangs."""

    rank: NonNegativeInt


class BitRot(Model):
    """Bytes of the newest checkpoint are damaged; the file keeps its size."""

    num_bytes: PositiveInt


class OperatorRestart(Model):
    """The operator exits, and another one continues its work `down` seconds later."""

    down: Seconds


class Event(Model):
    """One event and its time. Exactly one of the fields after `at` is given."""

    at: At
    capacity: NonNegativeInt | None = None
    preempt: PositiveInt | None = None
    job_arrives: JobArrives | None = None
    job_leaves: JobName | None = None
    worker_crash: WorkerCrash | None = None
    agent_crash: AgentCrash | None = None
    node_loss: NodeLoss | None = None
    replacement_node: PositiveInt | None = None
    slow_checkpoint: SlowSave | None = None
    operator_restart: OperatorRestart | None = None
    hang: Hang | None = None
    bit_rot: BitRot | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Event":
        given = [name for name in ACTIONS if getattr(self, name) is not None]
        if not given:
            raise ValueError(f"has no action; give one of {', '.join(ACTIONS)}")
        if len(given) > 1:
            raise ValueError(f"has several actions; make each its own event: {', '.join(given)}")
        return self

    @property
    def action(self) -> tuple[str, Any]:
        """The name of the action, and its value."""
        return next((name, getattr(self, name)) for name in ACTIONS if getattr(self, name) is not None)

    def __str__(self) -> str:
        name, value = self.action
        return f"{self.at}: {_DESCRIPTIONS[name](value)}"


ACTIONS = tuple(name for name in Event.model_fields if name != "at")


class ScenarioFile(Model):
    """A scenario as written in a file. Missing values are derived from the job."""

    about: str | None = None
    nodes: NonNegativeInt | None = None
    priority_classes: dict[ClassName, int] | None = None
    events: Listed[Event]


class Tier(Model):
    """Nodes of the rehearsed job with the same priority."""

    name: str
    nodes: NonNegativeInt
    priority_class: ClassName


class Scenario(Model):
    """A complete scenario, resolved for one job.

    Args:
        nodes: Initial nodes of the cluster.
        priority_classes: Priority of each class.
        tiers: The parts of the job, the one with the highest priority first.
        events: In the order of the file.
    """

    about: str
    nodes: NonNegativeInt
    priority_classes: dict[ClassName, int]
    tiers: list[Tier]
    nproc_per_node: PositiveInt
    events: list[Event]


def scenario_json(scenario: Scenario) -> str:
    """Return the text of SCENARIO_FILE."""
    return json.dumps(scenario.model_dump(exclude_none=True), indent=2) + "\n"


def read_scenario(bundle_dir: Path) -> Scenario | None:
    """Return the scenario of a bundle; None if it has none."""
    file = bundle_dir / SCENARIO_FILE
    return Scenario.model_validate_json(file.read_bytes()) if file.exists() else None


_DESCRIPTIONS: Mapping[str, Callable[[Any], str]] = {
    "capacity": lambda nodes: f"the cluster has {counted(nodes, 'node')}",
    "preempt": lambda nodes: f"{counted(nodes, 'node')} of this job reclaimed",
    "job_arrives": lambda job: f"job {job.name} of {counted(job.nodes, 'node')} ({job.priority}) arrives",
    "job_leaves": lambda name: f"job {name} leaves",
    "worker_crash": lambda crash: f"worker {crash.rank} crashes",
    "agent_crash": lambda crash: f"the agent of node {crash.node} crashes",
    "node_loss": lambda loss: f"node {loss.node} is lost",
    "replacement_node": lambda nodes: f"{counted(nodes, 'node')} replaced",
    "slow_checkpoint": lambda slow: f"a checkpoint takes {slow.seconds:g} s",
    "hang": lambda hang: f"worker {hang.rank} hangs",
    "bit_rot": lambda rot: f"{rot.num_bytes} bytes of the newest checkpoint are damaged",
    "operator_restart": lambda restart: f"the operator is down for {restart.down:g} s",
}
"""The description of each action in reports."""
