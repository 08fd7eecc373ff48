"""The simulated cluster of a rehearsal: which nodes a job may have while its scenario goes by.

Pure: `begin` and `advance` make values that can be saved with `as_json` and read back with `from_json`. Other jobs
of a scenario exist only here, as nodes that the rehearsed job cannot have.

Admission follows Kueue: a job starts with all its nodes or waits, and takes nodes only from what has a strictly
lower priority. Source: Kueue documentation, "Preemption" and "All-or-nothing with ready Pods"; AWS, Using elastic
training in Amazon SageMaker HyperPod, Use-case examples.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from launcher.backends.local.injections import (
    HangWorker,
    Injection,
    KillAgent,
    KillWorker,
    LoseNode,
    RestartOperator,
    RotBits,
    SlowCheckpoint,
)
from launcher.backends.local.operator_events import count_nodes
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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is.

    Args:
        now_s: Seconds since the launch.
        step: Optimizer steps done.
        samples: Samples consumed since the start of training.
    """

    now_s: float
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that came to pass: in plain words, and the fault it is, if any."""

    message: str
    fault: Injection | None = None


@dataclass(frozen=True, slots=True)
class OtherJob:
    """Another job on the cluster. `admitted` tells whether it has its nodes or waits for them."""

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
        scenario: What shall happen.
        healthy: Nodes that work, whoever has them.
        lost: Nodes that broke and were not replaced.
        reclaimed: Nodes taken from the job by nobody in particular.
        jobs: Other jobs, in the order of their arrival.
        fired: Places in `scenario.events` of those that came, in the order they came.
        replacements: When replacement nodes come, seconds since the launch, ascending.
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
        """Nodes that the job may have now; those it has are among them."""
        return self.healthy - self.reclaimed - sum(job.nodes for job in self.jobs if job.admitted)

    def priority(self, job: OtherJob) -> int:
        """Return the priority of another job."""
        return self.scenario.priority_classes[job.priority_class]

    def protected(self, job: OtherJob) -> int:
        """Return how many nodes the rehearsed job keeps against `job`: its tiers that `job` does not outrank."""
        classes, priority = self.scenario.priority_classes, self.priority(job)
        return sum(tier.nodes for tier in self.scenario.tiers if classes[tier.priority_class] >= priority)

    def outranks(self, job: OtherJob) -> bool:
        """Return whether `job` may take nodes from the rehearsed job."""
        classes = self.scenario.priority_classes
        return self.priority(job) > min(classes[tier.priority_class] for tier in self.scenario.tiers)


def begin(scenario: Scenario) -> Rehearsal:
    """Return the cluster before anything has happened; `advance` at 0 brings what is due from the start."""
    return Rehearsal(scenario, scenario.nodes)


def advance(rehearsal: Rehearsal, progress: Progress, used_nodes: int) -> tuple[Rehearsal, tuple[Happening, ...]]:
    """Let everything happen that is due.

    Events that are due at once come in the order of listing. Waiting jobs that outrank this one are admitted as soon
    as there is room; the others at the next call, when this job has had its turn to grow.

    Args:
        rehearsal: The cluster so far.
        progress: How far the job is.
        used_nodes: Nodes that the job holds: those it trains on or restarts on, and those being added.

    Returns:
        The cluster now, and what happened, in order.
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
    """Return whether nothing is left that time alone brings: a suspended job would wait for ever."""
    left = _left(rehearsal)
    return not rehearsal.replacements and not any(event.at.seconds is not None for event in left)


def unfired(rehearsal: Rehearsal) -> tuple[str, ...]:
    """Return what never happened, in plain words."""
    events = tuple(str(event) for event in _left(rehearsal))
    return events + tuple(f"{due_s:g} seconds: a replacement node" for due_s in rehearsal.replacements)


