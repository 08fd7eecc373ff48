"""The process that workers are forked from: one a job, kept as long as the job runs."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from background import await_true, suspend

from launcher.operator.processes import node_memory

pytestmark = pytest.mark.slow

SCRIPT = """
# launcher.runtime.warm
[[ $1 == warm ]] && echo "$2" > "$(dirname "$0")/socket"
exec sleep 600
"""

# A fleet kills what it has not started: it needs a process of its own.
FLEET = """
import sys
from pathlib import Path
from launcher.backends.local.fleet import LocalFleet
from launcher.operator.types import StartWorkers
bundle = Path(sys.argv[1])
run_dir = bundle / "run"
run_dir.mkdir()
with (run_dir / "lock").open("w") as lock, LocalFleet(bundle, run_dir, lock) as fleet:
    fleet.warm_up()
    print(fleet.warm_pid, flush=True)
    for line in sys.stdin:
        eval(line)
        print(fleet.warm_pid, flush=True)
"""


@pytest.fixture
def fleet(tmp_path):
    """Return a function that has a fleet do something, and returns its warm process's pid afterwards."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-c", FLEET, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    first = int(process.stdout.readline())

    def do(what=None):
        if what is None:
            return first
        print(what, file=process.stdin, flush=True)
        return int(process.stdout.readline())

    yield do
    process.stdin.close()
    assert process.wait(200) == 0
    assert not psutil.pid_exists(do())


START = "fleet.start(StartWorkers((), 0))"


def test_a_fleet_keeps_its_warm_process_and_ends_it_with_itself(fleet):
    first = fleet()
    assert fleet("fleet.poll()") == fleet(START) == fleet("fleet.adopt((), fleet.warm_pid)") == first
    assert fleet("fleet.poll()") == first and psutil.pid_exists(first)


def test_a_dead_warm_process_is_replaced_before_workers_are_started(fleet):
    first = fleet()
    os.kill(first, signal.SIGKILL)
    second = await_true(lambda: (pid := fleet(START)) != first and pid)
    assert fleet("fleet.poll()") == second and psutil.pid_exists(second)


def test_a_job_whose_script_starts_nothing_warm_has_no_warm_process(tmp_path):
    (tmp_path / "run.sh").write_text("exec sleep 600")
    done = subprocess.run(
        [sys.executable, "-c", FLEET, tmp_path], input="", capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, "None\n")


SERVING = """
# launcher.runtime.warm
exec "$PYTHON" -c 'import sys; from launcher.runtime.warm import Server; Server(sys.argv[1]).serve()' "$2"
"""


def test_a_warm_process_that_hangs_is_replaced_before_workers_are_started(tmp_path):
    (tmp_path / "run.sh").write_text(SERVING)
    # Nothing imports here: a warm process must answer at once.
    patient = "import launcher.backends.local.fleet as module; module.ANSWER_TIMEOUT_S = 0\n"
    command = [sys.executable, "-c", patient + FLEET, tmp_path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(what):
        print(what, file=process.stdin, flush=True)
        return int(process.stdout.readline())

    first = int(process.stdout.readline())
    wait = "[time.sleep(0.1) for _ in iter(lambda: module.answers(fleet._warm_socket), True)]"
    assert do(f"exec('import time; {wait}')") == first
    assert do(START) == first  # it serves
    (server,) = psutil.Process(first).children()
    suspend(server.pid)
    second = do(START)
    assert second != first
    assert do("fleet.poll()") == second and not psutil.pid_exists(server.pid)
    process.stdin.close()
    assert process.wait(200) == 0
    assert not psutil.pid_exists(second)


def test_what_a_killed_worker_wrote_after_its_node_was_removed_goes_with_the_job(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    gone = subprocess.Popen(["true"])
    gone.wait()
    body = f"    from launcher.operator.processes import node_memory\n    node_memory({gone.pid}).mkdir()\n"
    code = FLEET.partition("    for line")[0] + body
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, stdout=subprocess.DEVNULL, timeout=200)
    assert not node_memory(gone.pid).exists()
