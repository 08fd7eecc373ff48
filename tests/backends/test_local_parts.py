"""The local backend's parts that need no agent: ports, nodes, state, logs, explanations."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from background import await_true
from engines.log_texts import shown
from pydantic import TypeAdapter

from launcher.backends.local.fleet import LocalFleet, NodeAddress
from launcher.backends.local.operator import share_cores
from launcher.common.interrupts import reap
from launcher.common.locks import JobAlreadyRunning, is_alive, lock
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobState, LogSelection
from launcher.operator.job_request import JobRequest, read_job_request
from launcher.operator.processes import LOOPBACK, port_of, reserve_port
from launcher.operator.snapshot import Attempt, Snapshot, note_stop, publish, read_snapshot, stop_reason
from launcher.operator.state_machine import Cause, Fault
from launcher.operator.types import FailedWorker, Policy, failed_workers
from launcher.operator.worker_logs import (
    count_logs_as,
    explain,
    follow_attempts,
    read_launch,
    read_logs,
    tail,
    worker_log,
)

ROOT = Path(__file__).parents[2]
NODE = [sys.executable, "-m", "launcher.backends.local.node"]
# Prints the pid of a grandchild in a session of its own, whose parent is gone.
ORPHAN = (
    "import subprocess, sys, time;"
    'inner = \'import subprocess, sys; print(subprocess.Popen([sys.executable, "-c", "import time;'
    " time.sleep(600)\"], start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)';"
    "subprocess.run([sys.executable, '-c', inner])"
)


# Adopts such a grandchild, and ends all that it did not start itself.
ADOPTER = f"""
import pathlib, psutil, subprocess, sys
from launcher.common import prctl
from launcher.operator.processes import kill_strays
def no_such_file(_): raise FileNotFoundError
if sys.argv[1] == "unlisted": pathlib.Path.iterdir = no_such_file
prctl.adopt_orphans()
own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
orphan = int(subprocess.run([sys.executable, "-c", {ORPHAN!r}], stdout=subprocess.PIPE).stdout)
assert psutil.Process(orphan).ppid() == psutil.Process().pid
kill_strays([own.pid])
assert own.poll() is None and not psutil.pid_exists(orphan)
own.kill()
"""


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def wait_gone(pid):
    await_true(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def node(script, *options):
    return subprocess.Popen(
        [*NODE, *options, "--", sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment()
    )


@pytest.mark.slow
@pytest.mark.parametrize("children", ["listed", "unlisted"])
def test_what_was_adopted_is_ended_and_what_was_started_is_not(children):
    """The kernel lists a process's children, or does not."""
    done = subprocess.run(
        [sys.executable, "-c", ADOPTER, children], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("; sys.exit(7)", 7), ("; import os; os.kill(os.getpid(), 9)", 137)],
    ids=["success", "failure", "killed"],
)
def test_a_node_ends_with_its_command_and_takes_orphans_with_it(end, status):
    process = node(ORPHAN + end)
    orphan = int(process.stdout.readline())
    assert process.wait(200) == status
    process.stdout.close()
    wait_gone(orphan)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signalled_node_kills_all_below_it(signum):
    process = node(ORPHAN + "; time.sleep(600)")
    orphan = int(process.stdout.readline())
    process.send_signal(signum)
    assert process.wait(200) == 128 + signum
    process.stdout.close()
    wait_gone(orphan)


