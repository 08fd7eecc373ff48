"""What stops an operator: signals that ask for the end of its job, and a suspension of its process."""

import signal
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that ask for the end of the job."""
_TICK_S = 0.5
_GAP_S = 5.0
"""Between two ticks of a process that was stopped or frozen: a loaded machine delays them by less."""


def end_on_signals() -> None:
    """End this process with 128 + N on a signal that asks for it, from now on; further ones are ignored then."""
    for each in END_SIGNALS:
        signal.signal(each, _end)


def ignore_end_signals() -> None:
    """Ignore signals that ask for the end, from now on."""
    for each in END_SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _end(signum: int, _frame: FrameType | None) -> None:
    ignore_end_signals()
    raise SystemExit(128 + signum)


def leave_to_main_thread() -> None:
    """Let this thread take no signal that asks for the end: the main thread blocks them while it is replaced."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)


@dataclass(slots=True)
class Interrupts:
    """Counts the signals that ask for the end of the job, and the time for which this process did not run.

    Slurm suspends a job by stopping all of its processes: that time counts neither as one without a step nor as
    silence.
    """

    count: int = 0
    signum: int = 0
    _stopped_s: float = 0.0
    _ticked_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listen(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP, and notice suspensions, from now on."""
        for signum in END_SIGNALS:
            signal.signal(signum, self._take)
        self._ticked_s = time.monotonic()
        threading.Thread(target=self._tick, name="suspensions", daemon=True).start()

    @property
    def stopped_s(self) -> float:
        """Seconds for which this process was stopped so far."""
        with self._lock:
            if self._ticked_s is not None:
                now_s = time.monotonic()
                if now_s - self._ticked_s > _GAP_S:
                    self._stopped_s += now_s - self._ticked_s - _TICK_S
                self._ticked_s = now_s
            return self._stopped_s

    def take_over(self, count: int, signum: int) -> None:
        """Add the signals that the previous operator received."""
        self.count += count
        self.signum = self.signum or signum

    def _take(self, signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signum = signum

    def _tick(self) -> None:
        """Read the clock, since the main thread may wait for an agent for longer than a gap."""
        leave_to_main_thread()
        while True:
            time.sleep(_TICK_S)
            _ = self.stopped_s
