"""What a bundle for an existing Ray cluster asks for, what is refused, and how Ray's answers are read. No cluster."""

import asyncio
import contextlib
import dataclasses
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from background import await_true
from conftest import frozen_context
from log_texts import shown

from launcher import pipeline
from launcher.backends.ray import follow
from launcher.backends.ray.backend import RayBackend
from launcher.backends.ray.client import Cluster, address_of
from launcher.backends.ray.driver_log import DriverLines, GrowingLog
from launcher.common.problems import ProblemsFound
from launcher.model.following import Clock
from launcher.model.job_spec import JobState, JobStatus, LogLine, LogSelection

SCRIPT = ("recipes=training/custom/script", "cluster=ray")
ENTRY = "training_cfg.entry_script=train.py"
GRPO = (
    *("recipes=fine-tuning/llama/verl-grpo-rlvr-llama-3-dot-1-8b-instruct-lora", "cluster=ray"),
    *(
        "recipes.training_config.data.train_files=/fsx/a.parquet",
        "recipes.training_config.data.val_files=/fsx/b.parquet",
    ),
)
URL = "cluster.address=http://127.0.0.1:9"


@pytest.fixture
def code(tmp_path):
    """Make a folder with a script where jobs are launched."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()


def asked(bundle):
    return json.loads(bundle.files["ray/request.json"])


def test_grpo_starts_one_driver_with_the_folder_of_its_configurations(render):
    bundle = render(*GRPO, "recipes.trainer.num_nodes=2", "recipes.run.hf_access_token={env: HUB}")
    request = asked(bundle)
    assert request["job"]["entrypoint"] == (
        'python -u -m verl.trainer.main_ppo --config-path "$PWD"/recipes-configs --config-name verl_config'
    )
    assert request["job"]["submission_id"] == bundle.job_name == request["job"]["metadata"]["job_name"]
    assert request["secrets"] == {"HF_TOKEN": "HUB"} and request["address"] is None
    assert (request["nodes"], request["accelerators"]) == (2, {"GPU": 8})
    assert "configs/verl_config.yaml" in bundle.files
    assert request["job"]["runtime_env"]["env_vars"]["TRAIN_FILES"] == "/fsx/a.parquet"


def test_the_words_of_a_script_are_quoted_for_a_shell(render, code):
    words = ('training_cfg.script_args=[{--text: "it\'s $HOME"}, {--configs: bundle:configs}]', ENTRY)
    request = asked(render(*SCRIPT, *words, "cluster.working_dir=code", "cluster.entrypoint_resources={driver: 0.5}"))
    assert request["job"]["entrypoint"] == (
        "python -u train.py --text 'it'\"'\"'s $HOME' --configs \"$PWD\"/recipes-configs"
    )
    assert request["job"]["entrypoint_resources"] == {"driver": 0.5} and request["accelerators"] == {}
    assert request["working_dir"].endswith("/code")


def test_a_command_replaces_the_program_and_what_it_needs(render):
    request = asked(render(*GRPO, "cluster.command=[python, mine.py, bundle:configs]"))
    assert request["job"]["entrypoint"] == 'python mine.py "$PWD"/recipes-configs'
    assert request["accelerators"] == {}


def test_a_script_for_slurm_that_names_mounts_works_with_every_cluster(render):
    assert asked(render(*GRPO, "cluster.container_mounts=[/fsx]")) == asked(render(*GRPO))


def test_a_module_is_started_as_one(render):
    assert (
        asked(render(*SCRIPT, "training_cfg.entry_module=my.train"))["job"]["entrypoint"] == "python -u -m my.train"
    )


@pytest.mark.parametrize(
    ("words", "code_and_key"),
    [
        (("recipes=training/tiny/tiny_lm_cpu", "cluster=ray"), ("E820", "recipes.run.model_type")),
        ((*SCRIPT, ENTRY), ("E821", "recipes.training_cfg.entry_script")),
        (
            (*SCRIPT, "training_cfg.entry_script=../train.py", "cluster.working_dir=."),
            ("E821", "recipes.training_cfg.entry_script"),
        ),
        ((*SCRIPT, ENTRY, "cluster.working_dir=absent"), ("E826", "cluster.working_dir")),
        ((*SCRIPT, ENTRY, "cluster.working_dir=."), ("E826", "recipes.training_cfg.entry_script")),
        ((*GRPO, "++env_vars.A_TOKEN={secretKeyRef: {name: a, key: b}}"), ("E605", "env_vars.A_TOKEN")),
        ((*GRPO, "cluster.address=ray://head:10001"), ("E102", "cluster.address")),
        ((*GRPO, "cluster.address=http://head:99999"), ("E102", "cluster.address")),
        ((*GRPO, "cluster.entrypoint_num_gpus=-1"), ("E102", "cluster.entrypoint_num_gpus")),
        ((*GRPO, "cluster.entrypoint_resources={mine: 1, CPU: 1}"), ("E831", "cluster.entrypoint_resources.CPU")),
        ((*GRPO, "cluster.entrypoint_resources={memory: 1}"), ("E831", "cluster.entrypoint_resources.memory")),
    ],
    ids=[
        *("agent", "no-folder", "above", "folder", "script", "secret", "client-address", "port", "negative"),
        *("cpu", "memory"),
    ],
)
def test_what_ray_cannot_run_is_refused(problems, words, code_and_key):
    assert code_and_key in [(each.code, each.path) for each in problems(*words)]


@pytest.mark.parametrize(
    ("script", "folder", "key", "remedy"),
    [
        ("train.py", "absent", "cluster.working_dir", "cluster.working_dir=<folder with your code>, such as"),
        ("tran.py", "code", "recipes.training_cfg.entry_script", "did you mean train.py?"),
        ("absent.py", "code", "recipes.training_cfg.entry_script", "training_cfg.entry_script=<path in that folder>"),
    ],
    ids=["folder", "slip", "script"],
)
def test_code_that_is_absent_is_one_fault_with_its_place_and_a_remedy(problems, code, script, folder, key, remedy):
    words = (f"training_cfg.entry_script={script}", f"cluster.working_dir={folder}")
    (found,) = problems(*SCRIPT, *words)
    typed = next(each for each in words if f"recipes.{each}".startswith(key) or each.startswith(key))
    assert (found.code, found.path, found.where) == ("E826", key, typed)
    assert found.remedy.startswith(remedy)


def test_a_gpu_of_the_driver_has_its_own_key(problems, prepare):
    (found,) = problems(*GRPO, "cluster.entrypoint_resources={GPU: 1}")
    assert (found.code, found.remedy) == ("E831", "cluster.entrypoint_num_gpus=1, without GPU here")
    assert prepare(*GRPO, "cluster.entrypoint_resources={mine: 1}", "cluster.entrypoint_num_gpus=1")


def test_an_elastic_script_is_refused(problems, code):
    words = ("recipes.elastic_policy.is_elastic=true", "recipes.elastic_policy.max_nodes=2")
    words = ("recipes=training/custom/elastic_script", "cluster=ray", *words)
    assert "E211" in [each.code for each in problems(*words, "cluster.working_dir=code", ENTRY)]


def test_a_folder_may_not_have_the_name_of_the_configurations(problems, code, tmp_path):
    (tmp_path / "code" / "recipes-configs").mkdir()
    found = problems(*SCRIPT, ENTRY, "cluster.working_dir=code")
    assert [(each.code, each.path) for each in found] == [("E826", "cluster.working_dir")]


def test_a_secret_that_ray_keeps_is_a_notice(prepare):
    assert [each.code for each in prepare(*GRPO, "++env_vars.A_TOKEN={env: MINE}").notices].count("N189") == 1
    assert "N189" not in [each.code for each in prepare(*GRPO).notices]


@pytest.mark.parametrize("given", ["auto", "127.0.0.1:6379", "ray://head:10001"])
def test_an_address_of_the_environment_that_is_no_dashboard_is_a_problem(monkeypatch, given):
    monkeypatch.setenv("RAY_ADDRESS", given)
    with pytest.raises(ProblemsFound, match="E823 cluster.address"):
        address_of(None)
    assert address_of("https://here:8265/") == "https://here:8265"
    monkeypatch.setenv("RAY_ADDRESS", "http://there:8265/")
    assert address_of(None) == "http://there:8265"
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(ProblemsFound, match="RAY_ADDRESS is not set"):
        address_of(None)


def test_without_ray_its_package_is_named(monkeypatch, render):
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    bundle = render(*GRPO, URL)
    with pytest.raises(ProblemsFound, match=r"(?s)E822.*pip install '\.\[ray\]'"):
        RayBackend().validate(bundle)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_a_problem(render, closed_port):
    pytest.importorskip("ray")
    bundle = render(*GRPO, f"cluster.address=http://127.0.0.1:{closed_port}")
    with pytest.raises(ProblemsFound, match="E823 cluster.address"):
        RayBackend().validate(bundle)


@pytest.mark.slow
def test_what_is_not_a_dashboard_is_a_problem(tmp_path):
    pytest.importorskip("ray")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ProblemsFound, match="E823|E825"):
            Cluster(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_job_on_another_cluster_is_not_taken_for_this_one(render, monkeypatch):
    bundle = render(*GRPO)
    monkeypatch.setenv("RAY_ADDRESS", "http://there:8265")
    known = RayBackend().intent(bundle, None)
    assert RayBackend().intent(bundle, known) == known
    monkeypatch.setenv("RAY_ADDRESS", "http://here:8265")
    with pytest.raises(ProblemsFound, match="E348"):
        RayBackend().intent(bundle, known)


def details(status, message=None, **more):
    """Return a job as Ray's client describes it."""
    times = {"start_time": 1000, "end_time": 2500 if status in ("SUCCEEDED", "FAILED", "STOPPED") else None}
    own = {
        "submission_id": "job",
        "entrypoint": "python a",
        "message": message,
        "status": SimpleNamespace(value=status),
    }
    return SimpleNamespace(**times, **own, **more)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("PENDING", "Job has not started yet.", JobStatus(JobState.PENDING, 0, "Job has not started yet.")),
        ("RUNNING", "Job is currently running.", JobStatus(JobState.RUNNING, 2)),
        ("SUCCEEDED", "Job finished successfully.", JobStatus(JobState.SUCCEEDED, 0)),
        ("STOPPED", "Job was stopped.", JobStatus(JobState.CANCELLED, 0, "Job was stopped.")),
        (
            "FAILED",
            "exit code 3, last available logs (truncated to 20,000 chars):\nRunning\nValueError: no\n\n",
            JobStatus(JobState.FAILED, 0, "exit code 3: ValueError: no"),
        ),
    ],
)
def test_states_of_ray(status, message, expected):
    assert follow.read_status(details(status, message), 2) == expected