@pytest.mark.slow
def test_a_node_ends_when_its_parent_is_killed():
    start = (
        f"import subprocess; subprocess.run({[*NODE, '--', sys.executable, '-c', ORPHAN + '; time.sleep(600)']!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, env=environment())
    orphan = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_gone(orphan)


@pytest.mark.slow
def test_memory_of_a_node_that_was_killed_goes_when_the_next_one_begins():
    show = (
        "import os; print(os.getpid(), os.environ['RECIPES_NODE_MEMORY'], flush=True); import time; time.sleep(600)"
    )
    killed = node(show)
    orphan, memory = killed.stdout.readline().decode().split()
    killed.kill()
    killed.wait()
    wait_gone(int(orphan))  # the kernel ends it with its node
    alive = node(show)
    other, own = alive.stdout.readline().decode().split()
    assert not Path(memory).exists() and Path(own).stat().st_mode & 0o777 == 0o700
    third = node("")
    assert third.wait(200) == 0 and Path(own).exists()
    alive.terminate()
    assert alive.wait(200) == 128 + signal.SIGTERM and not Path(own).exists()
    for each in (killed, alive, third):
        each.stdout.close()


def test_a_node_whose_parent_is_gone_already_runs_nothing(tmp_path):
    process = node(f"open({str(tmp_path / 'ran')!r}, 'w'); import time; time.sleep(600)", "--parent", "1")
    assert process.wait(200) == 128 + signal.SIGTERM
    process.stdout.close()
    assert not (tmp_path / "ran").exists()


def test_a_reserved_port_serves_whoever_names_it_and_nobody_else():
    reservations = [reserve_port() for _ in range(50)]
    ports = {port_of(each) for each in reservations}
    assert len(ports) == 50
    try:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((LOOPBACK, min(ports)))
            server.listen()
            socket.create_connection((LOOPBACK, min(ports))).close()
        with socket.socket() as greedy, pytest.raises(OSError, match="in use"):
            greedy.bind((LOOPBACK, max(ports)))
    finally:
        for each in reservations:
            each.close()


def test_a_snapshot_comes_back_as_it_was_published(tmp_path):
    attempts = (Attempt(0, 0, (0, 1), 1.5), Attempt(1, 1, (1, 2), 2.5))
    snapshot = Snapshot(JobState.FAILED, 0, "rank 1 …", 1, 42, 3, attempts)
    assert read_snapshot(tmp_path) is None
    publish(tmp_path, snapshot)
    assert read_snapshot(tmp_path) == snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.slow
def test_the_lock_is_held_while_an_inheritor_of_it_lives(tmp_path):
    assert not is_alive(tmp_path)
    with lock(tmp_path) as file:
        sleeper = subprocess.Popen(["sleep", "600"], pass_fds=(file.fileno(),))
    assert is_alive(tmp_path)
    with pytest.raises(JobAlreadyRunning), lock(tmp_path):
        pass
    sleeper.kill()
    sleeper.wait()
    assert not is_alive(tmp_path)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-768, "exited with code 3"),
        (-256, "exited with code 1"),
        (-9, "was killed by SIGKILL"),
        (-139, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
        (2, "exited with code 2"),
    ],
    ids=["exit-3", "exception", "sigkill", "core-dumped", "real-time", "unmangled"],
)
def test_an_agents_exit_codes_are_told_as_they_were(code, words):
    assert str(FailedWorker(0, code)) == words


def test_failed_workers_are_read_from_the_agents_message():
    message = (
        "A training worker process has crashed:\n"
        "    Local Rank 1 exited with code -768 due to: unknown\n"
        "    Local Rank 0 exited with code -9 due to: Signal 9\n"
    )
    assert [(each.local_rank, each.exit_code) for each in failed_workers(message)] == [(1, -768), (0, -9)]


def worker_file(run_dir, node_index, attempt, local_rank, name, text, mtime=None):
    path = run_dir / "logs" / f"node-{node_index}" / "job_x1" / f"attempt_{attempt}" / str(local_rank) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mtime:
        os.utime(path, (mtime, mtime))
    return path


def test_the_rank_that_wrote_its_last_word_first_is_named(tmp_path):
    now = time.time()
    worker_file(tmp_path, 4, 2, 0, "stderr.log", "Connection closed by peer\n", now + 0.3)
    worker_file(tmp_path, 7, 2, 1, "stderr.log", "Traceback\nValueError: bad sample\n", now)
    faults = tuple(
        Fault(node_index, Cause.WORKER, f"Local Rank {rank} exited with code -256 due to: unknown")
        for node_index, rank in ((4, 0), (7, 1))
    )
    text = explain(faults, tmp_path, (Attempt(2, 4, (4, 7), now),), nproc_per_node=2)
    assert text == "rank 3 (node 7, local rank 1) exited with code 1:\nTraceback\nValueError: bad sample"


