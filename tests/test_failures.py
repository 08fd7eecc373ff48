"""Why a job failed: found in bounded excerpts of its logs, kept, and shown; and real failures of real jobs."""

import json
import os
import time
from datetime import UTC, datetime

import pytest
from background import await_true
from whole_jobs import mlflow_run
from whole_jobs import run as run_command

import launcher
from launcher import Failure, JobFailed, ProblemsFound
from launcher.api import log_stream
from launcher.common.lines import excerpt
from launcher.common.names import EVENTS_FILE
from launcher.job_store import failures, registry
from launcher.model.failure import ErrorLine, failure_from, in_one_line, to_data
from launcher.model.following import Start, Tail, own_time_s
from launcher.model.job_spec import JobEvent, JobHandle, JobState, JobStatus, LogLine, LogSelection
from launcher.operator import failures as operator_failures
from launcher.operator.event_log import EventWriter, job_events
from launcher.operator.snapshot import Attempt, Snapshot, publish, read_snapshot
from launcher.operator.types import Cause, Fault
from launcher.operator.worker_logs import AGENT_LOG, explain, node_logs

FAILED = JobStatus(JobState.FAILED, 0, "1 pod failed")
DISK = "OSError: [Errno 28] No space left on device"


# Excerpts


def test_an_excerpt_of_a_short_file_is_the_file(tmp_path):
    (tmp_path / "log").write_text("one\ntwo\n")
    assert list(excerpt(tmp_path / "log", 100)) == ["one", "two"]
    (tmp_path / "log").write_text("")
    assert list(excerpt(tmp_path / "log", 100)) == []


def test_an_excerpt_of_a_long_file_has_its_first_error_and_its_end(tmp_path):
    steps = [f"step {number} of a long training" for number in range(20_000)]
    lines = [*steps[:9000], DISK, *steps[9000:], "the end"]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    found = list(excerpt(tmp_path / "log", 4096))
    assert found[0] == DISK
    assert found[-1] == "the end"
    assert sum(map(len, found)) <= 2 * 4096
    assert set(found) <= {*lines, found[found.index("the end") - 1]} or len(found) < 400


def test_an_excerpt_has_the_first_error_of_a_line_without_end(tmp_path):
    (tmp_path / "log").write_text("x" * 100_000 + DISK + "x" * 100_000 + "\nthe end\n")
    assert list(excerpt(tmp_path / "log", 4096))[0].startswith("Error: ")


