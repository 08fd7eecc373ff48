"""`notify`: messages about a job, sent to real servers on this machine, and what happens when they cannot be sent."""

import contextlib
import http.server
import importlib.util
import json
import socket
import time
from types import SimpleNamespace

import pytest
from background import await_true, serving
from conftest import LLAMA_K8S
from whole_jobs import run

import launcher
from launcher.api import running
from launcher.api.job import Job
from launcher.cli import launch
from launcher.common.problems import shown
from launcher.job_store import notifications, registry
from launcher.job_store.notifications import Message, Milestones
from launcher.job_store.registry import JobRecord
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobState, JobStatus, LogLine

apprise = pytest.importorskip("apprise", reason="needs apprise: pip install '.[notify]'")
TINY = "recipes=training/tiny/tiny_lm_cpu"
RUNNING, FAILED = JobStatus(JobState.RUNNING, 2), JobStatus(JobState.FAILED, 0, "node 1: a worker failed")
EVERY = ("started", "failed", "recovered", "finished", "stalled")
TOKEN = "k3V9p2XwQz7LmN4bT6yR1sHc"


@contextlib.contextmanager
def server(status=200):
    """Yield the address of a web server, as apprise takes it, and the bodies that it received."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(httpd):
        yield f"json://user:{TOKEN}@127.0.0.1:{httpd.server_port}/", received


@contextlib.contextmanager
def hanging():
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"json://127.0.0.1:{listener.getsockname()[1]}/"


def recorded(tmp_path, *, variables=("NOTIFY_HERE",), events=EVERY, backend="k8s") -> JobRecord:
    folder = tmp_path / "tiny-x1y2z"
    folder.mkdir()
    config = {"notify": [{"env": name} for name in variables], "notify_on": list(events)}
    (folder / "recipe.yaml").write_text(json.dumps(config))
    native = dict.fromkeys(registry._NATIVE)
    record = JobRecord(JobHandle(backend, folder.name, folder, **native), "d", "2026-01-01T00:00:00+00:00", "me")
    registry.write(folder, record)
    return registry.submitted(folder)


def cluster(*seen):
    """Return what a backend is to a follower: it answers with one status after another."""
    return SimpleNamespace(
        name="k8s",
        wait=lambda *_, **__: iter(seen),
        status=lambda _handle: seen[0],
        events=lambda _handle, follow: iter(()),
        logs=lambda _handle, _selection=None, *, follow: iter(
            [LogLine("line", 3, "OSError: [Errno 28] No space left on device", 0, "pod-3")]
        ),
    )


def event(kind, message="", time_s=1.0):
    return JobEvent(time_s, kind, message)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_a_message_about_a_cancelled_job_is_no_success(state):
    (message,) = Milestones().of_status(JobStatus(state, 0, "stopped by Ctrl-C"))
    assert message.is_cancelled is (state is JobState.CANCELLED)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([RUNNING, RUNNING, JobStatus(JobState.SUCCEEDED, 0)], ["started", "finished"]),
        ([RUNNING, FAILED], ["started", "failed"]),
        ([JobStatus(JobState.CANCELLED, 0)], ["finished"]),
        ([JobStatus(JobState.DELETED, 0)], ["failed"]),
        ([RUNNING, JobStatus(JobState.PENDING, 0), RUNNING], ["started", "stalled", "recovered"]),
        ([RUNNING, JobStatus(JobState.RUNNING, 2, restarts=1)], ["started", "recovered"]),
        ([RUNNING, JobStatus(JobState.SCALING, 2), JobStatus(JobState.RUNNING, 4, restarts=1)], ["started"]),
        ([JobStatus(JobState.PENDING, 0), RUNNING], ["started"]),
    ],
    ids=["success", "failure", "cancelled", "deleted", "waits-again", "restart", "scaled", "queued"],
)
def test_changes_of_status_that_a_message_is_about(seen, expected):
    milestones = Milestones()
    assert [message.event for each in seen for message in milestones.of_status(each)] == expected


def test_events_of_an_operator_that_a_message_is_about():
    milestones = Milestones()
    events = [
        event("launched"),
        event("starting", "starting on 2 nodes"),
        event("starting", "starting on 4 nodes"),  # another size, without a fault
        event("fault", "hang: no step for 60 s", 2.0),
        event("starting", "starting on 4 nodes", 3.0),
        event("fault", "node 5: its agent ended"),
        event("abandoned", "a new node failed before it took part"),
        event("starting", "starting on 2 nodes"),
    ]
    assert [message for each in events for message in milestones.of_event(each)] == [
        Message("started", 0, "starting on 2 nodes"),
        Message("stalled", 2000, "hang: no step for 60 s"),
        Message("recovered", 3000, "starting on 4 nodes, after: hang: no step for 60 s"),
    ]


@pytest.mark.slow
def test_a_follower_sends_each_message_once(tmp_path, monkeypatch, capsys):
    record = recorded(tmp_path, events=("failed", "started"))
    with server() as (address, received):
        monkeypatch.setenv("NOTIFY_HERE", address)
        for _ in range(2):
            assert [*notifications.changes(record, cluster(RUNNING, FAILED))] == [RUNNING, FAILED]
    assert sorted(body["title"] for body in received) == ["tiny-x1y2z failed", "tiny-x1y2z started"]
    (failed,) = (body for body in received if "failed" in body["title"])
    assert failed["type"] == "failure"
    assert "node 1: a worker failed" in failed["message"]
    assert "first error: rank 3 on pod-3: OSError: [Errno 28] No space left on device\ncause: " in failed["message"]
    assert f"recipes logs {record.handle.bundle_dir}" in failed["message"]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_events_that_are_not_chosen_are_not_sent(tmp_path, monkeypatch):
    record = recorded(tmp_path, events=("finished",))
    with server() as (address, received):
        monkeypatch.setenv("NOTIFY_HERE", address)
        assert [*notifications.changes(record, cluster(RUNNING, FAILED))] == [RUNNING, FAILED]
    assert received == []


@pytest.mark.slow
def test_a_refusing_a_wrong_and_a_missing_address_are_named_by_their_variable(tmp_path, monkeypatch, capsys):
    record = recorded(tmp_path, variables=("A_REFUSING", "A_WRONG", "A_MISSING"), events=("failed",))
    monkeypatch.setenv("A_WRONG", f"nonsense://{TOKEN}")
    with server(500) as (address, received):
        monkeypatch.setenv("A_REFUSING", address)
        assert [*notifications.changes(record, cluster(FAILED))] == [FAILED]
        assert len(received) == 1
    printed = capsys.readouterr().err
    assert "A_MISSING is not set" in printed
    assert "A_WRONG is not an address of apprise" in printed
    assert "A_REFUSING (JSON) refused, or was not reached; the message about failed was not sent" in printed
    assert TOKEN not in printed


@pytest.mark.slow
def test_a_hanging_address_delays_neither_the_states_nor_the_end_for_long(tmp_path, monkeypatch, capsys):
    record = recorded(tmp_path)
    monkeypatch.setattr(notifications, "_PATIENCE_S", 300.0)
    with hanging() as address:
        monkeypatch.setenv("NOTIFY_HERE", address)
        found = notifications.changes(record, cluster(RUNNING, FAILED))
        began = time.monotonic()
        assert [next(found), next(found)] == [RUNNING, FAILED]
        assert time.monotonic() - began < 200
        monkeypatch.setattr(notifications, "_PATIENCE_S", 0.2)
        assert [*found] == []
    assert "NOTIFY_HERE has not answered within 0.2 s" in capsys.readouterr().err


def test_without_apprise_a_follower_only_gives_a_notice(tmp_path, monkeypatch, capsys):
    record = recorded(tmp_path)
    monkeypatch.setenv("NOTIFY_HERE", f"json://user:{TOKEN}@127.0.0.1:9/")
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    assert [*notifications.changes(record, cluster(FAILED))] == [FAILED]
    assert "NOTIFY_HERE needs apprise (pip install '.[notify]')" in capsys.readouterr().err


def test_without_apprise_a_check_refuses(problems, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "apprise" else find(name, *more)
    )
    (problem,) = problems(TINY, "notify=[{env:MY_CHAT}]")
    assert (problem.code, problem.path, problem.remedy) == ("E615", "notify", "pip install '.[notify]'")


@pytest.mark.parametrize("words", [(TINY,), LLAMA_K8S], ids=["local", "k8s"])
def test_a_kubernetes_secret_is_refused_and_a_variable_is_not(problems, prepare, words):
    assert prepare(*words, "notify=[{env:MY_CHAT}]").config["notify"] == [{"env": "MY_CHAT"}]
    (problem,) = problems(*words, "notify=[{secretKeyRef:{name:chat,key:url}}]")
    assert (problem.code, problem.path, problem.allowed) == ("E614", "notify.0", "{env: NAME}")


def test_an_event_that_does_not_exist_is_refused(problems):
    (problem,) = problems(TINY, "notify_on=[finish]")
    assert (problem.code, problem.path) == ("E102", "notify_on.0")
    assert "stalled" in problem.allowed


@pytest.mark.parametrize(
    "address",
    [
        f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN}",
        f"discord://4174216298/{TOKEN}",
        f"json://127.0.0.1/{TOKEN}",
        f"pagertree://{TOKEN}",
        f"mailto://me:{TOKEN}@example.org",
        f"ntfy://{TOKEN}",
    ],
)
@pytest.mark.parametrize(
    "given",
    ["notify=['{}']", "++recipes.run.notify='{}'", "++recipes.training_config.where='{}'", "+env_vars.CHAT='{}'"],
    ids=["notify", "a-key-of-that-name", "another-key", "a-variable"],
)
def test_an_address_in_clear_text_is_refused_and_written_nowhere(recipes, tmp_path, address, given):
    declared = "++recipes.extra_keys=[run.notify,training_config.where]"
    code, out, err = recipes("run", TINY, "dry_run=true", declared, given.format(address))
    assert code == 2
    assert "E60" in err
    assert TOKEN not in out + err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("notify=[short]", "notify=…"),
        ("++notify.0=x", "++notify.0=…"),
        ("notify=[{env:A},{secretKeyRef:{name:b,key:c}}]", "notify=[{env:A},{secretKeyRef:{name:b,key:c}}]"),
        ("notify=null", "notify=null"),
        ("recipes=/home/me/notify/mine.yaml", "recipes=/home/me/notify/mine.yaml"),
    ],
    ids=["text", "item", "references", "null", "a-folder"],
)
def test_an_override_of_notify_is_printed_without_a_literal(given, printed):
    assert shown(given) == printed


def test_a_bundle_refers_to_an_address_by_its_variable(recipes, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_CHAT", f"json://user:{TOKEN}@127.0.0.1:9/")
    code, out, err = recipes("run", TINY, "dry_run=true", "notify=[{env:MY_CHAT}]")
    assert (code, err) == (0, "")
    (recipe,) = tmp_path.glob("results/*/recipe.yaml")
    assert "env: MY_CHAT" in recipe.read_text()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [(LLAMA_K8S, True), ((*LLAMA_K8S, "wait=true"), False), ((TINY,), False)],
    ids=["k8s", "wait", "local"],
)
def test_a_launch_that_no_process_follows_is_noticed(prepare, words, expected):
    assert ("N197" in {notice.code for notice in prepare(*words, "notify=[{env:MY_CHAT}]").notices}) is expected


@pytest.mark.slow
def test_a_launch_that_waits_sends_the_end_of_a_remote_job(tmp_path, monkeypatch, capsys):
    record = recorded(tmp_path)
    backend = cluster(RUNNING, FAILED)
    backend.logs = lambda *_, **__: iter((LogLine("line", 0, "a line"),))
    bundle = Bundle(record.handle.job_name, record.handle.bundle_dir, {"recipe.yaml": "recipes: {}"}, "d")
    monkeypatch.setattr("launcher.api.launching.close_run", lambda *_: ())
    with server() as (address, received):
        monkeypatch.setenv("NOTIFY_HERE", address)
        assert launch.code_of(running._follow(bundle, backend, record, launch.SHOWN)) == launch.JOB_FAILED
    assert [body["title"] for body in received].count("tiny-x1y2z failed") == 1
    assert "a line" in capsys.readouterr().out


@pytest.mark.slow
def test_a_job_that_python_waits_for_sends_messages_and_logs_what_failed(tmp_path, monkeypatch, logged):
    record = recorded(tmp_path, variables=("NOTIFY_HERE", "A_MISSING"))
    job = Job(record.handle.bundle_dir)
    job.__dict__["backend"] = cluster(RUNNING, FAILED)
    monkeypatch.setattr("launcher.api.launching.close_run", lambda *_: ())
    with server() as (address, received):
        monkeypatch.setenv("NOTIFY_HERE", address)
        assert job.wait().state is JobState.FAILED
    assert sorted(body["title"] for body in received) == ["tiny-x1y2z failed", "tiny-x1y2z started"]
    assert "A_MISSING is not set" in logged.getvalue()


def test_an_adopted_job_and_one_without_notify_send_nothing(tmp_path):
    record = recorded(tmp_path, variables=())
    assert [*notifications.changes(record, cluster(FAILED))] == [FAILED]
    (record.handle.bundle_dir / "recipe.yaml").unlink()
    assert [*notifications.changes(record, cluster(FAILED))] == [FAILED]


@pytest.mark.whole_job
@pytest.mark.usefixtures("store")
def test_a_job_that_crashes_and_recovers_is_reported_while_another_address_hangs(tmp_path, monkeypatch):
    pytest.importorskip("hyperpod_elastic_agent")
    with server() as (address, received), hanging() as silent:
        monkeypatch.setenv("A_CHAT", address)
        monkeypatch.setenv("A_SILENT", silent)
        code, out, err = run(
            *("recipes.trainer.num_nodes=2", "cluster.scenario=worker-crash", "notify=[{env:A_CHAT},{env:A_SILENT}]"),
            "notify_on=[started,recovered,finished,failed]",
            cwd=tmp_path,
        )
    assert code == 0, out + err
    events = [body["title"].rpartition(" ")[2] for body in received]
    assert sorted(set(events)) == ["finished", "recovered", "started"]
    assert events.count("finished") == events.count("started") == 1
    (reason,) = {body["message"].partition("\n")[0] for body in received if body["title"].endswith("recovered")}
    assert "a worker failed" in reason
    assert "A_SILENT" in err
    assert TOKEN not in out + err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@pytest.mark.whole_job
@pytest.mark.usefixtures("store")
def test_the_process_of_a_detached_job_reports_its_failure(tmp_path, monkeypatch):
    pytest.importorskip("hyperpod_elastic_agent")
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text("import sys; sys.exit(3)\n")
    overrides = {"cluster.command": [str(program)], "notify": [{"env": "A_CHAT"}]}
    with server() as (address, received):
        monkeypatch.setenv("A_CHAT", address)
        job = launcher.compile("tiny_lm_cpu", overrides).submit()
        assert job.wait(timeout=300).state is JobState.FAILED
        await_true(lambda: [body for body in received if body["title"] == f"{job.name} failed"], "the message")
