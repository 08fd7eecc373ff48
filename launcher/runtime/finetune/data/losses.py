"""What training does not see of a file of samples, and why: the reasons, and their counts."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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

    def plus(self, samples: int, turns: int, tokens: int) -> "Loss":
        """Return the loss with further samples."""
        return replace(self, samples=self.samples + samples, turns=self.turns + turns, tokens=self.tokens + tokens)


def merged(losses: Iterable[Loss]) -> tuple[Loss, ...]:
    """Return one loss for each reason, the dropped samples first; the first example of each stays."""
    found: dict[str, Loss] = {}
    for loss in losses:
        known = found.get(loss.reason)
        found[loss.reason] = loss if known is None else known.plus(loss.samples, loss.turns, loss.tokens)
    return tuple(sorted(found.values(), key=lambda loss: (not loss.is_drop, loss.reason)))
