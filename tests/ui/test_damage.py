"""Whatever is in a job's folder, every page opens, hides no other job, and shows neither secrets nor other files."""

import json
import os

import pytest
from launch_records import Job as Course
from result_folders import a_job
from starlette.testclient import TestClient

from launcher.model.job_spec import JobState
from launcher.ui.app import app_of
from launcher.ui.state import Ui

SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
PAGES = ("", "/plan", "/configuration", "/files", "/logs")


@pytest.fixture
def results(tmp_path):
    """Return a results folder with a good job and one that a test damages."""
    folder = tmp_path / "results"
    a_job(folder, "good", submitted="2026-02-01T00:00:00+00:00")
    course = Course(a_job(folder, "odd") / "run", nodes=2)
    course.start([0, 1])
    course.train(5)
    return folder


@pytest.fixture
def client(results):
    return TestClient(app_of(Ui.of(results, may_write=True)), raise_server_exceptions=False)


def assert_open(client):
    """Check that no page fails, and that the other job is listed."""
    for _ in range(2):
        jobs = client.get("/jobs")
        assert jobs.status_code == 200
        assert 'href="/jobs/good"' in jobs.text
    for path in (*(f"/jobs/odd{page}" for page in PAGES), "/parts/jobs/odd/logs", "/sweeps", "/compare?a=odd&b=good"):
        reply = client.get(path)
        assert reply.status_code < 500, (path, reply.text[-600:])


def with_fields(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"submitted": None},
        {"submitted": 5},
        {"submitted": "0001-01-01T00:00:00+23:00"},
        {"submitted": "9999-12-31T23:59:59-23:00"},
        {"user": ["x"]},
        {"user": "\ud800"},
        {"native": {"native_id": None, "kind": None, "namespace": None, "context": [1], "uid": None, "server": None}},
        {"ended": {"state": "failed", "nodes": 1, "faulty_nodes": [[1]]}},
        {"backend": "nothing"},
        {"ended": None, "job_name": 5},
    ],
)
def test_a_record_of_any_values_hides_no_other_job(client, results, fields):
    with_fields(results / "odd" / "job.json", **fields)
    assert_open(client)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 100_000, "\x00" * 1000, '{"scales": [null]}'),
        '{"initial_nodes": 1, "scales": [{"nodes": 1, "samples_per_rank": {"small": 1}}]}',
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        *("plan.json", "job.json", "bundle.json", "reproduce.json"),
        *("run/state.json", "run/events.jsonl", "run/metrics.jsonl", "run/timeline.json"),
    ],
)
def test_a_damaged_file_hides_no_other_job(client, results, name, text):
    (results / "odd" / name).write_text(text)
    assert_open(client)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("events.jsonl", {"time": 1e12, "kind": "fault", "message": "x"}),
        ("events.jsonl", {"time": float("nan"), "kind": "fault", "message": "x"}),
        ("events.jsonl", {"time": 1.7e9, "kind": "launched", "nodes": 1, "sizes": "x", "message": ""}),
        ("events.jsonl", {"time": 1.7e9, "kind": "launched", "nodes": 1, "sizes": [None], "message": ""}),
        ("metrics.jsonl", {"step": 1, "samples": 10**400, "time": 1.7e9, "attempt": 0, "loss": 1, "cursor": 1}),
    ],
)
def test_odd_numbers_of_a_run_leave_the_rest_readable(client, results, file, line):
    with (results / "odd" / "run" / file).open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    assert_open(client)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize(
    "name",
    [
        *("name.txt", "job.json", "plan.json", "recipe.yaml", "reproduce.json"),
        *("run/metrics.jsonl", "run/events.jsonl", "run/state.json", "run/timeline.json"),
    ],
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/etc/passwd", path), os.mkdir])
def test_what_is_no_file_of_its_own_is_not_read(client, results, name, make):
    path = results / "odd" / name
    path.unlink(missing_ok=True)
    make(path)
    assert_open(client)
    for page in ("/jobs", "/jobs/odd"):
        assert "root:" not in client.get(page).text


def test_a_manifest_cannot_name_a_file_outside_of_its_folder(client, results):
    (results / "outside.txt").write_text("outside")
    with_fields(results / "odd" / "bundle.json", files={"../outside.txt": "0", "plan.json": "0"})
    reply = client.get("/jobs/odd/files?name=../outside.txt")
    assert "E703" in reply.text and ">outside<" not in reply.text


@pytest.mark.slow
def test_a_name_that_is_no_text_hides_no_other_job(client, results):
    os.mkdir(os.fsencode(results) + b"/bad\xff")
    (results / "odd" / "name.txt").write_text("long" * 100_000)
    assert_open(client)
    assert len(client.get("/jobs").text) < 50_000


@pytest.mark.slow
def test_secrets_are_masked_wherever_they_are(client, results):
    folder = a_job(results, "leaky", state=JobState.FAILED, message=f"token={SECRET}", recipe=SECRET, user=SECRET)
    (folder / "name.txt").write_text(f"run {SECRET}")
    plan = json.loads((folder / "plan.json").read_text())
    notice = {"code": "N1", "message": f"password={SECRET}"}
    (folder / "plan.json").write_text(json.dumps(plan | {"notices": [notice], "nproc_per_node": 1, "elastic": None}))
    course = Course(folder / "run", nodes=1)
    course.start([0])
    course.train(3)
    course.event("fault", message=f"hub refused {SECRET}", node=0, cause="x")
    course.append("metrics.jsonl", step=3, time=course.now, attempt=0, further={f"loss {SECRET}": 1.0})
    for page in ("/jobs", *(f"/jobs/leaky{page}" for page in PAGES), "/compare?a=leaky&b=good", "/jobs?q=leaky"):
        assert SECRET[4:30] not in client.get(page).text, page


def test_an_action_asks_before_it_acts(client, results):
    form = {"content-type": "application/x-www-form-urlencoded"}
    asked = client.post("/jobs/odd/actions/rerun", content="allow_changes=1", headers=form)
    assert asked.status_code == 200
    assert 'name="confirmed"' in asked.text and 'name="allow_changes" value="1"' in asked.text
    assert len(list(results.iterdir())) == 2


def test_pages_and_filters_that_do_not_exist_are_said(client):
    text = client.get("/jobs?page=99").text
    assert "1 to 2 of 2 jobs" in text
    text = client.get("/jobs?state=xyz").text
    assert '<option value="xyz" selected>' in text and "No job meets these filters" in text
