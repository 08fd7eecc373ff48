"""Simulated nodes: what the operator of a local job sees of processes, in simulated time.

Agents behave as the real ones were seen to: they take their time, ignore orders now and then, die or hang; survivors
of a loss say `running` for a while, or for good; a graceful stop saves, or is cut short.
"""

import json
import math
import random
from dataclasses import dataclass, field

from launcher.backends.local.fleet import NodeAddress
from launcher.common.names import ABORT, METRICS_FILE, RESIZE
from launcher.operator.stacks import STOPPED
from launcher.operator.state_machine import progress_step
from launcher.operator.types import AgentState, AgentStatus, Cause, Fault, Report
from launcher.runtime.shares import nearest_even, rank_positions, step_shares
from launcher.runtime.stacks import stack_file, stacks_folder

LAUNCHED = 1e9
LONGEST_JOB_S = 3600.0
FIRST_PID = 1000


@dataclass(frozen=True)
class Job:
    """What is trained: `epochs` times `num_samples` in steps of `batch`, saved every `save_every` steps.

    Workers that stay keep the last step in memory: each all of it, or, if the model is sharded, some rows.
    """

    num_samples: int
    epochs: int
    batch: int
    save_every: int
    step_s: float
    nproc_per_node: int
    stays: bool = False
    is_sharded: bool = False

    @property
    def total(self):
        return self.num_samples * self.epochs


@dataclass(frozen=True)
class Luck:
    """Chances of what no scenario asks for: at a node's start, at an order, or a second of the job."""

    seed: int
    dies_young: float
    hangs_young: float
    refuses: float
    falls: float
    crashes: float
    is_mute: float
    fails_young: float = 0


class Clock:
    """Stands in for the `time` module: time goes by where the operator sleeps."""

    def __init__(self, rng):
        self.now = 0.0
        self.wake = lambda slept_s: None
        self._rng = rng

    def monotonic(self):
        return self.now

    def time(self):
        return LAUNCHED + self.now

    def sleep(self, seconds):
        slept_s = seconds + self._rng.uniform(0.1, 1.2)
        self.now += slept_s
        self.wake(slept_s)


@dataclass(eq=False)
class FakeNode:
    """A node: its agent's state, and when that changes by itself."""

    index: int
    ready_at: float
    dies_at: float = math.inf
    falls_at: float = math.inf
    stopped_at: float = math.inf
    completes_at: float = math.inf
    is_hung: bool = False
    is_alive: bool = True
    state: AgentState = AgentState.INIT
    progress: dict = field(default_factory=dict)
    keeps: bool = False
    is_own_fall: bool = False
    message: str = ""

    @property
    def has_workers(self):
        return self.is_alive and self.state in (AgentState.RUNNING, AgentState.STOPPING)

    def live(self, now):
        """Bring the node to the present."""
        self.is_alive = self.is_alive and now < self.dies_at
        if self.state is AgentState.INIT and now >= self.ready_at:
            self.state = AgentState.FAULTED if self.message else AgentState.READY
        if self.state is AgentState.STOPPING and now >= self.stopped_at:
            self.state = AgentState.READY
        if self.state is AgentState.RUNNING and now >= self.falls_at:
            self.state = AgentState.FAULTED
            self.keeps = self.keeps and not self.is_own_fall
        if self.state is AgentState.RUNNING and now >= self.completes_at:
            self.state = AgentState.COMPLETED

    def fall(self, at):
        """Let its worker fail by itself, and not with its peers."""
        self.falls_at, self.is_own_fall = min(self.falls_at, at), True

    def begin(self, progress):
        self.state, self.progress = AgentState.RUNNING, dict(progress)
        self.keeps, self.is_own_fall = True, False
        self.falls_at = self.stopped_at = self.completes_at = math.inf