def test_an_excerpt_of_a_gigabyte_is_bounded(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(DISK.encode() + b"\n")
        file.truncate(1 << 30)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    began = time.process_time()
    found = list(excerpt(path, 16 << 10))
    assert found[-1] == "the end"
    assert sum(map(len, found)) <= 32 << 10
    assert DISK not in found, "an error before the last 64 MiB is not searched"
    assert time.process_time() - began < 5


def test_the_lines_of_an_excerpt_have_the_time_of_the_failure_and_both_streams(tmp_path):
    folder = tmp_path / "0"
    folder.mkdir()
    for name, at in (("stdout.log", 50.0), ("stderr.log", 60.0), ("error.json", 55.5)):
        (folder / name).write_text(f"{name}\n")
        os.utime(folder / name, (at, at))

    def file(_rank, stream):
        return folder / f"{stream}.log"

    start = Start(3, [0], lambda: "", file)
    lines = list(Tail(LogSelection(None, is_stderr=None, is_excerpt=True)).new_lines([start], is_last=True))
    assert [(each.stream, each.time_s, each.until_s, each.attempt) for each in lines] == [
        ("stdout", None, 50.0, 3),
        ("stderr", None, 55.5, 3),
    ]
    plain = list(Tail(LogSelection(None, is_stderr=None)).new_lines([start], is_last=True))
    assert [(each.stream, each.time_s) for each in plain] == [("stdout", None), ("stderr", None)]


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-30 13:00:00,250 ERROR no space", 0.25),  # of a Python logger, in the zone of this machine
        ("[2026-11-30T13:00:00] no space", 0.0),
        ("2026-11-30 12:00:00Z no space", 0.0),
        ("2026-11-30 12:00:00.5 UTC no space", 0.5),
        ("2026-11-30T09:00:00-03:00 no space", 0.0),
        ("2026-11-30 12:00:00 no space", None),  # in another zone: before the log began
        ("2026-11-30 14:00:00 no space", None),
        ("2026-13-30 13:00:00 no space", None),
        ("0001-01-01 00:00:00 no space", None),
        ("2026-11-30 13:00:00x", None),
        ("no space", None),
    ],
)
def test_the_time_of_a_line_is_its_own_if_it_can_be_of_that_time(monkeypatch, text, at):
    monkeypatch.setenv("TZ", "UTC-1")
    time.tzset()
    try:
        assert own_time_s(text, NOON - 60, NOON + 60) == (None if at is None else NOON + at)
        elsewhere = own_time_s(text, None, NOON + 60)
        assert (elsewhere is None) == (at is None or "13:00" in text), "the local time of another machine is unknown"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_error_without_a_time_of_its_own_has_happened_by_the_last_write(tmp_path):
    texts = ("Traceback (most recent call last):\nValueError: late", f"2026-11-30T12:00:00Z ERROR {DISK}\nby the way")
    for rank, text in enumerate(texts):
        log_of(tmp_path, 4, rank, f"{text}\n", NOON + 60 - rank)
    found = operator_failures.find(tmp_path, (Attempt(1, 4, (4,), NOON - 60),), 2, (), 0)
    assert found.first_error.place == "rank 1 on node 4, 12:00:00 UTC"
    assert [each.place for each in found.consequences] == ["rank 0 on node 4, by 12:01:00 UTC"]
    assert failure_from(to_data(found)) == found


# The operator


def log_of(run_dir, node, local_rank, text, at):
    path = run_dir / f"logs/node-{node}/job_x/attempt_1/{local_rank}/stderr.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    os.utime(path, (at, at))


def test_the_operator_finds_the_first_error_of_the_last_attempt(tmp_path):
    log_of(tmp_path, 4, 0, "RuntimeError: Connection closed by peer\n", 99.0)
    log_of(tmp_path, 7, 1, f"Traceback (most recent call last):\n{DISK}\n", 100.0)
    attempts = (Attempt(1, 4, (4, 7), 90.0),)
    found = operator_failures.find(
        tmp_path, attempts, 2, (Fault(7, Cause.WORKER, "Local Rank 1 exited with code -256"),), 0
    )
    assert found.cause.id == "no_space"
    assert found.first_error == ErrorLine(DISK, 3, "node 7", None, 1, 100.0)
    assert [each.rank for each in found.consequences] == [0]


@pytest.mark.parametrize(
    ("fault", "oom_kills", "cause", "rank"),
    [
        (Fault(4, Cause.WORKER, "Local Rank 0 exited with code -9"), 0, "killed", 0),
        (Fault(4, Cause.WORKER, "Local Rank 0 exited with code -9"), 2, "host_oom_kernel", 0),
        (Fault(4, Cause.WORKER, "Local Rank 0 exited with code -16640"), 0, "not_finite", 0),
        (Fault(-1, Cause.HANG, "no new step for 61 s"), 0, "hang", None),
        (Fault(4, Cause.LOST), 0, "node_lost", None),
        (Fault(-1, Cause.NO_CAPACITY), 0, "no_event_left", None),
    ],
    ids=["killed", "oom", "not-finite", "hang", "lost", "no-nodes"],
)
def test_a_fault_without_an_error_in_a_log_has_its_cause(tmp_path, fault, oom_kills, cause, rank):
    found = operator_failures.find(tmp_path, (Attempt(0, 4, (4,), 90.0),), 1, (fault,), oom_kills)
    assert (found.cause.id, found.first_error.rank) == (cause, rank)


