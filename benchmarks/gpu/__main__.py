"""The kit for a GPU: what the open trainer does on one, in stages of minutes. docs/gpu-kit.md describes it.

    python -m benchmarks.gpu STAGE [--tiny] [--out FILE] [--seconds N]
    python -m benchmarks.gpu part-1|part-2|part-3|all [--tiny] [--out FOLDER] [--seconds N]
    python -m benchmarks.gpu table FILE ...

A stage writes one JSON file. A part runs its stages one after the other, each in a process of its own, and prints
their table; it takes at most nine minutes.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.stages import BY_NAME, GRACE_S, PARTS, STAGES, TINY_FACTOR, Stage, run
from benchmarks.gpu.table import table

OUT = Path("results") / "gpu"
PART_S = 540.0
"""Seconds that a part may take."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status: the worst of the stages'."""
    args = _parse(argv)
    if args.what == "table":
        print(table(args.files), end="")
        return 0
    if args.files:
        raise SystemExit(f"{args.what} takes no further argument: {args.files[0]}")
    if args.what in BY_NAME:
        out = args.out or OUT
        file = out if out.suffix == ".json" else out / f"{args.what}.json"
        return run(BY_NAME[args.what], file, tiny=args.tiny, seconds=args.seconds)
    parts = PARTS if args.what == "all" else (int(args.what.removeprefix("part-")),)
    return max(_run_part(part, args) for part in parts)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = [f"part-{part}" for part in PARTS]
    parser.add_argument("what", choices=[*BY_NAME, *parts, "all", "table"], help="a stage, a part, or table")
    parser.add_argument("files", nargs="*", type=Path, help="of table: the JSON of stages")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, for a CPU: the figures mean nothing")
    parser.add_argument("--out", type=Path, help=f"file of a stage, or folder (default {OUT})")
    parser.add_argument("--seconds", type=float, help="that the stage, or each part, may take")
    return parser.parse_args(argv)


def _run_part(part: int, args: argparse.Namespace) -> int:
    """Run the stages of a part, print their table, and return the worst exit status."""
    factor = TINY_FACTOR if args.tiny else 1
    budget, folder = Budget(args.seconds or PART_S * factor), args.out or OUT
    files, worst = [], 0
    for stage in STAGES:
        if stage.part != part:
            continue
        file = folder / f"{stage.name}.json"
        worst = max(worst, _run_alone(stage, file, min(stage.seconds * factor, budget.left), tiny=args.tiny))
        if file.exists():
            files.append(file)
    print(table(files), end="", flush=True)
    return worst


def _run_alone(stage: Stage, file: Path, seconds: float, *, tiny: bool) -> int:
    """Run a stage in a process of its own, whose memory on the device ends with it."""
    command = [sys.executable, "-m", "benchmarks.gpu", stage.name, "--out", str(file), "--seconds", str(seconds)]
    process = subprocess.Popen(command + (["--tiny"] if tiny else []))
    try:
        return process.wait(seconds + 2 * GRACE_S)  # it ends itself before
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
