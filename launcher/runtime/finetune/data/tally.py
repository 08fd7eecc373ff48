"""Counts of samples that grow chunk by chunk."""

from collections import Counter

from launcher.runtime.finetune.data.encoding import Encoded
from launcher.runtime.finetune.data.losses import CUT, Loss, merged
from launcher.runtime.finetune.data.prepared import Counts


class Tally:
    """Counts the samples of encoded chunks."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._losses: tuple[Loss, ...] = ()

    def add(self, found: Encoded) -> None:
        """Count the samples of a chunk."""
        self._numbers.update(
            kept=len(found),
            turns=found.turns,
            tokens=len(found.ids),
            targets=int(found.targets.sum()),
        )
        self._dropped.update(reason for _, reason in found.dropped)
        self._losses = merged((*self._losses, *found.losses))

    @property
    def read(self) -> int:
        """Samples counted so far."""
        return self._numbers["kept"] + self._dropped.total()

    def counts(self) -> Counts:
        """Return what became of the samples so far."""
        found = self._numbers
        return Counts(
            read=self.read,
            kept=found["kept"],
            dropped=dict(sorted(self._dropped.items())),
            cut=sum(loss.samples for loss in self._losses if loss.reason == CUT),
            untrained_turns=sum(loss.turns for loss in self._losses if not loss.is_drop),
            tokens=found["tokens"],
            targets=found["targets"],
            turns=found["turns"],
            losses=self._losses,
        )
