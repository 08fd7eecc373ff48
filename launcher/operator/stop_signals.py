"""The signals that ask for the end of a job."""

import signal
from dataclasses import dataclass
from types import FrameType

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask for the end of the job."""


@dataclass(slots=True)
class Interrupts:
    """Counts the signals that ask for the end of the job."""

    count: int = 0
    signum: int = 0

    def listen(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP from now on."""
        for signum in END_SIGNALS:
            signal.signal(signum, self._take)

    def take_over(self, count: int, signum: int) -> None:
        """Add the signals that the previous operator received."""
        self.count += count
        self.signum = self.signum or signum

    def _take(self, signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signum = signum
