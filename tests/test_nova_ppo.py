"""Nova's PPO: five programs, each with nodes, objects and a configuration of its own."""

import json

import pytest
from manifest_schemas import templates, validate, validate_object
from test_nova import ACCOUNTS, DATA, FOLDER, K8S, PPO, codes, golden

from launcher.backends.kubernetes.api_objects import manifests
from launcher.common import yaml_io

NODES = {"at": 6, "rm": 1, "cm": 1, "am": 1, "ag": 2}
TASKS = {"at": "ppo_actor_train", "rm": "ppo_rm", "cm": "ppo_cm", "am": "ppo_anchor", "ag": "ppo_actor_gen"}
TRAIN, GENERATE = "nova-fine-tune-repo:SMHP-PPO-TRAIN-latest", "nova-fine-tune-repo:SMHP-PPO-TRT-latest"


@pytest.fixture
def objects(render):
    """Return a function from overrides to the objects of a job by kind and ending of their names, in order."""

    def made(*overrides):
        bundle = render(PPO, *K8S, *overrides)
        named = [(each.kind, each.name.rpartition("-")[2], each.body) for each in manifests(bundle)]
        return {(kind, ending): body for kind, ending, body in named}

    return made


def containers(objects):
    """Return the container of each pod template, by the ending of its object's name."""
    return {
        ending: [template["spec"]["containers"][0] for template in templates(body)]
        for (kind, ending), body in objects.items()
        if kind in ("PyTorchJob", "StatefulSet")
    }


def test_each_program_has_objects_of_its_own_and_training_comes_last(objects):
    found = objects()
    assert {ending for kind, ending in found if kind == "ConfigMap"} == set(NODES)
    assert {ending for kind, ending in found if kind == "PyTorchJob"} == set(NODES) - {"ag"}
    assert {each for each in found if each[0] not in ("ConfigMap", "PyTorchJob")} == {
        ("StatefulSet", "ag"),
        ("Service", "ag"),
    }
    assert list(found)[-1] == ("PyTorchJob", "at")


