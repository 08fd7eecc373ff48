"""Following a Slurm job by its files and Slurm's answers, without Slurm."""

import json

import pytest
from engines.log_texts import shown

from launcher.backends.slurm import follow, run_files
from launcher.backends.slurm.follow import ElasticJob, FixedJob
from launcher.backends.slurm.queue import Seen
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobHandle, JobState, JobStatus, LogSelection
from launcher.operator.snapshot import Snapshot, publish

ID = "7"


class Place:
    """Where a job's files are: here; nothing is fetched, and nothing waits."""

    poll_s = 0.0

    def fetch(self, _bundle_dir, _files):
        """Do nothing."""


def of(folder, kind):
    return kind(JobHandle("slurm", "j", folder), ID, Place())


def seen(word):
    return Seen(ID, word, "None", 2, (0, 0), "j")


def snapshot(state, nodes=2, attempt=1):
    return Snapshot(state, nodes, "its words", attempt, 1)


QUEUED, RUNS, ENDED = seen("PENDING"), seen("RUNNING"), seen("COMPLETED")
STATUSES = {
    "queued": (None, QUEUED, JobStatus(JobState.PENDING, 0, QUEUED.message)),
    "requeued": (snapshot(JobState.RUNNING), QUEUED, JobStatus(JobState.PENDING, 0, QUEUED.message, restarts=1)),
    "starting": (None, RUNS, JobStatus(JobState.RUNNING, 0)),
    "running": (snapshot(JobState.RUNNING), RUNS, JobStatus(JobState.RUNNING, 2, "its words", restarts=1)),
    "suspended": (snapshot(JobState.PENDING, 0), RUNS, JobStatus(JobState.PENDING, 0, "its words", restarts=1)),
    "rendezvous": (snapshot(JobState.PENDING), RUNS, JobStatus(JobState.RUNNING, 2, "its words", restarts=1)),
    "ending": (snapshot(JobState.FAILED), RUNS, JobStatus(JobState.RUNNING, 0, "ending the nodes", restarts=1)),
    "ended": (snapshot(JobState.FAILED), ENDED, JobStatus(JobState.FAILED, 0, "its words", restarts=1)),
    "forgotten": (snapshot(JobState.FAILED), None, JobStatus(JobState.FAILED, 0, "its words", restarts=1)),
    "killed": (snapshot(JobState.RUNNING), ENDED, JobStatus(JobState.SUCCEEDED, 0, "", restarts=1)),
}


@pytest.mark.parametrize(("published", "in_slurm", "status"), STATUSES.values(), ids=STATUSES)
def test_an_elastic_job_s_status_is_slurm_s_while_it_waits_and_its_operator_s_while_it_runs(
    tmp_path, published, in_slurm, status
):
    (tmp_path / "run").mkdir()
    if published:
        publish(tmp_path / "run", published)
    assert of(tmp_path, ElasticJob).status(in_slurm) == status


def test_the_end_of_an_elastic_job_that_slurm_forgot_is_the_one_that_was_noted(tmp_path):
    folder = run_files.JobFiles(tmp_path, ID).folder
    folder.mkdir(parents=True)
    job = of(tmp_path, ElasticJob)
    assert job.status(None).state is JobState.DELETED
    (folder / run_files.EXIT_CODE).write_text("0\n")
    publish(tmp_path / "run", snapshot(JobState.RUNNING, attempt=3))
    assert job.status(None) == JobStatus(JobState.SUCCEEDED, 0, job.status(None).message, restarts=3)


def write(bundle_dir, attempt, rank, text):
    """Append to the log of a rank of a job with one process per node."""
    logs = run_files.JobFiles(bundle_dir, ID).folder / "logs"
    folder = logs / f"attempt-{attempt}" / f"node-{rank}" / "r" / "attempt_0" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout.log").open("a") as file:
        file.write(text)


def note(bundle_dir, kind, message):
    with (run_files.JobFiles(bundle_dir, ID).folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time_s": 1.0, "kind": kind, "message": message}) + "\n")


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(FixedJob, "size", (2, 1))
    return of(tmp_path, FixedJob)


def test_lines_and_events_are_followed_through_attempts_and_late_ones_are_read(job):
    states = iter([JobState.RUNNING, JobState.RUNNING, JobState.SUCCEEDED, JobState.SUCCEEDED])
    write(job.bundle_dir, 0, 0, "one\n")

    def status():
        state = next(states, JobState.SUCCEEDED)
        if state is JobState.RUNNING:
            note(job.bundle_dir, "Failed", "exit code 1")
        else:
            write(job.bundle_dir, 1, 0, "late\n")
        return JobStatus(state, 2)

    selection = LogSelection(has_headings=True)
    found = list(shown(job.lines(selection, status, follow=True), selection))
    assert found[:5] == ["== attempt 0: 2 nodes", "one", *["fault  Failed: exit code 1"] * 2, "== attempt 1: 2 nodes"]
    assert found[5:] == ["late"] * (1 + follow._LATE_LOOKS)  # every look after the end finds one more


def test_the_file_of_a_rank_of_a_job_that_succeeded_is_waited_for(job):
    looks = []

    def status():
        looks.append(1)
        if len(looks) == 3 * follow._LATE_LOOKS:
            write(job.bundle_dir, 0, 1, "at last\n")
        return JobStatus(JobState.SUCCEEDED, 0)

    assert list(shown(job.lines(LogSelection((1,)), status, follow=True))) == ["at last"]


def test_a_job_that_failed_before_it_wrote_is_not_waited_for(job):
    looks = []
    assert list(job.lines(LogSelection(), lambda: looks.append(1) or FAILED, follow=True)) == []
    assert len(looks) == 1 + follow._LATE_LOOKS


FAILED = JobStatus(JobState.FAILED, 0)


def test_a_log_so_far_asks_slurm_for_nothing_and_has_no_events(job):
    write(job.bundle_dir, 0, 0, "one\ntw")
    note(job.bundle_dir, "Started", "on 2 nodes")
    assert list(shown(job.lines(LogSelection(), pytest.fail, follow=False))) == ["one", "tw"]
    assert [event.kind for event in job.events(pytest.fail, follow=False)] == ["Started"]


def test_events_come_once_until_the_job_has_ended(job):
    write(job.bundle_dir, 0, 0, "")
    states = iter([JobState.RUNNING, JobState.RUNNING, JobState.FAILED])

    def status():
        note(job.bundle_dir, "Started", "again")
        return JobStatus(next(states), 2)

    assert len(list(job.events(status, follow=True))) == 3


@pytest.mark.parametrize(
    ("selection", "code", "allowed"),
    [(LogSelection((2,)), "E707", "0 to 1"), (LogSelection(attempt=1), "E706", "0 to 0")],
    ids=["rank", "attempt"],
)
def test_lines_that_a_job_cannot_have_are_refused(job, selection, code, allowed):
    write(job.bundle_dir, 0, 0, "")
    with pytest.raises(ProblemsFound) as caught:
        job.lines(selection, pytest.fail, follow=False)
    assert [(each.code, each.allowed) for each in caught.value.problems] == [(code, allowed)]