def test_the_logs_of_a_new_node_that_never_took_part_count_as_those_of_the_attempt(tmp_path):
    now = time.time()
    for number in (0, 1):  # the agent of node 1 was asked to count on
        worker_file(tmp_path, number, number, 0, "stderr.log", "no such corpus\n", now)
    attempt = Attempt(1, 0, (0, 1), now)
    for node in attempt.nodes:
        count_logs_as(tmp_path, node, attempt)
        assert tail(worker_log(tmp_path, attempt, node, 0, "stderr.log")) == "no such corpus"
    count_logs_as(tmp_path, 0, Attempt(2, 0, (0,), now + 100.0))
    assert worker_log(tmp_path, attempt, 0, 0, "stderr.log"), "they are those of an earlier launch"


def test_a_lost_node_outranks_the_workers_that_missed_it(tmp_path):
    (tmp_path / "logs/node-1").mkdir(parents=True)
    (tmp_path / "logs/node-1/agent.log").write_text("Killed\n")
    faults = (Fault(0, Cause.WORKER, "Local Rank 0 exited with code -256"), Fault(1, Cause.LOST))
    assert explain(faults, tmp_path, (), 1) == "node 1: its agent ended:\nKilled"


CRASH = "Local Rank 0 exited with code -256 due to: unknown"
FIRST = Attempt(0, 0, (0, 1), 0.0)


@pytest.mark.parametrize(
    ("faults", "attempts", "reason"),
    [
        ((), (FIRST,), "failed, and no agent reported why"),
        ((Fault(0, Cause.WORKER, CRASH),), (), "failed, and no agent reported why"),
        ((), (), "failed, and no agent reported why"),
        ((Fault(-1, Cause.NO_CAPACITY),), (), str(Cause.NO_CAPACITY)),
        ((Fault(-1, Cause.HANG, "no step"), Fault(1, Cause.LOST)), (), "hang: no step"),
        ((Fault(1, Cause.UNREADY, " no port "),), (), "node 1: its agent was not ready in time:\nno port"),
        ((Fault(1, Cause.LOST),), (), "node 1: its agent ended"),
        ((Fault(1, Cause.WORKER),), (FIRST,), "node 1: a worker failed"),
        (
            (Fault(1, Cause.WORKER, "no\nport"), Fault(0, Cause.WORKER, "x")),
            (FIRST,),
            "node 1: a worker failed:\nno\nport",
        ),
        ((Fault(1, Cause.WORKER, CRASH),), (FIRST,), "rank 2 (node 1, local rank 0) exited with code 1"),
    ],
    ids=["no-fault", "no-attempt", "neither", "no-nodes", "hang", "unready", "lost", "silent", "message", "worker"],
)
def test_a_failed_job_has_a_reason(tmp_path, faults, attempts, reason):
    assert explain(faults, tmp_path, attempts, 2) == reason


def test_a_failed_job_without_a_rank_s_output_names_that_rank_first(tmp_path):
    """It wrote nothing, so that nothing was written before it."""
    worker_file(tmp_path, 0, 0, 0, "stderr.log", "Connection closed\n", 1.5)
    faults = (Fault(0, Cause.WORKER, CRASH), Fault(1, Cause.WORKER, CRASH))
    assert explain(faults, tmp_path, (FIRST,), 1) == "rank 1 (node 1, local rank 0) exited with code 1"
    worker_file(tmp_path, 0, 0, 0, "stderr.log", "Connection closed\n", 0.5)
    assert explain(faults, tmp_path, (FIRST,), 1) == "rank 1 (node 1, local rank 0) exited with code 1"


def test_tail_gives_the_last_lines_of_a_long_file(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(10_000)))
    assert tail(path, 2) == "line 9998\nline 9999"
    assert tail(tmp_path / "none") == ""


