"""Whatever is in a job's folder, every page opens, hides no other job, and shows neither secrets nor other files."""

import json
import os
import re
import threading

import pytest
from background import await_true
from blocking import ending
from launch_records import Job as Course
from log_runs import a_run, log_path
from result_folders import a_job
from starlette.testclient import TestClient

from launcher.api import log_window, reproducing
from launcher.api.job import Job
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobState
from launcher.operator.snapshot import Attempt
from launcher.operator.worker_logs import worker_log
from launcher.ui import job_page
from launcher.ui.app import app_of
from launcher.ui.job_page import JobView
from launcher.ui.state import Ui

SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
PAGES = ("", "/plan", "/configuration", "/files", "/logs")
OF_ODD = (
    *("/jobs", *(f"/jobs/odd{page}" for page in PAGES), "/parts/jobs/odd/logs", "/sweeps", "/compare?a=odd&b=odd"),
    *("/compare?a=odd&b=good", "/compare?a=odd&b=training/tiny/tiny_lm_cpu", "/live/jobs/odd"),
)


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


@pytest.mark.parametrize(
    "name",
    [
        *("plan.json", "reproduce.json", "configs/config.yaml", "scripts/train.sh"),
        *("run/metrics.jsonl", "run/timeline.json", "run/operator.lock"),
    ],
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink(path.parents[2] / "outside", path)])
def test_no_page_reads_what_became_a_pipe_or_a_link_after_it_was_listed(client, results, name, make):
    (results / "outside").write_text('{"step": 1, "attempt": 0, "loss": 7654.25}\n')
    for named in ("configs/config.yaml", "scripts/train.sh"):
        (results / "odd" / named).parent.mkdir()
        (results / "odd" / named).write_text("a: 1\n")
    with_fields(results / "odd" / "bundle.json", files={"configs/config.yaml": "0", "scripts/train.sh": "0"})
    assert "odd" in client.get("/jobs").text
    path = results / "odd" / name
    path.unlink(missing_ok=True)
    make(path)
    for address in OF_ODD:
        reply = ending(lambda address=address: client.get(address), path)
        assert "7654" not in reply.text, address
        if "odd" in address:
            assert "E711" in reply.text and str(path) in reply.text, (address, reply.text[-900:])
            assert "remove it" in reply.text


@pytest.mark.parametrize("name", ["run", "run/logs", "configs"])
def test_no_page_reads_through_a_linked_folder(client, results, tmp_path, name):
    path = results / "odd" / name
    if path.exists():
        path.rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    for address in ("/jobs/odd", "/jobs/odd/logs", "/compare?a=odd&b=good"):
        reply = client.get(address)
        assert "E711" in reply.text and str(path) in reply.text, address


def test_a_page_that_is_followed_does_not_read_a_pipe(results):
    ui = Ui.of(results, may_write=False)
    view = JobView.shared(ui, ui.job("odd"))
    view.version()
    path = results / "odd" / "run" / "metrics.jsonl"
    path.unlink()
    os.mkfifo(path)
    for look in (view.version, view.parts):
        with pytest.raises(ProblemsFound, match="E711"):
            look()


def test_a_log_that_is_a_pipe_or_a_link_is_no_log(results):
    a_run(results / "odd", [(0,)])
    attempt = Attempt(0, 0, (0,), 0.0)
    path = log_path(results / "odd", 0, 0, 0, "stderr")
    assert worker_log(results / "odd" / "run", attempt, 0, 0, "stderr.log") == path
    path.rename(results / "outside.log")
    path.symlink_to(results / "outside.log")
    assert worker_log(results / "odd" / "run", attempt, 0, 0, "stderr.log") is None
    path.unlink()
    os.mkfifo(path)
    assert worker_log(results / "odd" / "run", attempt, 0, 0, "stderr.log") is None
    assert log_window.sources(Job(results / "odd"))
    node = results / "odd" / "run" / "logs" / "node-0"
    node.rename(results / "outside")
    node.symlink_to(results / "outside")
    assert log_window.sources(Job(results / "odd")) == ()


@pytest.mark.parametrize(
    ("text", "said"), [("", "is not valid JSON: Expecting value"), ("[]", "is damaged: TypeError")]
)
def test_a_damaged_plan_is_named_with_a_remedy_and_prints_no_traceback(client, results, capsys, text, said):
    path = results / "odd" / "plan.json"
    path.write_text(text)
    reply = client.get("/jobs/odd/plan")
    assert reply.status_code == 422
    assert str(path) in reply.text and said in reply.text
    assert "restore it from a copy, or launch the recipe as a new job" in reply.text
    assert capsys.readouterr().err == ""


def test_damaged_events_are_named_with_a_remedy(client, results, capsys):
    path = results / "odd" / "run" / "events.jsonl"
    with path.open("a") as lines:
        lines.write(json.dumps({"time": 1.7e9, "kind": "launched", "nodes": 1, "sizes": "x", "message": ""}) + "\n")
    text = client.get("/jobs/odd").text
    assert f"<code>{path}</code> is damaged: TypeError" in text
    assert "restore it from a copy, or remove it: the page shows the rest" in text
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["bundle.json", "run/state.json", "sweep.json", "job.json", "plan.json"])
def test_json_that_is_nested_too_deeply_is_named(client, results, capsys, name):
    (results / "odd" / name).write_text("[" * 100_000)
    addresses = ("/jobs", *(f"/jobs/odd{page}" for page in PAGES), "/sweeps", "/sweeps/odd")
    texts = [client.get(address).text for address in addresses]
    assert any(name.rpartition("/")[2] in text for text in texts[1:])
    assert capsys.readouterr().err == ""


def test_a_configuration_that_is_not_composed_yet_is_not_shown_as_empty(client, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(job_page, "_COMPOSED_S", 0.01)
    monkeypatch.setattr(reproducing, "origins", lambda *_: (go.wait(60), ((), ()))[1])
    text = client.get("/jobs/odd/configuration").text
    assert "of 0 values" not in text
    assert "still being composed: reload the page" in text
    go.set()
    await_true(lambda: "still being composed" not in client.get("/jobs/odd/configuration").text)


def test_a_configuration_that_cannot_be_read_is_not_shown_as_empty(client, results, monkeypatch):
    text = client.get("/jobs/odd/configuration").text  # it is not a complete bundle
    assert "E703" in text and "of 0 values" not in text
    monkeypatch.setattr(reproducing, "origins", lambda *_: {}["x"])
    for _ in range(2):
        text = client.get("/jobs/good/configuration").text
        assert "E711" in text and "of 0 values" not in text


def test_events_that_are_not_known_yet_are_not_shown_as_none(client, results, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(Job, "events", lambda _: go.wait(60) and iter(()))
    text = client.get("/jobs/odd").text
    go.set()
    assert "No event yet" not in text
    assert "The cluster has not answered yet" in text


def test_the_reason_of_a_failed_job_is_one_line_without_the_log_that_follows(client, results):
    a_job(results, "failed", state=JobState.FAILED, message="rank 0 exited with code 1:\nloading\nsaving")
    for address in ("/jobs", "/jobs/failed"):
        shown = re.findall(r'<span class="[^"]*\breason"[^>]*>([^<]*)</span>', client.get(address).text)
        assert any(text.startswith("rank 0 exited with code 1") for text in shown), shown
        assert not any("loading" in text for text in shown), shown
