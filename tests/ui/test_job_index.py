"""The index of a results folder: what it lists, what it notices, and what a look costs."""

import json
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from blocking import ending
from result_folders import RECIPE, a_bundle, a_job

from launcher.api import job_index
from launcher.api.job_index import IndexedJob, JobIndex
from launcher.bundle.store import NAME_FILE
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.job_store import listing, registry
from launcher.model import backend_registry
from launcher.model.job_spec import JobHandle, JobState, JobStatus
from launcher.runtime.durable import write_text


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.setattr(job_index, "_LOOK_S", 0.0)
    monkeypatch.setattr(job_index, "_SEARCH_S", 0.0)
    return JobIndex(tmp_path / "results")


def names(index):
    return [row.name for row in index.rows()]


def test_a_missing_folder_has_no_jobs(index):
    assert index.rows() == ()
    assert index.find("x") is None


def test_jobs_are_listed_latest_first_with_what_their_folders_tell(index):
    a_job(index.results, "old", submitted="2026-01-01T00:00:00+00:00", message="done")
    a_job(index.results, "new", submitted="2026-01-01T02:30:00+02:00", state=None, user="bob")
    dry = a_bundle(index.results, "dry", created="2025-01-01T00:00:00+00:00")
    (dry / "plan.json").write_text(json.dumps({"backend": "local", "scales": [{"nodes": 1}, {"nodes": 2}]}))
    (index.results / "mlartifacts").mkdir()
    assert names(index) == ["new", "old", "dry"]
    new, old, dry = index.rows()
    assert (new.state, new.is_open, new.user, new.cluster) == ("unknown", True, "bob", "local")
    assert (old.state, old.ended.message, old.time) == ("succeeded", "done", "2026-01-01T00:00:00+00:00")
    assert (dry.state, dry.record, dry.sizes) == ("rendered", None, (1, 2))


def test_a_row_has_the_values_of_record_and_plan(index):
    folder = a_job(index.results, "a", backend="contract", state=None)
    record = registry.JobRecord(JobHandle("contract", "a", folder), "0", "2026-01-02T03:04:05+00:00", "ada")
    plan = {"backend": "local", "recipe": RECIPE, "instance_type": "ml.p5.48xlarge", "scales": [{"nodes": 3}]}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / NAME_FILE).write_text("n" * 301)
    expected = IndexedJob(
        "a",
        folder,
        "n" * 300,
        record,
        None,
        "sm_local",
        RECIPE,
        "2026-01-02T03:04:05+00:00",
        "ada",
        "ml.p5.48xlarge",
        (3,),
    )
    assert index.rows() == index.open == (expected,)
    assert expected.record.handle.bundle_dir == folder
    bundle = a_bundle(index.results, "b", created="2026-01-02T05:04:05.5+02:00")
    expected = IndexedJob("b", bundle, "b", None, None, "local", RECIPE, "2026-01-02T03:04:05+00:00", "ada")
    assert index.find("b") == expected
    assert index.open == (index.find("a"),)


def test_times_are_in_utc_wherever_the_machine_is(index):
    a_bundle(index.results, "a", created="2026-01-02T03:04:05+00:00")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        (row,) = index.rows()
    time.tzset()
    assert row.time == "2026-01-02T03:04:05+00:00"


@pytest.mark.parametrize(
    ("plan", "manifest", "expected"),
    [
        ("", "{}", ("", "", "", "", None, ())),
        ("[1]", "[]", ("", "", "", "", None, ())),
        ('{"backend": "unknown", "recipe": null}', '{"created": "yesterday"}', ("", "", "", "", None, ())),
        ('{"backend": ["local"], "instance_type": 5}', '{"created": 5, "user": null}', ("", "", "", "", None, ())),
        ('{"backend": "ray", "scales": 3}', '{"user": "ada"}', ("ray", "", "", "", None, ())),
        ('{"recipe": "a/b", "scales": [{}]}', '{"created": "x", "user": "ada"}', ("", "a/b", "", "ada", None, ())),
        ("{}", '{"created": "0001-01-01T00:00:00+14:00"}', ("", "", "", "", None, ())),
        ("{}", "{", ("", "", "", "", None, ())),
    ],
    ids=["empty", "lists", "unknown", "types", "scales", "sizes", "before-time", "cut"],
)
def test_missing_values_of_a_damaged_bundle_are_unknown(index, plan, manifest, expected):
    folder = a_bundle(index.results, "a")
    (folder / "plan.json").write_text(plan)
    (folder / "bundle.json").write_text(manifest)
    assert index.rows() == (IndexedJob("a", folder, "a", None, None, *expected),)