def test_following_goes_from_attempt_to_attempt_and_never_splits_a_line(tmp_path):
    now = time.time()
    looks = iter(
        [
            ((), False),
            ((Attempt(0, 0, (0,), now),), False),
            ((Attempt(0, 0, (0,), now),), False),
            ((Attempt(0, 0, (0,), now), Attempt(1, 3, (3,), now)), False),
        ]
    )
    last = ((Attempt(0, 0, (0,), now), Attempt(1, 3, (3,), now)), True)
    first = worker_file(tmp_path, 0, 0, 0, "stdout.log", "one\ntw")
    steps = iter([lambda: None, lambda: first.write_text("one\ntwo\nthree"), lambda: None])
    worker_file(tmp_path, 3, 1, 0, "stdout.log", "four\nfive")
    lines = follow_attempts(tmp_path, lambda: next(looks, last), lambda: next(steps, lambda: None)())
    assert list(shown(lines)) == ["one", "two", "three", "four", "five"]


def test_an_earlier_runs_attempt_of_the_same_number_is_not_shown(tmp_path):
    now = time.time()
    worker_file(tmp_path, 0, 0, 0, "stdout.log", "old\n", now - 100)
    assert list(follow_attempts(tmp_path, lambda: ((Attempt(0, 0, (0,), now),), True), None)) == []


def say(run_dir, kind, time_s, message="", **fields):
    line = json.dumps({"time": time_s, "kind": kind, "message": message, **fields})
    with (run_dir / "events.jsonl").open("a") as file:
        file.write(line + "\n")


def test_news_of_the_job_come_between_the_lines_of_its_attempts(tmp_path):
    now = time.time()
    say(tmp_path, "launched", now - 900, nodes=1)
    say(tmp_path, "scenario", now - 899, "of an earlier launch")
    say(tmp_path, "launched", now, nodes=1)
    worker_file(tmp_path, 0, 0, 0, "stdout.log", "step 1\n")
    both = Attempt(0, 0, (0,), now), Attempt(1, 1, (1,), now + 5)
    looks = iter([((), False), (both[:1], False), (both[:1], False), (both, False)])

    def lose_the_node():
        say(tmp_path, "scenario", now + 1, "node 0 is lost")
        say(tmp_path, "fault", now + 2, "node 0: its agent ended\nKilled", node=0)
        say(tmp_path, "transition", now + 2, reason="recover", from_nodes=2, to_nodes=2)
        say(tmp_path, "stopping", now + 3, attempt=0)
        say(tmp_path, "transition", now + 4, reason="scale-down", from_nodes=2, to_nodes=1)

    def go_on():
        say(tmp_path, "starting", now + 5, attempt=1)
        worker_file(tmp_path, 1, 1, 0, "stdout.log", "step 2\n", now + 6)

    def suspend():
        say(tmp_path, "transition", now + 9, reason="suspend", from_nodes=1, to_nodes=0)
        say(tmp_path, "operator", now + 9, "the operator is back")

    pauses = iter([lambda: None, lose_the_node, go_on, suspend])
    lines = follow_attempts(tmp_path, lambda: next(looks, (both, True)), lambda: next(pauses)())
    assert list(shown(lines)) == [
        "step 1", "event  node 0 is lost", "fault  node 0: its agent ended",
        "scale  stopping the workers that are left", "scale  2 -> 1 node", "step 2",
        "scale  1 -> 0 nodes, until there is room again", "event  the operator is back",
    ]  # fmt: skip


def test_a_log_read_afterwards_has_each_attempt_s_news_behind_it(tmp_path):
    now = time.time()
    say(tmp_path, "launched", now, nodes=1)
    say(tmp_path, "request", now + 1, "2 nodes were asked for", nodes=2)
    say(tmp_path, "request", now + 9, "1 nodes were asked for", nodes=1)
    worker_file(tmp_path, 0, 0, 0, "stdout.log", "one\n")
    worker_file(tmp_path, 0, 1, 0, "stdout.log", "two\n", now + 6)
    attempts = Attempt(0, 0, (0,), now), Attempt(1, 0, (0, 1), now + 5)
    lines = list(shown(follow_attempts(tmp_path, lambda: (attempts, True), None)))
    assert lines == ["one", "event  2 nodes were asked for", "two", "event  1 nodes were asked for"]


