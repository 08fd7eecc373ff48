"""Many jobs and many followers in one process, against a real API server."""

import dataclasses
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from background import Collected, await_true

from launcher.backends.kubernetes.api_objects import job_manifest
from launcher.backends.kubernetes.connection import connect
from launcher.backends.kubernetes.pod_logs import read_logs
from launcher.backends.kubernetes.submit import submit
from launcher.backends.kubernetes.target import Target
from launcher.model.job_spec import LogSelection

pytest_plugins = ("cluster_fixtures",)

JOBS, FOLLOWERS, LINES, PART, AT_ONCE = 200, 50, 2000, 200, 8
MOST_S = 120.0
MOST_GROWTH_MIB = 200.0
"""What 50 followers may add: some 4 MiB each, mostly the TLS contexts of their connections and threads' stacks."""

MOST_LATER_MIB = 30.0
"""Allowed growth with nine times as many lines: only memory that the allocator keeps."""

JOB = "HyperPodPyTorchJob"


def memory_mib() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def named(bundle, name):
    """Return the same bundle under another name, without the time that compiling it takes."""
    files = {path: text.replace(bundle.job_name, name) for path, text in bundle.files.items()}
    return dataclasses.replace(bundle, job_name=name, files=files, digest=f"{hash(name) & (1 << 255) - 1:064x}")


@pytest.mark.timeout(300)
def test_200_submissions_and_50_followers(space, bundle, capsys):
    made = bundle()
    bundles = [named(made, f"load-{number}") for number in range(JOBS)]
    connection = connect(None)
    started = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        submitted = list(pool.map(lambda each: submit(connection, each), bundles))
    submit_s = time.monotonic() - started
    assert all(each.is_new for each in submitted) and len(space.names(JOB)) == JOBS
    with ThreadPoolExecutor(AT_ONCE) as pool:
        again = list(pool.map(lambda each: submit(connection, each), bundles[:FOLLOWERS]))
    assert not any(each.is_new for each in again)

    before = memory_mib()
    words = [f"step {number}/{LINES} loss=1.234 " + "x" * 80 for number in range(LINES)]
    jobs = [each.job for each in submitted[:FOLLOWERS]]
    followers = [follower(connection, each, job, words) for each, job in zip(bundles, jobs, strict=False)]
    pods = [space.pod(job) for job in jobs]
    for pod in pods:
        space.run_container(pod)
    began_mib = written(space, pods, followers, words[:PART], PART)
    started = time.monotonic()
    later_mib = written(space, pods, followers, words[PART:], LINES)
    read_s, threads = time.monotonic() - started, threading.active_count()
    for pod, job in zip(pods, jobs, strict=True):
        space.end_container(pod)
        space.conditions(job["metadata"]["name"], "Completed")
    for each in followers:
        each.result(60)
    with capsys.disabled():
        print(f"\n{JOBS} submissions {submit_s:.1f} s ({submit_s / JOBS * 1000:.0f} ms each, {AT_ONCE} at once)")
        print(f"{FOLLOWERS} followers read {FOLLOWERS * (LINES - PART)} lines in {read_s:.1f} s, {threads} threads")
        print(f"memory {before:.0f} MiB, +{began_mib - before:.0f} with all followers, ", end="")
        print(f"+{later_mib - before:.0f} after ten times as many lines")
    assert submit_s < MOST_S and began_mib - before < MOST_GROWTH_MIB
    assert later_mib - began_mib < MOST_LATER_MIB


def written(space, pods, followers, words, total):
    """Write lines to every pod; return the memory in use once all followers have read them."""
    for start in range(0, len(words), PART):
        for pod in pods:
            space.cluster.kubelet.write(pod, *words[start : start + PART])
    await_true(lambda: all(len(each.got) and each.got[-1] >= total for each in followers), timeout_s=MOST_S)
    return memory_mib()


def counted(lines, words):
    """Yield how many lines have come at every tenth part of them; each must be the next one."""
    count = 0
    for line in lines:
        if line.startswith("step"):
            assert line == words[count]
            count += 1
            if count % PART == 0:
                yield count
    assert count == len(words)


def follower(connection, bundle, job, words):
    target = Target.of(job_manifest(bundle).body, job["metadata"]["uid"])
    return Collected(counted(read_logs(connection, target, LogSelection(), follow=True), words))
