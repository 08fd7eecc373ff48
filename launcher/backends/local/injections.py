"""The faults that a scenario injects into a job."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill the worker of this rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class KillAgent:
    """Kill the agent of a node: its pod dies, but the node remains. `node` is its index in the job."""

    node: int


@dataclass(frozen=True, slots=True)
class LoseNode:
    """Kill everything on a node, permanently. `node` is its index in the job."""

    node: int


@dataclass(frozen=True, slots=True)
class SlowCheckpoint:
    """Make the checkpoint of the next graceful stop take this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RestartOperator:
    """Stop the operator and start another one `down_s` seconds later."""

    down_s: float


@dataclass(frozen=True, slots=True)
class HangWorker:
    """Suspend the worker of this rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class RotBits:
    """Damage this many bytes of the newest checkpoint."""

    num_bytes: int


Injection = KillWorker | KillAgent | LoseNode | SlowCheckpoint | RestartOperator | HangWorker | RotBits
"""A fault that the operator injects."""