def test_events_are_those_that_ray_records():
    assert [(each.kind, each.time_s) for each in follow.events(details("RUNNING"))] == [("Submitted", 1.0)]
    _, end = follow.events(details("FAILED", "no"))
    assert (end.kind, end.time_s, end.message, end.is_warning) == ("Failed", 2.5, "no", True)
    assert list(follow.events(None)) == []


def test_parts_of_a_log_are_read_line_by_line():
    every = LogSelection(ranks=None, has_headings=True)
    job, lines = details("RUNNING"), DriverLines(every)
    head = "12:00 INFO job_manager.py:581 -- Runtime env is setting up.\n"
    begin = "Running entrypoint for job job: python a\n"
    assert list(lines.of(head, job, is_last=False)) == []
    assert list(shown(lines.of(f"{begin}one\n\ntw", job, is_last=False), every)) == [
        *("event  Ray: Runtime env is setting up.", "== attempt 0", "rank 0 | one", "rank 0 | ")
    ]
    assert list(lines.of("", job, is_last=False)) == []
    assert list(shown(lines.of("o", job, is_last=True), every)) == ["rank 0 | two"]
    unstarted = DriverLines(LogSelection())
    assert list(shown(unstarted.of("no environment\n", job, is_last=True))) == ["event  Ray: no environment"]


