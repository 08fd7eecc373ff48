"""Jobs of the tiny recipe, as benchmarks run them, and what they write down."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import ROOT


def launch(folder: Path, *words: str, **variables: str) -> Path:
    """Launch a job in a folder of its own, with these overrides and variables; return its run folder."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(ROOT / "main.py"), *words]
    own = os.environ | variables
    subprocess.run(command, cwd=folder, env=own, stdout=subprocess.DEVNULL, timeout=900, check=True)
    (bundle,) = folder.glob("results/*")
    return bundle / "run"


def trained_alone(folder: Path, *words: str, **variables: str) -> list[float]:
    """Return the losses of the same training in one process, without agent or ranks."""
    planned = launch(folder / "planned", *words, "dry_run=true").parent
    (folder / "configs").mkdir()
    shutil.copyfile(min((planned / "configs").iterdir()), folder / "configs" / "config.yaml")
    command = [sys.executable, "-m", "launcher.runtime.entrypoint", "--config-path", str(folder / "configs")]
    own = os.environ | {"PYTHONPATH": str(ROOT), "RECIPES_RUN_DIR": str(folder / "run")} | variables
    subprocess.run(command, cwd=folder, env=own, stdout=subprocess.DEVNULL, timeout=900, check=True)
    return losses(folder / "run")


def records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of a run folder, none while it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run_dir: Path) -> list[float]:
    """Return the loss of each step, of the attempt that did it last."""
    found = {line["step"]: line["loss"] for line in records(run_dir / "metrics.jsonl") if "loss" in line}
    return [found[step] for step in sorted(found)]
