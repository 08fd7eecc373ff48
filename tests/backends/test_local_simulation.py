"""Whole jobs in simulated time: the real operator and rehearsal, against nodes that misbehave.

Fake are the processes alone: nodes with their agents and workers, signals to them, and the clock.
"""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_nodes import Job, Luck, World

from launcher import timeline
from launcher.backends.local import operator as local_operator
from launcher.backends.local import rehearsal
from launcher.backends.local.operator import RehearsingOperator, RestartRequested
from launcher.backends.local.scenario import PRIORITY_CLASSES, Scenario
from launcher.common.names import METRICS_FILE
from launcher.model.job_spec import JobState
from launcher.operator import control_loop
from launcher.operator import event_log as events_file
from launcher.operator.job_request import JobRequest
from launcher.operator.state_machine import MAX_FAULTS_WITHOUT_PROGRESS, READY_TIMEOUT_S, advance
from launcher.operator.stop_signals import Interrupts
from launcher.operator.types import (
    AgentState,
    Cause,
    Event,
    Phase,
    Policy,
    RecordStart,
    SpawnNodes,
    StartWorkers,
)


class Watch:
    """Looks at every decision of the operator, and says which must not be."""

    def __init__(self):
        self.more_since = self.began_at = self.fault = self.warm_since = None
        self.best_step = self.faults_without_progress = 0
        self.came_back = False
        self.sizes = []
        self.noted = set()

    def __call__(self, before, observation, policy):
        self._note_capacity(before, observation, policy)
        after, commands = advance(before, observation, policy)
        taken = after.nodes + after.warming
        assert len(set(taken)) == len(taken), "a node has two roles"
        self._check_faults(before, after, observation, commands)
        for command in commands:
            self._check_order(command, before, after, observation, policy)
        self._check_fault_events(before, after, observation, commands)
        if after.verdict is JobState.FAILED and before.verdict is None:
            self._check_failure(before, after, observation, policy)
        if after.verdict is JobState.SUCCEEDED:
            assert all(observation.report(node).is_in(AgentState.COMPLETED) for node in before.nodes)
        self._check_warming(after, observation)
        return after, commands

    def _note_capacity(self, before, observation, policy):
        size = policy.fit(observation.capacity)
        if before.phase is not Phase.RUNNING or size <= len(before.nodes):
            self.more_since = None
        elif self.more_since is None:
            self.more_since = observation.now_s
        if self.fault and before.phase in (Phase.STOPPING, Phase.WAITING):
            self.came_back = self.came_back or size >= self.fault[1]

    def _check_faults(self, before, after, observation, commands):
        events = [command for command in commands if isinstance(command, Event) and command.kind == "fault"]
        told = any(not event.fields["warming"] for event in events)
        gone = before.phase is Phase.PREPARING and len(observation.alive(before.nodes)) < len(before.nodes)
        if gone or (told and self.fault is None):
            is_replaced = any(isinstance(command, SpawnNodes) for command in commands)
            self.fault, self.came_back = (observation.now_s, len(before.nodes)), is_replaced
        settled = before.phase is Phase.SETTLING and after.phase is not Phase.SETTLING
        # A node that is gone with its place is waited for, which does not count.
        is_early = before.phase is Phase.PREPARING and after.phase is not Phase.WAITING
        failed_early = is_early and (told or after.verdict is JobState.FAILED)
        if settled or failed_early:
            self.faults_without_progress = (
                1 if observation.step > self.best_step else self.faults_without_progress + 1
            )
            self.best_step = max(self.best_step, observation.step)
            assert self.faults_without_progress <= MAX_FAULTS_WITHOUT_PROGRESS or after.phase is Phase.ENDED, (
                "it tries for ever"
            )

    def _check_fault_events(self, before, after, observation, commands):
        """Each node that died while the job counted on it has its event, and no other node has that of a death."""
        for command in commands:
            if isinstance(command, Event) and command.kind == "fault":
                fault = (command.fields.get("node", -1), command.fields["cause"], before.attempt)
                assert fault not in self.noted, "a fault is noted twice"
                self.noted.add(fault)
                assert command.fields["cause"] != Cause.LOST or not observation.report(fault[0]).alive
        for command in commands:
            if isinstance(command, Event) and command.kind == "abandoned":
                failed = {node for node, _, _ in self.noted} & set(command.fields["nodes"])
                assert ("failed" in command.message) == bool(failed)
        if after.phase is Phase.ENDED:
            return
        for node in set(before.nodes + before.warming):
            left = node not in after.nodes + after.warming
            if left and not observation.report(node).alive:
                assert (node, Cause.LOST) in {fault[:2] for fault in self.noted}, "a node died without an event"

    def _check_order(self, command, before, after, observation, policy):
        if isinstance(command, SpawnNodes):
            assert len(after.nodes + after.warming) <= policy.fit(observation.capacity)
        if isinstance(command, RecordStart):
            self.sizes.append(len(command.nodes))
        if isinstance(command, StartWorkers):
            # Workers with the only copy of the last steps start again first, whatever the capacity.
            most = max(observation.capacity, min(before.target, before.size) if before.is_unsaved else 0)
            assert len(command.nodes) in policy.sizes and len(command.nodes) <= most
            self.fault, self.began_at = None, observation.now_s
            self.sizes.append(len(command.nodes))
        if not (isinstance(command, Event) and command.kind == "transition"):
            return
        if command.fields["reason"] == "scale-up" and before.phase is Phase.RUNNING:
            assert observation.now_s - self.more_since >= policy.scaling_timeout_s
            assert before.attempt == 0 or observation.now_s - self.began_at >= policy.snooze_s
        if self.fault and command.fields["reason"] in ("scale-down", "suspend"):
            assert self.came_back or observation.now_s - self.fault[0] >= policy.faulty_timeout_s

    def _check_failure(self, before, after, observation, policy):
        if after.faults[0].cause is Cause.NO_CAPACITY:
            assert observation.is_stuck and not policy.fit(observation.capacity)
        elif self.faults_without_progress <= MAX_FAULTS_WITHOUT_PROGRESS:
            is_hopeless = observation.step == 0 and before.phase in (Phase.SETTLING, Phase.PREPARING)
            is_hopeless = is_hopeless and all(fault.cause is Cause.WORKER for fault in after.faults)
            never_ready = before.attempt == 0 and observation.now_s - before.since_s > READY_TIMEOUT_S
            assert is_hopeless or never_ready, "it gives up too early"

    def _check_warming(self, after, observation):
        if after.phase is not Phase.RUNNING or not after.warming:
            self.warm_since = None
        elif self.warm_since is None or self.warm_since[0] != after.warming:
            self.warm_since = after.warming, observation.now_s
        else:
            assert observation.now_s - self.warm_since[1] < READY_TIMEOUT_S + 5, "new nodes are waited for in vain"


