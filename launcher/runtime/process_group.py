"""This process's place among the ranks, and how it joins and leaves the process group."""

import contextlib
import ipaddress
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from launcher.common import names
from launcher.runtime import agent, in_place, stacks, startup_timing
from launcher.runtime.finite_steps import NotFinite

JOIN_TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for each other to join."""

LONGEST_WORK = timedelta(days=7)
"""How long ranks wait while one alone works, which may take hours: preparing data, writing results."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25
_CONNECT_TIMEOUT_S = 5.0
_AWAIT_STORE_S = 60.0
_AWAIT_OTHERS = timedelta(seconds=10)
_FINISH_S = 10.0
_WHEN_FINISHED: list[tuple[int, Callable[[], object]]] = []
"""What is left for the end, with the process that it belongs to: a forked one has its parent's list."""
_LEAVING, _ALL_LEAVE, _LEFT = "leaving", "all leave", "left"


class BadTimeout(ValueError):
    """The timeout in the environment is not a positive number of seconds."""


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of this process among the ranks. `device` is its accelerator, or the CPU."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device

    @property
    def nodes(self) -> int:
        # NNODES is stale after a scale event, and GROUP_WORLD_SIZE is the world size of the agents.
        return self.world_size // self.local_world_size


def place_from_env() -> Place:
    """Return the place that the agent (or torchrun) gave this process; a single rank without one.

    On one machine every rank gets an accelerator of its own, also if its nodes are simulated, which all count their
    ranks from 0.
    """
    rank, world_size, local_rank, local_world_size = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    device = torch.device("cpu")
    if torch.cuda.is_available():
        is_shared = _is_on_one_machine() and world_size <= torch.cuda.device_count()
        device = torch.device("cuda", rank if is_shared else local_rank)
    return Place(rank, world_size, local_rank, local_world_size, device)


def affordable(place: Place) -> Place:
    """Return the place for a small model: on the CPU if this machine has too few accelerators."""
    ranks = place.world_size if _is_on_one_machine() else place.local_world_size
    accelerators = torch.cuda.device_count() if place.device.type == "cuda" else ranks
    if ranks <= accelerators:
        return place
    if place.rank == 0:
        print(f"{ranks} ranks, and GPUs for {accelerators}: training on the CPU", flush=True)
    return replace(place, device=torch.device("cpu"))


def join(place: Place | None = None) -> Place:
    """Join the process group, with gloo and, if there are accelerators, nccl; return this process's place.

    From now on an uncaught exception prints its traceback and ends the process at once.
    """
    startup_timing.reached("imported")
    in_place.enter()
    place = place or place_from_env()
    stacks.write_stack_on_signal(place.rank)
    # Small exchanges between the ranks use gloo even then: they must not wait for the accelerator.
    backend, device_id = "gloo", None
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
        backend, device_id = "cpu:gloo,cuda:nccl", place.device
    if place.rank and "MASTER_ADDR" in os.environ:
        _await_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store: dist.Store | None = _loopback_store(place)
    if store is None and "MASTER_ADDR" not in os.environ:
        store = dist.HashStore()
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank if store else -1,
        world_size=place.world_size if store else -1,
        timeout=collective_timeout(),
        device_id=device_id,
    )
    # Not earlier: torch installs a hook of its own, which would suppress the output of this one.
    sys.excepthook = _leave_on_error
    startup_timing.reached("joined")
    return place


def collective_timeout() -> timedelta:
    """Return how long a collective of this job may take."""
    text = os.environ.get(names.ENV_COLLECTIVE_TIMEOUT) or str(names.COLLECTIVE_TIMEOUT_S)
    try:
        timeout = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        timeout = timedelta(0)
    if timeout <= timedelta(0):
        raise BadTimeout(f"{names.ENV_COLLECTIVE_TIMEOUT}={text!r} must be a positive number of seconds")
    return timeout


def _await_store(address: str, port: int) -> None:
    """Wait until rank 0's store listens, for a minute; torch itself waits longer.

    After an attempt that is refused, torch pauses for about half a second: as long as a restart takes otherwise.

    Source: torch/csrc/distributed/c10d/Backoff.hpp, ExponentialBackoffWithJitter.

    Raises:
        DistStoreError: A rank is lost meanwhile.
    """
    deadline, pause_s = time.monotonic() + _AWAIT_STORE_S, _FIRST_PAUSE_S
    while time.monotonic() < deadline:
        if in_place.is_aborted():
            raise dist.DistStoreError("a rank was lost before all had joined")
        try:
            socket.create_connection((address, port), _CONNECT_TIMEOUT_S).close()
            return
        except OSError:  # not yet, or its name is not known yet
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, _LONGEST_PAUSE_S)


