"""What planning many sizes costs."""

import gc
import statistics
import subprocess
import sys
import time

from conftest import ELASTIC

from launcher.model import batch

NODES, DEVICES, SAMPLES = 4096, 8, 65_536
LARGEST = (
    *ELASTIC,
    "recipes.scale_config=auto",
    f"recipes.elastic_policy.max_nodes={NODES}",
    f"recipes.training_config.training_args.train_batch_size={SAMPLES}",
)
COLD = """
import gc, re, sys
gc.set_threshold(100_000)
from pathlib import Path
from launcher import pipeline
from launcher.model.context import LaunchContext
pipeline.prepare(sys.argv[1:], LaunchContext.read())
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""
ROUNDS = 5


def floor_s() -> float:
    """Return the seconds of the arithmetic alone: one division and one search for a divisor a size."""
    began = time.perf_counter()
    for nodes in range(1, NODES + 1):
        batch.fit(SAMPLES, nodes * DEVICES, 8)
    return time.perf_counter() - began


def test_every_size_to_4096_nodes(tmp_path, report):
    """Target: at most 0.5 s for 1 to 4,096 nodes of 8 devices: composed, typed, checked and planned, as a table.

    Garbage is collected as seldom as in `recipes plan`.
    """
    from launcher import pipeline
    from launcher.config.composed_files import CompositionCache
    from launcher.model.context import LaunchContext
    from launcher.planning import plan_report as reports

    context, cache = LaunchContext.read(), CompositionCache()

    def plan_all() -> float:
        began = time.perf_counter()
        job = pipeline.prepare(LARGEST, context, cache)
        assert len(reports.table(job, in_full=True)[1]) == NODES
        return time.perf_counter() - began

    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000)
    plan_all()
    ours = statistics.median(plan_all() for _ in range(ROUNDS))
    gc.set_threshold(*usual)
    bare = statistics.median(floor_s() for _ in range(ROUNDS))
    began = time.perf_counter()
    command = [sys.executable, "-c", COLD, *LARGEST]
    peak_mib = float(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout)
    cold_s = time.perf_counter() - began
    report(
        f"plan of {NODES} sizes: {ours:.2f} s (the arithmetic alone {bare:.3f} s); in a process of its own"
        f" {cold_s:.2f} s, peak {peak_mib:.0f} MiB"
    )
