"""Workers that are forked from a warm process: nobody can tell them from workers that were started."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid

import psutil
import pytest
from background import await_true, suspend
from conftest import ROOT

from launcher.runtime import agent, warm_client

SERVER = """
import sys
from launcher.runtime import warm
server = warm.Server(sys.argv[1])
print("listening", flush=True)
server.serve()
import os, runpy
runpy.run_path(os.environ["WORK"])
"""

WORKER = """
import os
from launcher.runtime import agent, warm_client
warm_client.ANSWER_TIMEOUT_S = float(os.environ.get("PATIENCE_S", warm_client.ANSWER_TIMEOUT_S))
warm_client.run_warm()
print("cold", flush=True)
"""

SAYS_WHO_IT_IS = """
import os, sys
print(sys.argv[1:], os.environ["RANK"], os.getcwd(), flush=True)
print("oops", file=sys.stderr, flush=True)
sys.exit(3)
"""

SLEEPS = """
import os, signal, time
def note(number, _frame):
    print("told", number, flush=True)
signal.signal(signal.SIGUSR1, note)
print("asleep", os.getpid(), flush=True)
time.sleep(600)
"""


STOPS_ONCE_IT_HAS_FORKED = """
import os, signal
def forked(fork=os.fork):
    if pid := fork():
        signal.raise_signal(signal.SIGSTOP)
    return pid
os.fork = forked
"""


@pytest.fixture
def node(tmp_path, request):
    """Return a function that starts a worker with some work, and the warm process it is forked from.

    A parameter is what the warm process runs first.
    """
    name = f"recipes-warm-test-{uuid.uuid4()}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RECIPES_WARM_SOCKET": name, "RANK": "5"}
    server = subprocess.Popen(
        [sys.executable, "-c", getattr(request, "param", "") + SERVER, name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout.readline() == "listening\n"
    workers = []

    server.name = name

    def start(work, patience_s=60.0, **options):
        (tmp_path / "work.py").write_text(work)
        (tmp_path / "folder").mkdir(exist_ok=True)
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, "--flag", "a b"],
            env=environment | {"WORK": str(tmp_path / "work.py"), "PATIENCE_S": str(patience_s)},
            cwd=tmp_path / "folder",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        workers.append(worker)
        return worker

    yield start, server
    for process in (*workers, server):
        process.kill()
        process.wait()


def asleep(worker):
    """Return the pid of the fork that sleeps in a worker's place."""
    word, pid = worker.stdout.readline().split()
    assert word == "asleep" and int(pid) != worker.pid
    return int(pid)


def wait_gone(pid):
    await_true(lambda: not psutil.pid_exists(pid), f"the end of {pid}")


def test_a_fork_has_the_arguments_environment_folder_and_streams_of_its_worker(node, tmp_path):
    start, _ = node
    out, err = start(SAYS_WHO_IT_IS).communicate(timeout=200)
    assert out == f"['--flag', 'a b'] 5 {tmp_path / 'folder'}\n"
    assert err == "oops\n"


@pytest.mark.slow
def test_a_worker_ends_with_the_status_of_its_fork(node):
    start, _ = node
    assert start(SAYS_WHO_IT_IS).wait(200) == 3
    assert start("raise RuntimeError('out of patience')").wait(120) == 1


def test_signals_are_handed_on_and_a_fork_that_one_ends_ends_its_worker_alike(node):
    start, _ = node
    worker = start(SLEEPS)
    fork = asleep(worker)
    worker.send_signal(signal.SIGUSR1)
    assert worker.stdout.readline() == f"told {signal.SIGUSR1}\n"
    worker.terminate()
    assert worker.wait(200) == -signal.SIGTERM
    wait_gone(fork)


def test_a_fork_is_named_after_its_rank(node):
    start, _ = node
    assert psutil.Process(asleep(start(SLEEPS))).name() == "rank5"


@pytest.mark.slow
def test_a_killed_worker_takes_its_fork_with_it(node):
    start, _ = node
    worker = start(SLEEPS)
    fork = asleep(worker)
    worker.kill()
    wait_gone(fork)
    assert start(SAYS_WHO_IT_IS).wait(200) == 3


def test_a_killed_fork_ends_its_worker_alike(node):
    start, _ = node
    worker = start(SLEEPS)
    os.kill(asleep(worker), signal.SIGKILL)
    assert worker.wait(200) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [1, 2], ids=["one-worker", "two-workers"])
