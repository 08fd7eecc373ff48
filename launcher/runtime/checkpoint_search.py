"""The search for the newest checkpoint that loads, shared by the plain checkpoint and the tiers.

There are two reasons not to load a checkpoint, and they are different. Damage is proof: another source is tried, then
an older checkpoint. Unavailability proves nothing: the same checkpoint is retried, and after some time the search
fails. Data that the first rank sees and another does not is unavailable to the other, since network file systems show
files late. Every rank takes part and reaches the same decision.
"""

import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before the second attempt, and before any."""

_Value = TypeVar("_Value")


class Damaged(RuntimeError):
    """The data read is not the data saved, or it no longer exists."""


class Unavailable(RuntimeError):
    """The data could not be read now; whether it is intact is unknown."""


class StateMismatch(RuntimeError):
    """The checkpoint is of another model or optimizer."""


class CheckpointBroken(RuntimeError):
    """There are checkpoints, and all of them are damaged.

    Args:
        tried: Each checkpoint and why it could not be used, the newest first.
    """

    def __init__(self, tried: Sequence[str]):
        super().__init__("no checkpoint is intact: " + "; ".join(tried))
        self.tried = tuple(tried)


class CheckpointUnavailable(RuntimeError):
    """The newest checkpoint that may be intact could not be read in time.

    Args:
        tried: Each checkpoint or tier that was tried, and why it could not be used.
    """

    def __init__(self, tried: Sequence[str]):
        super().__init__("no checkpoint could be loaded; tried " + "; ".join(tried))


_OUTCOMES = (StateMismatch, Damaged, Unavailable)


class Ranks(Protocol):
    """The ranks that search together: `launcher.runtime.process_group`, or a `tiers.rank_group.Ranks`."""

    def gather(self, value: _Value) -> list[_Value]:
        """Return every rank's value, in rank order."""

    def share(self, value: _Value) -> _Value:
        """Return the first rank's value."""


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt: doubled up to the longest, and shortened at random."""
    while True:
        yield random.uniform(0.5, 1.0) * first_s  # so that jobs do not retry in step
        first_s = min(2 * first_s, longest_s)


@dataclass(frozen=True, slots=True)
class Source(Generic[_Value]):
    """A place that has a checkpoint; `load` is collective, and so are Damaged and Unavailable, which it may raise."""

    name: str
    load: Callable[[], _Value]


@dataclass(frozen=True, slots=True)
class Candidate(Generic[_Value]):
    """A checkpoint that may be loaded; `sources` are the places that have it, the nearest first."""

    name: str
    sources: Sequence[Source[_Value]]


@dataclass(slots=True)
class Search:
    """One search. Every method is collective.

    Args:
        patience_s: Seconds for which an unavailable checkpoint is retried.
        note: Called on all ranks with the reason for each checkpoint that is passed over.
        passed_over: The reasons so far.
        pause_s: Seconds before the second attempt.
    """

    ranks: Ranks
    patience_s: float
    note: Callable[[str], None] | None = None
    passed_over: list[str] = field(default_factory=list)
    pause_s: float = PAUSE_S

    def newest(self, candidates: Sequence[Candidate[_Value]]) -> _Value | None:
        """Return the first candidate that loads; None without candidates, which are the same on all ranks.

        Raises:
            CheckpointBroken: Every candidate is damaged.
            CheckpointUnavailable: One that may be intact stayed unavailable.
        """
        for candidate in candidates:
            remaining = list(candidate.sources)
            try:
                return self.patiently(functools.partial(self._load, candidate, remaining))
            except Damaged:
                continue
        if candidates:
            raise CheckpointBroken(self.passed_over)
        return None

    def patiently(self, attempt: Callable[[], _Value]) -> _Value:
        """Return the result of `attempt`, repeated while it is Unavailable; then CheckpointUnavailable."""
        began, waits = time.monotonic(), pauses(self.pause_s, LONGEST_PAUSE_S)
        while True:
            try:
                return attempt()
            except Unavailable as error:
                # The first rank's clock decides: all ranks must stop at the same attempt.
                left_s = self.patience_s - (time.monotonic() - began)
                left_s, wait_s = self.ranks.share((left_s, next(waits)))
                if left_s <= 0:
                    raise CheckpointUnavailable([*self.passed_over, str(error)]) from error
            time.sleep(min(wait_s, left_s))

    def pass_over(self, reason: str) -> None:
        """Record a newer or nearer checkpoint that cannot be used."""
        self.passed_over.append(reason)
        if self.note:
            self.note(reason)

    def _load(self, candidate: Candidate[_Value], remaining: list[Source[_Value]]) -> _Value:
        """Load from the first source that works; sources proven damaged are removed from `remaining`."""
        unavailable = []
        for source in list(remaining):
            try:
                return source.load()
            except Damaged as error:
                self.pass_over(f"{candidate.name} from {source.name}: {error}")
                remaining.remove(source)
            except Unavailable as error:
                unavailable.append(f"{candidate.name} from {source.name}: {error}")
        if unavailable:
            raise Unavailable("; ".join(unavailable))
        raise Damaged(candidate.name)


def together(
    ranks: Ranks, attempt: Callable[[], _Value], outcomes: Sequence[type[RuntimeError]] = _OUTCOMES
) -> _Value:
    """Return the result of `attempt`; collective. An outcome that one rank raises is raised on all.

    A mismatch outweighs damage: an intact checkpoint could not be loaded into the state either. Damage outweighs
    unavailability: it is proven.

    Args:
        outcomes: The exceptions that are raised on all ranks, the weightiest first.
    """
    values: list[_Value] = []
    outcome: tuple[type[RuntimeError], str] | None = None
    try:
        values.append(attempt())
    except tuple(outcomes) as error:
        outcome = (type(error), str(error))
    raised = [each for each in ranks.gather(outcome) if each]
    for kind in outcomes:
        if reasons := dict.fromkeys(reason for each, reason in raised if issubclass(each, kind)):
            raise kind("; ".join(reasons))
    return values[0]
