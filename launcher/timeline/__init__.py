"""The timeline of a job with an operator of ours: each change of size, its cause and duration, and the lost work.

timeline.read(run_dir)      the Timeline of the last launch, or of an earlier one
timeline.write(run_dir)     the same, written beside the records as text, JSON and a picture
"""

import importlib.util
import json
from pathlib import Path

from launcher.common.locks import is_alive
from launcher.common.names import EVENTS_FILE, TIMELINE
from launcher.timeline.build import build
from launcher.timeline.records import LaunchReader
from launcher.timeline.report import text, to_json
from launcher.timeline.values import Attempt, Event, StartParts, Step, Timeline, Transition

__all__ = [
    "Attempt", "Event", "LaunchReader", "StartParts", "Step", "Timeline", "Transition",
    "read", "refresh", "report_files", "text", "to_json", "write",
]  # fmt: skip

NO_PICTURE = "no picture: it needs matplotlib (pip install '.[local]')"


def read(run_dir: Path, records: LaunchReader | None = None, launch: int | None = None) -> Timeline:
    """Return the timeline of a launch in a run folder, from the records that its processes wrote so far.

    Args:
        records: Those of earlier calls for the same folder, which are not read again.
        launch: Number of an earlier launch, from 0; None for the last.
    """
    alive = launch is None and is_alive(run_dir)  # checked first: an end written meanwhile is read below
    return build((records or LaunchReader(run_dir)).read(launch), is_alive=alive)


def write(run_dir: Path, launch: int | None = None) -> Timeline:
    """Write a run folder's `timeline.txt`, `.json` and, with matplotlib, `.svg`; return the timeline.

    Args:
        launch: As for `read`; the files of launch 0 are `timeline-0.txt` and so on.
    """
    timeline = read(run_dir, launch=launch)
    stem = _stem(run_dir, launch)
    picture = stem.with_suffix(".svg")
    stem.with_suffix(".txt").write_text(text(timeline), encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        from launcher.timeline.picture import draw  # start-up time: a second of imports

        draw(timeline, picture)
    else:
        picture.unlink(missing_ok=True)
    # Last: its age shows whether the report is complete.
    stem.with_suffix(".json").write_text(json.dumps(to_json(timeline), indent=1, allow_nan=False), encoding="utf-8")
    return timeline


def refresh(run_dir: Path) -> Timeline | None:
    """Return the timeline, rewriting its files if there are newer events; None for a job without events."""
    events = run_dir / EVENTS_FILE
    written = (run_dir / TIMELINE).with_suffix(".json")
    if not events.exists():
        return None
    if written.exists() and written.stat().st_mtime_ns >= events.stat().st_mtime_ns:
        return read(run_dir)
    return write(run_dir)


def report_files(run_dir: Path, launch: int | None = None) -> tuple[Path, ...]:
    """Return the files that exist of the report of the last launch, or of an earlier one, as for `write`."""
    paths = (_stem(run_dir, launch).with_suffix(suffix) for suffix in (".txt", ".json", ".svg"))
    return tuple(path for path in paths if path.exists())


def _stem(run_dir: Path, launch: int | None) -> Path:
    return run_dir / (TIMELINE if launch is None else f"{TIMELINE}-{launch}")
