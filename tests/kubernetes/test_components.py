"""A job of several programs on a real API server: submitted, followed and ended as one."""

import definitions
import pytest
from cluster_fixtures import reference
from log_texts import log_texts
from test_kubeflow import definition

from launcher import pipeline
from launcher.backends.kubernetes import submit
from launcher.backends.kubernetes.api_objects import POD_KINDS, manifests, pod_templates
from launcher.bundle import store as bundles
from launcher.common.problems import ProblemsFound
from launcher.model import backend_registry
from launcher.model.context import LaunchContext
from launcher.model.job_spec import JobState, LogSelection

pytest_plugins = ("cluster_fixtures",)

BACKEND = backend_registry.load_backend("k8s")
JOB = "PyTorchJob"
PPO = (
    "recipes=fine-tuning/nova/nova_1_0/nova_micro/PPO/nova_micro_1_0_p5_gpu_ppo",
    "cluster=k8s",
    "recipes.run.data_s3_path=s3://data/train.jsonl",
    "recipes.run.output_s3_path=s3://results/out",
)
KINDS = ("ConfigMap", JOB, "StatefulSet", "Service")
PODS = ("at-master-0", "at-worker-0", "ag-0", "ag-1", "am-master-0", "cm-master-0", "rm-master-0")


@pytest.fixture
def kubeflow(space):
    """The namespace, on a cluster with Kubeflow's operator."""
    space.install(definition(definitions.training_job(space.admin.get("/openapi/v2")["definitions"])))
    return space


def rendered(space, *overrides):
    context = LaunchContext.read()._replace(cwd=space.folder)
    job = pipeline.prepare((*PPO, f"cluster.namespace={space.name}", *overrides), context)
    bundle = pipeline.render(job, context)
    bundles.write(bundle)
    return bundle


def made_pods(space, bundle, endings=PODS):
    """Make pods as Kubeflow's operator and the controller of StatefulSets do; return the names of those."""
    for each in manifests(bundle):
        if each.kind not in POD_KINDS:
            continue
        owner = {**reference(space.get(each.kind, each.name)), "controller": True}
        labels = pod_templates(each.body)[0]["metadata"]["labels"]
        for name in (f"{bundle.job_name}-{ending}" for ending in endings):
            if name.startswith(f"{each.name}-"):
                spec = {"containers": [{"name": "pytorch", "image": "me/image:1"}], "nodeName": "node-1"}
                space.make("Pod", name, metadata={"labels": labels, "ownerReferences": [owner]}, spec=spec)
                space.run_container(name)
    return [f"{bundle.job_name}-{ending}" for ending in endings]


def hold(space, name, *types):
    held = [{"type": each, "status": "True", "reason": f"Job{each}", "message": each} for each in types]
    space.set_status(JOB, name, {"conditions": held})


def left(space, bundle):
    return [name for kind in KINDS for name in space.names(kind) if bundle.job_name in name]


