"""A RayJob on a real API server with KubeRay's definitions: submitted, followed and ended like any other job."""

import definitions
import pytest
from cluster_fixtures import reference
from log_texts import log_texts
from manifest_schemas import RAY, RAY_EVERYTHING

from launcher import pipeline
from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.submit import validate
from launcher.bundle import store as bundles
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.model import backend_registry
from launcher.model.context import LaunchContext
from launcher.model.job_spec import JobState, LogSelection

pytest_plugins = ("cluster_fixtures",)

JOB = "RayJob"
BACKEND = backend_registry.load_backend("k8s")


def ray_bundle(space, *overrides):
    words = (*RAY, f"cluster.namespace={space.name}")
    context = LaunchContext.read()._replace(cwd=space.folder)
    job = pipeline.prepare((*words, *overrides), context)
    bundle = pipeline.render(job, context)
    bundles.write(bundle)
    return bundle


@pytest.fixture
def ray(space):
    """Return a function that submits a GRPO job, on a cluster with KubeRay's definitions."""
    if not definitions.RAY_JOBS.is_file():
        pytest.skip("KubeRay's definitions are not in the repository")
    space.install(definitions.ray_jobs())
    return lambda *overrides: BACKEND.submit(ray_bundle(space, *overrides))


def made_pods(space, job):
    """Make a job's pods as KubeRay's operator does: head and workers of a cluster, and the submitter's; return it."""
    name = job["metadata"]["name"]
    labels = {"recipe-launcher/job": name}
    cluster, container = f"{name}-abcde", {"name": "pytorch", "image": "me/image:1"}
    owners = {"RayCluster": ("ray.io/v1", cluster), "Job": ("batch/v1", name)}
    of_node = {f"{cluster}-head-12345": "head", f"{cluster}-workers-worker-12345": "worker", f"{name}-zyxwv": None}
    for pod, node in of_node.items():
        kind = "RayCluster" if node else "Job"
        api, owner = owners[kind]
        held = {"apiVersion": api, "kind": kind, "name": owner, "uid": reference(job)["uid"], "controller": True}
        of_kind = labels | ({"ray.io/node-type": node} if node else {})
        spec = {"containers": [container], "nodeName": "node-1"}
        space.make("Pod", pod, metadata={"labels": of_kind, "ownerReferences": [held]}, spec=spec)
        space.run_container(pod)
    return list(of_node)


def tell(space, handle, deployment, program="", **status):
    status = {"jobDeploymentStatus": deployment, "jobStatus": program, **status}
    space.set_status(JOB, handle.native_id, status)


def test_a_ray_job_is_submitted_followed_and_succeeds(space, ray):
    handle = ray()
    assert (handle.kind, handle.is_new) == (JOB, True)
    assert not BACKEND.submit(bundles.read(handle.bundle_dir)[0]).is_new
    tell(space, handle, "Initializing")
    assert BACKEND.status(handle).state is JobState.PENDING
    *cluster, submitter = made_pods(space, space.get(JOB, handle.native_id))
    tell(space, handle, "Running", "RUNNING")
    status = BACKEND.status(handle)
    assert (status.state, status.nodes) == (JobState.RUNNING, 1)
    space.cluster.kubelet.write(submitter, "step 1")
    space.cluster.kubelet.write(cluster[1], "a worker's line")
    for pod in (submitter, *cluster):
        space.end_container(pod)
    tell(space, handle, "Complete", "SUCCEEDED")
    lines = list(log_texts(BACKEND, handle, LogSelection((0,)), follow=True))
    assert "step 1" in lines and not any("a worker's line" in line for line in lines)
    everything = list(log_texts(BACKEND, handle, LogSelection(None), follow=False))
    assert f"{cluster[1]} | a worker's line" in everything and "rank 0 | step 1" in everything
    assert [each.state for each in BACKEND.wait(handle)] == [JobState.SUCCEEDED]
    with pytest.raises(ProblemsFound, match="E411|E412|rank"):
        list(log_texts(BACKEND, handle, LogSelection((1,)), follow=False))


@pytest.mark.parametrize(
    ("deployment", "program", "more", "state", "words"),
    [
        ("Running", "FAILED", {}, JobState.RUNNING, ""),
        ("Retrying", "FAILED", {"failed": 1}, JobState.PENDING, "failed 1 time, and is tried again"),
        ("Failed", "FAILED", {"reason": "AppFailed", "message": "boom"}, JobState.FAILED, "AppFailed: boom"),
        ("Complete", "STOPPED", {}, JobState.CANCELLED, ""),
        ("Suspended", "", {}, JobState.PENDING, "is suspended"),
        ("ValidationFailed", "", {"message": "no head"}, JobState.FAILED, "no head"),
    ],
)
def test_both_states_of_a_ray_job_make_one(space, ray, deployment, program, more, state, words):
    handle = ray()
    tell(space, handle, deployment, program, **more)
    seen = BACKEND.status(handle)
    assert seen.state is state and words in seen.message


def test_a_ray_job_has_a_fixed_size_and_can_be_ended(space, ray):
    handle = ray()
    with pytest.raises(ProblemsFound, match="E413"):
        BACKEND.scale(handle, 1)
    BACKEND.cancel(handle)
    assert space.names(JOB) == [] and BACKEND.status(handle).state is JobState.DELETED


def test_a_ray_job_with_every_field_is_kept_as_it_was_sent(space, ray):
    bundle = ray_bundle(space, *RAY_EVERYTHING)
    body = yaml_io.load(bundle.files["manifests/job.yaml"])
    kept = space.admin.apply(path(JOB, space.name, bundle.job_name), body, "test")["spec"]

    def lost(sent, found, where):
        if isinstance(sent, dict):
            for key, value in sent.items():
                yield from lost(value, found.get(key) if isinstance(found, dict) else None, f"{where}.{key}")
        elif isinstance(sent, list):
            for i, value in enumerate(sent):
                yield from lost(value, found[i] if isinstance(found, list) else None, f"{where}[{i}]")
        elif sent != found:
            yield where

    assert list(lost(body["spec"], kept, "")) == []
    policy = {key: kept[key] for key in ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")}
    assert policy == {"activeDeadlineSeconds": 86400, "backoffLimit": 2, "ttlSecondsAfterFinished": 3600}
    assert (kept["preRunningDeadlineSeconds"], kept["suspend"]) == (600, True)


def test_a_cluster_without_kuberay_s_operator_is_told(space):
    space.cluster.proxy.fail(path="/apis/ray.io/v1$", status=404, times=10)
    (problem,) = validate(space.connection(), ray_bundle(space)).problems
    assert problem.code == "E346" and "KubeRay" in problem.remedy