def _is_on_one_machine() -> bool:
    address = os.environ.get("MASTER_ADDR", "")  # which only this machine reaches, if it is one
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _loopback_store(place: Place) -> dist.Store | None:
    # torch's own store listens on every interface, which a job on this machine must not.
    if not _is_on_one_machine() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address, port, listener = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None
    if place.rank == 0:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
        listener = listening.detach()
    return dist.TCPStore(address, port, place.world_size, place.rank == 0, JOIN_TIMEOUT, master_listen_fd=listener)


def rank() -> int:
    """Return this process's rank; 0 if there is no process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks; 1 if there is no process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def num_nodes() -> int:
    """Return the number of nodes of the ranks."""
    return world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def patient_group() -> dist.ProcessGroup | None:
    """Return a new group of all ranks that wait for each other for days: one may work while the others cannot."""
    return dist.new_group(backend="gloo", timeout=LONGEST_WORK) if dist.is_initialized() else None


@contextlib.contextmanager
def without_group_warning() -> Iterator[None]:
    """Suppress torch's warning that there is no process group: a script of one process needs none to load or save."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def print_once(*lines: str) -> None:
    """Print lines on the first rank."""
    for line in lines if rank() == 0 else ():
        print(line, flush=True)


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Wait for all ranks, with the timeout of a group of all of them or of the default one."""
    if dist.is_initialized():
        dist.barrier(group)


def gather(value: _Value) -> list[_Value]:
    """Return every rank's value, in rank order."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def share(value: _Value) -> _Value:
    """Return the first rank's value."""
    values = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' tensors, which are in the memory of the CPU. Collective."""
    total = tensor.clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def of_first_rank(
    work: Callable[[], _Value], *errors: type[Exception], group: dist.ProcessGroup | None = None
) -> _Value:
    """Return what `work` returns on the first rank, for which the others wait as long as it takes. Collective.

    Args:
        errors: Of `work`, that are raised on all ranks; another one ends the first rank alone.
        group: A patient group to wait in; None for a new one.
    """
    group = group or patient_group()  # made while all ranks are alive: they notice if the first one dies
    found: Any = None
    failure: Exception | None = None
    if rank() == 0:
        try:
            found = work()
        except errors as error:
            failure = error
    barrier(group)
    found, failure = share((found, failure))
    if failure:
        raise failure
    return cast(_Value, found)


def when_finished(work: Callable[[], object]) -> None:
    """Do `work` when this process leaves a training that has finished, not one that is to be restarted."""
    _WHEN_FINISHED.append((os.getpid(), work))


def leave(exit_code: int = 0) -> NoReturn:
    """End this process and its children now. Does not return.

    After DistributedDataParallel on gloo, about half of all normal exits hang.
    """
    # os._exit skips the clean-up of multiprocessing: the workers of a DataLoader would keep running.
    for child in multiprocessing.active_children():
        if getattr(child, "_parent_pid", None) != os.getpid():
            continue  # a child of the process that this one was forked from
        if child.daemon or exit_code:
            child.kill()
        child.join()
    if exit_code == 0 and dist.is_initialized():
        _await_others()
        dist.destroy_process_group()
    if exit_code == 0 and not agent.event_pending():
        _finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _finish() -> None:
    """Do what was left for the end, all at once: a server that does not answer delays the end by seconds only."""
    own = [threading.Thread(target=work, daemon=True) for pid, work in _WHEN_FINISHED if pid == os.getpid()]
    for thread in own:
        thread.start()
    deadline = time.monotonic() + _FINISH_S
    for thread in own:
        thread.join(max(0.0, deadline - time.monotonic()))


def _await_others() -> None:
    """Wait until every rank leaves, for ten seconds.

    TCP resets a connection that is closed with unread data, and what was sent on it may be lost. A rank was seen to
    fail so in its last collective with gloo, after another one had ended.
    """
    store, size = distributed_c10d._get_default_store(), dist.get_world_size()
    with contextlib.suppress(RuntimeError):  # the others have ended, or are late
        if store.add(_LEAVING, 1) == size:
            store.set(_ALL_LEAVE, "")
        store.wait([_ALL_LEAVE], _AWAIT_OTHERS)
        store.set(f"{_LEFT} {dist.get_rank()}", "")
        if dist.get_rank() == 0:  # the store ends with it
            store.wait([f"{_LEFT} {rank}" for rank in range(size)], _AWAIT_OTHERS)


def _leave_on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    leave(exit_code=names.EXIT_NOT_FINITE if isinstance(error, NotFinite) else 1)
