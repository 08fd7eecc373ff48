"""Curves of a job's metrics, read from its growing file in bounded memory, however long the job trains."""

import math
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO

from launcher.api import metrics
from launcher.api.metrics import OF_A_STEP
from launcher.ui.charts import Line

MOST_BUCKETS = 600
"""Buckets of a metric, over all attempts: as many as a chart has columns."""
MOST_NAMES = 32
MOST_ATTEMPTS = 64
_MOST_BYTES = 8 << 20
"""Bytes that one call reads: about 35 000 steps, which take less than half a second."""
_LONGEST_LINE = 256 << 10
"""Bytes of a line that is parsed: rank 0 writes some hundred. Parsed, a longer one could take 30 times as much."""
_LONGEST_NAME = 200
_MOST_STEPS = 1 << 53
_COMPARED = 512
"""Bytes at the start of a file and before the place read last that tell whether it is still the same file."""


class _Bucket:
    """The lowest and the highest value of adjacent steps, each with its step; NaN while none was finite."""

    __slots__ = ("high", "high_step", "low", "low_step")

    def __init__(self, step: int, value: float):
        self.low = self.high = value
        self.low_step = self.high_step = step

    def add(self, step: int, value: float) -> None:
        if value < self.low or self.low != self.low:
            self.low, self.low_step = value, step
        if value > self.high or self.high != self.high:
            self.high, self.high_step = value, step

    def merge(self, other: "_Bucket") -> None:
        if other.low == other.low:  # not NaN
            self.add(other.low_step, other.low)
            self.add(other.high_step, other.high)

    def points(self) -> list[tuple[float, float]]:
        """Return one point or two, in the order of their steps."""
        low, high = (float(self.low_step), self.low), (float(self.high_step), self.high)
        return [low] if low == high or self.low != self.low else sorted((low, high))