def test_a_warm_process_that_hangs_is_killed_and_its_workers_start_cold(node, waiting):
    start, server = node
    earlier = start(SLEEPS)
    fork = asleep(earlier)
    suspend(server.pid)
    workers = [start(SAYS_WHO_IT_IS, patience_s=0.2) for _ in range(waiting)]
    for worker in workers:
        out, err = worker.communicate(timeout=200)
        assert out == "cold\n" and worker.returncode == 0
        assert "no warm start" in err
    assert server.wait(200) == -signal.SIGKILL
    wait_gone(fork)  # it would run beside the workers of the next attempt
    assert earlier.wait(200) == -signal.SIGKILL


@pytest.mark.slow
def test_a_warm_process_answers_while_it_serves_and_not_while_it_hangs(node):
    start, server = node
    assert warm_client.answers(server.name)
    asleep(start(SLEEPS))
    assert warm_client.answers(server.name)
    suspend(server.pid)
    assert not warm_client.answers(server.name, 0.2)
    server.send_signal(signal.SIGCONT)
    assert warm_client.answers(server.name, 60)
    assert not warm_client.answers("recipes-warm-of-nobody")


@pytest.mark.slow
def test_a_killed_warm_process_takes_every_fork_with_it(node):
    start, server = node
    worker = start(SLEEPS)
    fork = asleep(worker)
    server.kill()
    assert worker.wait(200) == -signal.SIGKILL
    server.wait()
    wait_gone(fork)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ended-and-abandoned", "ended-with-a-signal-on-its-way"])
def test_what_happens_to_one_fork_at_once_does_not_touch_another(node, how):
    start, server = node
    first = start(SLEEPS)
    forks = [asleep(first)]
    second = start(SLEEPS)
    forks.append(asleep(second))
    suspend(server.pid)
    if how == "ended-and-abandoned":
        first.kill()
    else:
        first.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    os.kill(forks[0], signal.SIGKILL)
    server.send_signal(signal.SIGCONT)
    assert first.wait(200) == -signal.SIGKILL
    wait_gone(forks[0])
    second.send_signal(signal.SIGUSR1)
    assert second.stdout.readline() == f"told {signal.SIGUSR1}\n"


@pytest.mark.slow
def test_a_worker_whose_warm_process_dies_does_not_start_a_second_time(node):
    start, server = node
    worker = start(SLEEPS)
    asleep(worker)
    suspend(server.pid)
    worker.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    server.kill()
    out, err = worker.communicate(timeout=200)
    assert (worker.returncode, out, err) == (-signal.SIGKILL, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("node", [STOPS_ONCE_IT_HAS_FORKED], indirect=True, ids=["hangs-once-it-has-forked"])
def test_a_worker_whose_fork_has_begun_does_not_start_a_second_time(node):
    start, server = node
    worker = start(SLEEPS)
    fork = asleep(worker)
    server.kill()
    out, err = worker.communicate(timeout=200)
    assert (worker.returncode, out, err) == (-signal.SIGKILL, "", "")
    wait_gone(fork)


@pytest.mark.slow
def test_a_killed_worker_takes_the_children_of_its_fork_with_it(node):
    start, _ = node
    worker = start(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('asleep', child.pid, flush=True)\n"
        "child.wait()"
    )
    child = asleep(worker)
    worker.kill()
    wait_gone(child)


def test_without_a_warm_process_a_worker_starts_cold_and_says_so(node):
    start, server = node
    server.kill()
    server.wait()
    out, err = start(SLEEPS).communicate(timeout=200)
    assert out == "cold\n"
    assert err.startswith("no warm start: ")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_nothing_is_told_to_a_warm_process_of_somebody_else(node, tmp_path):
    start, server = node
    name = psutil.Process(server.pid).cmdline()[-1]
    server.kill()
    server.wait()
    ready, set_ready = os.pipe()
    squatter = os.fork()
    if not squatter:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}")
            listener.listen()
            os.write(set_ready, b"1")
            connection, _ = listener.accept()
            os._exit(0 if connection.recv(1) == b"" else 1)
    os.read(ready, 1)
    out, err = start(SLEEPS).communicate(timeout=200)
    assert out == "cold\n" and "another user" in err
    assert os.waitpid(squatter, 0)[1] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_nobody_else_is_served(node):
    _, server = node
    name = psutil.Process(server.pid).cmdline()[-1]
    child = os.fork()
    if not child:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"\0{name}")
            os._exit(0 if connection.recv(1) == b"" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_gets_a_connection_of_its_own_to_the_agent():
    """With the epoll descriptor of its parent, it would take the events of other forks, and disconnect."""
    ipc = pytest.importorskip("hyperpod_elastic_agent.ipc.client")
    before = ipc.BaseIPCSocketClient.socket_client
    agent.forget_connection()
    after = ipc.BaseIPCSocketClient.socket_client
    assert after is not before
    assert after._selectors.fileno() != before._selectors.fileno()
    assert ipc.HyperPodElasticAgentSocketClient() is after
