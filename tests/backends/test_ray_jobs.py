"""RayJobs: the fields that KubeRay's operator reads, what the published launcher leaves out, and what is refused."""

from pathlib import Path

import definitions
import jsonschema
import kubernetes_validate
import pytest
from conftest import rendered
from manifest_schemas import DATA, GRPO, KUBERNETES, RAY, RAY_EVERYTHING

from launcher.backends.kubernetes.api_objects import pod_templates
from launcher.backends.kubernetes.target import Places
from launcher.common import yaml_io
from launcher.governance.quotas import Demand
from launcher.planning import plan_report

NEWER = "recipes=fine-tuning/qwen-0_7_0/verl-grpo-rlvr-qwen-3-dot-5-27b-lora"


def parsed(*overrides, base=RAY):
    """Return the parsed ConfigMap and RayJob."""
    files = rendered(Path("/launch"), *base, *overrides).files
    return tuple(yaml_io.load(files[f"manifests/{name}.yaml"]) for name in ("configmap", "job"))


@pytest.fixture(scope="module")
def whole():
    """The manifests of a job with every field that a key sets."""
    return parsed(*RAY_EVERYTHING)


def containers(job):
    return {each["spec"]["containers"][0]["name"]: each["spec"]["containers"][0] for each in pod_templates(job)}


def nulls(value, where=""):
    if value is None:
        yield where
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from nulls(inner, f"{where}.{key}")


def test_a_ray_job_has_what_the_published_one_lacks(whole):
    _, job = whole
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "training-priority"
    assert job["metadata"]["labels"]["team"] == "research" and job["metadata"]["annotations"] == {"note": "a: b"}
    wanted = {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 3600, "backoffLimit": 2, "suspend": True}
    assert wanted.items() <= spec.items()
    assert (spec["activeDeadlineSeconds"], spec["preRunningDeadlineSeconds"]) == (86400, 600)
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    assert list(nulls(job)) == []
    for template in pod_templates(job):
        pod = template["spec"]
        assert {each["name"]: each for each in pod["volumes"]}["shm"]["emptyDir"] == {"medium": "Memory"}
        mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert {"/dev/shm", "/fsx", "/scratch", "/config"} <= mounts
        assert pod["priorityClassName"] == "high" and pod["tolerations"] == [{"operator": "Exists"}]


def test_what_no_key_sets_is_absent_and_not_null():
    configmap, job = parsed()
    assert list(nulls(configmap)) == list(nulls(job)) == []
    for container in containers(job).values():
        assert {"TRAIN_FILES": "/fsx/train.parquet"}.items() <= {
            e["name"]: e.get("value") for e in container["env"]
        }.items()
        assert "MLFLOW_TRACKING_URI" not in {each["name"] for each in container["env"]}


