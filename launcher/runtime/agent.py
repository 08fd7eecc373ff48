"""The elastic agent as a worker sees it: scale events in, published checkpoints out.

The agent's package and the agent itself may both be absent: then there are no events, and nobody is told.
"""

import importlib.util
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "hyperpod_elastic_agent"
ENV_SOCKET = "HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH"
"""Set by the agent in its workers: the socket its checkpoint discovery listens on."""


def _never() -> bool:
    return False


def install_event_handler() -> Callable[[], bool]:
    """Install the handler of the agent's stop signal and return the function that reports it.

    Importing the handler takes seconds, and an unhandled SIGUSR1 would end the process meanwhile, so
    the signal is held back until the handler is there. It is then delivered.

    Returns:
        `elastic_event_detected`, a collective that every rank must call equally often; without the
        agent's package, a function that returns False.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        return _never
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    from hyperpod_elastic_agent.elastic_event_handler import elastic_event_detected

    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return elastic_event_detected


@cache
def _discovery_client(prefix: str) -> Any:
    from hyperpod_elastic_agent import TrainingManager

    return TrainingManager.get_checkpoint_discovery_client(
        prefix, num_model_checkpoints=int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    )


def report_checkpoint(folder: Path, step: int) -> None:
    """Tell the agent of this node that this rank's part of a published checkpoint is on disk.

    The agent counts one report from each of its ranks before it believes in a checkpoint.
    """
    if not os.environ.get(ENV_SOCKET) or importlib.util.find_spec(PACKAGE) is None:
        return
    from hyperpod_elastic_agent.checkpoint_discovery import CheckpointType

    _discovery_client(str(folder.parent)).update(step, str(folder), CheckpointType.MODEL_CHECKPOINT)