class Workers:
    """The workers of one start on all its nodes; they train only while none is missing."""

    def __init__(self, world, attempt, nodes, size, progress):
        self.world, self.attempt, self.nodes = world, attempt, nodes
        self.step, self.cursor = world.saved[progress["job"]["progressData"]] if progress else (0, 0)
        if len(nodes) == size and world.is_kept_by(nodes):
            self.step, self.cursor = world.kept
        self.leaving = None
        self.shares = world.shares[size]
        self.next_step_at = world.clock.now + world.rng.uniform(2, 12)
        self.save_ends_at = None
        self.is_frozen = False
        self.is_hung = False
        self.is_over = False
        if len(nodes) < size:  # those that did start wait for the others in vain
            self._break_up(10, 60)

    def live(self, now):
        if self.is_over:
            return
        if any(not node.has_workers or node.stopped_at <= now for node in self.nodes):
            for node in self.nodes:
                node.keeps = node.keeps and node.stopped_at > now
            self._break_up(0.3, 8)
        elif self.is_hung:
            return
        elif self.save_ends_at is not None:
            if not self.is_frozen and now >= self.save_ends_at:
                self._stop()
        else:
            self._train(now)

    def stop(self, node, timeout_s, leaving):
        """Tell the workers of a node to save and end; all of them do, if none is missing until then.

        Those that stay save nothing: `leaving` are the nodes that hand over what only they have.
        """
        rng, now = self.world.rng, self.world.clock.now
        node.stopped_at = now + timeout_s
        self.leaving = leaving
        if self.save_ends_at is None:
            self.save_ends_at = now + rng.uniform(0.2, 12)

    def _train(self, now):
        world, job = self.world, self.world.job
        while now >= self.next_step_at and self.cursor < job.total:
            shares = step_shares(self.shares, job.total - self.cursor)
            taken = [rank_positions(shares, rank, self.cursor) for rank in range(len(shares))]
            self.step, self.cursor = self.step + 1, self.cursor + sum(shares)
            world.write_step(self, [position for positions in taken for position in positions])
            world.keep(self)
            self.next_step_at += job.step_s
            if self.step % job.save_every == 0:
                self._save()
        if now >= self.next_step_at:
            self._save()
            self.is_over = True
            for node in self.nodes:
                node.completes_at = now + world.rng.uniform(0, 3)

    def _save(self):
        path = f"step-{self.step}-of-{self.attempt}"
        self.world.saved[path] = (self.step, self.cursor)
        self.nodes[0].progress = {"job": {"progressData": path, "progressCount": self.step}}

    def _stop(self):
        if self.leaving is None:
            self._save()
        self.is_over = True
        told = [node for node in self.nodes if node.state is AgentState.STOPPING]
        for node in self.nodes:
            node.state = AgentState.READY if node in told else AgentState.COMPLETED
        if len(told) == len(self.nodes):
            if self.leaving is None:
                self.world.promise = (self.nodes[0], self.step)
            elif self.world.kept == (self.step, self.cursor):
                self.world.holders = [node for node in self.world.holders if node.index not in self.leaving]
                self.world.is_promised = True

    def _break_up(self, soonest_s, latest_s):
        """Let the survivors notice, late or never, that another is missing."""
        self.is_over = True
        rng, now = self.world.rng, self.world.clock.now
        for node in self.nodes:
            if node.state is AgentState.RUNNING and rng.random() < 0.8:
                node.falls_at = min(node.falls_at, now + rng.uniform(soonest_s, latest_s))


