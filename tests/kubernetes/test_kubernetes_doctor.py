"""The examination of a job on a real API server: every subject has its line, and nothing is created."""

import datetime

import kube_api
import pytest
from cluster_fixtures import RECIPE
from conftest import ELASTIC

from launcher.api.plan import compile as compiled
from launcher.model import finding
from launcher.model.finding import FindingState

pytest_plugins = ("cluster_fixtures",)

KUEUE = "kueue.x-k8s.io/v1beta1"
TYPE = "ml.p5.48xlarge"
WANTED = (
    "cluster.service_account_name=trainer",
    "cluster.priority_class_name=urgent",
    "cluster.persistent_volume_claims=[{claimName: data, mountPath: /data}, {claimName: gone, mountPath: /gone}]",
    "cluster.queue_name=team-queue",
    "env_vars.HF_TOKEN={secretKeyRef: {name: hf, key: token}}",
    "recipes.elastic_policy.min_nodes=2",
)


def examined(space, *overrides, token=kube_api.ADMIN_TOKEN):
    """Return what is found, by subject: state, code, and the line with its remedy."""
    space.kubeconfig(token)
    plan = compiled(
        RECIPE, ["cluster=k8s", ELASTIC, f"cluster.namespace={space.name}", f"instance_type={TYPE}", *overrides]
    )
    lines = {}
    for each in plan.doctor():
        lines.setdefault(each.subject, []).append((each.state.value, each.code, f"{each.message}; {each.remedy}"))
    return lines


def of(lines, subject):
    return [(state, code) for state, code, _ in lines[subject]]


@pytest.fixture
def nodes(space):
    """Return a function that adds nodes of the job's type, which are removed after the test."""
    made = []

    def add(name, **allocatable):
        labels = {"beta.kubernetes.io/instance-type": TYPE, "node.kubernetes.io/instance-type": TYPE}
        where = f"/api/v1/nodes/{name}"
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        space.admin.apply(where, body, "test")
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"allocatable": allocatable, "capacity": allocatable, "conditions": [ready]}
        space.admin.merge(f"{where}/status", {"status": status}, "test")
        space.admin.merge(where, {"spec": {"taints": None}}, "test")  # one of a new node, until a controller sees it
        made.append(where)

    yield add
    for where in made:
        space.admin.delete(where, space.admin.get(where)["metadata"]["uid"])


GIANT = {
    "nvidia.com/gpu": "8",
    "vpc.amazonaws.com/efa": "32",
    "cpu": "192",
    "memory": "2000Gi",
    "hugepages-2Mi": "6Gi",
}


def test_every_fault_has_its_line_and_nothing_is_created(space, nodes):
    nodes("small", **{**GIANT, "nvidia.com/gpu": "4"})
    space.make("Secret", "hf", data={"password": "eA=="})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    space.make("PersistentVolumeClaim", "data", spec=claim)
    space.set_status("PersistentVolumeClaim", "data", {"phase": "Bound", "accessModes": ["ReadWriteOnce"]})
    space.make("ClusterQueue", f"of-{space.name}", KUEUE, spec={})
    stopped = {"type": "Active", "status": "False", "message": "its flavor is missing"}
    space.make(
        "LocalQueue", "team-queue", KUEUE, spec={"clusterQueue": f"of-{space.name}"}, status={"conditions": [stopped]}
    )
    space.make("ResourceQuota", "small", spec={"hard": {"requests.nvidia.com/gpu": "8"}})
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    space.admin.merge(f"/api/v1/namespaces/{space.name}", labels, "test")
    lines = examined(space, *WANTED)
    assert of(lines, "recipe") == of(lines, "cluster") == [("ok", None)]
    assert of(lines, "service account") == of(lines, "priority class") == [("failure", "E349")]
    assert sorted(of(lines, "volumes")) == [("failure", "E349"), ("failure", "E357")]
    assert "one node" in lines["volumes"][1][2] and "ReadWriteMany" in lines["volumes"][1][2]
    ((state, code, text),) = lines["secrets"]
    assert (
        (state, code) == ("failure", "E359") and "no key token" in text and "password" in text and "eA==" not in text
    )
    assert of(lines, "queue") == [("failure", "E347")] and "its flavor is missing" in lines["queue"][0][2]
    assert ("failure", "E364") in of(lines, "quota")
    assert of(lines, "nodes") == [("failure", "E358")] and "8 nvidia.com/gpu" in lines["nodes"][0][2]
    assert of(lines, "pod security") == [("failure", "E355")]
    assert of(lines, "rights") == of(lines, "job object") == [("ok", None)]
    assert of(lines, "clock") == [("ok", None)]
    assert space.names("HyperPodPyTorchJob") == [] and "hf" in space.names("Secret")


