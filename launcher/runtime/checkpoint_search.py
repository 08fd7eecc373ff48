"""The search for the newest checkpoint that loads, shared by the plain checkpoint and the tiers.

Two outcomes lead away from a checkpoint, and they are not the same. Damage is proven: another source, then an older
checkpoint, is tried. Unavailability proves nothing: the same checkpoint is tried again, and after some time the
search fails. Every rank takes part and every rank reaches the same decision.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Seconds before the second attempt to reach what is unavailable; each further pause is twice as long, up to the
longest, and a random part of it is left out, so that jobs do not ask in step."""

_Value = TypeVar("_Value")


class Damaged(RuntimeError):
    """What was read is not what was saved, or it no longer exists."""


class Unavailable(RuntimeError):
    """It could not be read now; whether it is intact is unknown."""


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
        self.tried = tuple(tried)


_OUTCOMES = (StateMismatch, Damaged, Unavailable)


class Ranks(Protocol):
    """The ranks that search together; `launcher.runtime.process_group` is one, `tiers.rank_group.Ranks` another."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks."""

    def share(self, value: Any) -> Any:
        """Return the first rank's value."""


@dataclass(frozen=True, slots=True)
class Source(Generic[_Value]):
    """A place that has a checkpoint.

    Args:
        name: As the notes name it.
        load: Collective. Returns what was loaded, or raises Damaged or Unavailable on all ranks alike.
    """

    name: str
    load: Callable[[], _Value]


@dataclass(frozen=True, slots=True)
class Candidate(Generic[_Value]):
    """A checkpoint that may be loaded.

    Args:
        name: As the notes name it.
        sources: Where it is, the nearest first.
    """

    name: str
    sources: Sequence[Source[_Value]]


@dataclass(slots=True)
class Search:
    """One search. Every method is collective.

    Args:
        ranks: Those that search together.
        patience_s: Seconds for which an unavailable checkpoint is tried again.
        note: Called on all ranks with each checkpoint that was passed over, and why.
        passed_over: The notes so far.
        pause_s: Seconds before the second attempt; later pauses are longer.
    """

    ranks: Ranks
    patience_s: float
    note: Callable[[str], None]
    passed_over: list[str] = field(default_factory=list)
    pause_s: float = PAUSE_S

    def newest(self, candidates: Sequence[Candidate[_Value]]) -> _Value | None:
        """Return the first candidate that loads; None without candidates.

        Args:
            candidates: The newest first; the same on all ranks.

        Raises:
            CheckpointBroken: Every candidate is damaged.
            CheckpointUnavailable: One that may be intact stayed unavailable.
        """
        for candidate in candidates:
            remaining = list(candidate.sources)
            try:
                return self.patiently(lambda each=candidate, left=remaining: self._load(each, left))
            except Damaged:
                continue
        if candidates:
            raise CheckpointBroken(self.passed_over)
        return None

    def patiently(self, attempt: Callable[[], _Value]) -> _Value:
        """Return what `attempt` returns, which is repeated while it raises Unavailable.

        Args:
            attempt: Collective; raises alike on all ranks.

        Raises:
            CheckpointUnavailable: It was unavailable for longer than the patience.
        """
        began, pause_s = time.monotonic(), self.pause_s
        while True:
            try:
                return attempt()
            except Unavailable as error:
                # The first rank's clock decides: the others must not stop earlier or later.
                left_s = self.patience_s - (time.monotonic() - began)
                left_s, wait_s = self.ranks.share((left_s, random.uniform(0.5, 1.0) * pause_s))
                if left_s <= 0:
                    raise CheckpointUnavailable([*self.passed_over, str(error)]) from error
            time.sleep(min(wait_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def pass_over(self, reason: str) -> None:
        """Note what is newer or nearer and cannot be used."""
        self.passed_over.append(reason)
        self.note(reason)

    def _load(self, candidate: Candidate[_Value], remaining: list[Source[_Value]]) -> _Value:
        """Load from the first source that can; sources proven damaged are removed from `remaining`."""
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


def together(ranks: Ranks, attempt: Callable[[], _Value]) -> _Value:
    """Return what `attempt` returns here; collective. What it raises on one rank is raised on all.

    A mismatch outweighs damage: the state could not be loaded from an intact checkpoint either. Damage outweighs
    unavailability: it is proven.

    Args:
        ranks: Those that attempt it.
        attempt: May raise on some ranks only.

    Raises:
        StateMismatch: At least one rank's state is of another form.
        Damaged: Otherwise, where it was damaged for at least one rank.
        Unavailable: Otherwise, where it was unavailable for at least one.
    """
    value, outcome = None, None
    try:
        value = attempt()
    except _OUTCOMES as error:
        outcome = (type(error), str(error))
    outcomes = [each for each in ranks.gather(outcome) if each]
    for kind in _OUTCOMES:
        if reasons := dict.fromkeys(reason for each, reason in outcomes if issubclass(each, kind)):
            raise kind("; ".join(reasons))
    return value