BEGIN = "Running entrypoint for job job: python a\n"


def test_the_lines_of_a_driver_are_those_of_rank_0_in_the_only_attempt():
    lines = DriverLines(LogSelection(has_headings=True))
    first = list(
        lines.of(f"12:00 INFO a.py:1 -- Up -- now.\nplain\n{BEGIN}one\ntw", details("RUNNING"), is_last=False)
    )
    assert first == [
        *(LogLine("event", None, "Ray: now."), LogLine("event", None, "Ray: plain")),
        *(LogLine("attempt", None, "attempt 0", 0), LogLine("line", 0, "one", 0)),
    ]
    assert list(lines.of("o\n\n", details("RUNNING"), is_last=False)) == [
        LogLine("line", 0, "two", 0),
        LogLine("line", 0, "", 0),
    ]
    assert list(lines.of("", details("RUNNING"), is_last=True)) == []
    assert list(DriverLines(LogSelection()).of(f"{BEGIN}one", details("RUNNING"), is_last=True)) == [
        LogLine("line", 0, "one", 0)
    ]


def test_an_excerpt_has_the_last_lines_of_a_driver():
    text = BEGIN + "".join(f"{number}\n" for number in range(2001))
    for selection, first in ((LogSelection(is_excerpt=True), 1), (LogSelection(), 0)):
        found = [line.text for line in DriverLines(selection).of(text, details("RUNNING"), is_last=False)]
        assert found == [str(number) for number in range(first, 2001)]