def test_an_adopted_job_has_no_manifest_and_other_folders_are_no_jobs(index):
    folder = a_job(index.results, "adopted", backend="k8s", user="bob")
    for name in ("plan.json", "bundle.json"):
        (folder / name).unlink()
    (index.results / "other").mkdir()
    (folder / "adopted.json").write_text("{}")
    (row,) = index.rows()
    assert (row.name, row.cluster, row.recipe, row.user) == ("adopted", "k8s", "", "bob")
    (folder / "adopted.json").unlink()
    assert index.rows() == ()


@pytest.mark.parametrize("name", ["job.json", "run/metrics.jsonl", "trials.jsonl"])
def test_a_file_of_another_kind_is_a_problem_and_is_not_read(index, tmp_path, name):
    folder = a_job(index.results, "a")
    a_job(index.results, "b")
    (folder / "run").mkdir()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ProblemsFound, match="E711"):
        index.find("a")
    row = next(each for each in index.rows() if each.name == "a")
    assert (row.problem.code, row.problem.path) == ("E711", str(folder / name))
    assert row.problem.message == "is not a file of its own, so it is not read"
    assert row == IndexedJob("a", folder, "a", None, row.problem, "", "", "", "")
    assert index.find("b").state == "succeeded"


def test_damage_that_nothing_expects_is_a_problem_of_its_job_only(index):
    folder = a_job(index.results, "a")
    a_job(index.results, "b", submitted="2027-01-01T00:00:00+00:00")
    record = json.loads((folder / "job.json").read_text())
    record["native"]["namespace"] = {}  # cannot be part of a place
    write_text(folder / "job.json", json.dumps(record))
    healthy, damaged = index.rows()
    assert healthy.name == "b"
    assert damaged == IndexedJob("a", folder, "a", None, damaged.problem, "", "", "", "")
    assert (damaged.problem.code, damaged.problem.path) == ("E711", str(folder / "job.json"))
    assert "TypeError" in damaged.problem.message


def test_every_change_is_noticed_and_nothing_else_changes_the_version(index):
    folder = a_job(index.results, "a", state=None)
    assert index.find("a").is_open
    version = index.version
    index.rows()
    index.rows()
    assert index.version == version
    record = registry.read(folder)
    registry.write(
        folder, registry.JobRecord(record.handle, "0", record.submitted, "ada", ended=JobStatus(JobState.FAILED, 0))
    )
    assert index.find("a").state == "failed"
    write_text(folder / NAME_FILE, "nightly\n")
    index.rows()
    assert index.find("nightly").name == "a"
    assert index.version > version
    a_job(index.results, "b")
    assert index.find("b") is not None
    os.rename(folder, index.results / ".gone")
    index.rows()
    assert index.find("a") is None


def test_a_damaged_record_is_a_job_with_a_problem(index):
    folder = a_job(index.results, "a")
    index.rows()
    write_text(folder / "job.json", "{")
    index.rows()
    (row,) = index.rows()
    assert (row.problem.code, row.state) == ("E711", "unknown")


@pytest.mark.parametrize("name", ["", ".", "..", "../results/a", "/etc", ".hidden", "a/../a", "a\0", "%2e%2e"])
def test_only_a_name_of_the_folder_finds_a_job(index, name):
    a_job(index.results, "a")
    a_job(index.results, ".hidden")
    index.rows()
    assert index.find(name) is None


def test_a_folder_goes_before_a_given_name(index):
    a_job(index.results, "a")
    (a_job(index.results, "b") / NAME_FILE).write_text("a")
    (a_job(index.results, "c") / NAME_FILE).write_text("nightly")
    assert [index.find(name).name for name in ("a", "b", "nightly")] == ["a", "b", "c"]
    a_job(index.results, "line\nfeed")
    assert set(names(index)) == {"a", "b", "c"}
    assert index.find("line\nfeed") is None and index.find("") is None


