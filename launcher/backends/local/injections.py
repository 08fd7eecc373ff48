"""The faults that a scenario injects into a job."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill the worker of this rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class KillAgent:
    """Kill the agent of a node: its pod dies, the node is still there. `node` is its place in the job, from 0."""

    node: int


@dataclass(frozen=True, slots=True)
class LoseNode:
    """Kill everything on a node, for good. `node` is its place in the job, from 0."""

    node: int


@dataclass(frozen=True, slots=True)
class SlowCheckpoint:
    """Let the checkpoint of the next graceful stop take this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RestartOperator:
    """End the operator and start another `down_s` seconds later."""

    down_s: float


@dataclass(frozen=True, slots=True)
class HangWorker:
    """Stop the worker of this rank without ending it."""

    rank: int


@dataclass(frozen=True, slots=True)
class RotBits:
    """Damage this many bytes of the newest checkpoint."""

    num_bytes: int


Injection = KillWorker | KillAgent | LoseNode | SlowCheckpoint | RestartOperator | HangWorker | RotBits
"""A fault that the operator carries out."""
