"""Running a sweep from the command line, and printing its trials, its best overrides and the place of its picture."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.api.session import Session
from launcher.api.sweeps.record import RUNNING, SUCCEEDED, short
from launcher.api.sweeps.sweep import Sweep, of_command_line
from launcher.cli.launch import JOB_FAILED
from launcher.cli.output import refused, say_picture
from launcher.common import console, process, redaction
from launcher.common.interrupts import exit_code, signals_as_interrupts
from launcher.common.problems import ProblemsFound
from launcher.common.texts import counted, in_line


def run(words: Sequence[str]) -> int:
    """Start or resume the sweep of a command line with a sweeper of Hydra's, and run it; return the exit code."""
    redaction.install()
    outcome = "nothing was written or launched"
    with signals_as_interrupts():
        try:
            process.allow_clean_up()
            sweep = of_command_line(words, Session())
            outcome = f"the sweep {sweep.name} was written, nothing was launched"
            return follow(sweep)
        except KeyboardInterrupt as interrupt:
            return exit_code(interrupt)
        except (ProblemsFound, OSError) as error:
            return refused(error, outcome)


def follow(sweep: Sweep) -> int:
    """Run a sweep and print each change; Ctrl-C stops it and leaves its jobs running.

    Returns:
        0 if a trial succeeded; 3 if none did, or one of a grid without an objective did not.

    Raises:
        ProblemsFound: A job cannot be launched, or no job writes the objective.
    """
    description = sweep.description
    process.allow_clean_up()
    try:
        console.say(f"{sweep.name}   {description.trials} trials, {description.parallel} at a time", "bold")
        for row in sweep.changes():
            console.say(_line(row, description.objective))
    except KeyboardInterrupt as interrupt:
        running = sum(row["state"] == RUNNING for row in sweep.trials)
        console.say(f"stopped; {counted(running, 'job')} {'keeps' if running == 1 else 'keep'} running", stderr=True)
        for flag, what in (("--resume", "resumes"), ("--cancel", "cancels its jobs")):
            console.say(f"recipes sweep {flag} {_place(sweep)}  {what}", "dim", stderr=True)
        return exit_code(interrupt)
    except ProblemsFound as error:
        if any(problem.code == "E722" for problem in error.problems):
            raise
        raise ProblemsFound(
            error.problems, f"the sweep stopped; resume: recipes sweep --resume {_place(sweep)}"
        ) from error
    show(sweep)
    return code(sweep)


def code(sweep: Sweep) -> int:
    """Return the exit code of a sweep that has ended."""
    succeeded = [row["state"] == SUCCEEDED for row in sweep.trials]
    is_good = any(succeeded) if sweep.description.objective else all(succeeded)
    return 0 if is_good else JOB_FAILED


def show(sweep: Sweep, picture: Path | None = None) -> None:
    """Print the trials of a sweep as a table, its best overrides, and where its picture is."""
    rows = sweep.trials
    if not rows:
        console.say("no trial yet")
        return
    used = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    console.show_table(short(used), [[_cell(row[name]) for name in used] for row in rows])
    if best := sweep.best:
        console.say(f"best: trial {best.number}, {sweep.description.objective} {best.value:.6g}", "bold")
        console.say(best.text)
    if picture:
        say_picture(sweep.picture(picture))
    elif sweep.description.objective:
        with contextlib.suppress(ProblemsFound):  # matplotlib is missing, or the folder is another user's
            say_picture(sweep.picture())


def as_json(sweep: Sweep) -> Mapping[str, Any]:
    """Return what `recipes sweep --json` prints."""
    best, description = sweep.best, sweep.description
    found = best and {
        "trial": best.number,
        "value": best.value,
        "overrides": best.overrides,
        "job": best.job.folder.name,
    }
    return {
        "sweep": sweep.name,
        "is_finished": sweep.is_finished,
        "objective": description.objective,
        "direction": description.direction,
        "mlflow_run": description.parent_run and description.parent_run[1],
        "trials": sweep.trials,
        "best": found,
    }


def _line(row: Mapping[str, Any], objective: str | None) -> str:
    keys = [name for name in row if name not in ("trial", "state", objective, "job", "reason")]
    values = "  ".join(f"{word}={_cell(row[name])}" for word, name in zip(short(keys), keys, strict=True))
    value = f"{objective} {row[objective]:.6g}" if objective and row[objective] is not None else ""
    parts = (f"trial {row['trial']}", row["state"], value, values, row["job"], row["reason"])
    return "  ".join(in_line(part) for part in parts if part)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else in_line(str(value))


def _place(sweep: Sweep) -> str:
    return console.shown_path(sweep.folder)
