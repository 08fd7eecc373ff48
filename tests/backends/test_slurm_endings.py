"""How a job ended that Slurm has forgotten, by what is left of it on disk."""

import json
import os

import pytest

from launcher.backends.slurm import run_files
from launcher.backends.slurm.follow import ElasticJob, FixedJob
from launcher.backends.slurm.place import HERE
from launcher.common.names import RUN_DIR
from launcher.model.job_spec import JobHandle, JobState, JobStatus
from launcher.operator.snapshot import Snapshot, publish

FAILED = JobStatus(JobState.FAILED, 0, "a node failed")


@pytest.fixture
def job(tmp_path):
    """Return functions that let the batch script of job 7 start and end; its bundle is the folder."""
    run_files.JobFiles(tmp_path, "7").folder.mkdir(parents=True)

    def note(kind, code=None):
        with (run_files.JobFiles(tmp_path, "7").folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"time_s": 1.0, "kind": kind, "message": kind}) + "\n")
        if code is not None:
            (run_files.JobFiles(tmp_path, "7").folder / run_files.EXIT_CODE).write_text(f"{code}\n")

    return note


def of(folder, kind=FixedJob):
    return kind(JobHandle("slurm", "job", folder), "7", HERE)


def fixed(folder):
    return of(folder).status(None)


def test_the_end_that_slurm_stated_is_kept(tmp_path, job):
    job("Started")
    of(tmp_path).keep(FAILED)
    assert fixed(tmp_path) == FAILED


def test_an_end_from_before_a_requeue_does_not_count(tmp_path, job):
    """No command saw the second run; it ended before it had logs."""
    job("Started")
    job("Failed", 1)
    of(tmp_path).keep(FAILED)
    job("Started")
    job("Completed", 0)
    assert fixed(tmp_path).state is JobState.SUCCEEDED


def test_a_job_that_runs_again_has_no_end(tmp_path, job):
    job("Started")
    of(tmp_path).keep(FAILED)
    of(tmp_path).keep(JobStatus(JobState.PENDING, 0, "waits"))
    assert fixed(tmp_path).state is JobState.DELETED


def test_an_elastic_job_s_end_from_before_a_requeue_does_not_count(tmp_path, job):
    run_dir = tmp_path / RUN_DIR
    elastic = of(tmp_path, ElasticJob)
    publish(run_dir, Snapshot(JobState.RUNNING, 2, "training", 3, os.getpid()))
    elastic.keep(JobStatus(JobState.FAILED, 0, "a node failed", restarts=3))
    assert elastic.status(None).message == "a node failed"
    publish(run_dir, Snapshot(JobState.RUNNING, 2, "training", 4, os.getpid()))
    assert elastic.status(None).state is JobState.DELETED
