"""What an elastic job on Slurm gives back and gets, with a Slurm that only answers."""

import time
from types import SimpleNamespace

import pytest
from background import await_true

from launcher.backends.slurm import allocation
from launcher.backends.slurm.allocation import Allocation, Host, View
from launcher.backends.slurm.programs import Answer
from launcher.operator.types import Policy

HOSTS = tuple(Host(f"n{number}", f"10.0.0.{number}") for number in range(1, 5))


class Slurm:
    """Answers the commands of an allocation; `steps` are those on the nodes that the job may lack."""

    def __init__(self):
        self.nodes, self.steps, self.updates = ["n1", "n2", "n3", "n4"], [], []

    def run(self, *words, **_):
        match words:
            case ("squeue", "--steps", *_):
                return Answer(0, "".join(f"7.{step}\n" for step in self.steps), "")
            case ("scontrol", "update", _, change):
                self.updates.append(change)
                name, _, value = change.partition("=")
                self.nodes = value.split(",") if name == "NodeList" else ["n1", "n2", "n3", "n4"]
            case ("scontrol", "show", "hostnames", names):
                return Answer(0, names.replace(",", "\n"), "")
            case ("scontrol", "--oneliner", "show", "job", _):
                return Answer(0, f"JobId=7 BatchHost=n1 NodeList={','.join(self.nodes)}\n", "")
        return Answer(0, "", "")


@pytest.fixture
def slurm(monkeypatch):
    slurm = Slurm()
    monkeypatch.setattr(allocation.programs, "run", slurm.run)
    return slurm


@pytest.fixture
def make(tmp_path):
    made, events = [], []

    def allocated(nodes, requested=None):
        writer = SimpleNamespace(add=lambda kind, message: events.append((kind, message)))
        policy = Policy(sizes=(1, 2, 3, 4), graceful_timeout_s=60)
        view = View(HOSTS[:nodes], is_preempted=False)
        made.append(Allocation(tmp_path, "7", policy, (), view, writer, in_place=False, requested=requested))
        return made[-1], events

    yield allocated
    for each in made:
        each.close()


def ticked_until(job, condition):
    def ticks():
        job.tick(frozenset({"n1", "n2"}))
        return condition()

    await_true(ticks, timeout_s=60)


@pytest.mark.slow
def test_nodes_are_given_back_once_no_step_is_left_on_them(slurm, make, monkeypatch):
    slurm.steps = ["batch", "extern", "2"]
    job, events = make(4, requested=2)
    asked = []
    answers = slurm.run

    def counting(*words, **more):
        asked.append(words[0])
        return answers(*words, **more)

    monkeypatch.setattr(allocation.programs, "run", counting)
    ticked_until(job, lambda: asked.count("squeue") >= 2)
    assert slurm.updates == []
    slurm.steps.remove("2")
    ticked_until(job, lambda: events)
    assert slurm.updates == ["NodeList=n1,n2"]
    assert events == [("released", "given back to Slurm: n3, n4")]


@pytest.mark.slow
def test_nodes_are_given_back_at_last_although_a_step_never_ends(slurm, make, monkeypatch):
    slurm.steps = ["2"]
    monkeypatch.setattr(allocation, "_STEPS_END_S", 0.3)
    job, events = make(4, requested=2)
    begin = time.monotonic()
    ticked_until(job, lambda: events)
    assert time.monotonic() - begin >= 0.3


def test_a_grant_that_a_look_saw_first_is_reported(slurm, make, monkeypatch):
    slurm.nodes = ["n1", "n2"]
    job, events = make(2)
    answers = slurm.run

    def seen_meanwhile(*words, **more):
        answer = answers(*words, **more)
        if words[:2] == ("scontrol", "update"):
            job._look()
        return answer

    monkeypatch.setattr(allocation.programs, "run", seen_meanwhile)
    job._merge("8")
    assert slurm.updates == ["NumNodes=0", "NumNodes=ALL"]
    assert events == [("granted", "2 nodes more from Slurm")]
