"""Every field of a job: what sets it, and that the API would know it."""

from fractions import Fraction

import kubernetes_validate
import pytest
from conftest import ELASTIC, LLAMA_K8S, SCRIPT_K8S, needed_by, shipped
from jsonschema import ValidationError
from manifest_schemas import KUBERNETES, arrives, templates, validate

from launcher.common import yaml_io
from launcher.common.names import ENTRYPOINT
from launcher.common.problems import ProblemsFound
from launcher.common.quantities import amount
from launcher.model.instances import requested, table

KUBEFLOW = "cluster.use_hyperpod_pytorch_job=false"
STATIC = "recipes.elastic_policy.is_elastic=false"
TINY_K8S = ("cluster=k8s", "container=me/image:1", "instance_type=ml.m5.2xlarge")
RUN_POLICY = {
    "activeDeadlineSeconds": 86400,
    "startupDeadlineSeconds": 600,
    "faultDeadlineSeconds": 1200,
    "jobMaxRetryCount": 50,
    "suspend": False,
    "ttlSecondsAfterFinished": -1,
    "workloadMode": "elastic",
    "restartPolicy": {
        "evalPeriodSeconds": 21600,
        "maxFullJobRestarts": 1,
        "numRestartBeforeFullJobRestart": 3,
        "maxNumRepeatOffendersToAvoid": 2,
    },
    "logMonitoringConfiguration": [
        {
            "name": "JobStart",
            "logPattern": ".*Experiment configuration.*",
            "expectedStartCutOffInSeconds": 120,
            "stopPattern": ".*finished.*",
        },
        {
            "name": "Slow",
            "logPattern": r".*'samples\/sec': (\d+(\.\d+)?).*",
            "expectedRecurringFrequencyInSeconds": 300,
            "metricThreshold": 80,
            "operator": "lteq",
            "metricEvaluationDataPoints": 25,
        },
    ],
}


@pytest.fixture
def job(render):
    """Return a function from overrides, and cluster keys, to a parsed job that the API would take."""

    def parsed(*overrides, base=LLAMA_K8S, **keys):
        words = [f"+cluster.{key}={_override(value)}" for key, value in keys.items()]
        files = render(*base, *overrides, *(word.replace("+", "++", 1) for word in words)).files
        found, configs = (yaml_io.load(files[f"manifests/{name}.yaml"]) for name in ("job", "configmap"))
        validate(found)
        kubernetes_validate.validate(configs, KUBERNETES, strict=True)
        return found

    return parsed