def test_a_job_that_would_run_has_no_failure(space, nodes):
    nodes("large-1", **GIANT)
    nodes("large-2", **GIANT)
    space.make("ServiceAccount", "trainer")
    space.make("Secret", "hf", stringData={"token": "x"})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    space.make("PersistentVolumeClaim", "data", spec=claim)
    space.set_status("PersistentVolumeClaim", "data", {"phase": "Bound", "accessModes": ["ReadWriteMany"]})
    lines = examined(
        space,
        "cluster.service_account_name=trainer",
        "cluster.persistent_volume_claims=[{claimName: data, mountPath: /data}]",
        "env_vars.HF_TOKEN={secretKeyRef: {name: hf, key: token}}",
        "recipes.elastic_policy.min_nodes=1",
        "recipes.trainer.num_nodes=2",
    )
    assert not [line for found in lines.values() for line in found if line[0] == "failure"], lines
    for subject in ("volumes", "secrets", "service account", "nodes", "pod security", "job object"):
        assert of(lines, subject) == [("ok", None)], lines[subject]


def test_what_may_not_be_read_is_unknown_with_the_permission(space):
    lines = examined(space, *WANTED, token=kube_api.USER_TOKEN)
    assert of(lines, "nodes") == of(lines, "pod security") == [("unknown", None)]
    assert "list on nodes" in lines["nodes"][0][2]
    assert "get on secrets" in lines["secrets"][0][2]
    assert "get on persistentvolumeclaims" in lines["volumes"][0][2]
    for subject in ("volumes", "secrets", "service account", "priority class"):
        assert {state for state, *_ in lines[subject]} == {"unknown"}, lines[subject]
    assert ("failure", "E344") in of(lines, "rights")  # its launch could not be rolled back


def test_a_cluster_that_does_not_answer_is_unknown(space, closed_port, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.doctor._PATIENCE_S", 0.2)
    kube_api.kubeconfig(
        space.folder / "kubeconfig.json", f"https://127.0.0.1:{closed_port}", space.cluster.engine.ca_file, "t"
    )
    plan = compiled(RECIPE, ["cluster=k8s"])
    (line,) = [each for each in plan.doctor() if each.subject == "cluster"]
    assert (line.state, line.code) == (FindingState.UNKNOWN, "E342")


def test_a_question_without_an_answer_is_unknown_at_its_deadline(space):
    space.cluster.proxy.fail(path="/api/v1/nodes", status=503, times=1000)
    space.kubeconfig()
    plan = compiled(RECIPE, ["cluster=k8s", f"cluster.namespace={space.name}"])
    lines = {each.subject: each for each in plan.doctor(deadline_s=3)}
    assert lines["nodes"].state is FindingState.UNKNOWN and "within 3 s" in lines["nodes"].message
    assert lines["job object"].state is FindingState.OK


def test_a_clock_that_is_wrong_is_a_warning(space, monkeypatch):
    class Late(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) - datetime.timedelta(minutes=10)

    monkeypatch.setattr(finding, "datetime", Late)
    lines = examined(space)
    assert of(lines, "clock") == [("warning", None)] and "behind the cluster's API" in lines["clock"][0][2]


def test_what_the_cluster_fails_to_answer_is_unknown_and_not_fine(space, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.doctor._PATIENCE_S", 0.2)
    for path in (f"/api/v1/namespaces/{space.name}/resourcequotas", "/apis/kueue.x-k8s.io"):
        space.cluster.proxy.fail(path=path, status=503, times=1000)
    lines = examined(space, "cluster.queue_name=team-queue")
    assert ("unknown", "E342") in of(lines, "quota") and ("ok", None) not in of(lines, "quota")
    assert of(lines, "queue") == [("unknown", "E342")], lines["queue"]
