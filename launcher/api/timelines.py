"""The report of what each change of a local job took and cost: text, JSON and a picture beside its records."""

from pathlib import Path

from launcher import timeline
from launcher.bundle import store
from launcher.common import os_errors
from launcher.common.names import EVENTS_FILE, METRICS_FILE, RUN_DIR, STARTS_FILE, TIMELINE
from launcher.common.problems import fail
from launcher.timeline import NO_PICTURE, Attempt, Event, Timeline, Transition, report_files, text

__all__ = [
    "EVENTS_FILE", "METRICS_FILE", "NO_PICTURE", "RUN_DIR", "STARTS_FILE",
    "Attempt", "Course", "Event", "Timeline", "Transition", "report_files", "text", "write",
]  # fmt: skip


class Course:
    """The timeline of a job that runs, as often as it is asked for: records are read once."""

    def __init__(self, folder: Path):
        self._run_dir = folder / RUN_DIR
        self._records = timeline.LaunchReader(self._run_dir)

    def timeline(self) -> Timeline:
        """Return the timeline of the last launch, up to now."""
        return timeline.read(self._run_dir, self._records)


def write(bundle: str) -> tuple[Timeline, Path]:
    """Write the report of a bundle's last launch; return its timeline, and the file of it as JSON.

    Raises:
        ProblemsFound: No such bundle exists, it was never launched on this machine (E705), or the disk refuses.
    """
    run_dir = store.locate(bundle) / RUN_DIR
    if not (run_dir / EVENTS_FILE).exists():
        raise fail("E705", bundle, "its job was never launched on this machine")
    try:
        return timeline.write(run_dir), (run_dir / TIMELINE).with_suffix(".json")
    except OSError as error:
        raise os_errors.refused("E708", str(run_dir), error, error.filename or run_dir) from error
