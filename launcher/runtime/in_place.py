"""Resizes in place: the workers that stay keep their process and their state, and wait for the next start.

The agent runs in its in-process mode: its workers wait at a barrier until the job starts, and come back to it when it
stops. What an attempt leaves, model, optimizer and place in the data, is kept here for the next one, in which
`launcher.runtime.peers` brings all ranks to the newest state.

An operator that resizes says so before it stops the workers. Then they need no checkpoint, since one of them
continues; without that word they save one.

Source: hyperpod_elastic_agent 1.1.3, ipc/client.py, InProcessRestartSocketClient; ipr_hyperpod_elastic_agent.py.
"""

import contextlib
import gc
import importlib.util
import os
import queue
import re
import signal
import socket
import stat
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import names
from launcher.runtime import agent, startup_timing
from launcher.runtime.warm_client import fork_name

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

    from launcher.runtime.job import Job
    from launcher.runtime.peers import Kept

STOP_S = 5.0
"""How long a rank that lost a peer waits for the operator's stop before it reports the loss itself."""

PATIENCE_S = 60.0
"""How long it then waits for the stop, before the loss counts as a failure of its own."""

HANG_S, HANG_STEPS = 3.0, 3
"""A rank whose connections are cut leaves its collective within these seconds and so many of its longest steps. gloo
forgets to wake one of some hundred: that process is replaced, and receives the state like a new one."""

_CUT_PERIOD_S = 0.05
_LEAVE_S = 2.0
_POLL_S = 0.5
_BROKEN = re.compile(r"gloo|nccl|store|connection|broken pipe|peer|timed out", re.IGNORECASE)
"""Messages of torch's RuntimeErrors after another rank has gone. Source: seen with torch 2.13."""


class _State:
    """What a process keeps from one attempt to the next."""

    link: "_Link | None" = None
    stays = False
    job: "Job | None" = None
    kept: "tuple[Kept, ...]" = ()
    ports: frozenset[int] = frozenset()
    trained: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
    next_left = threading.Event()
    """Set once the next group is left."""


def is_on() -> bool:
    """Return whether the workers of this job stay for the next start."""
    return bool(os.environ.get(names.ENV_IN_PLACE)) and importlib.util.find_spec(agent.PACKAGE) is not None


