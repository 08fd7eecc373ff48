"""The stages of the kit, in the order that gives the most first, and how one is run."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.budget import Budget

GRACE_S = 30.0
"""Seconds after which a stage that did not end by itself is ended."""
TINY_FACTOR = 4.0
"""Times as long may a tiny stage take: a CPU that runs tests runs many of them."""
LATE_STATUS, FAILED_STATUS = 4, 3
"""Exit status of a stage that had to be ended, and of one that measured nothing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage.

    Args:
        name: On the command line.
        work: Module below this package, and function.
        part: A part of the kit is what fits into nine minutes.
        seconds: That it may take.
        is_of_jobs: Whether its work is done in processes of their own, which may use every GPU.
    """

    name: str
    work: str
    part: int
    seconds: float
    is_of_jobs: bool = False


STAGES = (
    Stage("floors", "floors:floors", 1, 40),
    Stage("lora-recomputed", "models:lora_recomputed", 1, 240),
    Stage("lora", "models:lora", 1, 240),
    Stage("nccl", "jobs:nccl", 2, 110, is_of_jobs=True),
    Stage("checkpoints", "checkpoints:checkpoints", 2, 120),
    Stage("elastic", "jobs:elastic", 2, 140, is_of_jobs=True),
    Stage("rehearse", "jobs:rehearse", 2, 150, is_of_jobs=True),
    Stage("full", "models:full", 3, 160),
    Stage("gpt-oss", "models:gpt_oss", 3, 200),
    Stage("dpo", "models:dpo", 3, 150),
)
"""Part 1 has what the goals are about, part 2 what only a GPU can show at all, part 3 further models."""
PARTS = tuple(sorted({stage.part for stage in STAGES}))
BY_NAME = {stage.name: stage for stage in STAGES}


def run(stage: Stage, file: Path, *, tiny: bool, seconds: float | None = None) -> int:
    """Run a stage in this process; return its exit status. Its results are in `file`, however it ends.

    Args:
        stage: Of the kit.
        file: Receives the JSON.
        tiny: Whether to take tiny shapes.
        seconds: That it may take; None for its own time.
    """
    if not stage.is_of_jobs:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # TRL would divide its batches among several
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from benchmarks.gpu.results import FAILED, LATE, Results

    if seconds is None:
        seconds = stage.seconds * (TINY_FACTOR if tiny else 1)
    results = Results(stage.name, file, Budget(seconds), tiny=tiny)

    def end() -> None:
        results.write(LATE)
        print(f"{stage.name}: ended after {results.budget.spent:.0f} s", file=sys.stderr, flush=True)
        os._exit(LATE_STATUS)

    timer = threading.Timer(results.budget.seconds + GRACE_S, end)
    timer.daemon = True
    timer.start()
    try:
        _work(stage)(results)
    except Exception as error:  # what was measured before counts, and the other stages do
        traceback.print_exc()
        results.problem(f"{type(error).__name__}: {str(error)[:1000]}")
    finally:
        timer.cancel()
    state = results.finish()
    print(f"{stage.name}: {state} in {results.budget.spent:.0f} s, {file}", flush=True)
    return FAILED_STATUS if state == FAILED else 0


def _work(stage: Stage) -> Callable[..., None]:
    module, _, function = stage.work.partition(":")
    found: Callable[..., None] = getattr(import_module(f"benchmarks.gpu.{module}"), function)
    return found
