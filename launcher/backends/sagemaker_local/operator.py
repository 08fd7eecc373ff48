"""The process that simulates SageMaker on this machine for one job.

    python -m launcher.backends.sagemaker_local.operator BUNDLE_DIR

SIGTERM, SIGINT or SIGHUP stops the job as StopTrainingJob does; a second one at once. Exit status: 0 the job
completed, 3 it failed, 130 it was stopped.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from launcher.backends.sagemaker.request import START
from launcher.backends.sagemaker.submit import recipe_uri
from launcher.backends.sagemaker_local import isolation, record
from launcher.backends.sagemaker_local.interrupts import Interrupts
from launcher.backends.sagemaker_local.job import EXIT_STOPPED, Job
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.sync import INTERVAL_S
from launcher.common import prctl, redaction
from launcher.common.job_lock import JobAlreadyRunning, lock
from launcher.common.names import CONFIG_DIR, RUN_DIR

MACHINE_FILE = "machine.json"
"""File in the bundle for settings that the request omits because AWS would know them."""

PATIENCE_S = 120.0
"""Seconds between SIGTERM and SIGKILL. Source: Amazon SageMaker API, StopTrainingJob."""

EXIT_FAILED, EXIT_BUSY = 3, 4
_EXITS = {"Completed": 0, "Stopped": EXIT_STOPPED}

_log = logging.getLogger("operator")


def main(argv: list[str] | None = None) -> int:
    """Run the job of a bundle; return the exit status."""
    parser = argparse.ArgumentParser(prog="operator", description="Run a bundle's training job on this machine.")
    parser.add_argument("--isolation", default=isolation.FOLDERS.name, help="how hosts are isolated")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, metavar="SECONDS", help="from SIGTERM to SIGKILL"
    )
    parser.add_argument(
        "--sync", type=float, default=INTERVAL_S, metavar="SECONDS", help="between scans for checkpoints"
    )
    parser.add_argument("--with-launcher", action="store_true", help="stop when standard input ends")
    parser.add_argument("bundle_dir", type=Path)
    args = parser.parse_args(argv)
    redaction.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    interrupts = Interrupts(sys.stdin.fileno() if args.with_launcher else None)
    interrupts.listen()
    prctl.adopt_orphans()
    bundle_dir = args.bundle_dir.resolve()
    run_dir = bundle_dir / RUN_DIR
    run_dir.mkdir(exist_ok=True)
    try:
        with lock(run_dir) as lock_file:
            secondary = _job(bundle_dir, args, interrupts, lock_file).run()
    except JobAlreadyRunning as error:
        _log.error("%s", error)
        return EXIT_BUSY
    _log.info("%s", secondary)
    return _EXITS.get(secondary, EXIT_FAILED)


def _job(bundle_dir: Path, args: argparse.Namespace, interrupts: Interrupts, lock_file: IO[bytes]) -> Job:
    request = json.loads((bundle_dir / "request.json").read_text(encoding="utf-8"))
    machine = json.loads((bundle_dir / MACHINE_FILE).read_text(encoding="utf-8"))
    region = machine["region"] or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or record.REGION
    return Job(
        request=request,
        region=region,
        recipe=tuple(_recipe(bundle_dir, request)),
        stores=Stores(machine["s3_endpoint"], machine["region"], machine["file_systems"]),
        run_dir=bundle_dir / RUN_DIR,
        isolation=isolation.named(args.isolation),
        patience_s=args.patience,
        sync_s=args.sync,
        record=record.begin(bundle_dir / RUN_DIR, request, region),
        interrupts=interrupts,
        lock=lock_file,
    )


def _recipe(bundle_dir: Path, request: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the files of the recipe's channel, and their source."""
    start = bundle_dir / START
    for path in (*sorted((bundle_dir / CONFIG_DIR).iterdir()), *([start] if start.exists() else [])):
        yield path, f"{recipe_uri(request)}{path.name}"


if __name__ == "__main__":
    sys.exit(main())
