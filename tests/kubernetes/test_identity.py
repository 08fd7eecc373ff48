"""Which cluster has a job: one wrong answer, another cluster behind the context, and the end of a deleted job."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import kube_api
import pytest
from background import Collected, await_true
from conftest import ROOT

from launcher.backends.kubernetes.api_objects import path, pod_templates
from launcher.backends.kubernetes.server import Server
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common.names import JOB_FILE
from launcher.job_store import registry
from launcher.model import backend_registry
from launcher.model.context import current_user
from launcher.model.job_spec import JobState

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
BACKEND = backend_registry.load_backend("k8s")
WORDS = (
    "recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora",
    "cluster=k8s",
    "recipes.elastic_policy.is_elastic=true",
)


@pytest.fixture
def launched(space, monkeypatch, capsys):
    """Launch a job from the test's folder; return its name."""
    monkeypatch.chdir(space.folder)
    assert launch.main([*WORDS, f"cluster.namespace={space.name}"]) == 0
    capsys.readouterr()
    (name,) = space.names(JOB)
    return name


def folder_of(name):
    return Path("results", name)


def state_of(name, capsys):
    capsys.readouterr()
    assert cli.run(["status", name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["state"]


def test_one_wrong_404_does_not_make_a_running_job_deleted(space, launched, capsys):
    space.cluster.proxy.fail(path=f"hyperpodpytorchjobs/{launched}$", status=404)
    assert state_of(launched, capsys) == "pending"


def test_a_job_that_was_deleted_is_found_again_by_every_command(space, launched, capsys):
    space.cluster.proxy.fail(path=f"hyperpodpytorchjobs/{launched}$", status=404, times=10**6)
    assert state_of(launched, capsys) == "deleted"
    assert registry.read(folder_of(launched)).ended is None
    space.cluster.proxy.faults.clear()
    assert state_of(launched, capsys) == "pending"
    assert cli.run(["launch", launched]) == 0
    assert cli.run(["cancel", launched]) == 0
    assert space.names(JOB) == [] and registry.read(folder_of(launched)).ended.state is JobState.CANCELLED


def test_waiting_for_a_deleted_job_says_at_once_what_was_found(space, launched, capsys):
    record = registry.read(folder_of(launched))
    space.admin.delete(path(JOB, space.name, launched), record.handle.uid)
    space.cluster.proxy.seen.clear()
    assert cli.run(["wait", launched]) == launch.EXIT_CODES[JobState.DELETED]
    assert capsys.readouterr().out.startswith("deleted")
    assert not any("watch=true" in line for line in space.cluster.proxy.seen)


def test_pods_count_by_their_owners_and_not_by_labels(space, launched, capsys):
    job = space.get(JOB, launched)
    space.conditions(launched, "Running")
    own = space.pod(job)
    labels = pod_templates(job)[0]["metadata"]["labels"]
    bare = {"containers": [{"name": "pytorch", "image": "me/image:1"}], "nodeName": "node-1"}
    held = {"kind": "StatefulSet", "apiVersion": "apps/v1", "name": own[:-2], "uid": None}
    held["uid"] = space.get("Pod", own)["metadata"]["ownerReferences"][0]["uid"]
    copied = {
        "kind": "ReplicaSet",
        "apiVersion": "apps/v1",
        "name": "r",
        "uid": "11111111-1111-1111-1111-111111111111",
    }
    space.make("Pod", f"{own[:-1]}1", metadata={"ownerReferences": [held]}, spec=bare)
    space.make("Pod", "copy", metadata={"labels": labels, "ownerReferences": [copied]}, spec=bare)
    space.make("Pod", "debug", metadata={"labels": labels}, spec=bare)
    for name in (own, f"{own[:-1]}1", "copy", "debug"):
        space.run_container(name)
    assert {pod.name for pod in BACKEND.pods(registry.read(folder_of(launched)).handle)} == {own, f"{own[:-1]}1"}
    assert BACKEND.status(registry.read(folder_of(launched)).handle).nodes == 2
    assert next(BACKEND.wait(registry.read(folder_of(launched)).handle)).nodes == 2


def test_a_launch_that_fails_after_a_wrong_404_leaves_the_running_job_alone(space, launched, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.connection.PATIENCE_S", 0.5)
    uid = space.get(JOB, launched)["metadata"]["uid"]
    space.cluster.proxy.fail(path=f"hyperpodpytorchjobs/{launched}$", status=404)
    space.cluster.proxy.fail(method="PATCH", status=500, times=10**6)
    assert cli.run(["launch", launched]) == 0
    assert space.get(JOB, launched)["metadata"]["uid"] == uid


def test_a_job_is_scaled_despite_one_wrong_404(space, launched):
    space.cluster.proxy.fail(path=f"hyperpodpytorchjobs/{launched}$", status=404)
    assert cli.run(["scale", launched, "--nodes", "2"]) == 0


def test_a_relaunch_clears_an_end_that_an_earlier_version_believed(space, launched, capsys):
    place = folder_of(launched) / JOB_FILE
    record = json.loads(place.read_text())
    gone = {"state": "gone", "nodes": 0, "message": "", "target_nodes": None, "restarts": 0, "faulty_nodes": []}
    native = {name: value for name, value in record["native"].items() if name != "server"}
    earlier = {name: value for name, value in record.items() if name != "is_submitted"}
    place.write_text(json.dumps({**earlier, "native": native, "ended": gone}))
    assert state_of(launched, capsys) == "pending"
    assert cli.run(["launch", launched]) == 0
    kept = registry.read(folder_of(launched))
    assert kept.handle.server and kept.ended is None and kept.submitted == record["submitted"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, cluster):
    """A second API server, without the operator's definitions."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with kube_api.running(folder, {}) as engine:
        yield engine


def test_a_context_that_leads_to_another_cluster_is_a_problem_that_names_both(space, launched, elsewhere, capsys):
    home = space.kubeconfig().read_text()
    kubeconfig = space.folder / "kubeconfig.json"
    kube_api.kubeconfig(kubeconfig, elsewhere.url, elsewhere.ca_file, kube_api.ADMIN_TOKEN)
    for command in ("status", "logs", "events", "wait", "cancel", "launch"):
        assert cli.run([command, launched]) == 2, command
        told = capsys.readouterr().err
        assert "E348 cluster.kube_context" in told and elsewhere.url in told, told
        assert space.cluster.proxy.url in told
    assert cli.run(["scale", launched, "--nodes", "2"]) == 2
    assert cli.run(["jobs"]) == 0
    assert "E348" in capsys.readouterr().out
    kubeconfig.write_text(home)
    assert state_of(launched, capsys) == "pending"


def test_the_same_cluster_at_another_url_is_the_same(space, launched, capsys):
    engine = space.cluster.engine
    kube_api.kubeconfig(space.folder / "kubeconfig.json", engine.url, engine.ca_file, kube_api.ADMIN_TOKEN)
    assert state_of(launched, capsys) == "pending"
    assert cli.run(["cancel", launched]) == 0


def test_the_record_names_the_cluster_by_its_uid(space, launched):
    server = Server.from_text(registry.read(folder_of(launched)).handle.server)
    assert server.uid == space.admin.get(path("Namespace", "", "kube-system"))["metadata"]["uid"]
    assert (server.url, len(server.authority)) == (space.cluster.proxy.url, 16)


A = Server("https://a", "ca1", "u1")


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (Server("https://b", "ca2", "u1"), True),
        (Server("https://a", "ca1", "u2"), False),
        (Server("https://b", "ca1"), True),
        (Server("https://a", "ca2"), False),
        (Server("https://a"), True),
        (Server("https://b"), False),
    ],
)
def test_a_cluster_is_known_by_its_uid_then_its_authority_then_its_url(other, is_same):
    assert A.is_same(other) is other.is_same(A) is is_same
    assert Server.from_text(str(other)) == other


@pytest.mark.parametrize(
    ("end", "state"), [("Completed", JobState.SUCCEEDED), ("Failed", JobState.FAILED), ("Running", JobState.DELETED)]
)
def test_a_job_that_is_removed_at_once_ended_as_its_last_conditions_say(space, launched, end, state):
    record = registry.read(folder_of(launched))
    seen = Collected(registry.changes(record, BACKEND))
    seen.await_that(lambda: seen.got)
    space.conditions(launched, "Created", end)
    space.admin.delete(path(JOB, space.name, launched), record.handle.uid)
    assert seen.result()[-1].state is state
    ended = registry.read(folder_of(launched)).ended
    assert (ended and ended.state) == (None if state is JobState.DELETED else state)


@pytest.mark.parametrize(("reason", "state"), [("Succeeded", "succeeded"), ("Failed", "failed"), ("Odd", "deleted")])
def test_a_job_that_was_removed_unseen_ended_as_kueue_saw_it(space, launched, capsys, reason, state):
    uid = registry.read(folder_of(launched)).handle.uid
    finished = {"type": "Finished", "status": "True", "reason": reason, "message": "Job finished"}
    labels = {"kueue.x-k8s.io/job-uid": uid}
    conditions = {"conditions": [finished]}
    space.make("Workload", "w", "kueue.x-k8s.io/v1beta1", metadata={"labels": labels}, status=conditions)
    space.admin.delete(path(JOB, space.name, launched), uid)
    assert state_of(launched, capsys) == state


HELD = {
    "map": ("PATCH", "configmaps/[^?]*[?](?!.*dryRun)", "ConfigMap"),
    "job": ("PATCH", "hyperpodpytorchjobs/[^?]*[?](?!.*dryRun)", JOB),
}
FOREVER_S = 10**6


@pytest.fixture
def launching(space):
    """Return a function that launches in a process of its own, whose answer to one request never comes."""
    started = []

    def launch(held):
        method, where, kind = HELD[held]
        space.cluster.proxy.fail(method=method, path=where, delay_s=FOREVER_S)
        words = [sys.executable, str(ROOT / "main.py"), *WORDS, f"cluster.namespace={space.name}"]
        process = subprocess.Popen(
            words, cwd=space.folder, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)

        def is_held():
            assert process.poll() is None, process.communicate()
            return [name for name in space.names(kind) if name != "kube-root-ca.crt"]

        await_true(is_held)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "ctrl-c"])
def test_two_signals_in_mid_submit_remove_what_was_made_and_name_it(space, launching, number, code):
    process = launching("job")
    (name,) = space.names(JOB)
    process.send_signal(number)
    assert any("another signal stops waiting" in line for line in process.stderr)
    process.send_signal(number)
    _, told = process.communicate(timeout=200)
    assert process.returncode == code, told
    assert f"removed: {JOB} {name}, ConfigMap training-config-{name}" in told
    assert space.names(JOB) == [] and f"training-config-{name}" not in space.names("ConfigMap")
    assert not (space.folder / "results" / name / JOB_FILE).exists()


@pytest.mark.parametrize(
    ("held", "state", "words"), [("job", "pending", "waits for the operator"), ("map", "pending", "ConfigMap")]
)
def test_a_launch_that_was_killed_is_found_and_finished(space, launching, monkeypatch, capsys, held, state, words):
    process = launching(held)
    process.kill()
    process.communicate()
    space.cluster.proxy.faults.clear()
    monkeypatch.chdir(space.folder)
    (folder,) = Path("results").iterdir()
    assert cli.run(["status", folder.name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == state and words in told["message"]
    assert cli.run(["launch", folder.name]) == 0
    assert space.names(JOB) == [folder.name]
    uid = space.get(JOB, folder.name)["metadata"]["uid"]
    assert registry.read(folder).handle.uid == uid and registry.read(folder).is_submitted
    assert cli.run(["cancel", folder.name]) == 0


@pytest.mark.parametrize("held", ["job", "map"])
def test_cancel_removes_all_that_a_killed_launch_left(space, launching, monkeypatch, capsys, held):
    process = launching(held)
    process.kill()
    process.communicate()
    space.cluster.proxy.faults.clear()
    monkeypatch.chdir(space.folder)
    (folder,) = Path("results").iterdir()
    assert f"training-config-{folder.name}" in space.names("ConfigMap")
    if held == "map":  # no request for the job was seen, which one may still create
        assert cli.run(["cancel", folder.name]) == 2 and "E508 job" in capsys.readouterr().err
        monkeypatch.setattr(registry, "_DOUBT_S", 0.0)
    assert cli.run(["cancel", folder.name]) == 0
    assert capsys.readouterr().out == f"cancelled  cancelled by {current_user()}\n"
    assert space.names(JOB) == [] and f"training-config-{folder.name}" not in space.names("ConfigMap")
    assert cli.run(["cancel", folder.name]) == 0
    assert "has already ended" in capsys.readouterr().err
    assert cli.run(["launch", folder.name]) == 0
    assert space.names(JOB) == [folder.name]
