"""Counts of samples that grow chunk by chunk."""

from collections import Counter

from launcher.runtime.finetune.data.encoding import Encoded
from launcher.runtime.finetune.data.prepared import Counts


class Tally:
    """Counts the samples of encoded chunks."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def add(self, found: Encoded) -> None:
        """Count the samples of a chunk."""
        self._numbers.update(
            kept=len(found),
            cut=found.cut,
            untrained_turns=found.untrained_turns,
            tokens=len(found.ids),
            targets=int(found.targets.sum()),
        )
        self._dropped.update(reason for _, reason in found.dropped)

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
            cut=found["cut"],
            untrained_turns=found["untrained_turns"],
            tokens=found["tokens"],
            targets=found["targets"],
        )
