"""Launches that a signal or a silent server ends while a request is under way, which the server carries out later."""

import os
import signal
import threading

import pytest
from background import Collected, await_true

from launcher.backends.kubernetes import connection
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common import interrupts
from launcher.common.names import JOB_FILE
from launcher.job_store import registry
from launcher.model import backend_registry
from launcher.model.job_spec import JobState

pytest_plugins = ("cluster_fixtures",)

JOB, MAP = "HyperPodPyTorchJob", "ConfigMap"
WORDS = (
    "recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora",
    "cluster=k8s",
    "recipes.elastic_policy.is_elastic=true",
)
REQUESTS = {"map": ("configmaps", 0, MAP), "job": ("hyperpodpytorchjobs", 0, JOB), "owner": ("configmaps", 1, MAP)}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def hold(space, monkeypatch):
    """Return a function that holds one request before the server; it returns the event that lets it pass."""
    monkeypatch.chdir(space.folder)
    held = []

    def one(name):
        plural, skip, _ = REQUESTS[name]
        held.append(threading.Event())
        space.cluster.proxy.seen.clear()
        where = f"{plural}/[^?]*[?](?!.*dryRun)"
        space.cluster.proxy.fail(method="PATCH", path=where, skip=skip, hold=held[-1])
        return held[-1]

    yield one
    for event in held:
        event.set()


def launched(space):
    return launch.main([*WORDS, f"cluster.namespace={space.name}"])


def is_reached(space, name):
    plural, skip, _ = REQUESTS[name]
    sent = [line for line in space.cluster.proxy.seen if line.startswith("PATCH") and f"/{plural}/" in line]
    return len([line for line in sent if "dryRun" not in line]) > skip


def objects(space):
    maps = [name for name in space.names(MAP) if name != "kube-root-ca.crt"]
    return [*space.names(JOB), *maps]


def only_folder(space):
    (folder,) = (space.folder / "results").iterdir()
    return folder


def in_background(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_waits_for_the_answer_and_removes_everything(space, hold, capsys, number, name):
    released = hold(name)

    def interrupt():
        await_true(lambda: is_reached(space, name))
        os.kill(os.getpid(), number)
        await_true(lambda: signal.getsignal(number) is interrupts._raise)
        released.set()

    thread = in_background(interrupt)
    assert launched(space) == 128 + number
    thread.join()
    told = capsys.readouterr().err
    assert "waiting for the cluster's answer" in told and "E352" not in told
    assert objects(space) == []
    assert not (only_folder(space) / JOB_FILE).exists()


CASES = [(number, "job") for number in SIGNALS] + [(signal.SIGTERM, "map"), (signal.SIGTERM, "owner")]


@pytest.mark.parametrize(("number", "name"), CASES, ids=[f"{number.name}-{name}" for number, name in CASES])
def test_an_unanswered_request_is_remembered_and_looked_for_again(space, hold, capsys, monkeypatch, number, name):
    released = hold(name)

    def interrupt():
        await_true(lambda: is_reached(space, name))
        os.kill(os.getpid(), number)
        await_true(lambda: signal.getsignal(number) is interrupts._raise)
        os.kill(os.getpid(), number)

    thread = in_background(interrupt)
    assert launched(space) == 128 + number
    thread.join()
    folder = only_folder(space)
    told = capsys.readouterr().err
    assert "E352" in told and f"{REQUESTS[name][2]} " in told and f"recipes status {folder.name}" in told
    assert objects(space) == [] and not registry.read(folder).is_submitted
    assert cli.run(["status", folder.name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("pending") and "may still create it" in shown
    assert cli.run(["jobs", "remove", folder.name, "--yes"]) == 2
    assert "E718" in capsys.readouterr().err and folder.exists()
    assert cli.run(["cancel", folder.name]) == 2 and "E508 job" in capsys.readouterr().err
    released.set()
    await_true(lambda: objects(space))
    assert cli.run(["jobs"]) == 0
    assert "pending" in capsys.readouterr().out
    if name != "job":
        monkeypatch.setattr(registry, "_DOUBT_S", 0.0)
    assert cli.run(["cancel", folder.name]) == 0
    assert objects(space) == []
    assert registry.read(folder).ended.state is JobState.CANCELLED


def test_a_job_that_appears_later_is_found_by_who_waits_and_launched_once(space, hold, capsys, monkeypatch):
    released = hold("job")
    with monkeypatch.context() as patch:
        patch.setattr(connection, "READ_TIMEOUT_S", 3.0)
        patch.setattr(connection, "PATIENCE_S", 0.1)
        assert launched(space) == 2
    told = capsys.readouterr().err
    assert "E342" in told and f"{JOB} " in told and "may still be created" in told
    folder = only_folder(space)
    seen = Collected(registry.changes(registry.read(folder), backend_registry.load_backend("k8s")))
    seen.await_that(lambda: seen.got)
    assert seen.got[0].state is JobState.PENDING and "may still create it" in seen.got[0].message
    released.set()
    await_true(lambda: space.names(JOB))
    uid = space.get(JOB, folder.name)["metadata"]["uid"]
    assert cli.run(["launch", folder.name]) == 0
    assert space.get(JOB, folder.name)["metadata"]["uid"] == uid and len(objects(space)) == 2
    assert registry.read(folder).is_submitted
    space.conditions(folder.name, "Completed")
    assert seen.result()[-1].state is JobState.SUCCEEDED


def test_a_launch_that_failed_for_good_is_over_after_a_while(space, hold, capsys, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    space.cluster.proxy.fail(method="PATCH", path="hyperpodpytorchjobs/[^?]*[?](?!.*dryRun)", times=99, status=504)
    assert launched(space) == 2
    folder = only_folder(space)
    monkeypatch.setattr(registry, "_DOUBT_S", 0.0)
    capsys.readouterr()
    assert cli.run(["status", folder.name]) == 0
    assert capsys.readouterr().out.startswith("deleted  its launch made no job")
    assert cli.run(["jobs", "remove", folder.name, "--yes"]) == 0 and not folder.exists()


def test_an_earlier_end_is_not_that_of_a_launch_that_was_cut_short(space, hold, capsys, monkeypatch):
    assert launched(space) == 0
    folder = only_folder(space)
    space.conditions(folder.name, "Failed")
    assert cli.run(["status", folder.name]) == 0
    assert registry.read(folder).ended.state is JobState.FAILED
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 3.0)
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    released = hold("job")
    assert cli.run(["launch", folder.name, "--again"]) == 2
    released.set()
    await_true(lambda: space.names(JOB))
    capsys.readouterr()
    assert cli.run(["status", folder.name]) == 0
    assert capsys.readouterr().out.startswith("pending")
