"""Manifests parsed back and held against the fields that the HyperPod operator and the image read."""

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S, ROOT
from manifest_schemas import EVERYTHING, TIERS

from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound

IMAGE = "327873000638.dkr.ecr.us-east-1.amazonaws.com/hyperpod-recipes:llmft-v1.0.0"


@pytest.fixture
def manifests(render):
    """Return a function from overrides to the parsed ConfigMap and job."""

    def parsed(*overrides, base=LLAMA_K8S):
        files = render(*base, *overrides).files
        return tuple(yaml_io.load(files[f"manifests/{name}.yaml"]) for name in ("configmap", "job"))

    return parsed


def pod(job):
    (replica_spec,) = job["spec"]["replicaSpecs"]
    return replica_spec["template"]["spec"]


def container(job):
    (only,) = pod(job)["containers"]
    return only


def env(job):
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container(job)["env"]}


def test_elastic_policy_fields(manifests):
    _, job = manifests(
        ELASTIC,
        "++recipes.elastic_policy.faulty_timeout=30",
        "++recipes.elastic_policy.scale_up_snooze_time=120",
        "recipes.elastic_policy.scaling_timeout=60",
    )
    assert (job["apiVersion"], job["kind"]) == ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob")
    assert job["spec"]["nprocPerNode"] == "8"
    assert job["spec"]["elasticPolicy"] == {
        "minReplicas": 1,
        "maxReplicas": 16,
        "replicaDiscreteValues": [1, 2, 3, 4, 6, 8, 16],
        "gracefulShutdownTimeoutInSeconds": 600,
        "scalingTimeoutInSeconds": 60,
        "faultyScaleDownTimeoutInSeconds": 30,
    }
    assert job["spec"]["runPolicy"] == {
        "ttlSecondsAfterFinished": 86400,
        "restartPolicy": {"evalPeriodSeconds": 3600, "scaleUpSnoozeTimeInSeconds": 120},
    }
    (replica_spec,) = job["spec"]["replicaSpecs"]
    assert (replica_spec["replicas"], replica_spec["maxReplicas"]) == (1, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "start", "replicas", "most"),
    [((2, 8), 2, (2, 0), 6), ((1, 16), 4, (1, 3), 15)],
    ids=["as-documented", "starts-beyond-its-base"],
)
def test_two_priorities_are_two_replica_specs(manifests, bounds, start, replicas, most):
    overrides = [f"recipes.elastic_policy.{key}_nodes={n}" for key, n in zip(("min", "max"), bounds, strict=True)]
    _, job = manifests(ELASTIC, TIERS, *overrides, f"recipes.trainer.num_nodes={start}", "cluster.queue_name=q")
    base, elastic = job["spec"]["replicaSpecs"]
    assert (base["name"], base["replicas"], "maxReplicas" in base) == ("base", replicas[0], False)
    assert (elastic["name"], elastic["replicas"], elastic["maxReplicas"]) == ("elastic", replicas[1], most)
    policy = job["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == bounds
    assert base["replicas"] == policy["minReplicas"]
    assert base["replicas"] + elastic["maxReplicas"] == policy["maxReplicas"]
    classes = [part["template"]["spec"].pop("priorityClassName") for part in (base, elastic)]
    assert classes == ["high-priority", "low-priority"]
    assert base["template"] == elastic["template"]


def test_both_parts_of_a_job_pass_kubernetes_own_schema(manifests):
    validate = pytest.importorskip("kubernetes_validate").validate
    _, job = manifests(ELASTIC, TIERS)
    for place in range(2):
        validate(without_custom_kind(job, place), "1.30", strict=True)


@pytest.mark.slow
def test_a_static_run_of_a_recipe_with_two_priorities_has_one_replica_spec(manifests, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\n"
        "elastic_policy: {preemption: {base_priority_class: a, elastic_priority_class: b}}\n"
    )
    recipe = f"recipes={tmp_path / 'mine.yaml'}"
    for switch, parts in ((), ["pods"]), ((ELASTIC,), ["base", "elastic"]):
        _, job = manifests(*switch, base=(recipe, "cluster=k8s"))
        assert [part["name"] for part in job["spec"]["replicaSpecs"]] == parts


def test_a_step_replaces_the_values_and_absent_timeouts_are_not_written(manifests):
    _, job = manifests(
        ELASTIC,
        "~recipes.scale_config",
        "++recipes.elastic_policy.replica_increment_step=1",
        "recipes.elastic_policy.max_nodes=2",
        "recipes.elastic_policy.scaling_timeout=null",
        "recipes.elastic_policy.graceful_shutdown_timeout=null",
        "recipes.training_config.training_args.train_batch_size=16",
    )
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 2, "replicaIncrementStep": 1}


