"""The log of saves and loads: each rank's lines for people, and rank 0's records for MLflow and the timeline."""

import contextlib
import json
import logging
import sys
import time
from pathlib import Path

from launcher.common import names
from launcher.runtime.durable import append_json
from launcher.runtime.tiers.shards import Key

FORMAT = (
    "[%(asctime)s] [%(namespace)s] [%(name)s] [%(levelname)s] [%(filename)s:%(lineno)d] [Rank %(rank)s] %(message)s"
)
"""Source: amzn-sagemaker-checkpointing 1.1.3, its log's format."""

BROKEN = "broken"


class _LogFile(logging.FileHandler):
    """A log file whose errors are ignored: the console shows the same lines, and saves continue."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class CheckpointLog:
    """Logs saves and loads to the console, to the namespace's log file, and to the run's records.

    A file that cannot be written does not fail a save: the other ranks would wait for the rest of it.

    Args:
        folder: Receives the log file and the records; None for neither.
    """

    def __init__(self, namespace: str, rank: int, folder: Path | None = None):
        logger = logging.Logger("launcher.checkpointing")
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
        if folder:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        # A pod with the memory tier has one more folder for the log file.
        for place in (folder, names.CHECKPOINT_LOG if names.CHECKPOINT_LOG.is_dir() else None):
            if place:
                handlers.append(_LogFile(place / f"{namespace}_checkpointing.log", delay=True))
        for handler in handlers:
            handler.setFormatter(logging.Formatter(FORMAT))
            logger.addHandler(handler)
        self._logger = logging.LoggerAdapter(logger, {"namespace": namespace, "rank": rank})
        self.namespace, self._is_first = namespace, rank == 0
        self._records = folder / names.CHECKPOINTS_FILE if folder and rank == 0 else None

    def did(self, verb: str, step: int, tier: str, num_bytes: int, seconds: float) -> None:
        """Log this rank's part of a save or a load."""
        rate = num_bytes / seconds / 1e9 if seconds else 0.0
        size = f"{num_bytes} bytes in {seconds:.3f} s ({rate:.3g} GB/s)"
        self._logger.info("Step %d: %s %s: %s", step, tier, verb, size, stacklevel=2)

    def failed(self, step: int, tier: str, reason: str) -> None:
        """Log a failure; training continues."""
        self._logger.error("Step %d: %s failed: %s", step, tier, reason, stacklevel=2)

    def warn(self, step: int, message: str) -> None:
        """Log a warning."""
        self._logger.warning("Step %d: %s", step, message, stacklevel=2)

    def warn_once(self, step: int, message: str) -> None:
        """Log a warning that all ranks have; only the first one does."""
        if self._is_first:
            self._logger.warning("Step %d: %s", step, message, stacklevel=2)

    def record(
        self,
        event: str,
        step: int,
        tier: str,
        num_bytes: int = 0,
        seconds: float = 0.0,
        blocked_s: float | None = None,
        *,
        detail: str = "",
        save: int = 0,
        sent_bytes: int = 0,
    ) -> None:
        """Record a save or a load by all ranks; only rank 0 keeps records.

        Args:
            event: `saved`, `loaded`, `failed`, `cleared`, or `broken`: no checkpoint is intact.
            num_bytes: Bytes written to the tier or read from it by all ranks.
            seconds: Of the slowest rank.
            blocked_s: Seconds that training was blocked, on the slowest rank; None if it was not.
            detail: The error, or the checkpoints skipped.
            save: Number of the save; 0 in records of plain checkpoints.
            sent_bytes: Bytes sent between all ranks to load it.
        """
        if not self._records:
            return
        record = {"time": time.time(), "event": event, "step": step, "tier": tier, "num_bytes": num_bytes}
        record |= {"seconds": seconds, "blocked_s": blocked_s, "detail": detail, "save": save}
        record |= {"sent_bytes": sent_bytes, "namespace": self.namespace}
        try:
            append_json(self._records, record)
        except OSError as error:
            self.warn(step, f"{event} in {tier} is not in the records: {error}")

    def published(self) -> Key:
        """Return the newest save in the records since the last load; all 0 for none.

        Unlike a tier, the records do not vanish with a node: they prove that a checkpoint existed.
        """
        newest, text = Key(0, 0), ""
        try:
            if self._records and self._records.exists():
                text = self._records.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            self.warn(0, f"the step published last is unknown: {error}")
        for line in text.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # an incomplete line of a killed process
                record = json.loads(line)
                if record["namespace"] == self.namespace and record["event"] not in ("failed", BROKEN):
                    key = Key(int(record["step"]), int(record["save"]))
                    newest = max(newest, key) if record["event"] == "saved" else key
        return newest
