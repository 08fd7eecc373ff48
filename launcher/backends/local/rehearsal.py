"""The simulated cluster of a rehearsal: the nodes available to a job during its scenario.

Pure. Other jobs of a scenario exist only here, as nodes that are not available to the rehearsed job.

Admission follows Kueue: a job starts with all its nodes or waits, and takes nodes only from jobs of strictly lower
priority. Source: Kueue documentation, "Preemption" and "All-or-nothing with ready Pods"; AWS, Using elastic
training in Amazon SageMaker HyperPod, Use-case examples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.backends.local.scenario import (
    AgentCrash,
    BitRot,
    Event,
    Hang,
    JobArrives,
    NodeLoss,
    OperatorRestart,
    Scenario,
    SlowSave,
    WorkerCrash,
)
from launcher.common.texts import counted

Injection = WorkerCrash | AgentCrash | NodeLoss | SlowSave | OperatorRestart | Hang | BitRot
"""A fault that the operator injects: nodes are indices in the job."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the job: seconds since the launch, optimizer steps, and samples since the start of training."""

    now_s: float
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened: its message, and the fault to inject, if any."""

    message: str
    fault: Injection | None = None


@dataclass(frozen=True, slots=True)
class OtherJob:
    """Another job on the cluster. `admitted` is whether it has its nodes; otherwise it waits for them."""

    name: str
    nodes: int
    priority_class: str
    admitted: bool = False

    def __str__(self) -> str:
        return f"job {self.name} ({self.priority_class})"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The simulated cluster at one moment.

    Args:
        healthy: Nodes that work, whichever job has them.
        lost: Nodes that failed and were not replaced.
        reclaimed: Nodes taken from the job, but not by another job.
        jobs: Other jobs, in the order of arrival.
        fired: Indices in `scenario.events` of past events, in the order they happened.
        replacements: Times at which replacement nodes join, in seconds since the launch, ascending.
    """

    scenario: Scenario
    healthy: int
    lost: int = 0
    reclaimed: int = 0
    jobs: tuple[OtherJob, ...] = ()
    fired: tuple[int, ...] = ()
    replacements: tuple[float, ...] = ()

    @property
    def capacity(self) -> int:
        """Nodes available to the job now, including those it has."""
        return self.healthy - self.reclaimed - sum(job.nodes for job in self.jobs if job.admitted)

    def priority(self, job: OtherJob) -> int:
        """Return the priority of another job."""
        return self.scenario.priority_classes[job.priority_class]

    def protected(self, job: OtherJob) -> int:
        """Return how many nodes `job` cannot take from the rehearsed job: those of tiers that it does not outrank."""
        classes, priority = self.scenario.priority_classes, self.priority(job)
        return sum(tier.nodes for tier in self.scenario.tiers if classes[tier.priority_class] >= priority)

    def outranks(self, job: OtherJob) -> bool:
        """Return whether `job` may take nodes from the rehearsed job."""
        classes = self.scenario.priority_classes
        return self.priority(job) > min(classes[tier.priority_class] for tier in self.scenario.tiers)


def begin(scenario: Scenario) -> Rehearsal:
    """Return the cluster before any event; `advance` at 0 applies the events due at the start."""
    return Rehearsal(scenario, scenario.nodes)


def advance(rehearsal: Rehearsal, progress: Progress, used_nodes: int) -> tuple[Rehearsal, tuple[Happening, ...]]:
    """Apply all due events.

    Events that are due at the same time are applied in order. Waiting jobs that outrank this one are admitted as soon
    as nodes are available; others at the next call, after this job has had its chance to grow.

    Args:
        used_nodes: Nodes that the job holds: those it trains or restarts on, and those being added.
    """
    scene = _Scene(rehearsal, progress.now_s, used_nodes, min(used_nodes, rehearsal.capacity))
    for job in _by_priority(rehearsal):
        scene = _admit(scene, job)
    scene = _bring_replacements(scene)
    for place, event in enumerate(rehearsal.scenario.events):
        if place not in rehearsal.fired and event.at.is_reached(progress.step, progress.samples, progress.now_s):
            name, value = event.action
            scene = _ACTIONS[name](scene.change(fired=(*scene.cluster.fired, place)), value)
            scene = _settle(scene)
    return scene.cluster, scene.happenings


def is_stuck(rehearsal: Rehearsal) -> bool:
    """Return whether no event is left that happens at a time: a suspended job would wait forever."""
    left = _remaining(rehearsal)
    return not rehearsal.replacements and not any(event.at.seconds is not None for event in left)