class Connections:
    """Sends the parts of a log over one connection after the other, and then nothing more."""

    def __init__(self, *connections):
        self.jobs, self._connections = [], list(connections)
        self.is_done, self.is_over = threading.Event(), threading.Event()

    async def tail(self, job):
        self.jobs.append(job)
        for part in self._connections.pop(0):
            yield part
        if not self._connections:
            self.is_done.set()
            while not self.is_over.is_set():
                await asyncio.sleep(0.001)


@contextlib.contextmanager
def growing_log(connections, texts, time_s):
    """Yield a log whose complete text is the next of `texts` at each reading."""
    log = GrowingLog(connections, "job", lambda: texts.pop(0), 0.0, Clock(now=lambda: time_s[0]))
    try:
        yield log
    finally:
        log.close()
        connections.is_over.set()


def test_each_connection_begins_at_the_start_of_the_log():
    connections, time_s = Connections(["one\n", "tw"], ["on"], ["one\nt", "wo\nth", "ree\n"]), [100.0]
    texts = ["one\ntwo\nthree\nfour", "one\ntwo\nthree\nfour\nfive"]
    with growing_log(connections, texts, time_s) as log:
        found = log.new(is_last=False)
        assert connections.is_done.wait(60)
        assert found + log.new(is_last=False) == "one\ntwo\nthree\n"
        assert log.new(is_last=False) == ""
        assert (log.new(is_last=True), log.new(is_last=True)) == ("four", "\nfive")
    assert connections.jobs == ["job"] * 3


def test_a_log_is_read_as_a_whole_once_in_30_seconds_of_silence():
    connections, time_s = Connections([]), [100.0]
    found = []
    with growing_log(connections, ["one\n", "one\ntwo\n"], time_s) as log:
        for time_s[0] in (129.9, 130.0, 159.9, 160.0, 189.9):
            found.append(log.new(is_last=False))
    assert found == ["", "one\n", "", "two\n", ""]


class Dashboard:
    """Serves the log of one job as Ray's dashboard does, and counts how often all of it is read."""

    def __init__(self):
        self.text, self.num_whole, self.num_connections, self.is_refusing = "", 0, 0, False
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._open = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_):
        self.hang_up()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def say(self, text):
        self.text += text
        self._call(*(each.send_str(text) for each in self._open))

    def hang_up(self):
        self._call(*(each.close() for each in self._open))
        self._open.clear()

    def _call(self, *coroutines):
        for each in coroutines:
            asyncio.run_coroutine_threadsafe(each, self._loop).result(60)

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/jobs/job/logs", self._whole)
        app.router.add_get("/api/jobs/job/logs/tail", self._tail)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.address = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _version(self, request):
        return web.json_response({"version": "4", "ray_version": "2.46.0", "ray_commit": "", "session_name": "a"})

    async def _whole(self, request):
        self.num_whole += 1
        return web.json_response({"logs": self.text})

    async def _tail(self, request):
        self.num_connections += 1
        if self.is_refusing:
            return web.Response(status=502)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(self.text)
        self._open.append(socket)
        async for _ in socket:
            pass
        return socket


