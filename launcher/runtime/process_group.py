"""This process's place among the ranks, and how it joins and leaves them."""

import ipaddress
import multiprocessing
import os
import socket
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from launcher.common import names
from launcher.runtime import startup_timing

JOIN_TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for each other to join."""

COLLECTIVE_TIMEOUT_S = 600.0
"""How long a collective may take where nothing else is set; torch's own default for NCCL.

Source: torch.distributed documentation, init_process_group, timeout.
"""


class BadTimeout(ValueError):
    """The environment gives a timeout that is not a positive number of seconds."""


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands. `device` is the accelerator of `local_rank`, or the CPU."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device

    @property
    def nodes(self) -> int:
        # NNODES is stale after a scale event, and GROUP_WORLD_SIZE is the agent's world size.
        return self.world_size // self.local_world_size


def place_from_env() -> Place:
    """Return the place that the agent (or torchrun) gave this process; alone when there is none."""
    rank, world_size, local_rank, local_world_size = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    return Place(rank, world_size, local_rank, local_world_size, device)


def join(place: Place | None = None) -> Place:
    """Join the process group, gloo and where there are accelerators nccl too, and return the place taken.

    From here on an uncaught exception prints its traceback and ends the process at once.

    Args:
        place: Where this process stands; None for what its environment says.
    """
    startup_timing.reached("imported")
    place = place or place_from_env()
    # Small agreements between the ranks go over gloo also there: they must not wait for the accelerator.
    backend, device_id = "gloo", None
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
        backend, device_id = "cpu:gloo,cuda:nccl", place.device
    store = _loopback_store(place)
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
    # Not before: torch installs a hook of its own, which would swallow what this one prints.
    sys.excepthook = _leave_on_error
    startup_timing.reached("joined")
    return place


def collective_timeout() -> timedelta:
    """Return how long a collective of this job may take.

    Raises:
        BadTimeout: The environment variable is not a positive number.
    """
    text = os.environ.get(names.ENV_COLLECTIVE_TIMEOUT) or str(COLLECTIVE_TIMEOUT_S)
    try:
        timeout = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        timeout = timedelta(0)
    if timeout <= timedelta(0):
        raise BadTimeout(f"{names.ENV_COLLECTIVE_TIMEOUT}={text!r} must be a positive number of seconds")
    return timeout


def _loopback_store(place: Place) -> dist.Store | None:
    # torch's own store listens on every interface; a job on this machine alone must not.
    address = os.environ.get("MASTER_ADDR", "")
    try:
        is_loopback = address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    port, listener = int(os.environ["MASTER_PORT"]), None
    if place.rank == 0:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
        listener = listening.detach()
    return dist.TCPStore(address, port, place.world_size, place.rank == 0, JOIN_TIMEOUT, master_listen_fd=listener)


def rank() -> int:
    """Return this process's rank; 0 where there is no process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks; 1 where there is no process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def num_nodes() -> int:
    """Return the number of nodes that the ranks are on."""
    return world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


def gather(value: _Value) -> list[_Value]:
    """Return every rank's value, in the order of ranks."""
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


def leave(exit_code: int = 0) -> None:
    """End this process and its children now. Does not return.

    After DistributedDataParallel on gloo a plain return hangs in about half of the exits.
    """
    # An exit of this kind skips what multiprocessing would do now: the workers of a DataLoader would live on.
    for child in multiprocessing.active_children():
        if child._parent_pid != os.getpid():
            continue  # of the process that this one was forked from
        if child.daemon or exit_code:
            child.kill()
        child.join()
    if exit_code == 0 and dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _leave_on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    leave(exit_code=1)