def test_an_agent_that_refuses_its_command_line_shows_its_error_alone(tmp_path):
    error = (
        "hyperpodrun.py: error: ambiguous option: --log could match --log-dir, --log_dir, --logs-specs, --logs_specs"
    )
    usage = ["usage: hyperpodrun.py [-h] [--nnodes NNODES]", *(["                      [--rdzv-id RDZV_ID]"] * 30)]
    log = node_logs(tmp_path, 4) / AGENT_LOG
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(["starting", *usage, error, ""]))
    fault, attempt = Fault(4, Cause.LOST), Attempt(0, 4, (4,), 90.0)
    found = operator_failures.find(tmp_path, (attempt,), 1, (fault,), 0)
    assert (found.cause.id, found.first_error.text) == ("unknown_argument", error)
    assert explain((fault,), tmp_path, (attempt,), 1) == f"node 4: its agent ended:\n{error}"
    log.write_text("\n".join(["starting", *usage[:5], error, ""]))
    assert explain((fault,), tmp_path, (attempt,), 1) == f"node 4: its agent ended:\nstarting\n{error}"
    log.write_text("a.c:3:5: warning: b\n    3 | b\na.c:4:1: error: c\n")
    assert explain((fault,), tmp_path, (attempt,), 1).endswith("    3 | b\na.c:4:1: error: c")


