"""A Kubeflow PyTorchJob on a real API server: submitted, followed and ended like any other job."""

import definitions
import pytest
from log_texts import log_texts

from launcher.backends.kubernetes.api_objects import pod_templates
from launcher.backends.kubernetes.submit import validate
from launcher.bundle import store as bundles
from launcher.common.problems import ProblemsFound
from launcher.model import backend_registry
from launcher.model.job_spec import JobState, LogSelection

pytest_plugins = ("cluster_fixtures",)

JOB = "PyTorchJob"
BACKEND = backend_registry.load_backend("k8s")
COUNT = {"type": "integer", "minimum": 0, "nullable": True}  # nullable: this server takes 0 for null
WORD = {"type": "string"}
RUN_POLICY = {
    "activeDeadlineSeconds": {"type": "integer"},
    "backoffLimit": COUNT,
    "cleanPodPolicy": WORD,
    "suspend": {"type": "boolean", "nullable": True},
    "ttlSecondsAfterFinished": COUNT,
}
CONDITION = {name: WORD for name in ("type", "status", "reason", "message")}


def fields(properties, **more):
    return {"type": "object", "properties": properties, **more}


def definition(ours):
    """Return the CRD of a PyTorchJob, with the pod template of our own job's.

    Source: Kubeflow Training Operator 1.7, API of PyTorchJob v1.
    """
    parts = definitions.schema(ours)["properties"]["spec"]["properties"]["replicaSpecs"]
    template = parts["items"]["properties"]["template"]
    part = fields({"replicas": COUNT, "restartPolicy": WORD, "template": template}, required=["template"])
    spec = fields(
        {
            "nprocPerNode": WORD,
            "runPolicy": fields(RUN_POLICY),
            "pytorchReplicaSpecs": fields({"Master": part, "Worker": part}, required=["Master"]),
        },
        required=["pytorchReplicaSpecs"],
    )
    status = fields({"conditions": {"type": "array", "items": fields(CONDITION)}})
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": fields({"spec": spec, "status": status})},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"kind": JOB, "plural": "pytorchjobs", "singular": "pytorchjob"},
            "versions": [version],
        },
    }


@pytest.fixture
def launch(space, bundle):
    """Return a function that submits a job of two nodes, on a cluster with Kubeflow's operator."""
    ours = definitions.training_job(space.admin.get("/openapi/v2")["definitions"])
    space.install(definition(ours))
    return lambda *overrides: BACKEND.submit(made(bundle, *overrides))


def made(bundle, *overrides):
    size = ("recipes.trainer.num_nodes=2", "recipes.training_config.training_args.train_batch_size=32")
    return bundle("cluster.use_hyperpod_pytorch_job=false", *size, *overrides, is_elastic=False)


def pods(space, job):
    """Make a job's pods as Kubeflow's operator does; return their names."""
    owner = {key: job[key] for key in ("apiVersion", "kind")} | {key: job["metadata"][key] for key in ("name", "uid")}
    labels = pod_templates(job)[0]["metadata"]["labels"] | {"training.kubeflow.org/job-name": owner["name"]}
    names = [f"{owner['name']}-{role}-0" for role in ("master", "worker")]
    for name in names:
        spec = {"containers": [{"name": "pytorch", "image": "me/image:1"}], "nodeName": "node-1"}
        space.make("Pod", name, metadata={"labels": labels, "ownerReferences": [owner]}, spec=spec)
        space.run_container(name)
    return names


def conditions(space, handle, *types):
    held = [{"type": each, "status": "True", "reason": f"PyTorchJob{each}", "message": each} for each in types]
    space.set_status(JOB, handle.native_id, {"conditions": held})


def test_a_kubeflow_job_is_submitted_followed_and_succeeds(space, launch):
    handle = launch()
    assert (handle.kind, handle.is_new) == (JOB, True) and not BACKEND.submit(made_again(handle)).is_new
    assert BACKEND.status(handle).state is JobState.PENDING
    names = pods(space, space.get(JOB, handle.native_id))
    conditions(space, handle, "Created", "Running")
    assert (BACKEND.status(handle).state, BACKEND.status(handle).nodes) == (JobState.RUNNING, 2)
    for number, name in enumerate(names):
        space.cluster.kubelet.write(name, f"[default0]:hello {number}")
        space.end_container(name)
    conditions(space, handle, "Created", "Succeeded")
    lines = [
        line for line in log_texts(BACKEND, handle, LogSelection((0, 8)), follow=True) if line.startswith("rank")
    ]
    assert sorted(lines) == ["rank 0 | [default0]:hello 0", "rank 8 | [default0]:hello 1"]
    assert [each.state for each in BACKEND.wait(handle)] == [JobState.SUCCEEDED]


def made_again(handle):
    return bundles.read(handle.bundle_dir)[0]


def test_a_kubeflow_job_has_a_fixed_size_and_can_be_ended(space, launch):
    handle = launch()
    with pytest.raises(ProblemsFound, match="E413"):
        BACKEND.scale(handle, 1)
    BACKEND.cancel(handle)
    assert space.names(JOB) == [] and BACKEND.status(handle).state is JobState.DELETED


def test_a_kubeflow_job_with_every_field_is_kept_as_it_was_sent(space, launch):
    policy = "cluster.run_policy={activeDeadlineSeconds: 5, jobMaxRetryCount: 0, suspend: true}"
    handle = launch(policy, "cluster.cleanPodPolicy=Running", "cluster.tolerations=[{operator: Exists}]")
    kept = space.get(JOB, handle.native_id)["spec"]
    assert kept["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "activeDeadlineSeconds": 5,
        "backoffLimit": 0,
        "suspend": True,
    }
    assert {name: part["replicas"] for name, part in kept["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 1,
    }


def test_a_cluster_without_kubeflow_s_operator_is_told(space, bundle):
    space.cluster.proxy.fail(path="/apis/kubeflow.org/v1$", status=404, times=10)
    (problem,) = validate(space.connection(), made(bundle)).problems
    assert problem.code == "E346" and "Kubeflow training operator" in problem.remedy