class _Curve:
    """One metric: buckets of `width` steps each, by their index, for each attempt."""

    def __init__(self) -> None:
        self.width = 1
        self.attempts: dict[int, dict[int, _Bucket]] = {}
        self.last = math.nan
        self.count = 0
        self._num_buckets = 0

    def add(self, attempt: int, step: int, value: float) -> None:
        self.last = value
        self.count += 1
        buckets = self.attempts.setdefault(attempt, {})
        kept = value if math.isfinite(value) else math.nan
        index = step // self.width
        if (bucket := buckets.get(index)) is not None:
            bucket.add(step, kept)
            return
        buckets[index] = _Bucket(step, kept)
        self._num_buckets += 1
        while self._num_buckets > max(MOST_BUCKETS, len(self.attempts)):  # each attempt keeps one
            self._halve()

    def fold(self, older: int, newer: int) -> None:
        """Join the buckets of two attempts under the number of the newer one, in the time that the smaller takes."""
        first, second = self.attempts.pop(older, {}), self.attempts.pop(newer, {})
        large, small = (first, second) if len(first) > len(second) else (second, first)
        for index, bucket in small.items():
            if (joined := large.get(index)) is None:
                large[index] = bucket
            else:
                joined.merge(bucket)
                self._num_buckets -= 1
        if large:
            self.attempts[newer] = large

    def points(self, attempt: int | None) -> list[tuple[float, float]]:
        """Return the points of an attempt, or of all of them as one, by step."""
        if attempt is None:
            buckets = _joined([item for each in self.attempts.values() for item in each.items()])
        else:
            buckets = self.attempts.get(attempt, {})
        return [point for _, bucket in sorted(buckets.items()) for point in bucket.points()]

    def _halve(self) -> None:
        self.width *= 2
        for attempt, buckets in self.attempts.items():
            self.attempts[attempt] = _joined([(index // 2, bucket) for index, bucket in sorted(buckets.items())])
        self._num_buckets = sum(map(len, self.attempts.values()))


def _joined(items: list[tuple[int, _Bucket]]) -> dict[int, _Bucket]:
    """Return buckets by index, those of the same index as one; the given buckets stay as they are."""
    found: dict[int, _Bucket] = {}
    for index, bucket in items:
        if (joined := found.get(index)) is None:
            joined = found[index] = _Bucket(bucket.low_step, bucket.low)
        joined.merge(bucket)
    return found


class Series:
    """The curves of a metrics file (`names.METRICS_FILE`), which may grow, and need not exist yet.

    Of each metric at most 600 buckets of adjacent steps are kept, with the lowest and the highest value of each; when
    they are full, they merge in pairs. Values that are not finite remain as gaps where a bucket has no other.
    Damaged lines, and values that are not numbers, are left out. Threads may share one.

    Args:
        most_bytes: Bytes that one call of `read` takes.
    """

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES):
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self._head = self._tail = b""
        self._is_in_long_line = False
        self._curves: dict[str, _Curve] = {}
        self._attempts: OrderedDict[int, str] = OrderedDict()
        self._launch, self._attempt = 1, -1

    def read(self) -> bool:
        """Read on, and return whether anything was new; False at the end of the file, also of one without new lines.

        A file that was truncated or replaced is read anew. A large file takes several calls: while there is more, the
        result is True.

        Raises:
            OSError: The file cannot be read, for another reason than that it does not exist.
        """
        with self._lock:
            try:
                file = self._path.open("rb")
            except (FileNotFoundError, NotADirectoryError):
                is_new = self._offset > 0
                self._forget()
                return is_new
            with file:
                is_new = self._offset > 0 and not self._is_same(file)
                if is_new:
                    self._forget()
                return self._read_from(file) or is_new

    def read_until(self, deadline: float) -> bool:
        """Read on until a time of the monotonic clock; return whether there may be more. Raises like `read`."""
        while is_more := self.read():
            if time.monotonic() >= deadline:
                break
        return is_more

    def names(self) -> list[str]:
        """Return the names of the metrics: those of every step, then further ones in the order of the file."""
        with self._lock:
            every = list(self._curves)
        return [name for name in OF_A_STEP if name in every] + [name for name in every if name not in OF_A_STEP]

    def lines(self, name: str, per_attempt: bool) -> list[Line]:
        """Return a metric's curve over steps, or one for each attempt; none for a metric that the file lacks."""
        with self._lock:
            if (curve := self._curves.get(name)) is None:
                return []
            if not per_attempt:
                return [Line(name, curve.points(None))]
            return [
                Line(label, curve.points(attempt))
                for attempt, label in self._attempts.items()
                if attempt in curve.attempts
            ]

    def last(self, name: str) -> float | None:
        """Return a metric's last value, which may be NaN or infinite; None for a metric that the file lacks."""
        curve = self._curves.get(name)
        return None if curve is None else curve.last

    def count(self, name: str) -> int:
        """Return how many values of a metric the file has so far."""
        curve = self._curves.get(name)
        return 0 if curve is None else curve.count

    def _is_same(self, file: BinaryIO) -> bool:
        """Return whether the file still begins with what was read: a copy that has grown does."""
        if os.fstat(file.fileno()).st_size < self._offset or file.read(len(self._head)) != self._head:
            return False
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _read_from(self, file: BinaryIO) -> bool:
        file.seek(self._offset)
        block = file.read(self._most_bytes)
        end = block.rfind(b"\n") + 1
        if not end and len(block) < self._most_bytes:
            return False  # the line is not finished
        is_too_long = not end
        block = block if is_too_long else block[:end]
        lines = block.split(b"\n")
        for line in lines[1:] if self._is_in_long_line else lines:
            if 0 < len(line) <= _LONGEST_LINE and not is_too_long:
                self._take(line)
        self._is_in_long_line = is_too_long
        self._offset += len(block)
        self._head = self._head or block[:_COMPARED]
        self._tail = (self._tail + block[-_COMPARED:])[-_COMPARED:]
        return True

    def _take(self, line: bytes) -> None:
        if (parsed := metrics.parsed(line)) is None:
            return
        row, further = parsed
        step = row.get("step")
        if type(step) is not int or not 0 <= step < _MOST_STEPS:  # a bool is an int too
            return
        attempt = self._attempt_of(row.get("attempt"))
        own = {name: row[name] for name in OF_A_STEP if name in row}
        for name, value in (own | further).items():
            if len(name) > _LONGEST_NAME or (number := _number(value)) is None:
                continue
            if (curve := self._curves.get(name)) is None:
                if len(self._curves) >= MOST_NAMES:
                    continue
                curve = self._curves[name] = _Curve()
            curve.add(attempt, step, number)

    def _attempt_of(self, value: object) -> int:
        """Return the key of a line's attempt. One with a lower number than before belongs to a later launch."""
        if type(value) is not int or not 0 <= value < _MOST_STEPS:
            value = max(self._attempt, 0)
        if value != self._attempt:
            self._launch += value < self._attempt
            self._attempt = value
            label = f"attempt {value}" if self._launch == 1 else f"launch {self._launch}, attempt {value}"
            self._attempts[self._key + 1] = label
            if len(self._attempts) > MOST_ATTEMPTS:
                self._fold_oldest()
        return self._key

    @property
    def _key(self) -> int:
        return next(reversed(self._attempts), -1)

    def _fold_oldest(self) -> None:
        older, _ = self._attempts.popitem(last=False)
        newer = next(iter(self._attempts))
        self._attempts[newer] = f"up to {self._attempts[newer]}"
        for curve in self._curves.values():
            curve.fold(older, newer)


def _number(value: object) -> float | None:
    """Return a number as a float, one beyond its range as infinite; None for anything else."""
    if type(value) is float:
        return value
    if type(value) is not int:
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