def test_a_static_job_has_no_elastic_field(manifests):
    config_map, job = manifests()
    assert "elasticPolicy" not in job["spec"]
    assert "maxReplicas" not in job["spec"]["replicaSpecs"][0]
    assert list(config_map["data"]) == ["config.yaml", "start.sh"]
    assert env(job)["SCRIPT_ARGS"] == "--config-path=/config --config-name=config.yaml"
    assert "HYPERPOD_SIGNAL_COORDINATION" not in env(job)


@pytest.mark.parametrize(
    ("overrides", "kept_s"),
    [
        ((), 86400),
        (("cluster.run_policy={ttlSecondsAfterFinished: -1}",), -1),
        (("cluster.cleanPodPolicy=All",), 86400),
    ],
    ids=["left-out", "set", "beside-others"],
)
def test_an_ended_job_is_kept_for_a_day_unless_its_user_sets_a_time(manifests, overrides, kept_s):
    _, job = manifests(*overrides)
    assert job["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == kept_s


def test_image_interface(manifests):
    _, job = manifests(ELASTIC, "recipes.trainer.num_nodes=2", "++recipes.pre_script=[a,b]")
    name = job["metadata"]["name"]
    assert container(job)["image"] == IMAGE
    assert container(job)["command"] == ["/bin/bash", "/config/start.sh", "/opt/bin/scripts/train-script-gpu.sh"]
    expected = {
        "GIT_REPO_URL": "", "GIT_BRANCH": "", "GIT_COMMIT": "", "GIT_UPDATE_ADAPTER": "",
        "NODES": "2", "NTASKS_PER_NODE": "8", "JOB_NAME": name,
        "SCRIPT_PATH": "-m amzn_awsllm_fine_tuning.train_hp", "SCRIPT_ARGS": "--config-path=/config",
        "PRE_SCRIPT_COMMANDS": "a;b", "POST_SCRIPT_COMMANDS": "", "USE_HYPERPODRUN": "true",
        "INSTANCE_TYPE": "p5.48xlarge", "NCCL_DEBUG": "WARN", "HYPERPOD_SIGNAL_COORDINATION": "distributed",
    }  # fmt: skip
    assert env(job).items() >= expected.items()
    assert container(job)["ports"] == [{"name": "agent", "containerPort": 8080}]
    assert {"name": "config", "mountPath": "/config", "readOnly": True} in container(job)["volumeMounts"]
    assert {"name": "config", "configMap": {"name": f"training-config-{name}"}} in pod(job)["volumes"]


def test_a_queue_names_the_job_itself(manifests):
    _, job = manifests("cluster.queue_name=hyperpod-ns-a-localqueue", "cluster.workload_priority_class=high-priority")
    assert "JOB_NAME" not in env(job)
    for labels in (job["metadata"]["labels"], job["spec"]["replicaSpecs"][0]["template"]["metadata"]["labels"]):
        assert labels["kueue.x-k8s.io/queue-name"] == "hyperpod-ns-a-localqueue"
        assert labels["kueue.x-k8s.io/priority-class"] == "high-priority"
    assert "priorityClassName" not in pod(job)


def test_command_and_git_of_the_user(manifests):
    _, job = manifests(
        "cluster.command=[python,train.py]",
        "git.entry_module=my.module",
        "git.repo_url_or_path=https://example.com/code",
        "git.branch=main",
        "git.update_adapter=true",
    )
    assert container(job)["command"] == ["python", "train.py"]
    assert (env(job)["SCRIPT_PATH"], env(job)["GIT_BRANCH"]) == ("-m my.module", "main")
    assert env(job)["GIT_UPDATE_ADAPTER"] == "true"


NCCL = {"NCCL_SOCKET_IFNAME", "NCCL_IGNORE_DISABLED_P2P", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_DIST_INIT_BARRIER", "CUDA_DEVICE_MAX_CONNECTIONS"}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "efa", "nccl"),
    [
        ((), None, False),
        ((ELASTIC,), 32, True),
        ((ELASTIC, "recipes.elastic_policy.max_nodes=1"), None, False),
        ((ELASTIC, "instance_type=p4d.24xlarge"), 4, True),
        ((ELASTIC, "recipes.trainer.devices=4", "recipes.scale_config=auto"), 16, True),
        ((ELASTIC, "recipes.trainer.devices=1", "instance_type=p4d.24xlarge", "recipes.scale_config=auto"), 1, True),
        (("recipes.trainer.num_nodes=1", "instance_type=g5.48xlarge"), None, False),
        ((ELASTIC, "recipes.elastic_policy.max_nodes=2", "instance_type=g5.12xlarge"), 1, True),
    ],
    ids=["one_node", "elastic", "elastic_to_one", "p4d", "half-a-node", "less-than-one", "g5", "four_gpus"],
)
def test_network_settings_follow_the_largest_size(manifests, overrides, efa, nccl):
    _, job = manifests(*overrides)
    limits = container(job)["resources"]["limits"]
    assert limits.get("vpc.amazonaws.com/efa") == efa
    assert (env(job).keys() >= NCCL) is nccl
    assert (env(job).get("FI_PROVIDER") == "efa") is (efa is not None)
    assert container(job)["resources"]["requests"].items() >= limits.items()


@pytest.mark.parametrize(("instance", "gpus"), [("p5.48xlarge", 8), ("ml.g5.12xlarge", 4), ("g6e.12xlarge", 4)])
def test_devices_are_the_instance_s(manifests, instance, gpus):
    _, job = manifests(f"instance_type={instance}")
    assert container(job)["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert job["spec"]["nprocPerNode"] == str(gpus)
    assert pod(job)["nodeSelector"] == {"beta.kubernetes.io/instance-type": "ml." + instance.removeprefix("ml.")}


def test_secrets_are_references(render):
    bundle = render(
        *LLAMA_K8S,
        "recipes.run.hf_access_token={secretKeyRef:{name:hf,key:token}}",
        "git.token={secretKeyRef:{name:git,key:token}}",
        "git.repo_url_or_path=https://github.com/me/code.git",
        "+env_vars.WANDB_API_KEY={secretKeyRef:{name:wandb,key:k}}",
    )
    job = yaml_io.load(bundle.files["manifests/job.yaml"])
    assert env(job)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert env(job)["WANDB_API_KEY"] == {"secretKeyRef": {"name": "wandb", "key": "k"}}
    assert env(job)["GIT_REPO_URL"] == "https://oauth2:$(GIT_TOKEN)@github.com/me/code.git"
    names = [entry["name"] for entry in container(job)["env"]]
    assert names.index("GIT_TOKEN") < names.index("GIT_REPO_URL")  # expanded from earlier entries only
    assert yaml_io.load(bundle.files["configs/config.yaml"])["run"]["hf_access_token"] is None


def test_least_privilege_by_default(manifests):
    _, job = manifests(ELASTIC)
    context = container(job)["securityContext"]
    assert context["allowPrivilegeEscalation"] is False and context["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in context
    assert pod(job)["automountServiceAccountToken"] is False
    assert "hostNetwork" not in pod(job)


def test_every_cluster_key_reaches_the_pod(manifests):
    _, job = manifests(
        "cluster.namespace=team-a",
        "cluster.pullPolicy=IfNotPresent",
        "cluster.restartPolicy=OnFailure",
        "cluster.cleanPodPolicy=All",
        "cluster.custom_labels={team: a}",
        "cluster.annotations={note: b}",
        "cluster.service_account_name=trainer",
        "cluster.priority_class_name=high",
        "cluster.hostNetwork=true",
        "cluster.volumes=[{volumeName: data, hostPath: /mnt/data, mountPath: /data}]",
        "+cluster.persistent_volume_claims.0.claimName=fsx",
        "+cluster.persistent_volume_claims.0.mountPath=/fsx",
        "cluster.label_selector={required: {a: [b, c]}, preferred: {d: [e]}, weights: [50]}",
        "cluster.security_context={privileged: true}",
        "++recipes.resources={memory: 100Gi, hugepages: 5120Mi}",
        "+env_vars.MY_FLAG=true",
    )
    spec = pod(job)
    assert job["metadata"]["namespace"] == "team-a"
    assert job["spec"]["runPolicy"] == {"ttlSecondsAfterFinished": 86400, "cleanPodPolicy": "All"}
    assert job["metadata"]["labels"]["team"] == "a" and job["metadata"]["annotations"] == {"note": "b"}
    assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("OnFailure", "trainer")
    assert (spec["priorityClassName"], spec["hostNetwork"]) == ("high", True)
    assert spec["automountServiceAccountToken"] is True
    assert {"name": "data", "hostPath": {"path": "/mnt/data"}} in spec["volumes"]
    assert {"name": "claim-0", "persistentVolumeClaim": {"claimName": "fsx"}} in spec["volumes"]
    assert {"name": "claim-0", "mountPath": "/fsx"} in container(job)["volumeMounts"]
    affinity = spec["affinity"]["nodeAffinity"]
    assert affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}
    ]
    assert affinity["preferredDuringSchedulingIgnoredDuringExecution"] == [
        {"weight": 50, "preference": {"matchExpressions": [{"key": "d", "operator": "In", "values": ["e"]}]}}
    ]
    assert container(job)["imagePullPolicy"] == "IfNotPresent"
    assert container(job)["securityContext"] == {"privileged": True}
    assert container(job)["resources"]["limits"].items() >= {"memory": "100Gi", "hugepages-2Mi": "5120Mi"}.items()
    assert env(job)["MY_FLAG"] == "true"


def test_odd_but_legal_names_stay_text(manifests):
    _, job = manifests(
        "cluster.volumes=[{volumeName: '123', hostPath: /a, mountPath: /b}]",
        "cluster.custom_labels={flag: ''}",
        "cluster.annotations={note: ''}",
    )
    assert {"name": "123", "hostPath": {"path": "/a"}} in pod(job)["volumes"]
    assert job["metadata"]["labels"]["flag"] == "" and job["metadata"]["annotations"] == {"note": ""}


def test_config_map_holds_every_size_as_it_is_in_the_bundle(render):
    files = render(*LLAMA_K8S, ELASTIC).files
    data = yaml_io.load(files["manifests/configmap.yaml"])["data"]
    sizes = (1, 2, 3, 4, 6, 8, 16)
    del data["start.sh"]
    assert list(data) == ["config.yaml", *(f"config-n{n}.yaml" for n in sizes)]
    for name, text in data.items():
        assert text == files[f"configs/{name}"]
    assert [yaml_io.load(data[f"config-n{n}.yaml"])["trainer"]["num_nodes"] for n in sizes] == list(sizes)


@pytest.mark.slow
def test_a_config_map_over_its_limit_is_refused(render):
    keys = ("display_name", "version", "training_config.model_config.model_save_name")
    with pytest.raises(ProblemsFound, match="E312"):
        render(*LLAMA_K8S, ELASTIC, *(f"recipes.{key}={'x' * 60_000}" for key in keys))


def without_custom_kind(job, place=0):
    """Return a pod template as a PodTemplate, which Kubernetes' own schema knows."""
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"},
            "template": job["spec"]["replicaSpecs"][place]["template"]}  # fmt: skip


KUBEFLOW = ("cluster.use_hyperpod_pytorch_job=false", "cluster.run_policy={jobMaxRetryCount: 3}")


@pytest.mark.parametrize(
    ("name", "golden", "overrides"),
    [
        ("configmap", "llama_elastic_configmap", (ELASTIC,)),
        ("job", "llama_elastic_job", (ELASTIC,)),
        ("job", "llama_everything_job", EVERYTHING),
        ("job", "llama_kubeflow_job", KUBEFLOW),
    ],
    ids=["configmap", "job", "everything", "kubeflow"],
)
def test_manifests_match_the_reviewed_ones(render, name, golden, overrides, request):
    text = render(*LLAMA_K8S, *overrides).files[f"manifests/{name}.yaml"]
    path = ROOT / "tests" / "golden" / f"{golden}.yaml"
    if request.config.getoption("--rewrite-goldens"):
        path.write_text(text)
    assert text == path.read_text()