def test_to_find_a_job_changes_nothing_else(index, monkeypatch):
    a_job(index.results, "a")
    a_job(index.results, "b")
    index.rows()
    version = index.version
    monkeypatch.setattr(job_index, "_LOOK_S", 1e9)
    assert index.find("a").name == "a"
    assert (index.version, set(names(index))) == (version, {"a", "b"})


def test_to_find_a_job_that_has_changed_reads_no_other_one(index, monkeypatch):
    a, b = a_job(index.results, "a"), a_job(index.results, "b")
    os.utime(b, ns=(10**18, 10**18))
    index.rows()
    monkeypatch.setattr(job_index, "_SEARCH_S", 1e9)
    (a / NAME_FILE).write_text("nightly")
    (b / NAME_FILE).write_text("daily")
    os.utime(b, ns=(10**18, 10**18))
    assert index.find("a").title == "nightly"
    assert {row.title for row in index.rows()} == {"nightly", "b"}


def test_pages_that_ask_together_share_a_look(tmp_path, monkeypatch):
    now_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], time_ns=lambda: 10**19)  # no folder is young
    monkeypatch.setattr(job_index, "time", clock)
    index = JobIndex(tmp_path)
    assert (index.version, index.rows(), index.open) == (0, (), ())
    folder = a_job(tmp_path, "a")
    assert index.rows() == ()
    now_s[0] = 100.5
    assert names(index) == ["a"] and index.version == 1
    write_text(folder / NAME_FILE, "nightly")
    now_s[0] = 105.0
    assert index.rows()[0].title == "a"  # an ended job is looked at every 5 s
    now_s[0] = 105.5
    assert index.rows()[0].title == "nightly"
    now_s[0] = 110.25
    write_text(folder / NAME_FILE, "daily")
    assert index.rows()[0].title == "nightly"


def test_a_folder_that_changed_within_a_tick_of_its_clock_is_read_again(index, monkeypatch):
    clock = SimpleNamespace(monotonic=time.monotonic, time_ns=lambda: 5_000_000_000)
    monkeypatch.setattr(job_index, "time", clock)
    folder = a_job(index.results, "a")
    for changed_ns, seen in ((4_000_000_000, ["one", "two"]), (3_999_999_999, ["one", "one"])):
        titles = []
        for title in ("one", "two"):
            (folder / NAME_FILE).write_text(title)
            os.utime(folder, ns=(changed_ns, changed_ns))
            titles.append(index.rows()[0].title)
        assert titles == seen


def test_the_listing_of_commands_has_the_same_jobs(index):
    for number in range(3):
        a_job(index.results, f"job-{number}", submitted=f"2026-01-0{number + 1}T00:00:00+00:00")
    every = listing.listing(index.results)
    assert [each.name for each in every][::-1] == names(index)
    assert [each.record for each in every][::-1] == [row.record for row in index.rows()]


def test_a_goodput_is_read_from_the_head_of_a_report(tmp_path):
    (tmp_path / "run").mkdir()
    report = {"launched": 1.0, "failure": None, "goodput": 0.75, "steps": [{"step": 1}] * 10_000}
    (tmp_path / "run" / "timeline.json").write_text(json.dumps(report, indent=1))
    assert job_index.recorded(tmp_path, "goodput") == 0.75
    (tmp_path / "run" / "timeline.json").write_text("{")
    assert job_index.recorded(tmp_path, "goodput") is None


@pytest.mark.parametrize(
    ("report", "goodput", "wall_s"),
    [
        ({"goodput": 0, "wall_s": 90.5, "steps": []}, 0.0, 90.5),
        ({"wall_s": 7, "goodput": None, "steps": []}, None, 7.0),
        ({"steps": ["x" * 4096], "goodput": 1, "wall_s": 1, "end": 0}, None, None),  # after the head
        ({"steps": ["x" * 4000], "goodput": 1, "wall_s": 1, "end": 0}, 1.0, 1.0),
        ({"goodput": [], "wall_s": "5 s", "end": 0}, None, None),
        ({}, None, None),
        ('{"goodput": ' + "[" * 4000, None, None),
        (" " * 4082 + '"goodput": 12.5, "end": 0}', None, None),  # its first digits only
        ('{"wall_s": 1e400, "goodput": 1' + "0" * 400 + ",", None, math.inf),
    ],
    ids=["both", "one", "late", "early", "types", "none", "deep", "cut", "large"],
)
def test_the_totals_of_a_report_are_numbers_of_its_head(tmp_path, report, goodput, wall_s):
    assert job_index.recorded(tmp_path, "wall_s") is None
    (tmp_path / "run").mkdir()
    text = report if isinstance(report, str) else json.dumps(report)
    (tmp_path / "run" / "timeline.json").write_text(text)
    assert (job_index.recorded(tmp_path, "goodput"), job_index.recorded(tmp_path, "wall_s")) == (goodput, wall_s)


