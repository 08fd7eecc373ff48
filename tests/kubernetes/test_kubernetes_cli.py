"""The command line against a real API server: compile, submit, look, scale, end."""

import json

import pytest
from background import Collected, await_true

from launcher.cli import launch as launching
from launcher.cli import main as cli

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
RECIPE = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
ELASTIC = "recipes.elastic_policy.is_elastic=true"


@pytest.fixture
def launch(space, monkeypatch):
    """Return a function from overrides to the exit code of `python main.py`, in the test's folder and namespace."""
    monkeypatch.chdir(space.folder)
    words = (f"recipes={RECIPE}", "cluster=k8s", f"cluster.namespace={space.name}", ELASTIC)
    return lambda *overrides: launching.main([*words, *overrides])


def test_a_server_dry_run_tells_everything_and_creates_nothing(space, launch, capsys):
    assert launch("server_dry_run=true") == 0
    assert space.names(JOB) == []
    assert launch("server_dry_run=true", "cluster.queue_name=q", "cluster.service_account_name=s") == 2
    told = capsys.readouterr().err
    assert "E347 cluster.queue_name" in told and 'serviceaccounts "s" not found' in told


def test_a_job_is_launched_looked_at_scaled_and_ended(space, launch, capsys):
    assert launch() == 0
    (name,) = space.names(JOB)
    job = space.get(JOB, name)
    pod = space.pod(job)
    space.run_container(pod)
    space.cluster.kubelet.write(pod, "step 1/2 loss=1")
    space.conditions(name, "Created", "Running")
    capsys.readouterr()
    assert cli.run(["status", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "running"
    assert cli.run(["logs", name]) == 0
    assert "step 1/2 loss=1" in capsys.readouterr().out
    before = space.get(JOB, name)
    assert cli.run(["launch", name]) == 0
    assert space.get(JOB, name) == before
    assert cli.run(["scale", name, "--nodes", "2"]) == 0
    assert space.get(JOB, name)["spec"]["elasticPolicy"]["maxReplicas"] == 2
    space.end_container(pod)
    assert cli.run(["cancel", name]) == 0
    assert space.names(JOB) == []
    assert cli.run(["jobs"]) == 0
    assert "cancelled" in capsys.readouterr().out


@pytest.mark.parametrize(("end", "code"), [("Completed", 0), ("Failed", 3)], ids=["succeeds", "fails"])
def test_wait_follows_a_job_and_exits_as_it_ended(space, launch, end, code, capsys):
    codes = Collected(launch("wait=true") for _ in range(1))
    await_true(lambda: space.names(JOB))
    (name,) = space.names(JOB)
    pod = space.pod(space.get(JOB, name))
    space.run_container(pod)
    space.cluster.kubelet.write(pod, "hello from the pod")
    space.conditions(name, "Created", "Running")
    await_true(lambda: any(pod in each for each in space.cluster.kubelet.requests))
    space.end_container(pod)
    space.conditions(name, end)
    assert codes.result(30) == [code]
    assert "hello from the pod" in capsys.readouterr().out


ELASTIC_STATUS = {
    "elasticScalingStatus": {
        "targetReplicas": {"pods": 1},
        "lastScalingTime": "2026-01-02T03:04:05Z",
        "podsScaled": True,
        "isFaultyPodScaleDown": False,
        "consecutiveScalingFailures": 0,
    },
    "latestFaultyPodInstanceList": {"restartType": "JobLevel", "faultyInstanceIdList": ["i-7"]},
    "restartStatus": {"currentEvalPeriod": 1, "fullJobRestartCount": 0, "restartCount": 1},
    "elasticWorkloadRef": {"name": "w"},
    "restartCount": 1,
    "masterPort": "1234",
}


def test_every_command_works_on_an_elastic_job_that_has_scaled(space, launch, capsys):
    assert launch() == 0 and launch() == 0
    name, other = space.names(JOB)
    pod = space.pod(space.get(JOB, name))
    space.run_container(pod)
    space.conditions(name, "Created", "Running", **ELASTIC_STATUS)
    space.conditions(other, "Odd")
    capsys.readouterr()
    assert cli.run(["status", name]) == 0
    told = capsys.readouterr().out
    assert "restarted 1 time; faulty nodes: i-7" in told
    assert cli.run(["status", other]) == 0
    assert "condition Odd (JobOdd: is Odd)" in capsys.readouterr().out
    assert cli.run(["logs", name]) == cli.run(["events", name]) == cli.run(["scale", name, "--nodes", "4"]) == 0
    assert cli.run(["jobs", "--json"]) == 0
    out = capsys.readouterr().out
    states = {each["job"]: each["state"] for each in json.loads(out[out.index("[\n") :])}
    assert states == {name: "running", other: "pending"}
    space.end_container(pod)
    assert cli.run(["cancel", name]) == 0
    assert space.names(JOB) == [other]


def test_a_job_that_the_api_cannot_return_is_listed_beside_the_others(space, launch, capsys, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.connection.PATIENCE_S", 0.5)
    assert launch() == 0 and launch() == 0
    first, second = space.names(JOB)
    space.cluster.proxy.fail(path=f"hyperpodpytorchjobs/{first}$", status=500, times=10**6)
    capsys.readouterr()
    assert cli.run(["jobs", "--json"]) == 0
    listed = {each["job"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed[second]["state"] == "pending" and "problem" not in listed[second]
    assert listed[first]["state"] is None and "E342" in listed[first]["problem"]