@dataclass(frozen=True)
class Outcome:
    """How a job went: its verdict, the sizes it was started at, what is in its model, and what it was to be."""

    verdict: JobState
    sizes: tuple[int, ...]
    positions: list[int]
    total: int


def play(run_dir, job, luck, policy, scenario):
    """Play a job to its end, and go through what must hold on the way."""
    world, watch = World(run_dir, job, luck, policy.sizes), Watch()
    signals = SimpleNamespace(
        kill_worker=world.kill_worker,
        hang_worker=world.hang_worker,
        damage_checkpoint=world.damage_checkpoint,
        kill_agent=world.kill_agent,
        worker_pid=world.worker_pid,
        Freezer=world.freeze,
    )
    commands = JobRequest("job", job.nproc_per_node, policy.sizes[0], policy)
    interrupts, known = Interrupts(), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_loop, "time", world.clock)
        patch.setattr(control_loop, "advance", watch)
        patch.setattr(local_operator, "time", world.clock)
        patch.setattr(local_operator, "fault_injection", signals)
        patch.setattr(events_file, "time", world.clock)
        patch.setattr(control_loop.timeline, "write", lambda _run_dir: None)
        while True:
            played = known.rehearsal if known else rehearsal.begin(scenario)
            cluster = local_operator.ClusterSim(run_dir, commands, played, known.memory.requested if known else None)
            if known:
                world.adopt(known.nodes, known.warm_pid)
            operator = RehearsingOperator(run_dir, commands, world, cluster, interrupts, known)
            try:
                operator.run()
                break
            except RestartRequested as away:
                local_operator.write_handover(run_dir, operator.handover())
                known = local_operator.read_handover(run_dir)
                world.pass_time(away.down_s)
    check_rows(timeline.read(run_dir), tuple(watch.sizes))
    verdict = operator.memory.machine.verdict
    return Outcome(verdict, tuple(watch.sizes), world.positions_in_the_model(), job.total)


def check_rows(line, sizes):
    """Each start has one row with the size that was started, and the row before it ends where it begins."""
    started = [row for row in line.transitions if row.attempt is not None]
    assert tuple(row.to_nodes for row in started) == sizes
    size = 0
    for row in line.transitions:
        assert row.from_nodes == size, "a row begins at a size that did not run"
        if row.attempt is not None:
            size = row.to_nodes
        elif row.reason == "suspend" and not row.given_up:
            size = 0


@st.composite
def moments(draw):
    unit, most = draw(st.sampled_from([("step", 25), ("samples", 200), ("seconds", 120)]))
    return {unit: draw(st.integers(0, most))}


NODES = st.integers(0, 3)
ACTIONS = {
    "capacity": st.integers(0, 5),
    "preempt": st.integers(1, 3),
    "job_arrives": st.fixed_dictionaries(
        {"name": st.sampled_from("ab"), "nodes": st.integers(1, 3), "priority": st.sampled_from([*PRIORITY_CLASSES])}
    ),
    "job_leaves": st.sampled_from("ab"),
    "worker_crash": st.fixed_dictionaries({"rank": NODES}),
    "hang": st.fixed_dictionaries({"rank": NODES}),
    "bit_rot": st.fixed_dictionaries({"num_bytes": st.integers(1, 9)}),
    "agent_crash": st.fixed_dictionaries({"node": NODES}),
    "node_loss": st.fixed_dictionaries({"node": NODES}, optional={"replacement_after": st.integers(0, 30)}),
    "replacement_node": st.integers(1, 2),
    "slow_checkpoint": st.fixed_dictionaries({"seconds": st.integers(0, 40)}),
    "operator_restart": st.fixed_dictionaries({"down": st.integers(0, 20)}),
}


