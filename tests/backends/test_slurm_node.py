"""One node of an elastic job, without Slurm: when it publishes where its agent listens."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from background import await_true

from launcher.backends.slurm import operator, run_files
from launcher.backends.slurm.run_files import JobFiles
from launcher.operator import stacks
from launcher.operator.job_request import HangLimits
from launcher.runtime.stacks import stacks_folder

# Listens at once, notes the first call, and answers only once it may: as while it imports.
WARM = """
import pathlib, select, socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
select.select([listener], [], [])
pathlib.Path("called").touch()
while not pathlib.Path("imported").exists():
    time.sleep(0.01)
while True:
    caller, _ = listener.accept()
    caller.recv(4)
    caller.close()
"""
# Waits for its warm process as long as that takes.
NODE = "import sys; from launcher.backends.slurm import node; node.ANSWER_TIMEOUT_S = 1e6; sys.exit(node.main())"
SCRIPT = """
# launcher.runtime.warm
if [[ $1 == warm ]]; then
    {warm}
fi
{agent}
"""


@pytest.fixture
def node(tmp_path):
    """Return a function that starts a node whose script does the given things; it is ended afterwards."""
    started = []

    def start(warm, agent="exec sleep 600"):
        script = tmp_path / run_files.AGENT_FILE
        script.parent.mkdir()
        script.write_text(SCRIPT.format(warm=warm, agent=agent))
        command = [sys.executable, "-c", NODE, str(tmp_path), "0", "127.0.0.1"]
        own = {**os.environ, "SLURM_JOB_ID": "7", "PYTHONPATH": str(Path(__file__).parents[2])}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=own))
        return started[0]

    yield start
    for process in started:
        for child in subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split():
            os.kill(int(child), signal.SIGKILL)
        process.wait(60)


@pytest.fixture
def address(tmp_path):
    return JobFiles(tmp_path, "7").address(0)


@pytest.mark.slow
def test_a_node_is_announced_once_its_workers_can_be_forked(node, tmp_path, address):
    node(f"exec {sys.executable} -c '{WARM}' \"$2\"")
    await_true((tmp_path / "called").exists)
    assert not address.exists()
    (tmp_path / "imported").touch()
    await_true(address.exists)


def test_a_node_whose_warm_process_fails_is_announced_all_the_same(node, address):
    node("exit 1")
    await_true(address.exists)


@pytest.mark.slow
def test_a_node_ends_with_its_agent_whatever_its_warm_process_does(node):
    assert node("exec sleep 600", "exit 7").wait(200) == 7


WORKER = """
import os, pathlib, time
from launcher.runtime.stacks import write_stack_on_signal

def waits_here():
    time.sleep(600)

write_stack_on_signal(3)
pathlib.Path("ready").touch()
waits_here()
"""


@pytest.mark.slow
def test_a_node_lets_its_workers_write_their_stacks_when_the_operator_requests_them(node, tmp_path, monkeypatch):
    monkeypatch.setenv("RECIPES_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "worker.py").write_text(WORKER)
    node("exit 7", f"exec {sys.executable} worker.py")
    await_true((tmp_path / "ready").exists)
    await_true(JobFiles(tmp_path, "7").address(0).exists)
    folder = stacks_folder(tmp_path / "run", 0)
    before = stacks.sizes(folder)
    JobFiles(tmp_path, "7").request_stacks(folder)
    await_true(lambda: stacks.texts_after(folder, before)[3])
    assert stacks.parse(stacks.texts_after(folder, before)[3]).place.function == "waits_here"


@pytest.mark.parametrize(
    ("line", "seconds"),
    [("", 600.0), ("export RECIPES_COLLECTIVE_TIMEOUT=90", 90.0), ("export RECIPES_COLLECTIVE_TIMEOUT='90'", 90.0)],
)
def test_the_limits_of_an_elastic_job_follow_the_timeout_of_its_collectives(tmp_path, line, seconds):
    plan = {"job_name": "job", "nproc_per_node": 1, "initial_nodes": 1, "elastic": None, "scales": [{"nodes": 1}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / run_files.AGENT_FILE).parent.mkdir()
    (tmp_path / run_files.AGENT_FILE).write_text(f"set -e\n{line}\nexec python -m launcher.runtime.entrypoint\n")
    assert operator._job_request(tmp_path).hang == HangLimits(collective_timeout_s=seconds)
