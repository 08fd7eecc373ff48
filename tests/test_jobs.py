"""The record of a submitted job, and the commands that start from it, with a cluster that does as it is told."""

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import frozen_context
from launch_records import Job

from launcher import pipeline
from launcher.api import launching
from launcher.backends.kubernetes.description import KubernetesDescription
from launcher.backends.local.backend import LocalBackend
from launcher.backends.sagemaker.backend import SageMakerBackend
from launcher.bundle import store as bundles
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common import redaction
from launcher.common.interrupts import Interrupted
from launcher.common.names import JOB_FILE
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.job_store import listing, registry, tracking
from launcher.job_store.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.backend import RANK_0
from launcher.model.job_spec import JobEvent, JobHandle, JobState, JobStatus, LogLine, LogSelection

NAME = "tiny-lm-cpu-abcde"
MAIN = (
    "recipes=training/tiny/tiny_lm_cpu",
    "cluster=k8s",
    "container=me/image:1",
    "instance_type=ml.m5.2xlarge",
    "cluster.namespace=team",
)
RUNNING = JobStatus(JobState.RUNNING, 2, "training")
QUEUED = JobStatus(JobState.PENDING, 0, "waits for quota: 8 of 16 nvidia.com/gpu are in use")
SUCCEEDED = JobStatus(JobState.SUCCEEDED, 0)
FAILED = JobStatus(JobState.FAILED, 0, "rank 1 ended with 3", restarts=2, faulty_nodes=("node-7",))
CANCELLED = JobStatus(JobState.CANCELLED, 0, "cancelled by ada")
DELETED = JobStatus(JobState.DELETED, 0, "is no longer there")


class Cluster:
    """A cluster with at most one job, whose state changes as listed, once for each look."""

    name = "k8s"

    def __init__(self, *statuses, refuses=None):
        self.statuses = list(statuses)
        self.refuses = refuses
        self.is_known = False
        self.calls = []

    def _called(self, name):
        self.calls.append(name)
        if self.refuses:
            raise ProblemsFound((self.refuses,))

    def validate(self, bundle):
        self.calls.append("validate")
        return (self.refuses,) if self.refuses else ()

    def intent(self, bundle, known):
        return None

    def submit(self, bundle):
        self._called("submit")
        is_new, self.is_known = not self.is_known, True
        return handle_of(bundle.directory, is_new=is_new)

    def status(self, handle):
        self._called("status")
        return self.statuses[0]

    def wait(self, handle, *, timeout_s=None):
        self._called("wait")
        yield self.statuses[0]
        while len(self.statuses) > 1:
            self.statuses.pop(0)
            yield self.statuses[0]

    def logs(self, handle, selection=RANK_0, *, follow):
        self._called(("logs", selection, follow))
        yield LogLine("event", None, "node-7 is lost")
        yield LogLine("line", selection.ranks[0] if selection.ranks and len(selection.ranks) == 1 else 1, "hello")

    def events(self, handle, *, follow):
        self._called("events")
        yield JobEvent(0.0, "Created", "the job was created")
        yield JobEvent(61.5, "FailedScheduling", "0/4 nodes are available", "Pod/tiny-0", is_warning=True)

    def scale(self, handle, num_nodes, min_nodes=None):
        self._called(("scale", num_nodes, min_nodes))

    def cancel(self, handle):
        self._called("cancel")
        self.statuses = [DELETED]

    def clear(self, handle):
        self._called("clear")
        self.is_known = False


