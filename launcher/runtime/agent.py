"""The elastic agent as a worker sees it: scale events in, published checkpoints out.

The agent's package and the agent itself may both be absent: then there are no events, and nobody is told.
"""

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "hyperpod_elastic_agent"
ENV_SOCKET = "HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH"
"""Set by the agent in its workers: the socket its checkpoint discovery listens on."""

ENV_COORDINATION = "HYPERPOD_SIGNAL_COORDINATION"
"""`distributed` where a stop signal shall end training with a checkpoint; anything else ignores it.

Source: hyperpod-elastic-agent 1.1.3, elastic_event_handler.
"""

STOP_SIGNAL = signal.SIGUSR1


class _Handler:
    """Notes the stop signal and hands it on to the handler that was there before, the agent's."""

    def __init__(self) -> None:
        self.received = False
        self.before: Any = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if callable(self.before):
            self.before(number, frame)


_handler = _Handler()


@contextmanager
def stop_signal_held() -> Iterator[None]:
    """Hold the agent's stop signal back: from this thread until the end, from processes begun inside for good."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def install_event_handler() -> None:
    """Install the handler of the agent's stop signal. Without the agent's package there is none to handle.

    Importing the agent's own takes seconds, and an unhandled signal would end the process meanwhile: it is
    held back, and delivered when the handler is there.
    """
    if importlib.util.find_spec(PACKAGE) is None or signal.getsignal(STOP_SIGNAL) is _handler:
        return
    with stop_signal_held():
        importlib.import_module(f"{PACKAGE}.elastic_event_handler")
        _handler.before = signal.signal(STOP_SIGNAL, _handler)


def event_pending() -> bool:
    """Return whether this process, not yet all ranks, was told to save and stop."""
    return _handler.received and os.environ.get(ENV_COORDINATION, "").lower() == "distributed"


@cache
def _discovery_client(prefix: str) -> Any:
    from hyperpod_elastic_agent import TrainingManager

    return TrainingManager.get_checkpoint_discovery_client(
        prefix, num_model_checkpoints=int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    )


def report_checkpoint(folder: Path, step: int) -> None:
    """Tell the agent of this node that this rank's part of a published checkpoint is on disk.

    The agent counts one report from each of its ranks before it believes in a checkpoint. Where it cannot be reached,
    the checkpoint is published all the same, and training continues.
    """
    if not os.environ.get(ENV_SOCKET) or importlib.util.find_spec(PACKAGE) is None:
        return
    from hyperpod_elastic_agent.checkpoint_discovery import CheckpointType

    try:
        _discovery_client(str(folder.parent)).update(step, str(folder), CheckpointType.MODEL_CHECKPOINT)
    except (OSError, AttributeError) as error:  # its client raises the latter in place of a refused connection
        cause = error.__context__ or error
        print(f"step {step}: the checkpoint is not reported to the agent: {cause}", file=sys.stderr, flush=True)
