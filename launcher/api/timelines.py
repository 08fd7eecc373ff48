"""The report of what each change of a local job took and cost: text, JSON and a picture beside its records."""

from pathlib import Path

from launcher import timeline
from launcher.bundle import store
from launcher.common import os_errors
from launcher.common.names import EVENTS_FILE, METRICS_FILE, RUN_DIR, STARTS_FILE
from launcher.common.problems import fail
from launcher.model.following import refuse_unknown_launch
from launcher.model.job_spec import JobState
from launcher.operator.snapshot import STATE_FILE, read_snapshot
from launcher.timeline import NO_PICTURE, Attempt, Event, LaunchReader, Timeline, Transition, report_files, text

__all__ = [
    "EVENTS_FILE", "METRICS_FILE", "NO_PICTURE", "RUN_DIR", "STARTS_FILE",
    "Attempt", "Event", "LaunchReader", "Timeline", "Transition", "read", "report_files", "text", "write",
]  # fmt: skip


def read(run_dir: Path, records: LaunchReader | None = None, launch: int | None = None) -> Timeline:
    """Return the timeline of a launch in a run folder, up to now.

    Args:
        records: Those of earlier calls for the same folder, which are not read again.
        launch: Its number, from 0; None for the last.

    Raises:
        ProblemsFound: No such launch exists (E706). The events of a job that has ended are cut (E711): times and
            goodput would be wrong. Where the operator itself failed, they have no end either.
    """
    records = records or LaunchReader(run_dir)
    if (earlier := _earlier(records, launch)) is not None:
        return timeline.read(run_dir, records, earlier)
    found = timeline.read(run_dir, records)
    if found.state is None and not found.is_running:
        snapshot, events = read_snapshot(run_dir), run_dir / EVENTS_FILE
        is_cut = not events.exists() or not events.read_bytes().endswith(b"\n")
        if (
            snapshot
            and snapshot.state.is_final
            and snapshot.attempts
            and (is_cut or snapshot.state != JobState.FAILED)
        ):
            what = "is damaged: it lacks" if events.exists() else "is missing, and with it"
            raise fail("E711", str(events), f"{what} the end of the job, which {STATE_FILE} has")
    return found


def _earlier(records: LaunchReader, launch: int | None) -> int | None:
    """Return the number of a launch before the last; None for the last."""
    if launch is None:
        return None
    refuse_unknown_launch(launch, num_launches := records.num_launches())
    return launch if launch < num_launches - 1 else None


def write(bundle: str, launch: int | None = None) -> tuple[Timeline, tuple[Path, ...]]:
    """Write the report of a launch of a bundle, None for the last; return its timeline, and the files.

    Raises:
        ProblemsFound: No such bundle or launch (E706) exists, it was never launched on this machine (E705), its
            events are damaged (E711), or the disk refuses.
    """
    run_dir = store.locate(bundle) / RUN_DIR
    records = LaunchReader(run_dir)
    read(run_dir, records, launch)
    if not (run_dir / EVENTS_FILE).exists():
        raise fail("E705", bundle, "its job was never launched on this machine")
    earlier = _earlier(records, launch)
    try:
        return timeline.write(run_dir, earlier), timeline.report_files(run_dir, earlier)
    except OSError as error:
        raise os_errors.refused("E708", str(run_dir), error, error.filename or run_dir) from error