OLD_ARGUMENT = "ignore:ssl=None is deprecated"
"""Ray's client gives it to aiohttp."""


@pytest.fixture
def dashboard():
    with Dashboard() as found:
        yield found


@pytest.fixture
def time_s():
    """The time of a log's clock, which the test sets."""
    return [0.0]


@pytest.fixture
def growing(dashboard, time_s):
    """Return the log of the dashboard's job, and a function that collects what is new until a text has come."""
    cluster = Cluster(dashboard.address)
    log = GrowingLog(cluster, "job", lambda: cluster.log("job"), 0.01, Clock(now=lambda: time_s[0]))
    found = []

    def arrived(end):
        found.append(log.new(is_last=False))
        return "".join(found).endswith(end)

    with contextlib.closing(log):
        yield log, found, lambda end: await_true(lambda: arrived(end))


@pytest.mark.filterwarnings(OLD_ARGUMENT)
def test_a_log_comes_over_one_connection_and_is_read_as_a_whole_at_the_end_only(dashboard, growing):
    log, found, wait = growing
    dashboard.text = "one\n"
    wait("one\n")
    for number in range(20):
        dashboard.say(f"{number}\n")
        wait(f"{number}\n")
    assert (dashboard.num_connections, dashboard.num_whole) == (1, 0)
    dashboard.text += "last\n"  # which the connection does not bring any more
    found.append(log.new(is_last=True))
    assert "".join(found) == dashboard.text and dashboard.num_whole == 1


@pytest.mark.filterwarnings(OLD_ARGUMENT)
def test_a_connection_that_breaks_is_made_again_and_repeats_nothing(dashboard, growing):
    _, found, wait = growing
    dashboard.text = "one\ntw"
    wait("tw")
    dashboard.hang_up()
    dashboard.text += "o\nthree\n"
    wait("three\n")
    assert "".join(found) == "one\ntwo\nthree\n"
    assert dashboard.num_connections > 1 and dashboard.num_whole == 0


@pytest.mark.filterwarnings(OLD_ARGUMENT)
def test_a_log_is_read_as_a_whole_after_silence_where_no_connection_stays(dashboard, growing, time_s):
    log, _, _ = growing
    dashboard.is_refusing = True
    dashboard.text = "one\n"
    assert log.new(is_last=False) == ""
    await_true(lambda: dashboard.num_connections > 1)
    time_s[0] = 29.0
    assert log.new(is_last=False) == ""
    time_s[0] = 31.0
    assert log.new(is_last=False) == "one\n"
    assert log.new(is_last=False) == "" and dashboard.num_whole == 1


def test_a_job_that_is_not_followed_needs_no_connection(dashboard, growing):
    log, _, _ = growing
    dashboard.text = "one\n"
    assert log.new(is_last=True) == "one\n" and dashboard.num_connections == 0


def test_a_driver_has_one_stream(tmp_path):
    with pytest.raises(ProblemsFound, match="E828"):
        follow.refuse_unknown(LogSelection(is_stderr=True))


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "{}", '{"address": "x"}', "[" * 100_000], ids=lambda text: str(text)[:9]
)
def test_a_bundle_without_an_intact_request_is_named(render, text):
    bundle = dataclasses.replace(render(*GRPO), files={} if text is None else {"ray/request.json": text})
    with pytest.raises(ProblemsFound, match="E703"):
        RayBackend().validate(bundle)


def test_bytes_do_not_depend_on_the_environment(monkeypatch):
    first, second = [], []
    for found in (first, second):
        context = frozen_context(Path("/launch"))
        found.append(pipeline.render(pipeline.prepare((*GRPO, URL), context), context).files)
        monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    assert first == second


def test_a_plan_for_a_cluster_that_runs_already_has_no_costs(recipes):
    words = ("plan", "training/custom/script", "cluster=ray", "training_cfg.entry_module=json.tool")
    code, out, err = recipes(*words, "training_cfg.run.ntasks_per_node=8", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["costs"] is None
    assert recipes(*words, "training_cfg.run.ntasks_per_node=8")[0] == 0
