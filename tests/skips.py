"""Which tests may skip where every program is installed, as in CI: those of allowed_skips.txt, and with `--minutes`,
those that have not begun when the time is over."""

import time
from pathlib import Path
from typing import TypeVar

import pytest

NO_TIME = "no time is left"
"""Why a test skips that has not begun in the `--minutes` of its run."""
BEGUN_S = time.monotonic()
LIST = Path(__file__).with_name("allowed_skips.txt")
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def allowed() -> dict[str, str]:
    """Return the beginnings of node IDs whose tests may skip, each with its reason."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {beginning: reason.strip() for beginning, _, reason in (line.partition("  ") for line in lines)}


def unless_time_is_left(minutes: float | None) -> None:
    """Skip a test once the run is as old as this; None sets no limit."""
    if minutes is not None and time.monotonic() - BEGUN_S > 60 * minutes:
        pytest.skip(NO_TIME)


def for_no_time(report: Report) -> bool:
    """Return whether a test has skipped because no time was left."""
    return report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(NO_TIME)


def refused(report: Report) -> Report:
    """Return a report as a failure if it is a skip that is not allowed; any other as it is."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and not for_no_time(report) and not report.nodeid.startswith(tuple(allowed())):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} is not in {LIST.name}: {reason}"
    return report