def running_job(bundle_dir):
    """Return a bundle's run folder, whose job is at its first attempt, on 1 node of at most 2."""
    run_dir = bundle_dir / "run"
    run_dir.mkdir()
    plan = {"job_name": "j", "nproc_per_node": 2, "initial_nodes": 1, "elastic": None}
    (bundle_dir / "plan.json").write_text(json.dumps({**plan, "scales": [{"nodes": 1}, {"nodes": 2}]}))
    publish(run_dir, Snapshot(JobState.RUNNING, 1, "training", 0, os.getpid(), None, (Attempt(0, 0, (0,), 1.0),)))
    return run_dir


@pytest.mark.slow
def test_a_running_job_is_followed_to_its_end_whichever_process_started_it(tmp_path):
    run_dir = running_job(tmp_path)
    worker_file(run_dir, 0, 0, 1, "stderr.log", "one\ntwo")
    with lock(run_dir):
        lines = shown(read_logs(tmp_path, LogSelection((1,), is_stderr=True), follow=True))
        assert next(lines) == "one"
        # Its last line is whole only once the job has ended.
        publish(run_dir, Snapshot(JobState.SUCCEEDED, 0, "completed", 0, 1, 0, (Attempt(0, 0, (0,), 1.0),)))
        assert list(lines) == ["two"]


def test_a_rank_that_no_size_of_a_running_job_has_is_refused(tmp_path):
    run_dir = running_job(tmp_path)
    with lock(run_dir):
        read_logs(tmp_path, LogSelection((3,)), follow=True)
        with pytest.raises(ProblemsFound, match="allowed: 0 to 3"):
            read_logs(tmp_path, LogSelection((4,)), follow=True)
    with pytest.raises(ProblemsFound, match="allowed: 0 to 1"):
        read_logs(tmp_path, LogSelection((3,)), follow=True)


@pytest.mark.parametrize(
    ("elastic", "graceful_timeout_s"),
    [
        (None, None),
        ({"use_graceful_shutdown": False, "graceful_shutdown_timeout_s": 9}, None),
        ({"use_graceful_shutdown": True, "graceful_shutdown_timeout_s": 9}, 9),
        ({"use_graceful_shutdown": True, "graceful_shutdown_timeout_s": None}, 15),
    ],
    ids=["fixed", "abrupt", "graceful", "graceful-default"],
)
def test_orders_take_the_time_to_save_from_the_plan(tmp_path, elastic, graceful_timeout_s):
    plan = {"job_name": "j", "nproc_per_node": 2, "initial_nodes": 3, "elastic": elastic}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "scales": [{"nodes": 3}, {"nodes": 1}]}))
    orders = read_job_request(tmp_path)
    policy = orders.policy
    assert (policy.graceful_timeout_s, policy.sizes, orders.initial_nodes) == (graceful_timeout_s, (1, 3), 3)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("plan.json", "{", "plan.json is damaged"),
        ("plan.json", "[]", "plan.json is damaged"),
        ("plan.json", None, "plan.json cannot be read: No such file or directory"),
        ("local.json", '{"hang": 5, "checkpoints": null}', "local.json is damaged"),
        ("local.json", "null", "local.json is damaged"),
    ],
)
def test_a_damaged_file_of_a_bundle_is_named(render, tmp_path, name, text, says):
    files = render("recipes=training/tiny/tiny_lm_cpu").files
    for each in ("plan.json", "local.json"):
        (tmp_path / each).write_text(files[each])
    assert read_job_request(tmp_path).nproc_per_node == 2
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(ProblemsFound, match=rf"E703[\s\S]*is not a bundle directory: {says}\n?$"):
        read_job_request(tmp_path)