def handle_of(folder, **changes):
    fields = {"native_id": NAME, "kind": "HyperPodPyTorchJob", "namespace": "team", "context": "prod", "uid": "7-8-9"}
    return JobHandle("k8s", NAME, folder.resolve(), **{**fields, **changes})


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """Return the bundle of an untracked job for a cluster, on disk under results/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    context = frozen_context(tmp_path)._replace(suffix="abcde")
    rendered = pipeline.render(pipeline.prepare(MAIN, context), context)
    pipeline.write(rendered)
    assert rendered.job_name == NAME
    return rendered


@pytest.fixture
def record(bundle):
    return registry.record(bundle, handle_of(bundle.directory), "ada")


@pytest.fixture
def on(monkeypatch):
    """Return a function that puts a cluster in place of every backend."""

    monkeypatch.setattr(KubernetesDescription, "pods", lambda self: None)

    def put(cluster):
        monkeypatch.setattr(backend_registry, "load_backend", lambda name: cluster)
        return cluster

    return put


def test_a_record_is_read_as_it_was_written_and_leaves_the_bundle_as_it_was_reviewed(bundle, record):
    assert registry.read(bundle.directory) == record
    assert (record.digest, record.user, record.ended) == (bundle.digest, "ada", None)
    assert bundles.read(bundle.directory)[0].digest == bundle.digest
    assert [path.name for path in bundle.directory.iterdir() if path.name.startswith(".")] == []


def test_a_record_that_is_being_written_is_no_change_of_the_bundle(bundle, record, monkeypatch):
    seen = []
    replaced = Path.replace

    def looking(path, target):
        if path.parent == bundle.directory:  # not a file of a thread that another test has left
            seen.append(bundles.read(bundle.directory)[0].digest)
        return replaced(path, target)

    monkeypatch.setattr(Path, "replace", looking)
    registry.record(bundle, record.handle, "ada")
    assert seen == [bundle.digest]


def test_a_bundle_may_move_with_its_record(bundle, record):
    moved = bundle.directory.rename(bundle.directory.with_name("elsewhere"))
    assert registry.submitted(moved).handle == replace(record.handle, bundle_dir=moved.resolve())


def damaged(**changes):
    def damage(text):
        return json.dumps({**json.loads(text), **changes})

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "",
        damaged(native=None),
        damaged(native={"native_id": "x"}),
        damaged(backend="nomad"),
        damaged(ended={"state": "winning"}),
    ],
    ids=["torn", "list", "empty", "no-native", "no-uid", "no-such-cluster", "no-such-state"],
)
def test_a_damaged_record_is_a_problem_and_hides_no_other_job(bundle, record, damage, capsys):
    other = bundle.directory.with_name("other")
    shutil.copytree(bundle.directory, other)
    path = bundle.directory / JOB_FILE
    path.write_text(damage(path.read_text()))
    with pytest.raises(ProblemsFound, match="E711"):
        registry.submitted(bundle.directory)
    (faulty, sound) = listing.listing(Path("results"))
    assert faulty.problem.code == "E711" and sound.record.handle.bundle_dir == other.resolve()
    assert registry.record(bundle, record.handle, "ada").handle == record.handle


def test_nothing_is_submitted_where_it_could_not_be_recorded(bundle, on):
    cluster = on(Cluster(RUNNING))
    shutil.rmtree(bundle.directory)
    with pytest.raises(ProblemsFound, match="E710"):
        pipeline.submit(bundle, cluster)
    assert cluster.calls == []


def test_a_job_that_runs_unrecorded_is_named(bundle, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry, "write_text", full)
    with pytest.raises(ProblemsFound, match=f"E710.*\n.*runs as {NAME}, but is not recorded.*the disk is full"):
        pipeline.submit(bundle, Cluster(RUNNING))


def test_how_a_job_ended_is_kept_when_its_cluster_forgets_it(record):
    folder = record.handle.bundle_dir
    assert registry.status(record, Cluster(FAILED)) == FAILED
    forgetful = Cluster(DELETED)
    assert registry.status(registry.submitted(folder), forgetful) == FAILED
    assert list(registry.changes(registry.submitted(folder), forgetful)) == [FAILED]
    assert registry.settled(record, DELETED, forgetful) == FAILED, "one that has the record from before learns it too"
    assert forgetful.calls == []


def test_a_job_whose_end_no_command_saw_is_deleted(record):
    assert registry.status(record, Cluster(DELETED)) == DELETED


def test_a_cancelled_job_is_cancelled_for_those_that_only_see_it_deleted(record):
    assert registry.cancel(record, Cluster(RUNNING), "ada") == JobStatus(JobState.CANCELLED, 0, "cancelled by ada")
    assert registry.settled(record, DELETED, Cluster()).message == "cancelled by ada"


def test_a_job_that_ended_before_it_could_be_cancelled_has_ended_as_it_did(record):
    class Late(Cluster):
        def cancel(self, handle):
            self.statuses = [SUCCEEDED]

    assert registry.cancel(record, Late(RUNNING), "ada") == SUCCEEDED


def test_the_end_of_an_earlier_job_is_not_written_to_the_record_of_the_next(bundle, record):
    anew = registry.record(bundle, replace(record.handle, uid="1-2-3"), "grace")
    assert registry.settled(record, FAILED, Cluster()) == FAILED
    assert registry.submitted(bundle.directory) == anew


def test_an_end_that_cannot_be_kept_is_told_all_the_same(record, monkeypatch):
    def refuse(path, text):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(registry, "write_text", refuse)
    assert registry.status(record, Cluster(FAILED)) == FAILED


def test_commands_at_the_same_time_leave_one_whole_record_and_agree(record):
    ends = [FAILED, SUCCEEDED] * 8
    told = []
    threads = [
        threading.Thread(target=lambda end=end: told.append(registry.settled(record, end, Cluster()))) for end in ends
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(ends) and set(told) == {registry.submitted(record.handle.bundle_dir).ended}


def test_the_same_job_found_again_keeps_its_record(bundle, record):
    found = handle_of(bundle.directory, is_new=False)
    assert registry.record(bundle, found, "grace") == record
    assert registry.record(bundle, replace(found, uid="1-2-3"), "grace").user == "grace"


def test_a_cluster_that_refuses_is_asked_once_for_all_its_jobs(bundle, record, on):
    ended = bundle.directory.with_name("ended")
    for name in ("second", "third", "ended"):
        shutil.copytree(bundle.directory, bundle.directory.with_name(name))
    registry.settled(registry.submitted(ended), FAILED, Cluster())
    cluster = on(Cluster(refuses=Problem("E342", "cluster.kube_context", "does not answer")))
    listed = tuple(listing.with_statuses(listing.listing(Path("results"))))
    assert cluster.calls == ["status"]
    problems = {each.name: each.problem and each.problem.code for each in listed}
    assert problems == {NAME: "E342", "second": "E342", "third": "E342", "ended": None}


@pytest.mark.parametrize(
    "problem",
    [Problem("E704", "results/x", "was changed"), Problem("E342", "cluster.namespace", "500 conversion failed")],
    ids=["bundle-damaged", "object-unreadable"],
)
def test_a_job_that_cannot_be_read_hides_no_other_job(bundle, record, on, problem):
    shutil.copytree(bundle.directory, bundle.directory.with_name("second"))

    class Partly(Cluster):
        def status(self, handle):
            if handle.bundle_dir.name == NAME:
                raise ProblemsFound((problem,))
            return super().status(handle)

    on(Partly(RUNNING))
    listed = listing.with_statuses(listing.listing(Path("results")))
    assert {each.name: each.problem or each.status for each in listed} == {NAME: problem, "second": RUNNING}


@pytest.mark.parametrize(
    ("statuses", "code"),
    [((QUEUED, RUNNING, SUCCEEDED), 0), ((QUEUED, FAILED), 3), ((RUNNING, CANCELLED), 130), ((DELETED,), 3)],
    ids=["succeeded", "failed", "cancelled", "deleted"],
)
def test_wait_tells_each_change_and_exits_as_the_job_ended(record, on, capsys, monkeypatch, statuses, code):
    finished = []
    monkeypatch.setattr(tracking, "finish", lambda bundle, state, failure=None: finished.append(state))
    on(Cluster(*statuses))
    assert cli.run(["wait", NAME]) == code
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == [status.state.value for status in statuses]
    assert all(status.message in line for status, line in zip(statuses, out, strict=True))
    assert finished == [status.state for status in statuses[-1:] if status is not DELETED]
    assert cli.run(["wait", NAME, "--json"]) == code
    (last,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (last["job"], last["state"]) == (NAME, statuses[-1].state.value)
    assert len(finished) <= 1, "the run of a job that was seen to end is not closed again"


def test_wait_gives_up_on_a_cluster_that_has_not_answered(record, on, capsys):
    class Silent(Cluster):
        def status(self, handle):
            raise fail("E342", "cluster.kube_context", "the cluster's API does not answer")

        def wait(self, handle, *, timeout_s=None):
            return iter(())

    on(Silent())
    assert cli.run(["wait", NAME, "--timeout", "3"]) == 2
    assert "has not ended after 3 s: its cluster did not answer" in capsys.readouterr().err


def test_wait_gives_up_with_what_the_job_waits_for(record, on, capsys):
    on(Cluster(QUEUED))
    assert cli.run(["wait", NAME, "--timeout", "0.5"]) == 2
    assert f"has not ended after 0.5 s: pending, {QUEUED.message}" in capsys.readouterr().err


def test_a_tracking_store_that_refuses_does_not_change_how_a_job_ended(record, on, capsys, monkeypatch):
    def refuse(bundle, state, failure=None):
        raise fail("E502", "mlflow", "does not answer")

    monkeypatch.setattr(tracking, "finish", refuse)
    on(Cluster(SUCCEEDED))
    assert cli.run(["wait", NAME]) == 0
    assert "E502" in capsys.readouterr().err
    finished = []
    monkeypatch.setattr(tracking, "finish", lambda bundle, state, failure=None: finished.append(state))
    assert [cli.run(["wait", NAME]) for _ in range(2)] == [0, 0]
    assert finished == [JobState.SUCCEEDED], "it is asked again until it takes the end, and then no more"


def test_status_in_words_and_as_json(record, on, capsys):
    on(Cluster(replace(RUNNING, state=JobState.SCALING, target_nodes=3, restarts=1, faulty_nodes=("node-7",))))
    assert cli.run(["status", NAME]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "scaling  2 -> 3 nodes  training",
        "restarts  1",
        "faulty    node-7",
        f"runs as   HyperPodPyTorchJob/{NAME} (namespace team, context prod)",
        f"submitted {record.submitted} by ada",
    ]
    assert cli.run(["status", NAME, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["target_nodes"], told["faulty_nodes"]) == ("scaling", 3, ["node-7"])
    assert told["native"]["uid"] == "7-8-9" and told["digest"] == record.digest


def test_jobs_lists_what_is_rendered_runs_and_cannot_be_told(bundle, record, on, capsys):
    rendered = bundle.directory.with_name("rendered")
    shutil.copytree(bundle.directory, rendered)
    (rendered / JOB_FILE).unlink()
    on(Cluster(RUNNING))
    assert cli.run(["jobs", "--all"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["job", "cluster", "state", "nodes", "submitted", "message"]
    assert first.split() == ["rendered", "-", "rendered", "-", "-"]
    assert second.split() == [NAME, "k8s", "running", "2", record.submitted, "training"]
    on(Cluster(refuses=Problem("E341", "cluster", "does not answer")))
    assert cli.run(["jobs", "--json", "--all"]) == 0
    untold, unknown = json.loads(capsys.readouterr().out)
    assert untold == {"job": "rendered", "name": None, "state": None}
    assert unknown["state"] is None and "E341" in unknown["problem"]


def test_jobs_of_a_folder_that_does_not_exist_are_refused_but_for_the_default_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["jobs"]) == cli.run(["jobs", "results"]) == cli.run(["jobs", str(tmp_path)]) == 0
    for words in (["nowhere"], ["/etc/passwd"], ["remove", "--folder", "nowhere", "--older-than", "1d"]):
        capsys.readouterr()
        assert cli.run(["jobs", *words, "--json"]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("E818 folder") and not out


def test_events_in_words_and_as_lines_of_json(record, on, capsys):
    on(Cluster(RUNNING))
    assert cli.run(["events", NAME]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1970-01-01T00:00:00+00:00  Created  the job was created",
        "1970-01-01T00:01:01+00:00  FailedScheduling  Pod/tiny-0: 0/4 nodes are available",
    ]
    assert cli.run(["events", NAME, "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["is_warning"], second["is_warning"], second["time_s"]) == (False, True, 61.5)


@pytest.mark.parametrize(
    ("options", "selection", "line"),
    [
        ([], LogSelection(has_headings=True), {"kind": "line", "rank": 0, "text": "hello"}),
        (
            ["--rank", "3", "--rank", "1", "--stderr", "--attempt", "2", "-f"],
            LogSelection((1, 3), 2, is_stderr=True, has_headings=True),
            {"kind": "line", "rank": 1, "text": "hello"},
        ),
        (["--all-ranks"], LogSelection(None, has_headings=True), {"kind": "line", "rank": 1, "text": "hello"}),
    ],
    ids=["rank-0", "several", "all"],
)
def test_logs_pass_on_what_is_selected(record, on, capsys, options, selection, line):
    cluster = on(Cluster(RUNNING))
    assert cli.run(["logs", NAME, *options, "--json"]) == 0
    news, said = map(json.loads, capsys.readouterr().out.splitlines())
    assert news == {"kind": "event", "rank": None, "text": "node-7 is lost"} and said == line
    assert cluster.calls == [("logs", selection, "-f" in options), "status"]


def test_scale_asks_for_the_size(record, on, capsys):
    cluster = on(Cluster(RUNNING))
    assert cli.run(["scale", NAME, "--nodes", "3"]) == 0
    assert cli.run(["scale", NAME, "--nodes", "2", "--min-nodes", "1", "--json"]) == 0
    asked, told = capsys.readouterr().out.split("\n", 1)
    assert asked.startswith("requested 3 nodes;") and json.loads(told) == {"job": NAME, "nodes": 2}
    assert cluster.calls == [("scale", 3, None), ("scale", 2, 1)]


def test_cancel_ends_a_job_once(record, on, capsys, monkeypatch):
    finished = []
    monkeypatch.setattr(tracking, "finish", lambda bundle, state, failure=None: finished.append(state))
    cluster = on(Cluster(RUNNING))
    assert cli.run(["cancel", NAME]) == 0
    assert capsys.readouterr().out.startswith("cancelled  cancelled by ")
    assert cli.run(["cancel", NAME, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    assert cluster.calls.count("cancel") == 1 and finished == [JobState.CANCELLED]


@pytest.mark.parametrize(
    "words",
    [["status"], ["logs"], ["events"], ["wait"], ["cancel"], ["scale", "--nodes", "2"]],
    ids=lambda words: words[0],
)
def test_a_job_that_was_never_launched_and_one_whose_cluster_refuses_are_problems(bundle, on, capsys, words):
    assert cli.run([*words, NAME]) == 2
    assert capsys.readouterr().err.startswith("E705")
    registry.record(bundle, handle_of(bundle.directory), "ada")
    on(Cluster(refuses=Problem("E343", "cluster.kube_context", "the cluster rejects your credentials")))
    assert cli.run([*words, NAME]) == 2
    assert capsys.readouterr().err.startswith("E343")


def test_launch_returns_once_a_job_elsewhere_is_submitted(bundle, on, capsys):
    cluster = on(Cluster(QUEUED))
    assert cli.run(["launch", NAME]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"submitted HyperPodPyTorchJob/{NAME} (namespace team, context prod)"
    assert any(line.startswith(f"recipes logs -f results/{NAME}") for line in out)
    assert cluster.calls == ["submit"] and registry.submitted(bundle.directory).handle.uid == "7-8-9"


@pytest.mark.parametrize("status", [RUNNING, FAILED], ids=["runs", "failed"])
def test_launching_the_same_bundle_again_says_that_nothing_was_submitted(bundle, on, capsys, status):
    on(Cluster(status))
    assert cli.run(["launch", NAME]) == 0
    first = registry.submitted(bundle.directory)
    capsys.readouterr()
    assert cli.run(["launch", NAME]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "was already submitted from this bundle; nothing was submitted" in out[0]
    if status is FAILED:
        assert out[1].startswith("failed") and out[2].startswith(f"recipes launch --again results/{NAME}")
        first = replace(first, ended=FAILED, is_closed=True)
    assert registry.submitted(bundle.directory) == first


def test_a_job_that_succeeded_is_launched_again_only_where_that_is_asked_for(bundle, on, capsys, monkeypatch):
    finished = []
    monkeypatch.setattr(tracking, "finish", lambda bundle, state, failure=None: finished.append(state))
    cluster = on(Cluster(SUCCEEDED))
    assert cli.run(["launch", NAME]) == 0
    first = registry.submitted(bundle.directory)
    assert cli.run(["launch", NAME]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"E715 results/{NAME}\n") and "has succeeded" in told and "--again" in told
    assert registry.submitted(bundle.directory) == replace(first, ended=SUCCEEDED, is_closed=True)
    assert finished == [JobState.SUCCEEDED] and cluster.calls == ["submit", "status"]
    cluster.statuses = [RUNNING]
    assert cli.run(["launch", NAME, "--again"]) == 0
    assert cluster.calls == ["submit", "status", "clear", "submit"]
    anew = registry.submitted(bundle.directory)
    assert anew.ended is None and not anew.is_closed


def test_a_job_that_may_not_be_launched_again_keeps_its_record(bundle, on, capsys):
    cluster = on(Cluster(SUCCEEDED))
    assert cli.run(["launch", NAME]) == 0
    cluster.clear = SageMakerBackend().clear
    assert cli.run(["launch", NAME, "--again"]) == 2
    assert capsys.readouterr().err.startswith("E716 job") and cluster.calls == ["submit", "status"]
    assert registry.submitted(bundle.directory).ended == SUCCEEDED


def test_a_job_that_still_runs_or_was_never_launched_takes_again_as_well(bundle, on):
    cluster = on(Cluster(RUNNING))
    for _ in range(2):
        assert cli.run(["launch", NAME, "--again"]) == 0
    assert "clear" not in cluster.calls


@pytest.mark.parametrize(("last", "code"), [(SUCCEEDED, 0), (FAILED, 3)], ids=["succeeded", "failed"])
def test_with_wait_a_launch_follows_to_the_end(bundle, on, capsys, last, code):
    on(Cluster(QUEUED, RUNNING, last))
    assert cli.run(["launch", NAME, "--wait"]) == code
    told = capsys.readouterr()
    assert QUEUED.message in told.out and "hello" in told.out.splitlines()
    assert told.out.splitlines()[-1] == f"logs: recipes logs results/{NAME}"
    assert last.state.value in (told.out + told.err)
    assert registry.submitted(bundle.directory).ended == last


def test_the_log_of_a_job_that_ended_before_it_was_seen_to_run_is_shown(bundle, on, capsys):
    cluster = on(Cluster(QUEUED, FAILED))
    assert cli.run(["launch", NAME, "--wait"]) == 3
    assert ("logs", RANK_0, False) in cluster.calls and "hello" in capsys.readouterr().out.splitlines()


def test_a_log_that_cannot_be_read_hides_no_end(bundle, on, capsys):
    class Mute(Cluster):
        def logs(self, handle, selection=None, *, follow):
            raise fail("E344", "cluster.namespace", "pods/log is forbidden")

    on(Mute(RUNNING, FAILED))
    assert cli.run(["launch", NAME, "--wait"]) == 3
    told = capsys.readouterr()
    assert "pods/log is forbidden" in told.err and FAILED.message in told.err
    assert registry.submitted(bundle.directory).ended == FAILED


@pytest.mark.slow
def test_launches_of_one_bundle_take_turns(bundle, on, capsys):
    class Slow(Cluster):
        now = most = 0

        def submit(self, bundle):
            self.now += 1
            self.most = max(self.most, self.now)
            time.sleep(0.05)
            handle = super().submit(bundle)
            self.now -= 1
            return handle

    cluster = on(Slow(QUEUED))
    threads = [threading.Thread(target=lambda: launch.launch(bundle, "k8s")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (cluster.calls.count("submit"), cluster.most) == (4, 1)
    out = capsys.readouterr().out
    assert out.count("submitted HyperPod") == 1 and out.count("was already submitted") == 3


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ((), [JobState.FAILED]),
        ((RUNNING,), []),
        ((SUCCEEDED,), [JobState.SUCCEEDED]),
        ((DELETED,), [JobState.FAILED]),
    ],
    ids=["first", "runs", "has-ended", "deleted"],
)
def test_a_launch_that_is_refused_does_not_end_the_run_of_a_job_that_goes_on(bundle, monkeypatch, statuses, told):
    if statuses:
        registry.record(bundle, handle_of(bundle.directory), "ada")

    class Refusing(Cluster):
        def submit(self, bundle):
            raise fail("E342", "cluster.kube_context", "no answer")

    ends = []
    monkeypatch.setattr(tracking, "finish", lambda bundle, state, failure=None: ends.append(state))
    with pytest.raises(ProblemsFound, match="E342"):
        pipeline.submit(bundle, Refusing(*statuses))
    assert ends == told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_a_job_elsewhere_alone(bundle, on, capsys, number, code):
    class Interrupting(Cluster):
        def logs(self, handle, selection=None, *, follow):
            signal.raise_signal(number)
            yield "never read"

    cluster = on(Interrupting(RUNNING))
    before = signal.getsignal(number)
    assert cli.run(["launch", NAME, "--wait"]) == code
    assert signal.getsignal(number) is before
    told = capsys.readouterr()
    assert "detached; the job keeps running" in told.err and f"recipes cancel results/{NAME}" in told.out
    assert "cancel" not in cluster.calls


@pytest.mark.parametrize(("words", "code"), [((), 0), (("wait=true",), 3)], ids=["returns", "waits"])
def test_main_follows_where_it_is_asked_to(tmp_path, monkeypatch, on, with_rendering, words, code):
    monkeypatch.chdir(tmp_path)
    with_rendering(Cluster(QUEUED, FAILED))
    assert launch.main([*MAIN, *words]) == code


@pytest.fixture
def with_rendering(on):
    """Return a function that puts a cluster in place of every backend but for what k8s itself renders."""
    real = backend_registry.load_backend("k8s")

    def put(cluster):
        cluster.check, cluster.render = real.check, real.render
        return on(cluster)

    return put


def test_a_server_dry_run_asks_the_cluster_and_submits_nothing(tmp_path, monkeypatch, capsys, with_rendering):
    monkeypatch.chdir(tmp_path)
    cluster = with_rendering(Cluster(refuses=Problem("E350", "manifests/job.yaml", "unknown field")))
    assert launch.main([*MAIN, "server_dry_run=true"]) == 2
    assert "E350" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    cluster = with_rendering(Cluster())
    assert launch.main([*MAIN, "server_dry_run=true"]) == 0
    assert cluster.calls == ["validate"] and "next: recipes launch results/" in capsys.readouterr().out
    (written,) = listing.listing(Path("results"))
    assert written.record is None


def test_this_machine_has_no_server_to_ask(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert launch.main(["server_dry_run=true"]) == 2
    assert capsys.readouterr().err.startswith("E416") and list(tmp_path.iterdir()) == []


def test_local_events_are_those_of_the_last_launch_until_its_end(tmp_path):
    earlier = Job(tmp_path / "run", launched=1000.0)
    earlier.end(state="failed")
    job = Job(tmp_path / "run", launched=2000.0)
    job.start([0])
    job.event("fault", node=0, cause="its agent ended", message="node 0: its agent ended")
    job.end()
    handle = JobHandle("local", "rehearsed", tmp_path)
    events = list(LocalBackend().events(handle, follow=True))
    assert events[0].kind == "launched" and events[0].time_s >= 2000.0
    assert [(event.kind, event.about) for event in events if event.is_warning] == [("fault", "node 0")]
    assert (events[-1].kind, events[-1].message) == ("ended", "succeeded")
    starting = next(event for event in events if event.kind == "starting")
    assert "nodes 0" in starting.message


def test_a_job_that_cannot_be_recorded_was_submitted_all_the_same(bundle, on, capsys, monkeypatch):
    on(Cluster(RUNNING))

    def full(folder, job):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(registry, "write", full)
    assert cli.run(["launch", NAME]) == 2
    told = capsys.readouterr().err
    assert "E710" in told and f"the job was submitted as {NAME}" in told and "nothing was done" not in told


FAILURES = {
    "refused": (fail("E342", "cluster.kube_context", "no answer"), True),
    "left-something": (fail("E352", "manifests/job.yaml", "could not be removed"), False),
    "rolled-back": (Interrupted(is_rolled_back=True), True),
    "cut-short": (KeyboardInterrupt(), False),
}


@pytest.mark.crossed
@pytest.mark.parametrize("was_submitted", [False, True], ids=["first", "again"])
@pytest.mark.parametrize(("failure", "is_restored"), FAILURES.values(), ids=FAILURES)
def test_what_is_about_to_be_submitted_is_recorded_until_nothing_of_it_is_left(
    bundle, failure, is_restored, was_submitted, monkeypatch
):
    monkeypatch.setattr(registry, "_now", lambda: "2026-01-02T03:04:05+00:00")  # the last request's time is recorded
    before = registry.record(bundle, handle_of(bundle.directory), "ada") if was_submitted else None
    seen = []

    class Failing(Cluster):
        def intent(self, bundle, known):
            assert known == (before and before.handle)
            return handle_of(bundle.directory, uid=None)

        def submit(self, bundle):
            seen.append(registry.read(bundle.directory))
            raise failure

    with pytest.raises(type(failure)):
        pipeline.submit(bundle, Failing(DELETED))
    assert [(each.is_submitted, each.handle.uid, each.digest) for each in seen] == [(False, None, bundle.digest)]
    assert registry.read(bundle.directory) == (before if is_restored else seen[0])


def test_a_record_of_an_earlier_version_is_read(bundle, record):
    place = bundle.directory / JOB_FILE
    fields = json.loads(place.read_text())
    del fields["is_submitted"], fields["native"]["server"]
    place.write_text(json.dumps(fields))
    assert registry.read(bundle.directory) == record


def test_a_deleted_job_is_asked_for_again_and_keeps_no_end(record):
    assert registry.status(record, Cluster(DELETED)) == DELETED
    fresh = registry.submitted(record.handle.bundle_dir)
    assert fresh.ended is None and registry.status(fresh, Cluster(RUNNING)) == RUNNING


def test_an_end_that_an_earlier_version_recorded_as_gone_is_read_as_none(bundle, record):
    place = bundle.directory / JOB_FILE
    gone = {**asdict(DELETED), "state": "gone", "faulty_nodes": []}
    place.write_text(json.dumps({**json.loads(place.read_text()), "ended": gone}))
    assert registry.read(bundle.directory) == record


@pytest.mark.parametrize(
    ("code", "is_again", "passes"), [("E414", True, True), ("E414", False, False), ("E341", True, False)]
)
def test_only_a_state_that_cannot_be_read_is_replaced_by_another_launch(monkeypatch, code, is_again, passes):
    def finished(*_):
        raise fail(code, "state.json", "is damaged")

    monkeypatch.setattr(launching.registry, "finished", finished)
    with contextlib.nullcontext() if passes else pytest.raises(ProblemsFound, match=code):
        launching._settle_finished(SimpleNamespace(directory=None), None, is_again=is_again)


def test_what_a_session_masks_leaves_the_names_of_a_job_record(tmp_path):
    handle = JobHandle("k8s", "my-team-run1-u84op", tmp_path, context="arn:aws:eks:us-west-2:1:cluster/a")
    (tmp_path / "job.json").write_text("{}")
    job = JobRecord(
        handle, "d", "2026-01-01T00:00:00+00:00", "ada", ended=JobStatus(JobState.FAILED, 0, "my-team-run1 failed")
    )
    redaction.learn({"password": "my-team-run1"})
    registry.write(tmp_path, job)
    assert registry.read(tmp_path).handle == handle
    assert "my-team" not in json.loads((tmp_path / "job.json").read_text())["ended"]["message"]
