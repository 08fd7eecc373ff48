"""Write a results folder of many finished jobs: `python -m benchmarks.job_store FOLDER`, which replaces the folder.

Each job has the files that listings read: the manifest, the plan and the record; a fifth of them have a given name.
"""

import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from launcher import pipeline
from launcher.bundle.manifest import MANIFEST
from launcher.common.names import NAME_FILE
from launcher.job_store import registry
from launcher.model.context import LaunchContext
from launcher.model.job_spec import JobHandle, JobState, JobStatus

NUM_JOBS = 5000
_WORDS = ("recipes=training/tiny/tiny_lm_cpu", "cluster=k8s", "container=me/image:1", "instance_type=ml.m5.2xlarge")
_NAMED_EVERY, _FAILED_EVERY = 5, 7
_BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def given(number: int) -> str:
    """Return the name that a user gave to a job; those of multiples of five exist."""
    return f"baseline-{number:05}"


def write(results: Path, num_jobs: int = NUM_JOBS) -> None:
    """Write jobs of Kubernetes, all ended, to a folder."""
    context = LaunchContext.read()
    bundle = pipeline.render(pipeline.prepare(_WORDS, context), context)
    for number in range(num_jobs):
        folder = results / f"tiny-lm-cpu-{number * 7919 % num_jobs:05}"
        folder.mkdir(parents=True)
        for name in (MANIFEST, "plan.json"):
            (folder / name).write_text(bundle.files[name], encoding="utf-8")
        handle = JobHandle("k8s", folder.name, folder, folder.name, "PyTorchJob", "team-a", "prod", f"uid-{number}")
        submitted = (_BEGUN + timedelta(minutes=number)).isoformat()
        job = registry.JobRecord(handle, bundle.digest, submitted, "ada")
        ended = JobStatus(JobState.SUCCEEDED, 2, "completed", restarts=number % 3)
        if number % _FAILED_EVERY == 0:
            ended = JobStatus(JobState.FAILED, 2, "worker 1 exited with code 1: CUDA out of memory")
        registry.write(folder, replace(job, ended=ended))
        if number % _NAMED_EVERY == 0:
            (folder / NAME_FILE).write_text(f"{given(number)}\n", encoding="utf-8")


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    write(Path(sys.argv[1]))
