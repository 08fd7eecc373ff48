"""The elastic agent from a worker's side: it sends scale events and receives published checkpoints.

A cluster that preempts a job sends SIGTERM instead, without an agent.

Both the agent's package and the agent may be absent: then there are no events, and no reports.
"""

import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.common import names

PACKAGE = "hyperpod_elastic_agent"
ENV_SOCKET = "HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH"
"""Set by the agent in its workers: the socket its checkpoint discovery listens on."""

STOP_SIGNAL = signal.SIGUSR1


class _Handler:
    """Records the stop signal and forwards it to the previous handler, the agent's."""

    def __init__(self) -> None:
        self.received = False
        self.before: Any = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if callable(self.before):
            self.before(number, frame)


_handler, _term_handler = _Handler(), _Handler()
stop_requested = threading.Event()
"""Set while a worker that is resized in place is asked to stop."""


def _saves_on_term() -> bool:
    return bool(os.environ.get(names.ENV_SAVES_ON_TERM))


@contextmanager
def stop_signal_held() -> Iterator[None]:
    """Block the stop signals: for this thread until the end, for processes started inside permanently."""
    signals = {STOP_SIGNAL, signal.SIGTERM} if _saves_on_term() else {STOP_SIGNAL}
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def install_event_handler() -> None:
    """Install the handler of the agent's stop signal; without the agent's package that signal does not exist.

    Importing the agent's handler takes seconds, in which an unhandled signal would kill the process: the signal is
    blocked, and delivered once the handler is installed. SIGTERM is a stop signal, too, if the environment says so.
    """
    if _saves_on_term():
        signal.signal(signal.SIGTERM, _term_handler)
    if importlib.util.find_spec(PACKAGE) is None or signal.getsignal(STOP_SIGNAL) is _handler:
        return
    with stop_signal_held():
        importlib.import_module(f"{PACKAGE}.elastic_event_handler")
        _handler.before = signal.signal(STOP_SIGNAL, _handler)


def event_pending() -> bool:
    """Return whether this process, but not necessarily all ranks, was asked to save and stop."""
    is_of_agent = _handler.received and os.environ.get(names.ENV_COORDINATION, "").lower() == "distributed"
    return is_of_agent or _term_handler.received or stop_requested.is_set()


def is_terminated() -> bool:
    """Return whether this process was asked to end, not only to stop."""
    return _term_handler.received


def forget_connection() -> None:
    """Give this forked process a connection of its own to the agent.

    The agent's client makes its epoll descriptor when it is imported. Forks that share one take each other's events,
    read nothing, and disconnect: their checkpoints were not reported.
    """
    ipc = sys.modules.get(f"{PACKAGE}.ipc.client")
    if ipc is not None:
        ipc.HyperPodElasticAgentSocketClient._singleton_instance = None
        ipc.BaseIPCSocketClient.socket_client = ipc.HyperPodElasticAgentSocketClient()


@cache
def _discovery_client(prefix: str) -> Any:
    from hyperpod_elastic_agent import TrainingManager

    return TrainingManager.get_checkpoint_discovery_client(
        prefix, num_model_checkpoints=int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    )


def report_checkpoint(folder: Path, step: int) -> None:
    """Report to the agent of this node that this rank's part of a published checkpoint is on disk.

    The agent accepts a checkpoint once each of its ranks has reported it. If the agent is unreachable, the checkpoint
    is published nevertheless, and training continues.
    """
    if not os.environ.get(ENV_SOCKET) or importlib.util.find_spec(PACKAGE) is None:
        return
    from hyperpod_elastic_agent.checkpoint_discovery import CheckpointType

    try:
        _discovery_client(str(folder.parent)).update(step, str(folder), CheckpointType.MODEL_CHECKPOINT)
    except (OSError, AttributeError) as error:  # its client raises the latter for a refused connection
        cause = error.__context__ or error
        print(f"step {step}: the checkpoint was not reported to the agent: {cause}", file=sys.stderr, flush=True)