def unfired(rehearsal: Rehearsal) -> tuple[str, ...]:
    """Return the events that never happened, as messages."""
    events = tuple(str(event) for event in _remaining(rehearsal))
    return events + tuple(f"{due_s:g} seconds: a replacement node" for due_s in rehearsal.replacements)


@dataclass(frozen=True, slots=True)
class _Scene:
    """The cluster while events are applied.

    Args:
        used_nodes: Nodes that the job holds, according to its operator.
        held: Those of them to which it was entitled at the start, less those reclaimed since.
    """

    cluster: Rehearsal
    now_s: float
    used_nodes: int
    held: int
    happenings: tuple[Happening, ...] = ()

    def change(self, **changes: Any) -> "_Scene":
        return replace(self, cluster=replace(self.cluster, **changes))

    def log(self, message: str, fault: Injection | None = None) -> "_Scene":
        return replace(self, happenings=(*self.happenings, Happening(message, fault)))


def _remaining(rehearsal: Rehearsal) -> list[Event]:
    return [event for place, event in enumerate(rehearsal.scenario.events) if place not in rehearsal.fired]


def _by_priority(rehearsal: Rehearsal) -> list[OtherJob]:
    """Return the waiting jobs by descending priority, then by arrival."""
    waiting = [job for job in rehearsal.jobs if not job.admitted]
    return sorted(waiting, key=rehearsal.priority, reverse=True)  # stable, also in reverse


def _kept(scene: _Scene, job: OtherJob) -> int:
    """Return how many nodes of the rehearsed job `job` cannot take."""
    cluster = scene.cluster
    return min(scene.held, cluster.healthy - cluster.reclaimed, cluster.protected(job))


def _available(scene: _Scene, job: OtherJob) -> int:
    """Return how many nodes are free for `job`, or held by jobs that it outranks."""
    cluster, priority = scene.cluster, scene.cluster.priority(job)
    others = sum(other.nodes for other in cluster.jobs if other.admitted and cluster.priority(other) >= priority)
    return max(0, cluster.healthy - cluster.reclaimed - others - _kept(scene, job))


def _admit(scene: _Scene, job: OtherJob) -> _Scene:
    """Give a waiting job its nodes if all are available."""
    if job.nodes > _available(scene, job):
        return scene
    scene = _with_job(scene, job, replace(job, admitted=True))
    return _evict(scene.log(f"{job} takes {counted(job.nodes, 'node')}"))


def _evict(scene: _Scene) -> _Scene:
    """Take nodes back from the jobs with the lowest priority, the latest first, until the others fit."""
    while admitted := [job for job in reversed(scene.cluster.jobs) if job.admitted]:
        least = min(admitted, key=scene.cluster.priority)
        if scene.cluster.capacity >= _kept(scene, least):
            break
        scene = _with_job(scene, least, replace(least, admitted=False))
        scene = scene.log(f"{least} gives {counted(least.nodes, 'node')} back and waits")
    return scene


def _settle(scene: _Scene) -> _Scene:
    """Restore the invariants after a change: no job has nodes that do not exist, and none waits needlessly."""
    scene = _evict(scene.change(reclaimed=min(scene.cluster.reclaimed, scene.cluster.healthy)))
    for job in _by_priority(scene.cluster):
        if scene.cluster.outranks(job):
            scene = _admit(scene, job)
    return scene


def _with_job(scene: _Scene, old: OtherJob, new: OtherJob) -> _Scene:
    return scene.change(jobs=tuple(new if job is old else job for job in scene.cluster.jobs))


def _bring_replacements(scene: _Scene) -> _Scene:
    due = [due_s for due_s in scene.cluster.replacements if due_s <= scene.now_s]
    if not due:
        return scene
    scene = scene.change(replacements=scene.cluster.replacements[len(due) :])
    return _settle(_replace_nodes(scene, len(due)))


def _set_capacity(scene: _Scene, nodes: int) -> _Scene:
    """Set the nodes of the cluster, including those lost or reclaimed before; no replacement remains due."""
    before = scene.cluster.healthy
    scene = scene.change(healthy=nodes, lost=0, reclaimed=0, replacements=())
    return scene.log(f"the cluster has {counted(nodes, 'node')} from now on, {before} before")