def test_each_launch_has_its_logs_and_the_last_one_is_the_default(render, tmp_path):
    files = render("recipes=training/tiny/tiny_lm_cpu").files
    for each in ("plan.json", "local.json"):
        (tmp_path / each).write_text(files[each])
    run_dir, events = tmp_path / "run", []
    for number, began in enumerate((1000.0, 2000.0)):
        events.append({"time": began, "kind": "launched", "message": "", "nodes": 1, "sizes": [1]})
        for attempt in (0, 1)[: 2 - number]:
            start = began + 10 * attempt + 1
            events.append({"time": start, "kind": "starting", "attempt": attempt, "nodes": [0], "size": 1})
            log = run_dir / f"logs/node-0/job_{number}/attempt_{attempt}/0/stdout.log"
            log.parent.mkdir(parents=True)
            log.write_text(f"launch {number}, attempt {attempt}\n")
            os.utime(log, (start + 5, start + 5))
    (run_dir / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))

    def texts(launch, attempt=None):
        return [line.text for line in read_launch(tmp_path, launch, LogSelection(attempt=attempt))]

    assert texts(0) == ["launch 0, attempt 0", "launch 0, attempt 1"]
    assert texts(0, 1) == ["launch 0, attempt 1"]
    assert texts(1) == ["launch 1, attempt 0"]
    for launch, attempt, said in (
        (2, None, "--launch[\\s\\S]*0 to 1"),
        (True, None, "--launch"),
        (1, 1, "--attempt"),
    ):
        with pytest.raises(ProblemsFound, match=f"E706 {said}"):
            texts(launch, attempt)
    attempts = (Attempt(0, 0, (0,), 2001.0),)
    publish(run_dir, Snapshot(JobState.FAILED, 0, "", 0, 1, exit_code=1, attempts=attempts))
    assert [line.text for line in read_logs(tmp_path, LogSelection(), follow=False)] == ["launch 1, attempt 0"]


def test_the_next_operator_knows_what_each_agent_was_started_with(tmp_path):
    kept = TypeAdapter(NodeAddress)
    address = NodeAddress(4, os.getpid(), 8080, {"rank": 1, "nnodes": 2, "faultCount": 3})
    with (tmp_path / "lock").open("wb") as lock_file:
        fleet = LocalFleet(tmp_path, tmp_path, lock_file)
        fleet.adopt([kept.validate_json(kept.dump_json(address))], None)
        assert fleet.addresses() == (address,)


@pytest.mark.parametrize(
    ("num_ranks", "sizes", "given", "threads"),
    [
        (1, (1, 2, 3), None, "2"),
        (1, (1, 2, 3), "5", "5"),
        (1, (9,), None, "1"),
        (1, (1,), None, None),
        (2, (3,), None, None),
    ],
    ids=["shared", "given", "more nodes than cores", "one node", "ranks of a node"],
)
def test_nodes_of_one_rank_share_the_cores_of_this_machine(monkeypatch, num_ranks, sizes, given, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6))
    monkeypatch.setattr(os, "environ", {} if given is None else {"OMP_NUM_THREADS": given})
    share_cores(JobRequest("job", num_ranks, sizes[0], Policy(sizes, graceful_timeout_s=None)))
    assert os.environ.get("OMP_NUM_THREADS") == threads


def test_the_reason_of_a_stop_is_kept_for_the_operator(tmp_path):
    assert stop_reason(tmp_path) is None
    note_stop(tmp_path, "cancelled by ada")
    assert stop_reason(tmp_path) == "cancelled by ada"
    note_stop(tmp_path / "removed", "cancelled by ada")  # which does not keep a job from being stopped


def test_a_child_that_is_reaped_has_its_return_code():
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    for _ in range(2):
        reap(child)
    assert child.returncode == 7


def test_a_child_is_reaped_though_a_signal_left_its_lock_taken():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child._waitpid_lock.acquire()  # as by an exception of a signal's handler within `poll`
    for _ in range(2):
        reap(child)
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