def as_json(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return the cluster as plain data."""
    fields = {name: getattr(rehearsal, name) for name in ("healthy", "lost", "reclaimed")}
    return fields | {
        "scenario": rehearsal.scenario.model_dump(exclude_none=True),
        "jobs": [asdict(job) for job in rehearsal.jobs],
        "fired": list(rehearsal.fired),
        "replacements": list(rehearsal.replacements),
    }


def from_json(data: Mapping[str, Any]) -> Rehearsal:
    """Return the cluster that `as_json` wrote."""
    return Rehearsal(
        scenario=Scenario.model_validate(data["scenario"]),
        healthy=data["healthy"],
        lost=data["lost"],
        reclaimed=data["reclaimed"],
        jobs=tuple(OtherJob(**job) for job in data["jobs"]),
        fired=tuple(data["fired"]),
        replacements=tuple(data["replacements"]),
    )


@dataclass(frozen=True, slots=True)
class _Scene:
    """The cluster while things happen to it.

    Args:
        cluster: As it is by now.
        now_s: Seconds since the launch.
        used_nodes: Nodes that the job holds, as its operator says.
        held: Those of them that it was still entitled to when the scene began, less what was reclaimed since.
        happenings: What came to pass, in order.
    """

    cluster: Rehearsal
    now_s: float
    used_nodes: int
    held: int
    happenings: tuple[Happening, ...] = ()

    def change(self, **changes: Any) -> "_Scene":
        return replace(self, cluster=replace(self.cluster, **changes))

    def say(self, message: str, fault: Injection | None = None) -> "_Scene":
        return replace(self, happenings=(*self.happenings, Happening(message, fault)))


def _left(rehearsal: Rehearsal) -> list[Event]:
    return [event for place, event in enumerate(rehearsal.scenario.events) if place not in rehearsal.fired]


def _by_priority(rehearsal: Rehearsal) -> list[OtherJob]:
    """Return the waiting jobs, the highest priority first, then the earliest."""
    waiting = [job for job in rehearsal.jobs if not job.admitted]
    return sorted(waiting, key=rehearsal.priority, reverse=True)  # stable, also in reverse


def _kept(scene: _Scene, job: OtherJob) -> int:
    """Return how many nodes the rehearsed job has that `job` cannot take."""
    cluster = scene.cluster
    return min(scene.held, cluster.healthy - cluster.reclaimed, cluster.protected(job))


def _room(scene: _Scene, job: OtherJob) -> int:
    """Return how many nodes are free for `job`, or in the hands of what it outranks."""
    cluster, priority = scene.cluster, scene.cluster.priority(job)
    others = sum(other.nodes for other in cluster.jobs if other.admitted and cluster.priority(other) >= priority)
    return max(0, cluster.healthy - cluster.reclaimed - others - _kept(scene, job))


def _admit(scene: _Scene, job: OtherJob) -> _Scene:
    """Give a waiting job its nodes if all are there."""
    if job.nodes > _room(scene, job):
        return scene
    scene = _with_job(scene, job, replace(job, admitted=True))
    return _evict(scene.say(f"{job} takes {count_nodes(job.nodes)}"))


def _evict(scene: _Scene) -> _Scene:
    """Take the nodes back from the least important jobs, the latest first, until what is left fits."""
    while admitted := [job for job in reversed(scene.cluster.jobs) if job.admitted]:
        least = min(admitted, key=scene.cluster.priority)
        if scene.cluster.capacity >= _kept(scene, least):
            break
        scene = _with_job(scene, least, replace(least, admitted=False))
        scene = scene.say(f"{least} gives {count_nodes(least.nodes)} back and waits")
    return scene


def _settle(scene: _Scene) -> _Scene:
    """Restore what must hold after a change: nobody has more than there is, and nobody waits without need."""
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
    """Say anew what the cluster has: nodes lost or reclaimed before are part of it, and nothing more is due."""
    before = scene.cluster.healthy
    scene = scene.change(healthy=nodes, lost=0, reclaimed=0, replacements=())
    return scene.say(f"the cluster has {count_nodes(nodes)} from now on, {before} before")


def _preempt(scene: _Scene, wanted: int) -> _Scene:
    """Take nodes from the job itself, and with them those that are free: else it would just have them back."""
    tiers = scene.cluster.scenario.tiers
    held = min(scene.held, scene.cluster.capacity)
    taken = min(wanted, held - min(held, tiers[0].nodes if len(tiers) > 1 else 0))
    message = f"{count_nodes(taken)} of this job {'is' if taken == 1 else 'are'} reclaimed"
    if taken < wanted:
        have = "elastic part has" if len(tiers) > 1 else "job has"
        message += f", not {wanted}: its {have} no more"
    if not taken:
        return scene.say(message)
    scene = replace(scene, held=held - taken)
    free = scene.cluster.capacity - held
    return scene.change(reclaimed=scene.cluster.reclaimed + free + taken).say(message)


def _arrive(scene: _Scene, arrival: JobArrives) -> _Scene:
    if any(job.name == arrival.name for job in scene.cluster.jobs):
        return scene.say(f"job {arrival.name} arrives, but is there already: nothing is done")
    job = OtherJob(arrival.name, arrival.nodes, arrival.priority)
    room = _room(scene, job)
    scene = scene.change(jobs=(*scene.cluster.jobs, job))
    if room >= job.nodes:
        return _admit(scene.say(f"{job} arrives"), job)
    return scene.say(f"{job} arrives and waits: it needs {count_nodes(job.nodes)} and can have {room}")


def _leave(scene: _Scene, name: str) -> _Scene:
    gone = next((job for job in scene.cluster.jobs if job.name == name), None)
    if gone is None:
        return scene.say(f"job {name} leaves, but is not there: nothing is done")
    scene = scene.change(jobs=tuple(job for job in scene.cluster.jobs if job is not gone))
    return scene.say(f"{gone} leaves" + (f": {count_nodes(gone.nodes)} free" if gone.admitted else ", still waiting"))


def _crash_worker(scene: _Scene, crash: WorkerCrash) -> _Scene:
    ranks = scene.used_nodes * scene.cluster.scenario.nproc_per_node
    if crash.rank >= ranks:
        return scene.say(f"worker {crash.rank} cannot crash, the job has {ranks} workers: nothing is done")
    return scene.say(f"worker {crash.rank} crashes", KillWorker(crash.rank))


def _hang(scene: _Scene, hang: Hang) -> _Scene:
    ranks = scene.used_nodes * scene.cluster.scenario.nproc_per_node
    if hang.rank >= ranks:
        return scene.say(f"worker {hang.rank} cannot hang, the job has {ranks} workers: nothing is done")
    return scene.say(f"worker {hang.rank} hangs", HangWorker(hang.rank))


def _rot(scene: _Scene, rot: BitRot) -> _Scene:
    return scene.say(f"{rot.num_bytes} bytes of the newest checkpoint are damaged", RotBits(rot.num_bytes))


def _crash_agent(scene: _Scene, crash: AgentCrash) -> _Scene:
    if crash.node >= scene.used_nodes:
        return scene.say(f"the agent of node {crash.node} cannot crash, {_has(scene)}: nothing is done")
    return scene.say(f"the agent of node {crash.node} crashes", KillAgent(crash.node))


def _lose_node(scene: _Scene, loss: NodeLoss) -> _Scene:
    fault = LoseNode(loss.node)
    if loss.node >= scene.used_nodes or any(happening.fault == fault for happening in scene.happenings):
        return scene.say(f"node {loss.node} cannot be lost, {_has(scene)}: nothing is done")
    cluster, message = scene.cluster, f"node {loss.node} is lost"
    gone = min(1, cluster.healthy)  # 0: the node no longer counted, the job was about to give it up
    scene = scene.change(healthy=cluster.healthy - gone, lost=cluster.lost + gone)
    if loss.replacement_after is not None:
        due = (*cluster.replacements, scene.now_s + loss.replacement_after)
        scene = scene.change(replacements=tuple(sorted(due)))
        message += f"; a replacement comes {loss.replacement_after:g} s later"
    return scene.say(message, fault)


def _replace_nodes(scene: _Scene, nodes: int) -> _Scene:
    coming = min(nodes, scene.cluster.lost)
    if not coming:
        return scene.say("a replacement node comes, but none is lost: nothing is done")
    scene = scene.change(healthy=scene.cluster.healthy + coming, lost=scene.cluster.lost - coming)
    return scene.say(f"{count_nodes(coming)} replaced: the cluster has {scene.cluster.healthy}")


def _slow_checkpoint(scene: _Scene, slow: SlowSave) -> _Scene:
    return scene.say(f"the next stop's checkpoint takes {slow.seconds:g} s", SlowCheckpoint(slow.seconds))


def _restart_operator(scene: _Scene, restart: OperatorRestart) -> _Scene:
    return scene.say(f"the operator goes away for {restart.down:g} s", RestartOperator(restart.down))


def _has(scene: _Scene) -> str:
    return f"the job has {count_nodes(scene.used_nodes)}"


_ACTIONS: Mapping[str, Callable[[_Scene, Any], _Scene]] = {
    "capacity": _set_capacity,
    "preempt": _preempt,
    "job_arrives": _arrive,
    "job_leaves": _leave,
    "worker_crash": _crash_worker,
    "agent_crash": _crash_agent,
    "node_loss": _lose_node,
    "replacement_node": _replace_nodes,
    "slow_checkpoint": _slow_checkpoint,
    "operator_restart": _restart_operator,
    "hang": _hang,
    "bit_rot": _rot,
}
