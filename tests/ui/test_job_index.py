"""The index of a results folder: what it lists, what it notices, and what a look costs."""

import json
import os
import time

import pytest
from result_folders import a_bundle, a_job

from launcher.api import job_index
from launcher.api.job_index import JobIndex
from launcher.bundle.store import NAME_FILE
from launcher.job_store import listing, registry
from launcher.model.job_spec import JobState, JobStatus
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
    assert job_index.recorded_goodput(tmp_path) == 0.75
    (tmp_path / "run" / "timeline.json").write_text("{")
    assert job_index.recorded_goodput(tmp_path) is None


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