@pytest.mark.parametrize(
    ("own", "file", "text"),
    [
        ("0::/job", "job/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("0::/elsewhere", "memory.events", "oom_kill 2\n"),
        ("9:cpu:/\n4:memory:/job\n0::/", "memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
    ids=["version-2", "container", "version-1"],
)
def test_kills_for_want_of_memory_are_counted_by_the_cgroup(tmp_path, own, file, text):
    (tmp_path / "own").write_text(own)
    assert operator_failures.oom_kills(tmp_path, tmp_path / "own") == 0
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert operator_failures.oom_kills(tmp_path, tmp_path / "own") == 2
    assert operator_failures.oom_kills(tmp_path, tmp_path / "absent") == 0


# Other jobs


class Remote:
    """A cluster whose job has failed."""

    name = "k8s"

    def __init__(self, *lines, events=(), refuses=None):
        self.lines, self.reported, self.refuses, self.reads = lines, events, refuses, 0

    def events(self, handle, *, follow):
        return iter(self.reported)

    def logs(self, handle, selection, *, follow):
        self.reads += 1
        assert (selection.ranks, selection.is_stderr, selection.is_excerpt, follow) == (None, None, True, False)
        if self.refuses:
            raise self.refuses
        return iter(self.lines)


@pytest.fixture
def record(tmp_path):
    job = registry.JobRecord(JobHandle("k8s", "tiny", tmp_path), "0", "2026-01-01T00:00:00+00:00", "ada")
    registry.write(tmp_path, job)
    return job


def test_the_failure_of_a_remote_job_is_read_once_and_kept_in_its_record(record, tmp_path):
    cluster = Remote(LogLine("line", 5, DISK, 0, "pod-5", 1e9))
    found = failures.of(record, cluster, FAILED)
    assert (found.cause.id, found.first_error.place) == ("no_space", "rank 5 on pod-5, 01:46:40 UTC")
    kept = registry.read(tmp_path)
    assert kept.failure == found
    assert failures.of(kept, cluster, FAILED) == found
    assert cluster.reads == 1


def test_the_reason_of_the_cluster_is_searched_too(record):
    reason = JobStatus(JobState.FAILED, 0, "pod tiny-0: OOMKilled (exit code 137)")
    assert failures.of(record, Remote(), reason).cause.id == "host_oom_kernel"
    event = JobEvent(5.0, "Evicted", "The node was low on resource: memory.", "Pod/tiny-0", is_warning=True)
    found = failures.of(record, Remote(events=[event]), FAILED)
    assert (found.cause.id, found.first_error.host, found.first_error.time_s) == ("evicted", "Pod/tiny-0", 5.0)


def test_without_its_logs_a_failure_is_not_kept(record, tmp_path):
    from launcher.common.problems import fail

    reason = JobStatus(JobState.FAILED, 0, "DUE TO TIME LIMIT")
    found = failures.of(record, Remote(refuses=fail("E342", "cluster", "no answer")), reason)
    assert found.cause.id == "time_limit_slurm"
    assert registry.read(tmp_path).failure is None


def test_only_a_job_that_failed_has_a_failure(record):
    for state in JobState:
        if state is not JobState.FAILED:
            assert failures.of(record, None, JobStatus(state, 0, "OOMKilled")) is None


def test_what_an_operator_found_is_read_from_its_state(record, tmp_path):
    (tmp_path / "run").mkdir()
    found = Failure(ErrorLine("x", 1))
    publish(tmp_path / "run", Snapshot(JobState.FAILED, 0, "x", 0, 1, failure=found))
    assert read_snapshot(tmp_path / "run").failure == found
    assert failures.of(record, None, FAILED) == found


# One stream


def test_one_stream_is_in_the_order_of_times(monkeypatch):
    def lines():
        for host in "ab":
            for number in range(50):
                yield LogLine("line", None, f"{host}{number}", 0, host, float(number))
            yield LogLine("line", None, f"{host} continued", 0, host)

    expected = [text for number in range(49) for text in (f"a{number}", f"b{number}")]
    expected += ["a49", "a continued", "b49", "b continued"]
    assert [each.text for each in log_stream.by_time(lines())] == expected
    monkeypatch.setattr(log_stream, "_RUN", 7)
    assert [each.text for each in log_stream.by_time(lines())] == expected


def test_one_stream_without_times_keeps_its_order():
    lines = [LogLine("line", rank, f"{attempt} {rank}", attempt) for attempt in range(2) for rank in (0, 1)]
    lines.insert(2, LogLine("fault", None, "lost", time_s=9.0))
    assert list(log_stream.by_time(lines)) == lines


def test_a_pattern_takes_linear_time_and_a_wrong_one_is_a_problem():
    assert log_stream.searched("needle")(LogLine("line", 0, "x" * 1_000_000 + "needle"))
    matches = log_stream.searched("(a+)+$")
    assert not matches(LogLine("line", 0, "a" * 9000 + "b"))
    assert matches(LogLine("line", 0, "aa"))
    assert not matches(LogLine("event", None, "aa"))
    for wrong in ("(a", "(?=a)", r"(a)\1", 3):
        with pytest.raises(ProblemsFound, match="E728"):
            log_stream.searched(wrong)


# Events


def test_an_event_names_its_node_once(tmp_path):
    fields = {"node": 1, "cause": "a worker failed"}
    EventWriter(tmp_path).add("fault", "node 1: a worker failed (local rank 0 exited with code 1)", fields)
    EventWriter(tmp_path).add("scenario", "worker 3 crashes", {"node": 1})
    assert [(each.about, each.message) for each in job_events(tmp_path, lambda: True, None)] == [
        ("node 1", "a worker failed (local rank 0 exited with code 1)"),
        ("node 1", "worker 3 crashes"),
    ]


def test_an_event_after_one_that_a_full_disk_has_cut_off_has_a_line_of_its_own(tmp_path):
    events = EventWriter(tmp_path)
    events.add("launched")
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write('{"time": 1.0, "kin')
    events.add("request", "2 nodes requested")
    assert [each.kind for each in job_events(tmp_path, lambda: True, None)] == ["launched", "request"]


def test_the_end_of_a_failed_job_is_one_line_with_its_first_error():
    message = "rank 0 (node 0, local rank 0) exited with code 1:\nsome output"
    failure = Failure(ErrorLine(DISK, 0))
    assert in_one_line(message, failure) == f"rank 0 (node 0, local rank 0) exited with code 1: {DISK}"
    assert in_one_line(message, None) == "rank 0 (node 0, local rank 0) exited with code 1"
    assert in_one_line("node 0: the node hangs", failure) == "node 0: the node hangs"


# Real failures of real jobs

PROGRAMS = {
    "host_memory": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
data = bytearray(4 << 30)
""",
    "no_space": """
with open("/dev/full", "w") as file:
    file.write("a checkpoint")
""",
    "file_missing": "open('/nowhere/train.jsonl')",
    "port_in_use": """
import socket
one, other = socket.socket(), socket.socket()
one.bind(("127.0.0.1", 0))
one.listen()
other.bind(one.getsockname())
""",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "hang": "import time; time.sleep(3600)",
}
RANK_1 = """
import os, sys, time
if os.environ["RANK"] != "1":
    time.sleep(0.2)
    sys.exit("RuntimeError: Connection closed by peer")
"""
HANG = {"cluster.hang.expectedStartCutOffInSeconds": 1}
DIVERGES = {"training_config.training_args.learning_rate": 1e25, "training_config.training_args.max_epochs": 9}


@pytest.fixture
def here(tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failed(overrides):
    job = launcher.compile("tiny_lm_cpu", overrides).submit()
    with pytest.raises(JobFailed) as error:
        job.result(timeout=500)
    return job, error.value


@pytest.mark.whole_job
@pytest.mark.parametrize("cause", [*PROGRAMS, "not_finite"])
def test_a_real_failure_has_its_cause(here, cause):
    pytest.importorskip("hyperpod_elastic_agent")
    script = here / "program.py"
    if cause in PROGRAMS:
        script.write_text(("" if cause == "hang" else RANK_1) + PROGRAMS[cause])
    command = {} if cause == "not_finite" else {"cluster.command": [str(script)]}
    job, error = failed(command | (HANG if cause == "hang" else {}) | (DIVERGES if cause == "not_finite" else {}))
    assert error.cause.id == cause, str(error)
    assert error.cause.remedy in str(error)
    assert job.failure == error.failure
    assert (error.first_error.time_s or error.first_error.until_s) > time.time() - 600
    if cause in PROGRAMS and cause != "hang":
        assert error.first_error.rank == 1
        assert error.first_error.host == "node 0"


@pytest.mark.whole_job
def test_the_cause_is_shown_wherever_the_end_is_and_a_secret_in_it_nowhere(here, monkeypatch):
    pytest.importorskip("hyperpod_elastic_agent")
    monkeypatch.setenv("HUB", secret := "Hub-Val7719qq")
    script, shown = here / "program.py", f"{DISK}: '…'"
    script.write_text(RANK_1 + "raise OSError(28, 'No space left on device', os.environ['MY_TOKEN'])\n")
    own = (f"cluster.command=['{script}']", "recipes.trainer.num_nodes=2", "env_vars.MY_TOKEN={env: HUB}")
    words = ("recipes=training/tiny/tiny_lm_cpu", *own)
    code, _, err = run_command("run", *words, cwd=here, module=True)
    assert code == 3
    first, cause, remedy = err.splitlines()[-3:]
    assert first.startswith("first error rank 1 on node 0, ")
    assert first.endswith(shown)
    assert cause.endswith("(storage: no_space)")
    assert remedy.startswith("remedy ")
    (name,) = (path.name for path in (here / "results").iterdir() if (path / "bundle.json").exists())
    for command in ("status", "logs", "wait", "timeline"):
        _, out, err = run_command(command, name, cwd=here, module=True)
        assert "storage: no_space" in out + err, command
    for command in ("status", "wait", "timeline"):
        _, out, _ = run_command(command, name, "--json", cwd=here, module=True)
        assert json.loads(out)["failure"]["cause"]["id"] == "no_space", command
    _, out, _ = run_command("logs", name, "--all", "--grep", "Errno (28|29)", cwd=here, module=True)
    assert set(out.splitlines()) == {f"rank 1, attempt 0 | {shown}"}
    code, _, err = run_command("logs", name, "--grep", "(a", cwd=here, module=True)
    assert code == 2
    assert "E728" in err
    tags = await_true(lambda: mlflow_run(here)[1].data.tags, "the run")
    assert tags["failure.id"] == "no_space"
    assert tags["failure.first_error"].endswith(shown)
    files = [path for path in (here / "results").rglob("*") if path.is_file() and "logs" not in path.parts]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
