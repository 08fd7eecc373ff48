"""What training does not see of a file of samples, and why: the reasons, and their counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

TOO_LONG = "too long for a SequenceLengthFilter"
NO_TURN = "no turn of the assistant"
NO_WEIGHT = "every turn of the assistant has weight 0"
NO_TEXT = "no text to train on"
OUT_OF_REACH = "the answer begins beyond max_len"
DIVIDED = "a token spans the start or the end of an answer"
"""Reasons why a sample is dropped."""

CUT = "cut at the allowed length"
UNMARKED = "the template marks no text of it"
WEIGHT = "weight 0"
EARLIER = "assistant_turns=last"
IN_PROMPT = "in the prompt"
"""Reasons why a part of a sample is not trained."""

WANTED = frozenset({WEIGHT, NO_WEIGHT, EARLIER, IN_PROMPT})
"""Reasons that the data or the recipe name themselves."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is not trained for one reason.

    Args:
        reason: One of this module.
        is_drop: Whether the samples are left out, rather than a part of each.
        samples: Samples that it concerns.
        turns: Turns of the assistant in them that are not trained.
        tokens: Tokens that are left out; those that are only not trained do not count.
        example: File and line of the first sample.
    """

    reason: str
    is_drop: bool
    samples: int
    turns: int
    tokens: int
    example: str


def merged(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """Return one loss for each reason, the dropped samples first; the first example of each stays."""
    found: dict[str, Loss] = {}
    for loss in losses:
        known = found.get(loss.reason)
        found[loss.reason] = (
            loss
            if known is None
            else replace(
                known,
                samples=known.samples + loss.samples,
                turns=known.turns + loss.turns,
                tokens=known.tokens + loss.tokens,
            )
        )
    return tuple(sorted(found.values(), key=lambda loss: (not loss.is_drop, loss.reason)))


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the samples that were read.

    Args:
        kept: Samples stored, for training and validation together.
        dropped: Samples left out, by reason.
        cut: Samples stored without some of their tokens.
        untrained_turns: Turns of the assistant in stored samples that are not trained.
        tokens: Tokens stored.
        targets: Trained tokens among them.
        turns: Turns of the assistant in all samples read; of a pair, its two answers.
    """

    read: int
    kept: int
    dropped: dict[str, int]
    cut: int
    untrained_turns: int
    tokens: int
    targets: int
    turns: int = 0
    losses: tuple[Loss, ...] = ()

    @classmethod
    def of_losses(
        cls, kept: int, losses: Iterable[Loss], *, tokens: int = 0, targets: int = 0, turns: int = 0
    ) -> "Counts":
        """Return the counts of samples, the rest of which follows from what is lost of them."""
        found = merged(losses)
        dropped = {loss.reason: loss.samples for loss in found if loss.is_drop}
        return cls(
            read=kept + sum(dropped.values()),
            kept=kept,
            dropped=dropped,
            cut=sum(loss.samples for loss in found if loss.reason == CUT),
            untrained_turns=sum(loss.turns for loss in found if not loss.is_drop),
            tokens=tokens,
            targets=targets,
            turns=turns,
            losses=found,
        )

    def plus(self, other: "Counts") -> "Counts":
        """Return the counts of these samples and of further ones."""
        return Counts.of_losses(
            self.kept + other.kept,
            (*self.losses, *other.losses),
            tokens=self.tokens + other.tokens,
            targets=self.targets + other.targets,
            turns=self.turns + other.turns,
        )

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Counts":
        """Return the counts in a file."""
        return cls(**dict(tree) | {"losses": tuple(Loss(**loss) for loss in tree["losses"])})

    @property
    def num_dropped(self) -> int:
        """Samples left out."""
        return sum(self.dropped.values())

    def metrics(self) -> dict[str, float]:
        """Return the counts as metrics of a training."""
        return {
            "data/samples_read": self.read,
            "data/samples_dropped": self.num_dropped,
            "data/samples_cut": self.cut,
            "data/turns_untrained": sum(loss.turns for loss in self.losses),
            "data/tokens_lost": sum(loss.tokens for loss in self.losses),
            "data/lost_share": self.lost_share,
        }

    @property
    def lost_share(self) -> float:
        """Part of the samples, or of the assistant's turns if that is more, that is lost without being `WANTED`."""
        lost = [loss for loss in self.losses if loss.reason not in WANTED]
        samples = sum(loss.samples for loss in lost if loss.is_drop) / max(self.read, 1)
        return max(samples, sum(loss.turns for loss in lost) / max(self.turns, 1))
