"""The time that a stage may take."""

import time


class Budget:
    """Counts down from the moment it is made.

    Args:
        seconds: That the stage may take.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that remain, 0 at the least."""
        return max(self.seconds - self.spent, 0.0)

    def fits(self, seconds: float) -> bool:
        """Return whether work of `seconds` would end in time."""
        return seconds <= self.left
