"""What Slurm's users wait for: rendering, submitting and following, on a real Slurm of this machine."""

import statistics
import subprocess
import threading
import time
from functools import partial

import pytest
import slurm_cluster

from launcher import pipeline
from launcher.backends.slurm import place
from launcher.backends.slurm.backend import SlurmBackend
from launcher.backends.slurm.demand import NODES
from launcher.backends.slurm.place import HERE
from launcher.backends.slurm.queue import POLL_S, queue_of
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.model.context import LaunchContext

WORDS = (
    "recipes=training/custom/script",
    "cluster=slurm",
    "instance_type=m5.2xlarge",
    "recipes.training_config.mlflow.enabled=false",
    "training_cfg.entry_module=json.tool",
    "cluster.python=/bin/true",
    "cluster.additional_parameters={hold: true}",
    f"{NODES[1].removeprefix('recipes.')}=1",
)
ROUNDS, JOBS = 21, 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def prepared(folder, *words):
    context = LaunchContext.read()
    return pipeline.prepare((*WORDS, f"base_results_dir={folder}", *words), context), context


def written(folder):
    """Write a bundle; each folder's is a job of its own."""
    bundle = pipeline.render(*prepared(folder))
    pipeline.write(bundle)
    return bundle


def test_render(tmp_path, report):
    """Target: at most 10 ms beyond compiling."""
    job, context = prepared(tmp_path)
    backend, took = SlurmBackend(), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        pipeline.render(job, context)
        middle = time.perf_counter()
        backend.render(job, {})
        took.append((middle - began, time.perf_counter() - middle))
    bundle_s, scripts_s = (statistics.median(each) for each in zip(*took, strict=True))
    report(f"slurm render: bundle {bundle_s * 1e3:.1f} ms, of which the scripts {scripts_s * 1e3:.1f} ms")


def _bare(bundle):
    words = ("sbatch", "--parsable", JOB_FILE)
    subprocess.run(words, cwd=bundle.directory, check=True, capture_output=True)


def _ours(backend, bundle):
    assert backend.submit(bundle).is_new


def _timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@pytest.mark.parametrize("is_first", [False, True], ids=["further", "first"])
def test_submit(cluster, tmp_path, report, is_first, monkeypatch):
    """Target: at most 1.2 times a bare sbatch of the same script. The first of a process asks for the partitions."""
    backend, took = SlurmBackend(), []
    for number in range(ROUNDS + 2):
        bundle = written(tmp_path / str(number))
        bare = written(tmp_path / f"bare-{number}")
        (bare.directory / "run").mkdir()
        if is_first:
            monkeypatch.setattr(place.RECENT, "_answers", {})
        calls = [partial(_bare, bare), partial(_ours, backend, bundle)]
        # The controller is still busy with the first one: each of the two comes first as often as the other.
        seconds = [_timed(call) for call in (calls if number % 2 else calls[::-1])]
        took.append(tuple(seconds if number % 2 else seconds[::-1]))
    sbatch_s, ours_s = (statistics.median(each) for each in zip(*took[2:], strict=True))
    ratio = statistics.median(ours / floor for floor, ours in took[2:])
    name = "first of a process" if is_first else "further ones"
    report(f"slurm submit, {name}: {ours_s * 1e3:.1f} ms, sbatch {sbatch_s * 1e3:.1f} ms, ratio {ratio:.2f}")


def test_following_many_jobs(cluster, tmp_path, report):
    """Target: one poll per interval for all jobs."""
    handles = [SlurmBackend().submit(written(tmp_path / str(number))) for number in range(JOBS)]
    before, began = queue_of(HERE).polls, time.perf_counter()
    followers = [SlurmBackend().wait(handle, timeout_s=10 * POLL_S) for handle in handles]
    threads = [threading.Thread(target=list, args=(each,)) for each in followers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    intervals = (time.perf_counter() - began) / POLL_S
    polls = queue_of(HERE).polls - before
    report(
        f"slurm follow {JOBS} jobs: {polls} polls in {intervals:.1f} intervals, {polls / intervals:.2f} per interval"
    )