def a_row(name, backend="local", ended=None, **native):
    handle = JobHandle(backend, name, Path("/results", name), **native)
    record = registry.JobRecord(handle, "0", "", "", ended=ended)
    return IndexedJob(name, handle.bundle_dir, name, record, None, "", "", "", "")


def test_the_place_of_a_job_is_what_answers_for_it(tmp_path):
    row = a_row("a", "k8s", context="east", namespace="team", server="https://1", uid="u", kind="PyTorchJob")
    assert job_index.place(row) == ("k8s", "east", "team", "https://1")
    bundle = IndexedJob("b", tmp_path, "b", None, None, "", "", "", "")
    assert job_index.place(bundle) is None
    assert [job_index.is_here(each) for each in (row, a_row("c"), bundle)] == [False, True, False]


def test_clusters_are_asked_for_the_statuses_of_open_jobs_only(tmp_path, monkeypatch):
    running = JobStatus(JobState.RUNNING, 2)

    class Cluster:
        def status(self, handle):
            if handle.job_name == "lost":
                raise fail("E999", "cluster", "does not answer")
            return running

    asked = []
    monkeypatch.setattr(backend_registry, "load_backend", lambda name: asked.append(name) or Cluster())
    failed = JobStatus(JobState.FAILED, 0)
    rows = [a_row("ended", ended=failed), a_row("open", "slurm"), a_row("lost", "k8s")]
    found = job_index.statuses([*rows, IndexedJob("dry", tmp_path / "dry", "dry", None, None, "", "", "", "")])
    assert found == {"ended": failed, "open": running, "lost": Problem("E999", "cluster", "does not answer")}
    assert asked == ["slurm", "k8s"]


def test_between_two_searches_new_removed_running_and_wanted_jobs_are_as_they_are_now(index, monkeypatch):
    monkeypatch.setattr(job_index, "_SEARCH_S", 1e9)
    running, ended = a_job(index.results, "running", state=None), a_job(index.results, "ended")
    monkeypatch.setattr(job_index, "_TICK_NS", -1_000_000_000_000)  # no folder is young
    assert set(names(index)) == {"running", "ended"}
    record = registry.read(running)
    end = registry.JobRecord(record.handle, "0", record.submitted, "ada", ended=JobStatus(JobState.FAILED, 0))
    registry.write(running, end)
    assert {row.name: row.state for row in index.rows()} == {"running": "failed", "ended": "succeeded"}
    registry.write(ended, registry.JobRecord(registry.read(ended).handle, "0", record.submitted, "ada"))
    assert index.find("ended").is_open
    a_job(index.results, "new")
    assert "new" in names(index)
    os.rename(running, index.results / ".gone")
    assert "running" not in names(index)
    assert index.find("running") is None


@pytest.mark.slow
def test_thousands_of_jobs_are_listed_fast_once_they_were_read(index):
    folder = a_job(index.results, "first")
    texts = {name: (folder / name).read_text() for name in ("plan.json", "bundle.json", "job.json")}
    for number in range(5000):
        each = index.results / f"job-{number}"
        each.mkdir()
        for name, text in texts.items():
            (each / name).write_text(text)
    time.sleep(1.1)  # younger folders are read again
    index.rows()
    began = time.process_time()
    assert len(index.rows()) == 5001
    assert time.process_time() - began < 0.3


def test_a_status_is_not_asked_of_a_job_with_a_pipe(index):
    folder = a_job(index.results, "a", state=None)
    a_job(index.results, "b", state=None)
    rows = index.rows()
    (folder / "run").mkdir()
    os.mkfifo(folder / "run" / "state.json")
    found = ending(lambda: job_index.statuses(rows), folder / "run" / "state.json")
    assert found["a"].code == "E711"
    assert found.keys() == {"a", "b"}
