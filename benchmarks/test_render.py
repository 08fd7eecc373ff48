"""What rendering a very large job costs."""

import statistics
import subprocess
import sys
import time

from launcher.common import yaml_io

NODES, SIZES = 4096, 100
LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
SAMPLES = 8 * NODES * 3**2 * 5 * 7 * 11
ROUNDS = 9
COLD = """
import re, sys
from pathlib import Path
from launcher import pipeline
from launcher.model.context import LaunchContext
context = LaunchContext.read()
pipeline.render(pipeline.prepare(sys.argv[1:], context), context)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def recipe(folder) -> str:
    """Write a recipe of SIZES sizes up to NODES, each a divisor of the batch; return the override that takes it."""
    divisors = [nodes for nodes in range(1, NODES + 1) if SAMPLES % (8 * nodes) == 0]
    sizes = [*divisors[: SIZES - 20], *divisors[-20:]]
    args = {"train_batch_size": SAMPLES, "micro_train_batch_size": 1, "uneven_batch": {"use_uneven_batch": False}}
    content = {
        "defaults": [f"/recipes/{LLAMA}@_here_", "_self_"],
        "elastic_policy": {"is_elastic": True, "max_nodes": NODES},
        "scale_config": {nodes: {"training_config": {"training_args": args}} for nodes in sizes},
    }
    path = folder / "large.yaml"
    path.write_text(yaml_io.dump(content))
    return f"recipes={path}"


def test_a_job_of_4096_nodes_and_100_sizes(tmp_path, report):
    """Target: at most 2 s to render the bundle. Also: from overrides to the bundle, in a process of its own."""
    from launcher import pipeline
    from launcher.model.context import LaunchContext

    context, overrides = LaunchContext.read(), (recipe(tmp_path), "cluster=k8s")
    job = pipeline.prepare(overrides, context)
    assert (len(job.scales), job.max_nodes) == (SIZES, NODES)

    def seconds() -> float:
        began = time.perf_counter()
        bundle = pipeline.render(job, context)
        took = time.perf_counter() - began
        assert f"config-n{NODES}.yaml" in bundle.files["manifests/configmap.yaml"]
        return took

    warm = statistics.median(seconds() for _ in range(ROUNDS))
    colds, peaks = [], []
    for _ in range(3):
        began = time.perf_counter()
        command = [sys.executable, "-c", COLD, *overrides]
        peaks.append(float(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout))
        colds.append(time.perf_counter() - began)
    report(
        f"render of {NODES} nodes, {SIZES} sizes: {warm:.2f} s; from overrides to the bundle in a process of its own"
        f" {statistics.median(colds):.2f} s, peak {max(peaks):.0f} MiB"
    )