def test_all_objects_are_made_once_and_belong_to_the_program_that_trains(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    assert handle.native_id == f"{bundle.job_name}-at" and handle.is_new
    assert not BACKEND.submit(bundle).is_new
    owner = reference(kubeflow.get(JOB, handle.native_id))
    others = manifests(bundle)[:-1]
    assert len(others) == 10
    for each in others:
        (own,) = kubeflow.get(each.kind, each.name)["metadata"]["ownerReferences"]
        assert own == owner
    kept = kubeflow.get("StatefulSet", f"{bundle.job_name}-ag")["spec"]
    assert kept["template"]["spec"]["containers"][0]["securityContext"]["privileged"] is True


def test_a_job_is_followed_over_the_pods_of_all_programs(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    assert BACKEND.status(handle).state is JobState.PENDING
    names = made_pods(kubeflow, bundle)
    hold(kubeflow, handle.native_id, "Created", "Running")
    seen = BACKEND.status(handle)
    assert (seen.state, seen.nodes, seen.message) == (JobState.RUNNING, 7, "")
    assert [pod.name for pod in BACKEND.pods(handle)] == names
    for number, name in enumerate(names):
        kubeflow.cluster.kubelet.write(name, f"hello {number}")
        kubeflow.end_container(name)
    hold(kubeflow, handle.native_id, "Created", "Succeeded")
    lines = [line for line in log_texts(BACKEND, handle, LogSelection(None), follow=True) if line.startswith("rank")]
    assert sorted(lines) == [f"rank {number} | hello {number}" for number in range(7)]
    assert list(log_texts(BACKEND, handle, LogSelection((5,)), follow=False)) == ["hello 5"]
    assert [each.state for each in BACKEND.wait(handle)] == [JobState.SUCCEEDED]


def test_a_program_that_waits_or_has_failed_is_named(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    made_pods(kubeflow, bundle, [each for each in PODS if not each.startswith("ag")])
    hold(kubeflow, handle.native_id, "Created", "Running")
    seen = BACKEND.status(handle)
    name = bundle.job_name
    assert (seen.state, seen.nodes) == (JobState.RUNNING, 5)
    assert seen.message == f"{name}-ag waits for the operator to create its pods"
    made_pods(kubeflow, bundle, ["ag-0", "ag-1"])
    kubeflow.end_container(f"{name}-rm-master-0", exit_code=9, reason="Error")
    seen = BACKEND.status(handle)
    assert (seen.state, seen.nodes) == (JobState.RUNNING, 6)
    assert seen.message.startswith(f"{name}-rm has failed: {name}-rm-master-0 on node-1: Error, exit code 9")


def test_programs_that_run_on_after_training_are_named(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    names = made_pods(kubeflow, bundle)
    for name in (each for each in names if "-ag-" not in each):
        kubeflow.end_container(name)
    hold(kubeflow, handle.native_id, "Created", "Succeeded")
    seen = BACKEND.status(handle)
    assert (seen.state, seen.nodes) == (JobState.SUCCEEDED, 2)
    assert f"{bundle.job_name}-ag still runs, until the job is removed" in seen.message
    BACKEND.clear(handle)
    assert left(kubeflow, bundle) == []


def test_pods_that_another_object_of_that_kind_controls_are_not_the_job_s(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    (name,) = made_pods(kubeflow, bundle, ["ag-0"])
    labels = kubeflow.get("Pod", name)["metadata"]["labels"]
    spec = {"containers": [{"name": "pytorch", "image": "me/image:1"}], "nodeName": "node-1"}
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "other", "uid": "u", "controller": True}
    kubeflow.make("Pod", "other-0", metadata={"labels": labels, "ownerReferences": [owner]}, spec=spec)
    unlabelled = {**reference(kubeflow.get("StatefulSet", f"{bundle.job_name}-ag")), "controller": True}
    kubeflow.make("Pod", f"{bundle.job_name}-ag-1", metadata={"ownerReferences": [unlabelled]}, spec=spec)
    assert [pod.name for pod in BACKEND.pods(handle)] == [name]


def test_events_of_all_objects_are_the_job_s(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    for number, (kind, ending) in enumerate((("PyTorchJob", "rm"), ("StatefulSet", "ag"), ("Pod", "ag-1"))):
        about = {"kind": kind, "name": f"{bundle.job_name}-{ending}", "namespace": kubeflow.name}
        times = {"lastTimestamp": f"2026-01-02T03:04:0{number}Z", "count": 1}
        kubeflow.make("Event", f"e{number}", involvedObject=about, reason="Seen", message=ending, **times)
    other = {"kind": "PyTorchJob", "name": "other-rm", "namespace": kubeflow.name}
    kubeflow.make("Event", "e9", involvedObject=other, reason="Seen", lastTimestamp="2026-01-02T03:04:09Z")
    assert [event.message for event in BACKEND.events(handle, follow=False)] == ["rm", "ag", "ag-1"]


def test_cancelling_removes_every_object(kubeflow):
    bundle = rendered(kubeflow)
    handle = BACKEND.submit(bundle)
    assert len(left(kubeflow, bundle)) == 11
    with pytest.raises(ProblemsFound, match="E413"):
        BACKEND.scale(handle, 1)
    BACKEND.cancel(handle)
    assert left(kubeflow, bundle) == [] and BACKEND.status(handle).state is JobState.DELETED


def test_a_submission_that_fails_leaves_nothing(kubeflow):
    bundle = rendered(kubeflow)
    kubeflow.cluster.proxy.fail(method="PATCH", path=f"/pytorchjobs/{bundle.job_name}-cm", status=422, skip=1)
    with pytest.raises(ProblemsFound):
        BACKEND.submit(bundle)
    assert left(kubeflow, bundle) == []


def test_a_quota_is_compared_with_the_pods_of_all_programs(kubeflow):
    kubeflow.make("ResourceQuota", "small", spec={"hard": {"requests.nvidia.com/gpu": "55"}})
    (problem,) = submit.validate(kubeflow.connection(), rendered(kubeflow)).problems
    assert problem.code == "E364" and "7 nodes need 56 requests.nvidia.com/gpu" in problem.message