def run(train: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> None:
    """Call `train` at each start of the workers, until a call ends without a stop.

    A job that is not resized in place calls it once. What `train` makes is made again at each start. What outlives
    it, such as the value of a cached function, is kept: the state of a model that is built so moves nowhere.

    An exception that a lost peer causes ends the call, not the process: gradients are dropped, and the next call
    continues at the last complete step.

    Args:
        prepare: Called before the first start, while the others train if this node joins them.
    """
    if not is_on():
        train()
        return
    prepare()
    startup_timing.ready()
    link, _State.stays = _Link(), True
    _State.link = link
    while True:
        link.await_start()
        startup_timing.begin()
        failure = _attempt(train)
        link.has_left = True
        job, _State.job = _State.job, None
        if failure is None and (job is None or job.finished or job.is_left or agent.is_terminated()):
            return
        if failure is not None:
            link.begin_cutting()
            # Ends the generators of the attempt: a step that the optimizer has done counts.
            traceback.clear_frames(failure.__traceback__)
        if job and job.is_restored:
            _State.kept = job.left()
            never_begin_with(job.plain_model)
        link.await_stop(failure)
        failure = job = None
        leave_group()
        link.end_cutting()


def _attempt(train: Callable[[], object]) -> BaseException | None:
    """Return the exception of a lost peer that ended `train`; others are raised."""
    try:
        train()
    except BaseException as error:
        if not _is_of_peer(error):
            raise
        line = str(error).strip().partition("\n")[0][:200]
        print(f"a rank is lost; this one waits for the others: {line}", file=sys.stderr, flush=True)
        return error
    return None


def _is_of_peer(error: BaseException | None) -> bool:
    import torch.distributed as dist

    while error is not None:
        if isinstance(error, dist.DistError):
            return True
        if isinstance(error, RuntimeError) and _BROKEN.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def leave_group() -> None:
    """Leave the process group; what holds it, such as DistributedDataParallel, is collected first.

    A group whose last reference goes waits for its collectives, and after a loss one of some hundred does not end.
    DistributedDataParallel would wait with Python's lock, in whichever thread it is collected: the process stands
    still. So the group outlives it, until the next one is left, or for as long as the process.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if "torch.distributed.tensor" in sys.modules:
        # They hold meshes, and give them to sharded tensors of the next attempt if the size is the same: a rank whose
        # number has changed would then count its rows from another place.
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()
    gc.collect()
    if dist.is_initialized():
        _State.next_left.set()
        _State.next_left = threading.Event()
        held = list(distributed_c10d._world.pg_map), _State.next_left
        threading.Thread(target=_hold, args=held, daemon=True).start()
        del held
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)
        if leaving.is_alive():
            print("a collective does not end; it is left behind", file=sys.stderr, flush=True)
    else:  # a join that failed has counted its group, and the number is part of the names of its keys in the store
        distributed_c10d._world.group_count = 0
    gc.collect()


def _hold(groups: "list[ProcessGroup]", until: threading.Event) -> None:
    """Hold groups, and drop them; in a daemon thread, whose references are those of no exit."""
    until.wait()
    groups.clear()


def enter() -> None:
    """Wait for the start of a script that `run` does not call: it has one, and its process ends with it."""
    if is_on() and _State.link is None:
        _State.link = _Link()
        _State.link.await_start()


def stays() -> bool:
    """Return whether this process continues after a stop."""
    return _State.stays


def register(job: "Job") -> None:
    """Note the job of this attempt."""
    _State.job = job


def kept() -> "tuple[Kept, ...]":
    """Return what the last attempt has left in this process, the newest first."""
    return _State.kept


def forget() -> None:
    """Drop what the last attempt has left: this one has taken it over."""
    _State.kept = ()


def never_begin_with(model: "nn.Module") -> None:
    """Note that a model's values are not the initial ones: it waits for a state."""
    _State.trained.add(model)


def begin_anew_if_trained(model: "nn.Module") -> None:
    """End this process if no state was found for a model that waits for one: another one begins with a new model.

    By a signal: the operator does not start again what exits by itself before the first step.
    """
    if model in _State.trained:
        print("no checkpoint exists, and this rank's state is incomplete: its process begins anew", file=sys.stderr)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def is_resize() -> bool:
    """Return whether the stop that was requested is for a resize: ranks that stay have the state."""
    return _State.link is not None and _State.link.notice in (names.RESIZE, names.LEAVE)


def is_aborted() -> bool:
    """Return whether a rank of this attempt is lost, so that no other is to wait for it."""
    return _State.link is not None and _State.link.notice == names.ABORT


def is_leaving() -> bool:
    """Return whether this rank's node leaves with the stop that was requested."""
    return _State.link is not None and _State.link.notice == names.LEAVE


def listening_ports() -> list[int]:
    """Return the ports on which this process takes connections of other ranks."""
    return [each.getsockname()[1] for each in _sockets() if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)]


def know_ports(ports: list[list[int]]) -> None:
    """Note the ports of all ranks, whose connections are cut when one is lost."""
    _State.ports = frozenset(port for of_rank in ports for port in of_rank)


