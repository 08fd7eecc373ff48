"""The nodes that an elastic job has: what Slurm has given it, what it may get, and what it gives back.

Slurm's commands run one after another in a thread: a controller that restarts must not stop the operator.

Source: scontrol(1), Update job: NodeList, NumNodes, StartTime; salloc(1), --dependency=expand; seen with Slurm 22.05.
"""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launcher.backends.slurm import programs
from launcher.backends.slurm.place import records
from launcher.common.texts import counted
from launcher.operator.control_loop import Cluster
from launcher.operator.event_log import EventWriter
from launcher.operator.types import Policy

_REFRESH_S = 2.0
"""Seconds between two looks at the allocation."""
_RETRY_S = 30.0
"""Seconds after which a request for more nodes that Slurm refused is repeated."""
_PROBE_S = 20.0
"""Time limit of a trial step on a host whose node ended by itself, and the time between two trials."""
_STEPS_END_S = 60.0
"""Seconds after which nodes are given back although steps still end there: more than the default KillWait of 30."""
_GRANTED = re.compile(r"Granted job allocation ([0-9]+)")
_STARTS = re.compile(r"to start at ([0-9T:-]+)")


@dataclass(frozen=True, slots=True)
class Host:
    """A node of the cluster: its name in Slurm, and the address of its agents."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class View:
    """The job as Slurm has it: its nodes, the one of the batch script first.

    Args:
        is_preempted: Whether it has been asked to leave for a job of higher priority.
    """

    hosts: tuple[Host, ...]
    is_preempted: bool


class Allocation(Cluster):
    """What the job has and may have. Its methods never wait for Slurm.

    Args:
        run_dir: Of the job; requests are files in it.
        options: Of a request for more nodes.
        in_place: Whether nodes can be added while it runs; otherwise it has to be requeued.
        view: The job as it was found.
        events: Records what Slurm gives and takes.
        requested: Maximum nodes that a user requested; None for no limit.

    Attributes:
        seen_s: When the look began that saw `view`, on the monotonic clock.
    """

    is_stuck = False
    """Another job may always end and free nodes."""

    def __init__(
        self,
        run_dir: Path,
        job_id: str,
        policy: Policy,
        options: Sequence[str],
        view: View,
        events: EventWriter,
        *,
        in_place: bool,
        requested: int | None = None,
    ):
        super().__init__(run_dir, policy.sizes, requested)
        self.job_id = job_id
        self.view, self.seen_s = view, 0.0
        self.leaving = ""
        self.idle_since_s: float | None = None
        self._policy = policy
        self._options, self._in_place = ("--exclusive", *options), in_place
        self._events = events
        self._suspects: dict[str, tuple[subprocess.Popen[bytes] | None, float]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="slurm")
        self._task: Future[None] | None = None
        # Looks wait for no other command: after a preemption every second counts.
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="slurm-look")
        self._looking: Future[None] | None = None
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._wanted: subprocess.Popen[str] | None = None
        self._wanted_nodes = (0, 0)
        self._retry_s = 0.0
        self._emptying: tuple[tuple[Host, ...], float] = ((), 0.0)

    def close(self) -> None:
        """Withdraw the request for more nodes, and end what still asks Slurm."""
        self._withdraw()
        for name in list(self._suspects):
            self._end_probe(name)
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._looker.shutdown(wait=False, cancel_futures=True)

    @property
    def capacity(self) -> int:
        """Nodes the job may have now; none once it is leaving."""
        return 0 if self.leaving else self._limited(len(self._usable()))

    def free_host(self, used: frozenset[str]) -> Host | None:
        """Return a usable host without a node; the one of the batch script first."""
        return next((host for host in self._usable() if host.name not in used), None)

    def suspect(self, name: str) -> None:
        """Take a host out until a trial step has run there: a node ended by itself."""
        self._suspects.setdefault(name, (None, 0.0))

    def tick(self, used: frozenset[str]) -> tuple[str, ...]:
        """Bring everything up to date, given the hosts that have a node; return those that the job has lost."""
        lost = tuple(used - {host.name for host in self.view.hosts})
        self._probe()
        is_looking = self._looking is not None and not self._looking.done()
        if not is_looking and time.monotonic() - self._looked_s > _REFRESH_S:
            self.look_now()
        if self._task is not None and not self._task.done():
            return lost
        if surplus := self._surplus(used):
            self._run(lambda: self._give_back(surplus))
        elif not self.leaving:
            self._grow()
        return lost

    def postpone(self, seconds: float) -> None:
        """Ask for no more nodes for some time."""
        self._retry_s = time.monotonic() + seconds

    def look_now(self) -> None:
        """Look at the allocation, after the current look."""
        self._looked_s = time.monotonic()
        self._looking = self._looker.submit(self._look)

    def _usable(self) -> tuple[Host, ...]:
        return tuple(host for host in self.view.hosts if host.name not in self._suspects)

    def _run(self, work: Callable[[], None]) -> None:
        self._task = self._worker.submit(work)

    def _look(self) -> None:
        began_s, known = time.monotonic(), {host.name: host for host in self.view.hosts}
        if view := look(self.job_id, known):
            with self._lock:
                if began_s > self.seen_s:
                    self.view, self.seen_s = view, began_s

    def _surplus(self, used: frozenset[str]) -> tuple[Host, ...]:
        """Return the hosts that no size of the job needs, if they are free already."""
        allowed = self._limited(len(self.view.hosts))
        surplus = 0 if self.leaving else len(self.view.hosts) - self._policy.fit(allowed)
        # The batch script's host, the first, cannot be given back.
        free = [host for host in self.view.hosts[1:] if host.name not in used and host.name not in self._suspects]
        return tuple(free[-surplus:]) if 0 < surplus <= len(free) and self._policy.fit(allowed) else ()

    def _give_back(self, surplus: tuple[Host, ...]) -> None:
        """Give hosts back once Slurm knows of no step there.

        slurmd kills what the job runs on a host that is taken away until nothing is left, and so it would kill what
        starts there when the job gets the same host again meanwhile.
        """
        if surplus != self._emptying[0]:
            self._emptying = (surplus, time.monotonic())
        names = [host.name for host in surplus]
        steps = programs.steps(self.job_id, f"--nodelist={','.join(names)}")
        # The others, batch and extern, last as long as the job has the host.
        is_empty = steps is not None and not any(step.rpartition(".")[2].isdigit() for step in steps)
        if not is_empty and time.monotonic() - self._emptying[1] < _STEPS_END_S:
            time.sleep(0.25)
            return
        kept = [host.name for host in self.view.hosts if host not in surplus]
        answer = programs.run("scontrol", "update", f"JobId={self.job_id}", f"NodeList={','.join(kept)}")
        if answer.code:
            self._events.add("operator", f"Slurm did not take back {counted(len(surplus), 'node')}: {answer.error}")
            time.sleep(1.0)
        else:
            self._events.add("released", f"given back to Slurm: {', '.join(names)}")
        self._look()

    def _grow(self) -> None:
        """Ask for the nodes that the job lacks, and withdraw a request that has changed."""
        held = len(self.view.hosts)
        larger = [size for size in self._policy.sizes if held < size <= self._limited(size)]
        lacking = (larger[0] - held, larger[-1] - held) if larger else (0, 0)
        if self._in_place:
            self._grow_in_place(lacking)
        elif not larger:
            self.idle_since_s = None
        elif time.monotonic() > self._retry_s:
            self.postpone(_RETRY_S / 3)
            self._run(lambda: self._look_for_idle(lacking[0]))

    def _grow_in_place(self, lacking: tuple[int, int]) -> None:
        if self._wanted is not None and self._wanted.poll() is not None:
            self._receive(self._wanted)
        elif self._wanted is not None and lacking != self._wanted_nodes:
            self._withdraw()
        elif self._wanted is None and lacking != (0, 0) and time.monotonic() > self._retry_s:
            self._wanted_nodes = lacking
            span = f"{lacking[0]}-{lacking[1]}" if lacking[0] < lacking[1] else str(lacking[0])
            words = ["salloc", "--no-shell", f"--dependency=expand:{self.job_id}", f"--nodes={span}"]
            self._wanted = subprocess.Popen(
                [*words, *self._options],
                env=programs.environment({}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def _receive(self, request: "subprocess.Popen[str]") -> None:
        self._wanted = None
        text = request.stderr.read() if request.stderr else ""
        granted = _GRANTED.findall(text)
        if request.returncode == 0 and granted:
            self._run(lambda: self._merge(granted[-1]))
            return
        self.postpone(_RETRY_S)
        if request.returncode > 0:
            lines = [line for line in text.splitlines() if "error" in line]
            self._events.add("operator", f"more nodes were refused: {'; '.join(lines[-1:]) or request.returncode}")

    def _merge(self, helper: str) -> None:
        """Move the nodes of a granted request into the job."""
        before = len(self.view.hosts)  # a look in between may see them already
        for update in ((f"JobId={helper}", "NumNodes=0"), (f"JobId={self.job_id}", "NumNodes=ALL")):
            answer = programs.run("scontrol", "update", *update)
            if answer.code:
                programs.run("scancel", helper)
                self.postpone(_RETRY_S)
                self._events.add("operator", f"more nodes were not added: {answer.error}")
                break
        self._look()
        if (gained := len(self.view.hosts) - before) > 0:
            self._events.add("granted", f"{counted(gained, 'node')} more from Slurm")

    def _withdraw(self) -> None:
        request, self._wanted = self._wanted, None
        if request is None:
            return
        request.terminate()
        try:
            _, text = request.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            request.kill()
            request.wait()
            return
        for helper in _GRANTED.findall(text or ""):
            programs.run("scancel", helper)

    def _look_for_idle(self, nodes: int) -> None:
        """Note since when as many more nodes as the job lacks could start now."""
        words = ("sbatch", "--test-only", f"--nodes={nodes}", *self._options, "--wrap=true")
        answer = programs.run(*words)
        found = _STARTS.search(answer.error)
        is_now = answer.code == 0 and found is not None and _seconds(found[1]) - time.time() < 2
        self.idle_since_s = (self.idle_since_s or time.monotonic()) if is_now else None

    def _probe(self) -> None:
        """Try a step on every suspected host; one that runs it is usable again."""
        for name, (probe, since_s) in list(self._suspects.items()):
            late = time.monotonic() - since_s > _PROBE_S
            if name not in {host.name for host in self.view.hosts}:
                self._end_probe(name)
            elif probe is None:
                if late:
                    trial = programs.start_step(self.job_id, name, "trial", ("true",))
                    self._suspects[name] = (trial, time.monotonic())
            elif probe.poll() == 0:
                self._end_probe(name)
            elif probe.poll() is not None or late:
                probe.kill()
                self._suspects[name] = (None, time.monotonic())
                self.look_now()

    def _end_probe(self, name: str) -> None:
        probe, _ = self._suspects.pop(name)
        if probe:
            probe.kill()


def look(job_id: str, known: Mapping[str, Host]) -> View | None:
    """Return a job as Slurm has it now, given hosts whose addresses are known; None if Slurm does not answer."""
    answer = programs.run("scontrol", "--oneliner", "show", "job", job_id)
    if answer.code:
        return None
    fields = programs.fields(answer.out)
    nodes = fields.get("NodeList", "")
    names = [] if nodes in ("", "(null)") else programs.run("scontrol", "show", "hostnames", nodes).out.split()
    batch = fields.get("BatchHost", "")
    ordered = [name for name in (batch, *(name for name in names if name != batch)) if name in names]
    new = ",".join(name for name in ordered if name not in known)
    shown = records(programs.run("scontrol", "--oneliner", "show", "node", new).out) if new else ()
    addresses = {node["NodeName"]: node["NodeAddr"] for node in shown if "NodeAddr" in node}
    hosts = tuple(known.get(name) or Host(name, addresses.get(name, name)) for name in ordered)
    is_preempted = fields.get("PreemptTime", "None") not in ("None", "Unknown", "")
    return View(hosts, is_preempted) if hosts else None


def _seconds(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return float("inf")
