"""An operator whose process was stopped for some time, as Slurm suspends a job, does not count that time."""

import signal
import subprocess
import sys

import pytest
from background import suspend

from launcher.operator import control_loop, stop_signals
from launcher.operator.control_loop import Cluster, Operator
from launcher.operator.job_request import HangLimits, JobRequest
from launcher.operator.stop_signals import Interrupts
from launcher.operator.types import AgentState, AgentStatus, Phase, Policy, Report

PROGRAM = """
import select, sys, time
from launcher.operator import stop_signals
stop_signals._TICK_S, stop_signals._GAP_S = 0.05, 1.0
interrupts = stop_signals.Interrupts()
interrupts.listen()
began_s = time.monotonic()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    if "thread" not in sys.argv:
        interrupts.stopped_s
print(interrupts.stopped_s, time.monotonic() - began_s)
"""


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["loop", "thread"])
def test_the_time_for_which_a_process_is_stopped_is_known(reader):
    """Also while its main thread waits for something else."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, reader], **streams)
    process.stdout.readline()
    suspend(process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)  # it is stopped for that time
    process.send_signal(signal.SIGCONT)
    stopped_s, lasted_s = map(float, process.communicate("end\n", timeout=60)[0].split())
    assert 1.5 < stopped_s < lasted_s


class Time:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1e9 + self.now


def test_time_between_two_ticks_is_counted_only_if_it_is_long(monkeypatch):
    monkeypatch.setattr(stop_signals, "time", clock := Time())
    interrupts = Interrupts(_ticked_s=clock.now)
    clock.now += 4.9
    assert interrupts.stopped_s == 0
    clock.now += 3600
    assert interrupts.stopped_s == interrupts.stopped_s == pytest.approx(3599.5)


class Room(Cluster):
    capacity, is_stuck = 1, False


class Agents:
    """A fleet of one node, which trains without a step."""

    def __init__(self):
        self.state, self.is_mute, self.stacks = AgentState.READY, False, 0

    def spawn(self, _index):
        """The node is there."""

    def poll(self):
        return {0: Report(True, None if self.is_mute else AgentStatus(self.state))}

    def start(self, _command):
        self.state = AgentState.RUNNING
        return ()

    def stop(self, _command):
        self.state = AgentState.READY
        return ()

    def request_stacks(self, _folder):
        self.stacks += 1


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return an operator whose job runs, its agents, and its clock."""
    clock, agents, policy = Time(), Agents(), Policy((1,), None)
    monkeypatch.setattr(control_loop, "time", clock)
    monkeypatch.setattr(stop_signals, "time", clock)
    request = JobRequest("job", 1, 1, policy, HangLimits(start_cut_off_s=100.0))
    interrupts = Interrupts(_ticked_s=clock.now)
    operator = Operator(tmp_path, request, agents, Room(tmp_path, (1,), None), interrupts)
    operator._poll()
    assert operator._machine.phase is Phase.RUNNING
    return operator, agents, clock


def polls(operator, clock, seconds):
    """Poll each second for some time."""
    for _ in range(seconds):
        clock.now += 1
        operator._poll()


def test_a_job_that_was_suspended_does_not_hang(job):
    operator, agents, clock = job
    polls(operator, clock, 60)
    clock.now += 3600
    polls(operator, clock, 30)
    assert (operator._machine.attempt, agents.stacks) == (0, 0)
    polls(operator, clock, 30)
    assert operator._machine.attempt == 1, "the limit counts from before the suspension"


def test_an_agent_that_is_resumed_late_is_not_silent(job):
    operator, agents, clock = job
    agents.is_mute = True
    clock.now += 3600
    polls(operator, clock, 30)
    assert operator._machine.phase is Phase.RUNNING
    agents.is_mute = False
    polls(operator, clock, 1)
    agents.is_mute = True
    polls(operator, clock, 61)
    assert operator._machine.phase is not Phase.RUNNING