class World:
    """All nodes, as the fleet and the signals of the operator reach them."""

    def __init__(self, run_dir, job, luck, sizes):
        self.job, self.luck, self.rng = job, luck, random.Random(luck.seed)
        self.clock = Clock(self.rng)
        self.clock.wake = self.live
        self.nodes, self.leaving, self.heard = {}, [], {}
        self.workers = []
        self.saved, self.trained = {}, {}
        self.told_step, self.promise = -1, None
        self.kept, self.holders, self.is_promised = None, [], False
        self.attempts = []
        self.shares = {size: self._split(size * job.nproc_per_node) for size in sizes}
        self._metrics = run_dir / METRICS_FILE
        self._run_dir = run_dir

    def _split(self, ranks):
        shares = list(nearest_even(self.job.batch, ranks))
        self.rng.shuffle(shares)
        return tuple(shares)

    def happens(self, chance_a_second, seconds):
        return self.rng.random() < chance_a_second * seconds

    def live(self, slept_s):
        assert self.clock.now < LONGEST_JOB_S, "the job does not end"
        for node in [*self.nodes.values(), *self.leaving]:
            if self.happens(self.luck.crashes, slept_s):
                self.crash(node)
            if node.has_workers and self.happens(self.luck.falls, slept_s):
                node.fall(self.clock.now)
        self.pass_time(0.0)

    def pass_time(self, seconds):
        """Let the world go on while there is no operator."""
        self.clock.now += seconds
        for workers in self.workers:
            workers.live(self.clock.now)
        for node in [*self.nodes.values(), *self.leaving]:
            node.live(self.clock.now)

    def positions_in_the_model(self):
        """Return the samples the model has learned from: of each step, those of the attempt that did it last."""
        if not self._metrics.exists():
            return []
        kept = {line["step"]: line["attempt"] for line in map(json.loads, self._metrics.read_text().splitlines())}
        return [position for step in sorted(kept) for position in self.trained[kept[step], step]]

    def crash(self, node):
        node.dies_at = min(node.dies_at, self.clock.now + self.rng.uniform(0, 0.6))

    def write_step(self, workers, positions):
        self.trained[workers.attempt, workers.step] = positions
        line = {"step": workers.step, "cursor": workers.cursor, "attempt": workers.attempt, "time": self.clock.time()}
        with self._metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    # What workers that stay have in memory

    def keep(self, workers):
        if self.job.stays:
            self.kept, self.holders, self.is_promised = (workers.step, workers.cursor), workers.nodes, False

    def is_kept_by(self, nodes):
        """Return whether these nodes have the last step together."""
        if self.kept is None:
            return False
        there = [node for node in self.holders if node.keeps and node.is_alive and node in nodes]
        return len(there) == len(self.holders) if self.job.is_sharded else bool(there)

    # The fleet

    def addresses(self):
        return tuple(NodeAddress(index, FIRST_PID + index, 1) for index in self.nodes)

    warm_pid = None

    def adopt(self, addresses, warm_pid):
        assert (addresses, warm_pid) == (self.addresses(), self.warm_pid)

    def pid(self, index):
        node = self.nodes.get(index)
        return FIRST_PID + index if node and node.is_alive else None

    def spawn(self, index):
        self.drop([index])
        node = FakeNode(index, self.clock.now + self.rng.uniform(1, 9))
        node.is_hung = self.rng.random() < self.luck.hangs_young
        if self.luck.fails_young and self.rng.random() < self.luck.fails_young:
            node.message = f"Local Rank 0 exited with code {self.rng.choice([-9, -256])}"
        if self.rng.random() < self.luck.dies_young:
            node.dies_at = self.clock.now + self.rng.uniform(0, 12)
        self.nodes[index], self.heard[index] = node, self.clock.now

    def poll(self):
        return {index: self._report(node) for index, node in self.nodes.items()}

    def _report(self, node):
        if not node.is_alive:
            return Report(alive=False, status=None)
        status = None
        if not (node.is_hung or self.rng.random() < self.luck.is_mute or node.dies_at < math.inf):
            status = AgentStatus(node.state, node.message, node.progress, self.job.stays)
            self.heard[node.index] = self.clock.now
            self.told_step = max(self.told_step, progress_step(node.progress))
        return Report(True, status, self.clock.now - self.heard[node.index])

    def drop(self, indices):
        for node in [self.nodes.pop(index) for index in indices if index in self.nodes]:
            assert not node.has_workers, "a node with workers is dropped"
            node.dies_at = min(node.dies_at, self.clock.now + self.rng.uniform(0.2, 6))
            self.leaving.append(node)

    def kill_nodes(self, indices):
        for node in [self.nodes.pop(index) for index in indices if index in self.nodes]:
            node.is_alive = False

    def lose(self, index):
        if self.pid(index) is None:
            return False
        self.nodes[index].is_alive = False
        return True

    def start(self, command):
        everyone = [*self.nodes.values(), *self.leaving]
        assert not any(node.has_workers for node in everyone), "workers of an older attempt are alive"
        assert command.attempt > max(self.attempts, default=-1)
        self.attempts.append(command.attempt)
        assert progress_step(command.progress) == self.told_step, "a checkpoint is forgotten"
        if self.promise and self.promise[0].is_alive:
            assert progress_step(command.progress) == self.promise[1], "work is lost after a graceful stop"
        if self.is_promised and self.is_kept_by(list(self.nodes.values())):
            assert self.is_kept_by([self.nodes[index] for index in command.nodes]), "what workers keep is dropped"
        self.promise = None
        faults = self._tell(command.nodes, lambda node: self._refuses(node) or node.state is not AgentState.READY)
        started = [self.nodes[index] for index in command.nodes if index not in {fault.node for fault in faults}]
        for node in started:
            node.begin(command.progress)
        if started:
            self.workers.append(Workers(self, command.attempt, started, len(command.nodes), command.progress))
            file = stack_file(stacks_folder(self._run_dir, command.attempt), 0)
            file.parent.mkdir(parents=True)
            file.write_text("rank 0, process 1\n")
        return faults

    def request_stacks(self, folder):
        with stack_file(folder, 0).open("a") as file:
            file.write(f"{STOPPED}\n" if self.workers[-1].is_hung else "\n")

    def stop(self, command):
        faults = self._tell(command.nodes, self._refuses)
        for index in set(command.nodes) - {fault.node for fault in faults}:
            node = self.nodes[index]
            workers = next((each for each in self.workers if node in each.nodes and not each.is_over), None)
            is_abort = command.notice == ABORT
            if node.state is AgentState.READY or (node.state is AgentState.STOPPING and not is_abort):
                continue
            graceful = command.graceful_timeout_s is not None and node.state is AgentState.RUNNING and workers
            node.state = AgentState.STOPPING
            if graceful:
                leaving = command.leaving if command.notice == RESIZE else None
                workers.stop(node, command.graceful_timeout_s, leaving)
                continue
            node.stopped_at = self.clock.now + self.rng.uniform(0.1, 1.2)
            node.keeps = node.keeps and is_abort
            if workers and is_abort:
                workers.is_over = True
        return faults

    def _refuses(self, node):
        return node.is_hung or self.rng.random() < self.luck.refuses

    def _tell(self, indices, refuses):
        faults = []
        for index in indices:
            if self.pid(index) is None:
                faults.append(Fault(index, Cause.LOST))
            elif refuses(self.nodes[index]):
                faults.append(Fault(index, Cause.DISOBEDIENT, "no effect"))
        return tuple(faults)

    def shut_down(self):
        pass

    def kill(self):
        self.nodes.clear()

    # Signals to processes

    def kill_worker(self, _warm_pid, pid, _rank):
        node = self.nodes[pid - FIRST_PID]
        node.fall(self.clock.now + self.rng.uniform(0.1, 1.2))
        return node.has_workers

    def hang_worker(self, _warm_pid, pid, _rank):
        node = self.nodes[pid - FIRST_PID]
        for workers in self.workers:
            workers.is_hung = workers.is_hung or (node in workers.nodes and not workers.is_over)
        return node.has_workers

    def damage_checkpoint(self, _folder, _num_bytes):
        return bool(self.saved)

    def kill_agent(self, pid):
        self.crash(self.nodes[pid - FIRST_PID])
        return True

    def worker_pid(self, _warm_pid, node_pid, _rank):
        return node_pid if self.nodes[node_pid - FIRST_PID].has_workers else None

    def freeze(self, pid, seconds):
        node = self.nodes[pid - FIRST_PID]
        return Frost([each for each in self.workers if node in each.nodes], self.clock, seconds)


class Frost:
    """Holds workers up, until it is asked after its time has come."""

    def __init__(self, held, clock, seconds):
        self.held, self.clock, self.until = held, clock, clock.now + seconds
        for workers in held:
            workers.is_frozen = True

    def thaw(self):
        if self.clock.now < self.until:
            return False
        for workers in self.held:
            workers.is_frozen = False
        return True
