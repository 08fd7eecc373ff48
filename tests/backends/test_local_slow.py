"""The stacks of a slow job: the workers write them at a signal, and the operator reports who lags."""

import json
import os
import signal
import subprocess
import sys

import pytest
from background import await_true, suspend

from launcher.common.names import ENV_RUN_DIR, EVENTS_FILE
from launcher.operator import stacks
from launcher.operator.event_log import EventWriter, log_line
from launcher.operator.hang_detector import Overdue
from launcher.operator.snapshot import Attempt
from launcher.operator.stacks import ANSWER_S, Frame, SlowJob, Stack, lagging, parse
from launcher.runtime.stacks import STACK_SIGNAL, stack_file, stacks_folder
from launcher.timeline.records import parse_event

WORKER = """
import sys, time
from launcher.runtime.stacks import write_stack_on_signal

def reads_for_ever():
    while True:
        time.sleep(60)

write_stack_on_signal(int(sys.argv[1]))
print("ready", flush=True)
reads_for_ever()
"""


@pytest.fixture
def workers(tmp_path):
    """Return a function that starts a worker of a rank."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    started = []

    def start(rank, program=None):
        words = [sys.executable, *(program or [str(script), str(rank)])]
        env = {**os.environ, ENV_RUN_DIR: str(tmp_path), "TORCHELASTIC_RESTART_COUNT": "2"}
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, env=env))
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_worker_writes_its_stack_and_a_stopped_one_is_noted(tmp_path, workers):
    other = workers(None, ["-c", "import time; print('ready', flush=True); time.sleep(600)"])
    running, stopped = workers(0), workers(1)
    suspend(stopped.pid)
    folder = stacks_folder(tmp_path, 2)
    before = stacks.sizes(folder)
    assert sorted(before) == [0, 1]
    stacks.request_stacks(folder)
    # A worker writes its stack frame by frame, the outermost one last.
    await_true(lambda: "in <module>\n" in (texts := stacks.texts_after(folder, before))[0] and texts[1])
    found = {rank: parse(text) for rank, text in stacks.texts_after(folder, before).items()}
    assert found[0].place == Frame(str(tmp_path / "worker.py"), "7", "reads_for_ever")
    assert [frame.function for frame in found[0].frames] == ["reads_for_ever", "<module>"]
    assert found[1] == Stack((), is_stopped=True)
    assert running.poll() is other.poll() is None


@pytest.mark.slow
def test_a_process_without_the_handler_gets_no_signal(tmp_path, workers):
    other = workers(0, ["-c", "import time; print('ready', flush=True); time.sleep(600)"])
    folder = stacks_folder(tmp_path, 0)
    folder.mkdir(parents=True)
    stack_file(folder, 0).write_text(f"rank 0, process {other.pid}\n")
    (folder / "rank-1.txt").write_text("no head\n")
    stacks.request_stacks(folder)
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.5)  # the signal would have ended it
    assert stacks.sizes(folder) == {0: stack_file(folder, 0).stat().st_size}


def test_a_worker_is_not_taken_for_that_of_another_node_with_the_same_process_id(tmp_path, workers):
    """Nodes share the folder."""
    stopped = workers(0)
    folder = stacks_folder(tmp_path, 2)
    for rank in (1, 7):
        stack_file(folder, rank).write_text(f"rank {rank}, process {stopped.pid}\n")
    before = stacks.sizes(folder)
    suspend(stopped.pid)
    stacks.request_stacks(folder)
    assert stacks.texts_after(folder, before) == {0: f"{stacks.STOPPED}\n", 1: "", 7: ""}


def test_without_a_run_folder_a_worker_has_no_handler(monkeypatch, tmp_path):
    from launcher.runtime.stacks import write_stack_on_signal

    monkeypatch.delenv(ENV_RUN_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    write_stack_on_signal(0)
    monkeypatch.setenv(ENV_RUN_DIR, str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    write_stack_on_signal(0)
    assert signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_process_of_several_attempts_keeps_one_file_open(tmp_path):
    child = os.fork()
    if not child:
        from launcher.runtime.stacks import write_stack_on_signal

        os.environ[ENV_RUN_DIR] = str(tmp_path)
        counts = []
        for attempt in range(3):
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
            write_stack_on_signal(0)
            counts.append(len(os.listdir("/proc/self/fd")))
        os._exit(0 if len(set(counts)) == 1 and len(list(tmp_path.glob("stacks/*/rank-0.txt"))) == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def at(*frames):
    return Stack(tuple(Frame(*frame) for frame in frames))


TRAINER = ("/home/u/train.py", "9", "train")
SITE = "/venv/lib/python3.11/site-packages"
COLLECTIVE = at((f"{SITE}/torch/distributed/distributed_c10d.py", "1", "all_reduce"), TRAINER)
BACKWARD = at((f"{SITE}/torch/autograd/graph.py", "1", "_engine_run_backward"), TRAINER)
AGREES = at(("/work/launcher/runtime/stop_consensus.py", "70", "end_step"), TRAINER)
READS = at(("/usr/lib/python3.11/socket.py", "700", "readinto"), ("/home/u/data.py", "3", "read"), TRAINER)
RECORDS = at(TRAINER, (f"{SITE}/torch/distributed/elastic/multiprocessing/errors/__init__.py", "1", "wrapper"))
STOPPED = Stack(is_stopped=True)


@pytest.mark.parametrize(
    ("found", "lag"),
    [
        ((COLLECTIVE, READS, BACKWARD), (1,)),
        ((AGREES, RECORDS), (1,)),
        ((READS, AGREES, READS), (0, 2)),
        ((COLLECTIVE, STOPPED, READS), (1,)),
        ((COLLECTIVE, COLLECTIVE, Stack()), (2,)),
        ((READS, READS, RECORDS), (2,)),
        ((READS, RECORDS), ()),
        ((READS, Stack()), (1,)),
        ((COLLECTIVE, COLLECTIVE), ()),
        ((READS,), ()),
        ((), ()),
    ],
)
def test_the_ranks_lag_that_the_others_wait_for(found, lag):
    assert lagging(dict(enumerate(found))) == lag


def test_the_place_of_a_stack_is_in_the_code_that_is_no_library_s():
    own = ("/venv/lib/python3.11/site-packages/launcher/runtime/data.py", "5", "next")
    library = (f"{SITE}/torch/utils/data.py", "1", "fetch")
    assert at(library, own, TRAINER).place == Frame(*own)
    assert at(library, TRAINER, own).place == Frame(*TRAINER)
    assert at(library).place == Frame(*library)
    assert at().place is None
    assert str(at(library, TRAINER)) == "/home/u/train.py:9 in train"
    assert (str(Stack()), str(STOPPED)) == ("its process does not answer", "its process is stopped")


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ([(f"{SITE}/torch/distributed/distributed_c10d.py", "1", "all_reduce")], True),
        ([(f"{SITE}/torch/distributed/elastic/agent.py", "1", "run")], False),
        ([TRAINER, (f"{SITE}/torch/distributed/distributed_c10d.py", "1", "all_reduce")], False),
        (
            [
                (f"{SITE}/torch/utils/data.py", "1", "fetch"),
                ("/work/launcher/runtime/stop_consensus.py", "7", "end_step"),
            ],
            True,
        ),
        ([("/home/u/train.py", "7", "end_step")], False),
        ([("/work/launcher/runtime/stop_consensus.py", "7", "begin")], False),
        ([(f"{SITE}/torch/autograd/graph.py", "1", "_engine_run_backward")], True),
        ([(f"{SITE}/torch/autograd/graph.py", "1", "backward")], False),
        ([], False),
    ],
)
def test_a_stack_waits_in_a_collective_that_it_called_itself(frames, waits):
    assert at(*frames).waits is waits


def test_many_ranks_that_lag_are_counted(tmp_path):
    for ranks, more in ((8, ""), (9, " and 1 more"), (11, " and 3 more")):
        texts = [text_of(TRAINER)] * ranks + [text_of(WAITING, TRAINER)]
        found = Job(tmp_path / str(ranks), texts).poll(0.0, is_hang=True)
        assert f"rank 0 (node 4) lags: /home/u/train.py:9 in train; as do ranks 1, 2, 3, 4, 5, 6, 7{more}; " in found


def test_an_answer_is_waited_for_ten_seconds_each_time(tmp_path):
    job = Job(tmp_path, [text_of(TRAINER), ""])
    assert job.poll(100.0, is_hang=True) == job.poll(109.9, is_hang=True) == ""
    assert "does not answer" in job.poll(110.0, is_hang=True)
    assert (job.poll(111.0, is_hang=True), job.requests) == ("", 2)
    job.poll(112.0, message="")
    assert (job.poll(121.5, is_hang=True), job.requests) == ("", 3)


def text_of(*frames, thread="Current thread"):
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join((f"{thread} 0x00007f6a316b3b80 (most recent call first):", *lines, ""))


def test_the_stack_of_the_main_thread_is_the_last_one():
    helper = text_of(("/x.py", "1", "helps"), thread="Thread")
    assert parse(helper + "\n" + text_of(TRAINER)) == at(TRAINER)
    assert parse(text_of(TRAINER) + "\n" + text_of(TRAINER, TRAINER)) == at(TRAINER, TRAINER)
    assert parse("") == Stack()


class Job:
    """A slow job of three workers on two nodes, whose workers answer with the given texts."""

    def __init__(self, folder, texts):
        self.run_dir, self.texts, self.requests = folder / "run", texts, 0
        for rank in range(len(texts)):
            path = stack_file(stacks_folder(self.run_dir, 1), rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"rank {rank}, process {rank + 1}\n" + text_of(("/old.py", "1", "old")))
        self.slow = SlowJob(self.run_dir, 2, self.request, EventWriter(self.run_dir))

    def request(self, folder):
        self.requests += 1
        for rank, text in enumerate(self.texts):
            with stack_file(folder, rank).open("a") as file:
                file.write(text)

    def poll(self, now_s, *, is_hang=False, message="no new step for 61 s"):
        overdue = Overdue(message, is_hang) if message else None
        attempt = Attempt(1, 4, (4, 6), 0.0)  # stacks count once they have not changed between two polls
        return self.slow.poll(now_s, attempt, overdue) or self.slow.poll(now_s, attempt, overdue)

    @property
    def events(self):
        path = self.run_dir / EVENTS_FILE
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


WAITING = (f"{SITE}/torch/distributed/distributed_c10d.py", "1", "all_reduce")
REPORT = "run/stacks/attempt-1/report.txt"


def test_a_slow_job_is_reported_once_and_goes_on(tmp_path):
    job = Job(tmp_path, [text_of(WAITING, TRAINER), text_of(WAITING, TRAINER), text_of(("/u/data.py", "3", "read"))])
    assert [job.poll(now) for now in (0.0, 1.0, 2.0)] == ["", "", ""]
    (event,) = job.events
    message = f"no new step for 61 s; rank 2 (node 6) lags: /u/data.py:3 in read; stacks: {REPORT}"
    assert event["message"] == f"slow: {message}; the job is not stopped"
    assert (event["kind"], event["ranks"], job.requests) == ("slow", [2], 1)
    assert log_line(parse_event(json.dumps(event))).shown(with_writer=False) == f"event  {event['message']}"
    lines = (tmp_path / REPORT).read_text().splitlines()
    assert lines[:2] == [message, ""] and "rank 2 (node 6), innermost call first:" in lines
    assert lines[-1] == "  /u/data.py:3 in read" and not any("old" in line for line in lines)
    job.poll(3.0, message="")
    job.poll(4.0)
    assert len(job.events) == 2, "the next long step is reported again"


def test_a_job_that_hangs_is_reported_with_fresh_stacks(tmp_path):
    job = Job(tmp_path, [text_of(WAITING, TRAINER), text_of(TRAINER), text_of(TRAINER), text_of(TRAINER)])
    assert job.poll(0.0) == ""
    found = job.poll(600.0, is_hang=True)
    assert "; rank 1 (node 4) lags: /home/u/train.py:9 in train; as do ranks 2, 3; stacks: " in found
    assert job.requests == 2


def test_a_job_with_a_stopped_process_hangs_at_once(tmp_path):
    job = Job(tmp_path, [text_of(WAITING, TRAINER), f"{stacks.STOPPED}\n"])
    assert "; rank 1 (node 4) lags: its process is stopped; " in job.poll(0.0)
    assert (job.events, job.slow.lagging_nodes) == ([], (4,))


def test_workers_that_do_not_answer_are_waited_for_some_seconds(tmp_path):
    job = Job(tmp_path, [text_of(TRAINER), ""])
    assert job.poll(0.0, is_hang=True) == job.poll(ANSWER_S - 0.1, is_hang=True) == ""
    assert "; rank 1 (node 4) lags: its process does not answer; " in job.poll(ANSWER_S, is_hang=True)


def test_ranks_at_one_place_and_scripts_without_stacks_are_reported_too(tmp_path):
    same = Job(tmp_path, [text_of(TRAINER), text_of(TRAINER)])
    assert "rank 0 (node 4) is at /home/u/train.py:9 in train, and no rank lags" in same.poll(0.0, is_hang=True)
    alone = Job(tmp_path / "alone", [text_of(TRAINER)]).poll(0.0, is_hang=True)
    assert "; rank 0 (node 4) is at /home/u/train.py:9 in train; stacks: " in alone
    assert Job(tmp_path / "other", []).poll(0.0, is_hang=True) == "no new step for 61 s"