def _preempt(scene: _Scene, wanted: int) -> _Scene:
    """Take nodes from the job itself, together with the free ones: otherwise it would get them back at once."""
    tiers = scene.cluster.scenario.tiers
    held = min(scene.held, scene.cluster.capacity)
    taken = min(wanted, held - min(held, tiers[0].nodes if len(tiers) > 1 else 0))
    message = f"{counted(taken, 'node')} of this job {'is' if taken == 1 else 'are'} reclaimed"
    if taken < wanted:
        have = "elastic part has" if len(tiers) > 1 else "job has"
        message += f", not {wanted}: its {have} no more"
    if not taken:
        return scene.log(message)
    scene = replace(scene, held=held - taken)
    free = scene.cluster.capacity - held
    return scene.change(reclaimed=scene.cluster.reclaimed + free + taken).log(message)


def _arrive(scene: _Scene, arrival: JobArrives) -> _Scene:
    if any(job.name == arrival.name for job in scene.cluster.jobs):
        return scene.log(f"job {arrival.name} arrives, but has arrived already: nothing is done")
    job = OtherJob(arrival.name, arrival.nodes, arrival.priority)
    available = _available(scene, job)
    scene = scene.change(jobs=(*scene.cluster.jobs, job))
    if available >= job.nodes:
        return _admit(scene.log(f"{job} arrives"), job)
    return scene.log(f"{job} arrives and waits: it needs {counted(job.nodes, 'node')} and can have {available}")


def _leave(scene: _Scene, name: str) -> _Scene:
    gone = next((job for job in scene.cluster.jobs if job.name == name), None)
    if gone is None:
        return scene.log(f"job {name} leaves, but is not present: nothing is done")
    scene = scene.change(jobs=tuple(job for job in scene.cluster.jobs if job is not gone))
    return scene.log(
        f"{gone} leaves" + (f": {counted(gone.nodes, 'node')} free" if gone.admitted else ", still waiting")
    )


def _hit_worker(scene: _Scene, target: WorkerCrash | Hang) -> _Scene:
    ranks = scene.used_nodes * scene.cluster.scenario.nproc_per_node
    verb, verbs = ("hang", "hangs") if isinstance(target, Hang) else ("crash", "crashes")
    if target.rank >= ranks:
        return scene.log(f"worker {target.rank} cannot {verb}, the job has {ranks} workers: nothing is done")
    return scene.log(f"worker {target.rank} {verbs}", target)


def _crash_agent(scene: _Scene, crash: AgentCrash) -> _Scene:
    if crash.node >= scene.used_nodes:
        return scene.log(f"the agent of node {crash.node} cannot crash, {_has(scene)}: nothing is done")
    return scene.log(f"the agent of node {crash.node} crashes", crash)


def _lose_node(scene: _Scene, loss: NodeLoss) -> _Scene:
    lost = [each.fault.node for each in scene.happenings if isinstance(each.fault, NodeLoss)]
    if loss.node >= scene.used_nodes or loss.node in lost:
        return scene.log(f"node {loss.node} cannot be lost, {_has(scene)}: nothing is done")
    cluster, message = scene.cluster, f"node {loss.node} is lost"
    gone = min(1, cluster.healthy)  # 0: the node no longer counted, since the job was about to release it
    scene = scene.change(healthy=cluster.healthy - gone, lost=cluster.lost + gone)
    if loss.replacement_after is not None:
        due = (*cluster.replacements, scene.now_s + loss.replacement_after)
        scene = scene.change(replacements=tuple(sorted(due)))
        message += f"; a replacement comes {loss.replacement_after:g} s later"
    return scene.log(message, loss)


def _replace_nodes(scene: _Scene, nodes: int) -> _Scene:
    coming = min(nodes, scene.cluster.lost)
    if not coming:
        return scene.log("a replacement node comes, but none is lost: nothing is done")
    scene = scene.change(healthy=scene.cluster.healthy + coming, lost=scene.cluster.lost - coming)
    return scene.log(f"{counted(coming, 'node')} replaced: the cluster has {scene.cluster.healthy}")


def _has(scene: _Scene) -> str:
    return f"the job has {counted(scene.used_nodes, 'node')}"


_ACTIONS: Mapping[str, Callable[[_Scene, Any], _Scene]] = {
    "capacity": _set_capacity,
    "preempt": _preempt,
    "job_arrives": _arrive,
    "job_leaves": _leave,
    "worker_crash": _hit_worker,
    "agent_crash": _crash_agent,
    "node_loss": _lose_node,
    "replacement_node": _replace_nodes,
    "slow_checkpoint": lambda scene, slow: scene.log(f"the next stop's checkpoint takes {slow.seconds:g} s", slow),
    "operator_restart": lambda scene, restart: scene.log(f"the operator is down for {restart.down:g} s", restart),
    "hang": _hit_worker,
    "bit_rot": lambda scene, rot: scene.log(f"{rot.num_bytes} bytes of the newest checkpoint are damaged", rot),
}