class _Link:
    """The connection to the agent.

    The client's own `hyperpod_barrier` and `hyperpod_wait_fault` drop what came before they wait: a start or a stop
    would be lost on a busy machine. The messages are received in queues and callbacks here.
    """

    def __init__(self) -> None:
        from hyperpod_elastic_agent import TrainingManager
        from hyperpod_elastic_agent.ipc.common import InProcessRestartSocketMessageType as Message

        self._client = TrainingManager().InProcessRestart
        self._message = Message
        self._starts: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._is_out = threading.Event()
        self._cutter: threading.Thread | None = None
        self._cutting = threading.Lock()
        self.has_left = True
        self.notice: str | None = None
        self._client.register_message_queue(Message.JOB_START, self._starts)
        self._client.register_message_callback(Message.JOB_FAULT, lambda _: agent.stop_requested.set())
        self._client.register_message_callback(Message.JOB_RANK_INFO, self._on_notice)

    def await_start(self) -> None:
        """Wait at the barrier, then take over this process's place among the ranks."""
        agent.stop_requested.clear()
        self.notice = None
        while not self._starts.empty():
            self._starts.get()
        if not self._client.sendall(self._message.AT_RCB_BARRIER, {}):
            raise SystemExit(1)  # the agent has ended
        while True:
            with contextlib.suppress(queue.Empty):
                _, body = self._starts.get(timeout=_POLL_S)
                break
            if agent.is_terminated() or not self._client.socket_client.running:
                sys.stdout.flush()
                os._exit(0)  # nothing is to be saved: the attempt before has done so
        os.environ.update(body["worker_envs"])
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(fork_name(os.environ["RANK"]), encoding="utf-8")
        _begin_logs(int(body["worker_envs"]["TORCHELASTIC_RESTART_COUNT"]))
        self.has_left = False
        self._client.hyperpod_past_rcb_barrier()

    def await_stop(self, failure: BaseException | None) -> None:
        """Wait until the agent has stopped this attempt; report the loss of a peer if it does not.

        Raises:
            BaseException: No stop has come: `failure` was one of this rank.
        """
        if not agent.stop_requested.wait(STOP_S) and failure is not None:
            self._client.hyperpod_send_fault(int(os.environ["RANK"]), reason="PeerLost", message=str(failure)[:500])
        if not agent.stop_requested.wait(PATIENCE_S):
            raise failure or TimeoutError("the ranks have stopped, and the agent has not")

    def _cut(self) -> None:
        """Shut the connections to other ranks down, so that no collective waits for one.

        A rank that has not joined waits in the store for those that are to come: its connection there is cut, too.
        """
        import torch.distributed as dist

        own, has_joined = set(listening_ports()), dist.is_initialized()
        store = int(os.environ.get("MASTER_PORT", "0"))
        for connection in _sockets():
            with contextlib.suppress(OSError):  # without a peer: a listener, whose end would be that of the process
                here, there = connection.getsockname()[1], connection.getpeername()[1]
                is_of_store = store in (here, there)
                is_of_rank = not is_of_store and (here in own or there in _State.ports)
                if is_of_rank or (is_of_store and not has_joined):
                    connection.shutdown(socket.SHUT_RDWR)

    def _on_notice(self, message: dict[str, Any]) -> None:
        data = message.get("aggregate_worker_data") or {}
        self.notice = (data.get("aggregate_worker_data") or {}).get(names.NOTICE)
        if self.notice == names.ABORT:
            self.begin_cutting()

    def begin_cutting(self) -> None:
        """Cut the connections to other ranks until this one is out of the process group.

        gloo aborts nothing: without this, a rank that still hears from its neighbour would wait for it.
        """
        with self._cutting:
            if not self._cutter:
                self._is_out.clear()
                self._cutter = threading.Thread(target=self._cut_until_out, daemon=True)
                self._cutter.start()

    def end_cutting(self) -> None:
        """End what `begin_cutting` began: the connections of the next attempt are to last."""
        with self._cutting:
            self._is_out.set()
            if self._cutter:
                self._cutter.join()
            self._cutter = None

    def _cut_until_out(self) -> None:
        job = _State.job
        limit_s = time.monotonic() + HANG_S + HANG_STEPS * (job.longest_step_s if job else 0.0)
        self._cut()
        while not self._is_out.wait(_CUT_PERIOD_S):
            self._cut()
            if not self.has_left and time.monotonic() > limit_s:
                print("this rank does not leave a collective: its process ends, and another begins", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)


def _begin_logs(attempt: int) -> None:
    """Let standard output and error go to the files of this attempt, beside those of the first."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        number = stream.fileno()
        now = os.readlink(f"/proc/self/fd/{number}")
        path = re.sub(r"/attempt_\d+/", f"/attempt_{attempt}/", now)
        if path == now:
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(new, number)
        os.close(new)


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each TCP socket of this process, closed after its turn."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            # First: a duplicate of anything but a socket would stay open.
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    yield found