def _override(value):
    """Return a value as Hydra's grammar reads it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_override(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_override, value)) + "]"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return str(value).lower()


def only(items):
    (item,) = items
    return item


def test_a_run_policy_is_written_field_by_field(job):
    found = job(run_policy=RUN_POLICY, cleanPodPolicy="OnlyComplete")
    assert found["spec"]["runPolicy"] == {"cleanPodPolicy": "OnlyComplete", **RUN_POLICY}


def test_restarts_are_counted_over_the_user_s_own_window(job):
    snooze = "++recipes.elastic_policy.scale_up_snooze_time=30"
    found = job(ELASTIC, snooze, run_policy={"restartPolicy": {"evalPeriodSeconds": 7}})
    assert found["spec"]["runPolicy"]["restartPolicy"] == {"evalPeriodSeconds": 7, "scaleUpSnoozeTimeInSeconds": 30}


@pytest.mark.parametrize(
    ("overrides", "spares"),
    [
        ((), [2]),
        (
            (ELASTIC, "++recipes.elastic_policy.preemption={base_priority_class: a, elastic_priority_class: b}"),
            [2, None],
        ),
    ],
    ids=["one_part", "base_and_elastic"],
)
def test_spares_belong_to_the_pods_that_always_train(job, overrides, spares):
    found = job(*overrides, spares=2, queue_name="q")
    assert [part.get("spares") for part in found["spec"]["replicaSpecs"]] == spares


@pytest.mark.parametrize("kind", ["preferred", "required"])
def test_nearness_is_an_annotation_of_job_and_pods(job, kind):
    label = "topology.k8s.aws/network-node-layer-2"
    found = job(**{f"{kind}_topology": label}, queue_name="q", annotations={"note": "b"})
    expected = {"note": "b", f"kueue.x-k8s.io/podset-{kind}-topology": label}
    assert found["metadata"]["annotations"] == expected
    assert only(templates(found))["metadata"]["annotations"] == expected


def test_nodes_are_selected_by_instance_and_further_labels(job):
    health = {"sagemaker.amazonaws.com/deep-health-check-status": "Passed", "zone": ""}
    found = job(node_selector=health, instance_type_label="node.kubernetes.io/instance-type")
    assert only(templates(found))["spec"]["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
        **health,
    }


def test_tolerations_volumes_and_user_reach_the_pod(job):
    taints = [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 0}]
    found = job(
        "++recipes.resources={cpu: 96, memory: 512Gi, hugepages: 5120Mi}",
        tolerations=[*taints, {"operator": "Exists"}],
        volumes=[{"volumeName": "data", "hostPath": "/a", "mountPath": "/b", "readOnly": True}],
        persistent_volume_claims=[{"claimName": "fsx", "mountPath": "/fsx", "readOnly": True}],
        run_as_user=1000,
        fs_group=2000,
    )
    spec = only(templates(found))["spec"]
    assert spec["tolerations"] == [*taints, {"operator": "Exists"}]
    assert spec["securityContext"] == {"fsGroup": 2000}
    container = only(spec["containers"])
    assert container["securityContext"]["runAsUser"] == 1000
    for mount in ({"name": "data", "mountPath": "/b"}, {"name": "claim-0", "mountPath": "/fsx"}):
        assert {**mount, "readOnly": True} in container["volumeMounts"]
    asked = {"cpu": 96, "memory": "512Gi", "hugepages-2Mi": "5120Mi"}
    assert container["resources"]["limits"].items() >= asked.items()
    assert container["resources"]["requests"] == container["resources"]["limits"]


def resources(found):
    (container,) = templates(found)[0]["spec"]["containers"]
    return container["resources"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        ((), {"cpu": "172800m", "memory": "640Gi"}),
        (("recipes.trainer.devices=2",), {"cpu": "43200m", "memory": "160Gi"}),
        (("recipes.trainer.devices=1", "instance_type=g5.12xlarge"), {"cpu": "10800m", "memory": "43Gi"}),
        (("++recipes.resources={cpu: 4}",), {"cpu": 4, "memory": "640Gi"}),
        (("++recipes.resources={memory: 9Gi}",), {"cpu": "172800m", "memory": "9Gi"}),
    ],
    ids=["full-node", "quarter", "one-of-four", "own-cpu", "own-memory"],
)
def test_a_pod_requests_its_part_of_the_node_and_is_not_limited_to_it(job, overrides, asked):
    found = resources(job(*overrides))
    assert {name: found["requests"][name] for name in asked} == asked
    stated = {name for name in asked if not isinstance(asked[name], str) or asked[name] == "9Gi"}
    assert {"cpu", "memory"} & found["limits"].keys() == stated


def test_no_part_is_requested_where_it_is_turned_off_or_unknown(job):
    off = resources(job(request_node_share=False))
    assert off["requests"] == off["limits"] and not {"cpu", "memory"} & off["requests"].keys()
    (container,) = templates(job(base=TINY_K8S))[0]["spec"]["containers"]
    assert "resources" not in container


@pytest.mark.parametrize("instance", table().values(), ids=lambda instance: instance.name)
def test_the_pods_of_a_node_fit_on_it_together_whatever_their_part(instance):
    for accelerators in range(1, instance.accelerators + 1):
        pods = instance.accelerators // accelerators
        part = {name: amount(text) for name, text in requested(instance, accelerators).items()}
        assert 0 < part["cpu"] * pods <= instance.vcpus * Fraction(9, 10)
        assert 0 < part["memory"] * pods <= instance.memory_gib * 2**30 * Fraction(9, 10)


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_kubeflow_job_is_a_master_and_the_other_workers(job, nodes):
    found = job(
        KUBEFLOW,
        f"recipes.trainer.num_nodes={nodes}",
        "recipes.training_config.training_args.train_batch_size=32",
        run_policy={"activeDeadlineSeconds": 5, "jobMaxRetryCount": 3, "ttlSecondsAfterFinished": 60},
        cleanPodPolicy="Running",
        queue_name="q",
    )
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    parts = found["spec"]["pytorchReplicaSpecs"]
    assert {name: part["replicas"] for name, part in parts.items()} == (
        {"Master": 1} if nodes == 1 else {"Master": 1, "Worker": nodes - 1}
    )
    assert found["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "activeDeadlineSeconds": 5,
        "backoffLimit": 3,
        "ttlSecondsAfterFinished": 60,
    }
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    for template in templates(found):
        container = only(template["spec"]["containers"])
        assert container["name"] == "pytorch"
        assert "ports" not in container
        assert "USE_HYPERPODRUN" not in {entry["name"] for entry in container["env"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ((), "-m amzn_awsllm_fine_tuning.train_hp"),
        (("git.entry_module=my.train",), "-m my.train"),
        (("git.entry_script=/app/src/train_hp.py",), "/app/src/train_hp.py"),
        (("git.entry_script=a.py", "git.entry_module=b"), "a.py"),
    ],
    ids=["default", "module", "script", "script_before_module"],
)
@pytest.mark.parametrize("kind", [(ELASTIC,), (KUBEFLOW,)], ids=["hyperpod", "kubeflow"])
def test_the_llmft_image_starts_a_module_by_its_option_and_a_script_by_its_path(job, overrides, path, kind):
    for template in templates(job(*overrides, *kind)):
        env = {entry["name"]: entry["value"] for entry in template["spec"]["containers"][0]["env"]}
        assert env["SCRIPT_PATH"] == path
        assert env["INSTANCE_TYPE"] == "p5.48xlarge"
        assert env.get("USE_HYPERPODRUN") == ("true" if kind == (ELASTIC,) else None)


@pytest.mark.crossed
@pytest.mark.parametrize("key", ["git.entry_module", "training_cfg.entry_module"])
@pytest.mark.parametrize("name", ["train.py", "src/train", "'a b'", "-c", "'a;b'", "a..b", ".a", "1a"])
def test_a_path_or_a_command_is_not_the_name_of_a_module(problems, key, name):
    recipe = "recipes=training/custom/script" if key.startswith("training_cfg") else LLAMA_K8S[0]
    found = [problem for problem in problems(recipe, "cluster=k8s", f"{key}={name}") if problem.path.endswith(key)]
    assert [problem.code for problem in found] == ["E102"] and "entry_script takes a path" in found[0].message


def test_a_kubeflow_job_without_a_time_to_live_stays(job):
    assert "runPolicy" not in job(KUBEFLOW, run_policy={"ttlSecondsAfterFinished": -1})["spec"]


def test_torchrun_stands_where_the_agent_would(job):
    found = job(KUBEFLOW, STATIC, "recipes.trainer.num_nodes=2", base=TINY_K8S)
    words = only({tuple(template["spec"]["containers"][0]["command"]) for template in templates(found)})
    assert words == (
        "/bin/bash",
        "/config/start.sh",
        "torchrun",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--node-rank=$(RANK)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
        "-m",
        ENTRYPOINT,
        "--config-path=/config",
    )


def test_torchrun_runs_a_script_with_its_own_arguments(job):
    script = ("recipes=training/custom/script", "training_cfg.entry_script=/app/train.py")
    args = "training_cfg.script_args=[{--configs: 'bundle:configs'}, {--lr: 0.1}]"
    found = job(KUBEFLOW, args, base=(*script, *TINY_K8S))
    words = templates(found)[0]["spec"]["containers"][0]["command"]
    assert words[2] == "torchrun"
    assert words[-5:] == ["/app/train.py", "--configs", "/config", "--lr", "0.1"]


def test_the_user_s_own_command_stays_in_a_kubeflow_job(job):
    found = job(KUBEFLOW, STATIC, "cluster.command=[hyperpodrun, x]", base=TINY_K8S)
    assert templates(found)[0]["spec"]["containers"][0]["command"] == ["hyperpodrun", "x"]


def test_the_plan_says_which_kind_of_job_it_is(render):
    assert "Kubeflow PyTorchJob on ml.p5.48xlarge" in render(*LLAMA_K8S, KUBEFLOW).files["plan.md"]


@pytest.mark.slow
@pytest.mark.parametrize("entry", shipped(), ids=lambda entry: entry.name)
def test_jobs_of_every_recipe_have_known_fields_only(job, entry):
    elastic = [ELASTIC] if entry.is_elastic else []
    try:
        found = job(*needed_by(entry), *elastic, base=(f"recipes={entry.name}", "cluster=k8s"))
    except ProblemsFound as error:
        assert {problem.code for problem in error.problems} == {"E120"}  # it does not run there
        return
    starts_itself = entry.model_type.startswith(("amazon.nova", "evaluation"))
    is_ray = "verl-grpo" in entry.name
    assert found["kind"] == ("RayJob" if is_ray else "PyTorchJob" if starts_itself else "HyperPodPyTorchJob")


@pytest.mark.parametrize(
    ("place", "name"),
    [((), "replicas"), (("runPolicy",), "backoffLimit"), (("replicaSpecs", 0), "restartPolicy")],
    ids=["spec", "run_policy", "part"],
)
def test_the_field_table_refuses_an_unknown_field(job, place, name):
    found = job(run_policy={"suspend": False})
    node = found["spec"]
    for key in place:
        node = node[key]
    node[name] = 1
    with pytest.raises(ValidationError, match=name):
        validate(found)


def test_texts_arrive_in_the_container_as_they_were_typed(job):
    typed = {"A": "one", "P": "a$$b", "Q": "$(A)-x", "R": "$HOME $", "S": "$$(A)", "T": "$$$"}
    words = "[{--date: '$(A) $$'}]"
    own = (*SCRIPT_K8S, f"training_cfg.script_args={words}")
    variables = ", ".join(f"{name}: '{text}'" for name, text in typed.items())
    container = only(templates(job(f"env_vars={{{variables}}}", base=own))[0]["spec"]["containers"])
    found = {each["name"]: each["value"] for each in container["env"]}
    assert {name: arrives(found[name], typed) for name in typed} == typed
    assert [arrives(word, typed) for word in container["command"]][-2:] == ["--date", "$(A) $$"]


def test_the_token_of_a_repository_is_expanded(job):
    words = ("git.repo_url_or_path='https://host/r$$x$(RANK)'", "git.token={secretKeyRef: {name: a, key: b}}")
    container = only(templates(job(*words))[0]["spec"]["containers"])
    variables = {each["name"]: each.get("value", "secret") for each in container["env"]}
    assert arrives(variables["GIT_REPO_URL"], variables) == "https://oauth2:secret@host/r$$x$(RANK)"
