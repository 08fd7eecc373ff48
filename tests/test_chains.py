"""The jobs that a bundle waits for: found by name, refused with the reason, left out once they ended as required."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bundle import store as bundles
from launcher.job_store import chains, job_names, registry
from launcher.model.job_spec import Bundle, JobHandle, JobState, JobStatus

RUNNING = JobStatus(JobState.RUNNING, 1)
FAILED = JobStatus(JobState.FAILED, 0, "exit code 3")


class Queue:
    """A cluster that knows one job, in a state that a test sets."""

    name = "slurm"

    def __init__(self, status, intent=None):
        self.found, self.given = status, intent

    def status(self, _handle):
        return self.found

    def intent(self, _bundle, _user):
        return self.given


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return the folder of the bundles, beside which the commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def made(results: Path, name: str, handle: JobHandle | None = None, **config) -> Bundle:
    """Write a bundle and, with a handle, the record of its job."""
    folder = results / name
    folder.mkdir(parents=True)
    (folder / "bundle.json").write_text("{}")
    bundle = Bundle(name, folder, {}, "0" * 64, config)
    if handle:
        registry.record(bundle, replace(handle, bundle_dir=folder), "ada")
    return bundle


HANDLE = JobHandle("slurm", "41", Path("results/first"), context="here")


def problem_of(bundle: Bundle, queue: Queue):
    (problem,) = chains.queued(bundle, queue).problems
    return problem


@pytest.mark.parametrize("place", ["results/first", "first", "mine"])
def test_a_running_job_is_awaited_by_its_folder_its_name_and_the_user_s_name(results, place):
    made(results, "first", HANDLE)
    job_names.give(results / "first", "mine")
    found = chains.queued(made(results, "second", after=f"any:{place}"), Queue(RUNNING))
    assert [(each.condition, each.handle.job_name) for each in found.after] == [("any", "41")]
    assert (found.problems, found.bundle.job_name) == ((), "second")


def test_a_job_beside_the_bundle_is_found_from_any_folder(results, tmp_path, monkeypatch):
    made(results, "first", HANDLE)
    bundle = made(results, "second", after="first")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert len(chains.queued(bundle, Queue(RUNNING)).after) == 1


@pytest.mark.parametrize(
    ("condition", "state", "is_refused"),
    [
        ("ok", JobState.SUCCEEDED, False),
        ("ok", JobState.FAILED, True),
        ("notok", JobState.FAILED, False),
        ("notok", JobState.SUCCEEDED, True),
        ("any", JobState.CANCELLED, False),
    ],
)
def test_a_job_that_has_ended_is_left_out_or_refused(results, condition, state, is_refused):
    made(results, "first", HANDLE)
    found = chains.queued(made(results, "second", after=f"{condition}:first"), Queue(JobStatus(state, 0)))
    assert found.after == ()
    assert [problem.code for problem in found.problems] == (["E453"] if is_refused else [])


def test_a_refusal_names_how_the_job_ended_and_two_ways_out(results):
    made(results, "first", HANDLE)
    problem = problem_of(made(results, "second", after="first"), Queue(FAILED))
    assert problem.message == "has ended as failed: exit code 3; the job would stay pending for ever"
    assert (problem.path, problem.value) == ("after", "first")
    assert problem.remedy == "recipes launch results/first, or after=any:first"
    made(results, "other", replace(HANDLE, job_name="42"))
    bare = problem_of(made(results, "third", after="other"), Queue(JobStatus(JobState.FAILED, 0, "failed")))
    assert bare.message.startswith("has ended as failed;")


@pytest.mark.parametrize(("message", "shown"), [("gone from Slurm", "gone from Slurm"), ("", "it is deleted")])
def test_a_deleted_job_cannot_be_awaited(results, message, shown):
    made(results, "first", HANDLE)
    problem = problem_of(made(results, "second", after="first"), Queue(JobStatus(JobState.DELETED, 0, message)))
    assert (problem.code, problem.message) == ("E451", f"cannot be waited for: {shown}")
    assert problem.remedy == "recipes launch results/first"


def test_a_job_that_was_never_launched_and_one_that_does_not_exist(results):
    made(results, "first")
    problem = problem_of(made(results, "second", after="first"), Queue(RUNNING))
    assert (problem.code, problem.message) == ("E451", "was never launched")
    assert problem.remedy == "recipes launch results/first"
    problem = problem_of(made(results, "third", after="absent"), Queue(RUNNING))
    assert (problem.code, problem.remedy) == ("E451", "recipes jobs lists them")


@pytest.mark.parametrize(
    ("other", "intent", "place"),
    [
        (replace(HANDLE, backend="k8s"), None, "k8s, here"),
        (HANDLE, replace(HANDLE, context="there"), "slurm, here"),
        (replace(HANDLE, server="https://one"), HANDLE, "slurm, here, https://one"),
    ],
    ids=["backend", "context", "server"],
)
def test_a_job_of_another_cluster_is_refused(results, other, intent, place):
    made(results, "first", other)
    problem = problem_of(made(results, "second", after="first"), Queue(RUNNING, intent))
    assert problem.code == "E452" and f"({place})" in problem.message


def test_a_job_of_the_same_place_is_awaited_and_all_problems_are_named_at_once(results):
    made(results, "first", HANDLE)
    bundle = made(results, "second", after=["first", "absent", "any:nowhere"])
    found = chains.queued(bundle, Queue(RUNNING, HANDLE))
    assert len(found.after) == 1 and [problem.value for problem in found.problems] == ["absent", "nowhere"]
    assert bundles.config_of(bundle)["after"][0] == "first"