def test_each_program_runs_on_the_nodes_of_its_replicas(objects):
    found = objects("recipes.run.am_replicas=3")
    counts = {
        ending: sum(part["replicas"] for part in body["spec"]["pytorchReplicaSpecs"].values())
        for (kind, ending), body in found.items()
        if kind == "PyTorchJob"
    }
    assert counts == {"at": 6, "rm": 1, "cm": 1, "am": 3}
    assert list(found["PyTorchJob", "rm"]["spec"]["pytorchReplicaSpecs"]) == ["Master"]
    assert found["StatefulSet", "ag"]["spec"]["replicas"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("size", ["lite", "micro", "pro"])
def test_every_object_is_one_that_kubernetes_and_kubeflow_know(size, render):
    bundle = render(f"recipes={FOLDER}/nova_{size}/PPO/nova_{size}_1_0_p5_gpu_ppo", *K8S)
    found = [each.body for each in manifests(bundle)]
    assert len(found) == 11
    for body in found:
        (validate if body["kind"] == "PyTorchJob" else validate_object)(yaml_io.load(yaml_io.dump(body)))


def test_each_program_reads_its_section_and_what_it_is(objects):
    recipe = objects()
    for ending, task in TASKS.items():
        config = yaml_io.load(recipe["ConfigMap", ending]["data"]["config.yaml"])
        assert list(config) == ["run", "training_config"]
        assert config["training_config"]["task_type"] == task
        assert config["training_config"]["trainer"]["num_nodes"] == NODES[ending]
        assert recipe["PyTorchJob", "at"]["metadata"]["name"] == f"{config['run']['name']}-at"
        assert {key for key in config["run"] if key.endswith("_replicas")} == {"actor_generation_replicas"}
    critic = yaml_io.load(recipe["ConfigMap", "cm"]["data"]["config.yaml"])["training_config"]
    assert critic["model"]["optim"]["eps"] == 1e-6 and critic["model"]["global_batch_size"] == 32


def test_the_bundle_has_the_configuration_of_each_program(render):
    bundle = render(PPO, *K8S)
    found = {name: text for name, text in bundle.files.items() if name.startswith("configs/")}
    tasks = {name: yaml_io.load(text)["training_config"]["task_type"] for name, text in found.items()}
    others = {f"configs/config-{ending}.yaml": task for ending, task in TASKS.items() if ending != "at"}
    assert tasks == {"configs/config.yaml": TASKS["at"], **others}


@pytest.mark.parametrize("region", ACCOUNTS)
def test_generation_has_its_own_image_in_every_region(region, objects):
    found = containers(objects(f"recipes.images.region={region}"))
    images = {ending: {container["image"].partition("/")[2] for container in each} for ending, each in found.items()}
    assert images == {ending: {GENERATE if ending == "ag" else TRAIN} for ending in NODES}
    hosts = {container["image"].partition("/")[0] for each in found.values() for container in each}
    assert hosts == {f"{ACCOUNTS[region]}.dkr.ecr.{region}.amazonaws.com"}


def test_an_image_of_one_s_own_replaces_that_of_training(objects, problems):
    found = containers(objects("container=me/own:1"))
    assert {container["image"] for container in found["rm"] + found["at"]} == {"me/own:1"}
    assert found["ag"][0]["image"].endswith(GENERATE)
    faulty = problems(PPO, *K8S, "container=me/own:1", "recipes.images.region=eu-west-1")
    assert codes(faulty) == [("E567", "images.region")]


def test_generation_alone_is_privileged_and_restarted(objects):
    found = objects("cluster.restartPolicy=OnFailure")
    pods = {ending: {t["spec"]["restartPolicy"] for t in templates(found[kind, ending])} for kind, ending in found
            if kind in ("PyTorchJob", "StatefulSet")}  # fmt: skip
    assert pods == {ending: {"Always" if ending == "ag" else "OnFailure"} for ending in NODES}
    contexts = {ending: each[0]["securityContext"] for ending, each in containers(found).items()}
    assert contexts.pop("ag") == {"privileged": True}
    assert not any("privileged" in context for context in contexts.values())
    (first,) = templates(found["StatefulSet", "ag"])[0]["spec"]["initContainers"]
    assert "privileged" not in first["securityContext"]


@pytest.mark.parametrize("key", ["run_as_root=false", "run_as_user=1000", "security_context={runAsUser: 5}"])
def test_a_job_without_root_has_no_privileged_container(key, objects, prepare):
    found = containers(objects(f"cluster.{key}"))
    assert not any("privileged" in each["securityContext"] for each in found["ag"])
    messages = {notice.code: notice.message for notice in prepare(PPO, *K8S, f"cluster.{key}").notices}
    assert "privileged" not in messages["N117"]
    assert (
        "a privileged container in the pods of ag"
        in {notice.code: notice.message for notice in prepare(PPO, *K8S).notices}["N117"]
    )


def test_names_of_generation_s_pods_are_those_of_its_service(objects):
    found = objects("cluster.custom_labels={app: mine}")
    service, pods = found["Service", "ag"], found["StatefulSet", "ag"]["spec"]
    assert service["metadata"]["name"] == pods["serviceName"]
    assert service["spec"]["clusterIP"] == "None" and "ports" not in service["spec"]
    labels = pods["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels and pods["selector"]["matchLabels"].items() <= labels
    others = [t["metadata"]["labels"] for kind, ending in found if kind == "PyTorchJob"
              for t in templates(found[kind, ending])]  # fmt: skip
    assert not any(service["spec"]["selector"].items() <= each.items() for each in others)


def test_longest_names_leave_room_for_what_kubernetes_adds(render):
    bundle = render(PPO, *K8S, f"recipes.run.name={'n' * 63}")
    # A label of a StatefulSet's pods is its name, a dash and a hash of 10 characters: 63 at most.
    assert all(len(each.name) <= 52 for each in manifests(bundle) if each.kind in ("StatefulSet", "PyTorchJob"))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), 3600),
        (("cluster.run_policy={suspend: false}",), 3600),
        (("cluster.run_policy={ttlSecondsAfterFinished: 60}",), 60),
        (("cluster.run_policy={ttlSecondsAfterFinished: -1}",), None),
    ],
    ids=["default", "other-fields", "own", "kept"],
)
def test_the_nodes_of_other_programs_are_freed_some_time_after_training(overrides, expected, objects):
    policies = {
        ending: body["spec"].get("runPolicy", {}).get("ttlSecondsAfterFinished")
        for (kind, ending), body in objects(*overrides).items()
        if kind == "PyTorchJob"
    }
    assert policies == {"at": expected, "rm": None, "cm": None, "am": None}


def test_the_plan_has_the_nodes_of_each_program(render):
    bundle = render(PPO, *K8S)
    plan = json.loads(bundle.files["plan.json"])
    assert (plan["components"], plan["initial_nodes"]) == (NODES, 11)
    assert "starts on 11 nodes (at 6, rm 1, cm 1, am 1, ag 2); always this size" in bundle.files["plan.md"]


def test_a_command_of_one_s_own_replaces_every_program(objects):
    found = objects("cluster.command=[sleep, infinity]")
    assert all(each["command"] == ["sleep", "infinity"] for each in sum(containers(found).values(), []))
    assert all("start.sh" in body["data"] for (kind, _), body in found.items() if kind == "ConfigMap")


def test_results_need_a_place(problems):
    assert codes(problems(PPO, "cluster=k8s", DATA)) == [("E122", "run.output_s3_path")]


@pytest.mark.parametrize("name", ["job", "configmap-ag", "service-ag", "statefulset-ag"])
def test_the_manifests_are_those_reviewed(name, render, request):
    golden(request, f"nova_ppo_{name}.yaml", render(PPO, *K8S).files[f"manifests/{name}.yaml"])