@st.composite
def events(draw):
    name = draw(st.sampled_from([*ACTIONS]))
    return {"at": draw(moments()), name: draw(ACTIONS[name])}


@st.composite
def scenarios(draw, nproc_per_node):
    happenings = draw(st.lists(events(), min_size=1, max_size=10))
    for seconds in draw(st.lists(st.integers(0, 200), max_size=4)):
        happenings.append({"at": {"seconds": seconds}, "operator_restart": {"down": draw(st.integers(0, 9))}})
    if draw(st.sampled_from([True, True, True, False])):  # whatever happens, capacity comes back
        happenings += [{"at": {"seconds": seconds}, "capacity": 12} for seconds in range(100, 1300, 100)]
    tiers = [{"name": "job", "nodes": 4, "priority_class": "normal-priority"}]
    if draw(st.booleans()):
        base = draw(st.integers(1, 3))
        tiers = [
            {"name": "base", "nodes": base, "priority_class": "high-priority"},
            {"name": "elastic", "nodes": 4 - base, "priority_class": "low-priority"},
        ]
    return Scenario(
        about="",
        nodes=draw(st.sampled_from([0, 1, 2, 3, 3, 4, 4, 5])),
        priority_classes=PRIORITY_CLASSES,
        tiers=tiers,
        nproc_per_node=nproc_per_node,
        events=happenings,
    )


JOBS = st.builds(
    Job,
    num_samples=st.integers(30, 90),
    epochs=st.integers(2, 4),
    batch=st.integers(4, 12),
    save_every=st.integers(1, 8),
    step_s=st.sampled_from([0.3, 1.0, 3.0]),
    nproc_per_node=st.integers(1, 2),
    stays=st.booleans(),
    is_sharded=st.booleans(),
)
POLICIES = st.builds(
    Policy,
    sizes=st.sampled_from([(1, 2, 3, 4), (2, 4), (3,), (1, 3), (2, 3)]),
    graceful_timeout_s=st.sampled_from([None, 2, 8, 30]),
    scaling_timeout_s=st.integers(0, 15),
    faulty_timeout_s=st.integers(0, 30),
    snooze_s=st.sampled_from([0, 0, 10]),
)
LUCK = st.builds(
    Luck,
    seed=st.integers(0, 2**32),
    dies_young=st.sampled_from([0, 0, 0.3]),
    hangs_young=st.sampled_from([0, 0, 0.05]),
    refuses=st.sampled_from([0, 0, 0.05]),
    falls=st.sampled_from([0, 0, 0.01]),
    crashes=st.sampled_from([0, 0, 0.01]),
    is_mute=st.sampled_from([0, 0.05]),
    fails_young=st.sampled_from([0, 0, 0.2]),
)


@pytest.mark.slow
@settings(examples(200), derandomize=True)
@given(data=st.data())
def test_a_job_ends_with_every_sample_once_or_fails_for_a_reason(data):
    job, policy, luck = data.draw(JOBS), data.draw(POLICIES), data.draw(LUCK)
    scenario = data.draw(scenarios(job.nproc_per_node))
    with tempfile.TemporaryDirectory() as folder:
        outcome = play(Path(folder), job, luck, policy, scenario)
    assert outcome.verdict in (JobState.SUCCEEDED, JobState.FAILED)
    if outcome.verdict is JobState.SUCCEEDED:
        assert sorted(outcome.positions) == list(range(outcome.total))


NOTHING_FAILS = Luck(0, 0, 0, 0, 0, 0, 0)


@pytest.mark.slow
@settings(examples(150), derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    is_sharded=st.booleans(),
    changes=st.lists(st.tuples(st.integers(20, 150), st.integers(0, 4)), min_size=3, max_size=12),
)
def test_workers_that_stay_do_no_step_twice_however_the_capacity_changes(seed, is_sharded, changes):
    """Also in the middle of a change, down to no node: what only some of them have is handed over or saved first."""
    job = replace(Job(90, 4, 4, 1000, 1.0, 1), stays=True, is_sharded=is_sharded)
    scenario = Scenario(
        about="",
        nodes=3,
        priority_classes=PRIORITY_CLASSES,
        tiers=[{"name": "job", "nodes": 4, "priority_class": "normal-priority"}],
        nproc_per_node=1,
        events=[{"at": {"seconds": seconds}, "capacity": nodes} for seconds, nodes in sorted(changes)]
        + [{"at": {"seconds": 200}, "capacity": 2}],
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = play(Path(folder), job, replace(NOTHING_FAILS, seed=seed), Policy((1, 2, 3, 4), 60), scenario)
        steps = [json.loads(line)["step"] for line in (Path(folder) / METRICS_FILE).read_text().splitlines()]
    assert outcome.verdict is JobState.SUCCEEDED
    assert steps == list(range(1, job.total // job.batch + 1))