def test_nodes_of_the_ray_cluster_are_chosen_by_the_user_s_labels(whole):
    _, job = whole
    chosen = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    for template in pod_templates(job):
        affinity = template["spec"]["affinity"]["nodeAffinity"]
        if template["spec"]["containers"][0]["name"] != "ray-submitter":  # it prefers nodes without devices
            (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert chosen in term["matchExpressions"]


def test_a_variable_of_the_user_s_stands_once():
    _, job = parsed("+env_vars.MLFLOW_TRACKING_URI=https://mine.example")
    for container in containers(job).values():
        values = [each["value"] for each in container["env"] if each["name"] == "MLFLOW_TRACKING_URI"]
        assert values == ["https://mine.example"]


def test_devices_belong_to_the_workers(whole):
    _, job = whole
    parts = containers(job)
    limits = parts["ray-workers"]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"}
    assert parts["ray-workers"]["resources"]["requests"] == {**limits, "cpu": "48", "memory": "144Gi"}
    assert parts["ray-head"]["resources"] == {"requests": {"cpu": "16", "memory": "32Gi"}}
    assert parts["ray-submitter"]["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert cluster["workerGroupSpecs"][0]["rayStartParams"] == {"num-gpus": "8"}
    submitter = job["spec"]["submitterPodTemplate"]["spec"]
    (preferred,) = submitter["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"][0]["values"] == ["ml.c5.4xlarge", "ml.m5.4xlarge"]
    assert "nodeSelector" not in submitter


def test_the_program_reads_one_resolved_configuration(whole):
    configmap, job = whole
    words = job["spec"]["entrypoint"].split()
    assert words[:4] == ["python", "-u", "-m", "verl.trainer.main_ppo"]
    assert words[words.index("--config-path") + 1] == "/config"
    text = configmap["data"][f"{words[words.index('--config-name') + 1]}.yaml"]
    training = yaml_io.load(text)
    assert "${" not in text and training["trainer"]["nnodes"] == 2
    assert training["data"]["train_files"] == "/fsx/train.parquet"
    assert training == yaml_io.load(configmap["data"]["config.yaml"])["training_config"]
    env = {each["name"]: each for each in containers(job)["ray-workers"]["env"]}
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert len(containers(job)["ray-head"]["env"]) == len(env)  # no variable stands twice


def test_a_tracked_ray_job_continues_its_run():
    run = "recipes.training_config.mlflow"
    _, job = parsed(f"{run}.tracking_uri=https://mlflow.example", f"{run}.run_id=0123456789abcdef0123456789abcdef")
    env = {each["name"]: each.get("value") for each in containers(job)["ray-head"]["env"]}
    assert env["MLFLOW_TRACKING_URI"] == "https://mlflow.example"
    assert env["MLFLOW_RUN_ID"] == "0123456789abcdef0123456789abcdef"


@pytest.mark.slow
def test_verl_s_newer_releases_give_workers_their_devices():
    for base, is_newer in ((GRPO, False), (NEWER, True)):
        _, job = parsed(base=(base, *RAY[1:]))
        names = {each["name"] for each in containers(job)["ray-workers"]["env"]}
        assert ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES" in names) is is_newer


def test_a_command_of_one_s_own_replaces_the_program():
    _, job = parsed("cluster.command=[python, '-m', 'my trainer']")
    assert job["spec"]["entrypoint"] == "python -m 'my trainer'"


@pytest.mark.parametrize(
    ("override", "code", "path"),
    [
        ("cluster.use_hyperpod_pytorch_job=false", "E326", "cluster.use_hyperpod_pytorch_job"),
        ("cluster.runtime=launcher", "E326", "cluster.runtime"),
        ("cluster.restartPolicy=Always", "E326", "cluster.restartPolicy"),
        ("cluster.cleanPodPolicy=None", "E315", "cluster.cleanPodPolicy"),
        ("cluster.run_policy={faultDeadlineSeconds: 5}", "E314", "cluster.run_policy.faultDeadlineSeconds"),
        ("+recipes.pre_script=[echo]", "E322", "recipes.pre_script"),
        ("+recipes.post_script=[echo]", "E322", "recipes.post_script"),
    ],
)
def test_what_a_ray_job_has_no_field_for_is_refused(problems, override, code, path):
    assert [(each.code, each.path) for each in problems(*RAY, override)] == [(code, path)]


def test_spares_are_refused(problems):
    found = problems(*RAY, "cluster.spares=1", "cluster.queue_name=q")
    assert [(each.code, each.path) for each in found] == [("E314", "cluster.spares")]


def test_a_ray_job_needs_a_ray_cluster(problems):
    codes = {each.code for each in problems(GRPO, "cluster=local", "container=me/image:1", *DATA)}
    assert codes & {"E113", "E120"}


def test_a_ray_job_has_one_size(problems, prepare):
    assert "always this size: its keys name one size" in plan_report.summary(prepare(*RAY))
    policy = "+recipes.elastic_policy={is_elastic: true, min_nodes: 1, max_nodes: 2, use_graceful_shutdown: false}"
    assert "E121" in {each.code for each in problems(*RAY, policy)}


def test_only_the_submitter_prints_as_a_rank(whole):
    _, job = whole
    name, places = job["metadata"]["name"], Places.of(job)
    assert places.place(f"{name}-x1y2z") == 0 and places.num_ranks == 1
    assert places.place(f"{name}-abcde-head-x1y2z") is None
    assert Demand.of(job).least == 2


def test_a_ray_job_passes_the_schemas(whole):
    if not definitions.RAY_JOBS.is_file():
        pytest.skip("KubeRay's definitions are not in the repository")
    _, job = whole
    jsonschema.Draft202012Validator(definitions.closed_ray_jobs()).validate(job["spec"])
    for template in pod_templates(job):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)
