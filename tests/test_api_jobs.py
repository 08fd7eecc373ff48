"""Jobs as values: a job on this machine outlives the process that submitted it, and any process follows it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from background import await_true
from conftest import ROOT
from whole_jobs import mlflow_run

import launcher
from launcher import JobFailed, JobState, JobTimeout, ProblemsFound

pytest.importorskip("hyperpod_elastic_agent")
pytestmark = pytest.mark.whole_job

SUBMIT = """
import sys, time, launcher
rate, detach = float(sys.argv[1]), sys.argv[2] == "True"
args = {"max_epochs": 3000, "min_step_seconds": 0.05}
plan = launcher.compile("tiny_lm_cpu", {f"training_config.training_args.{k}": v for k, v in args.items()})
print(plan.submit(name=sys.argv[3], detach=detach).folder, flush=True)
time.sleep(rate)
"""


@pytest.fixture
def here(tmp_path, monkeypatch, store) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(seconds, name, *, detach=True):
    words = [sys.executable, "-c", SUBMIT, str(seconds), str(detach), name]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    folder = process.stdout.readline().strip()
    assert folder
    return process, launcher.attach(folder)


def processes_of(folder) -> list[int]:
    """Return the processes that name a bundle's folder, or run in it."""
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()):
            found.append(process.info["pid"])
    return found


def test_a_job_outlives_the_killed_process_that_submitted_it_and_another_one_ends_it(here):
    process, job = submitted(600, "mine")
    process.kill()
    process.wait()
    await_true(lambda: len(job.metrics()) > 2, "steps after the submitting process was killed")
    assert launcher.attach("mine").name == job.name
    assert [each.name for each in launcher.jobs(state="running")] == [job.name]
    with pytest.raises(JobTimeout):
        job.wait(timeout=0.1)
    with pytest.raises(ProblemsFound, match="running already"):
        job.relaunch()
    steps = [line for line in job.logs() if line.kind == "line"]
    assert steps
    assert steps[0].rank == 0
    assert all("step 2/" in line.text for line in job.logs(grep=r"^step 2/"))
    ended = job.cancel()
    assert ended.state is JobState.CANCELLED and ended.message.startswith("cancelled by ")
    with pytest.raises(JobFailed, match="cancelled"):
        job.result()
    await_true(lambda: mlflow_run(here)[1].info.status == "KILLED", "the MLflow run to be closed")
    await_true(lambda: not processes_of(job.folder), "the processes to end")


@pytest.mark.sample
def test_a_job_runs_to_its_end_has_a_result_and_is_launched_again(here):
    plan = launcher.compile("tiny_lm_cpu", {"training_config.training_args.max_epochs": 2})
    job = plan.submit()
    assert job.result(timeout=300).state is JobState.SUCCEEDED
    assert [row["step"] for row in job.metrics()] == list(range(1, len(job.metrics()) + 1))
    assert 0 < job.goodput <= 1
    assert job.timeline().restarts == 0
    assert any(event.kind for event in job.events())
    await_true(lambda: mlflow_run(here)[1].info.status == "FINISHED", "the MLflow run to be closed")
    with pytest.raises(ProblemsFound, match="E726 dry_run"):
        job.rerun({"dry_run": True})
    with pytest.raises(ProblemsFound, match="E715"):
        job.relaunch()
    with pytest.raises(ProblemsFound, match="E701"):
        plan.submit()
    with pytest.raises(ProblemsFound, match="has no pods"):
        job.pods()


def test_a_job_that_is_not_detached_ends_with_its_process(here):
    process, job = submitted(600, "bound", detach=False)
    await_true(lambda: job.status.state is JobState.RUNNING, "the job to run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert job.wait(timeout=200).state in (JobState.CANCELLED, JobState.FAILED)
    await_true(lambda: mlflow_run(here)[1].info.status in ("KILLED", "FAILED"), "the MLflow run to be closed")
    await_true(lambda: not processes_of(job.folder), "the processes to end")


def test_a_job_whose_follower_is_killed_leaves_no_process(here):
    process, job = submitted(0, "orphan")
    process.wait()
    await_true(lambda: job.status.state is JobState.RUNNING, "the job to run")
    (follower,) = [
        pid for pid in processes_of(job.folder) if "launcher.api.detached" in psutil.Process(pid).cmdline()
    ]
    os.kill(follower, signal.SIGKILL)
    assert job.wait(timeout=200).state.is_final
    assert mlflow_run(here)[1].info.status in ("KILLED", "FAILED")  # no other process closes it
    await_true(lambda: not processes_of(job.folder), "the processes to end")


def test_a_program_that_fails_is_raised_as_the_failure_of_the_job(here):
    program = here / "program.py"
    # Rank 0 fails alone: of two workers that fail, the first may end the other before it prints.
    program.write_text(
        "import os, sys, time\nif os.environ['RANK'] == '0': sys.exit('no such corpus')\ntime.sleep(600)\n"
    )
    job = launcher.compile("tiny_lm_cpu", {"cluster.command": [str(program)]}).submit()
    with pytest.raises(JobFailed) as failed:
        job.result(timeout=300)
    assert failed.value.status.state is JobState.FAILED
    assert failed.value.status.message
    assert "no such corpus" in "".join(line.text for line in job.logs(stderr=True))
