"""Nova recipes: what their values must agree about, where they run, and what a cluster and a training job get."""

import json

import pytest
from conftest import ROOT, composed
from test_nova_recipes import NAMES

from launcher.common import yaml_io
from launcher.families.amazon_nova.techniques import Technique, technique_of

FOLDER = "fine-tuning/nova/nova_1_0"
SFT = f"recipes={FOLDER}/nova_lite/SFT/nova_lite_1_0_p5_p4d_gpu_lora_sft"
SFT_2 = "recipes=fine-tuning/nova/nova_2_0/nova_lite/SFT/nova_lite_2_0_p5_gpu_lora_sft"
DPO = f"recipes={FOLDER}/nova_lite/DPO/nova_lite_1_0_p5_p4d_gpu_lora_dpo"
CPT = "recipes=training/nova/nova_1_0/nova_micro/CPT/nova_micro_1_0_p5x8_gpu_pretrain"
CPT_2 = "recipes=training/nova/nova_2_0/nova_lite/CPT/nova_lite_2_0_p5x8_gpu_pretrain"
PPO = f"recipes={FOLDER}/nova_pro/PPO/nova_pro_1_0_p5_gpu_ppo"
RFT = "recipes=fine-tuning/nova/nova_2_0/nova_lite/RFT/nova_lite_2_0_p5_gpu_lora_rft"
RFT_JOB = "recipes=fine-tuning/nova/nova_2_0/nova_lite/RFT/nova_lite_v2_smtj_p5_p5en_gpu_lora_rft"
DISTILL = f"recipes={FOLDER}/nova_pro/distill/nova_pro_1_0_r5_cpu_distill"
EVALUATION = "evaluation/nova/nova_1_0/nova_micro/nova_micro_1_0_p5_48xl_gpu"
BENCHMARK = f"recipes={EVALUATION}_general_text_benchmark_eval"
OWN_DATA = f"recipes={EVALUATION}_bring_your_own_dataset_eval"
ROLE = "arn:aws:iam::123456789012:role/train"
JOBS = (
    "cluster=sm_jobs",
    f"cluster.sm_jobs_config.role={ROLE}",
    "cluster.sm_jobs_config.output_path=s3://results/out",
)
REGION = "cluster.sm_jobs_config.region"
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:reward"
RFT_WORDS = (
    RFT_JOB,
    *JOBS,
    "recipes.run.data_s3_path=s3://data/train.jsonl",
    f"recipes.run.reward_lambda_arn={FUNCTION}",
)
DATA, RESULTS = "recipes.run.data_s3_path=s3://data/train.jsonl", "recipes.run.output_s3_path=s3://results/out"
K8S = ("cluster=k8s", DATA, RESULTS)
PLACES = ("recipes.training_config.customer_bucket=answers", "recipes.training_config.kms_key=key-1")
DISTILL_WORDS = (DISTILL, *JOBS, "instance_type=r5.24xlarge", *PLACES)
TECHNIQUES = {
    SFT: Technique.SFT,
    SFT_2: Technique.SFT,
    DPO: Technique.DPO,
    CPT: Technique.CPT,
    CPT_2: Technique.CPT,
    PPO: Technique.PPO,
    RFT: Technique.RFT,
    RFT_JOB: Technique.RFT_JOB,
    DISTILL: Technique.DISTILLATION,
    BENCHMARK: Technique.EVALUATION,
}


def codes(found):
    return [(problem.code, problem.path.removeprefix("recipes.")) for problem in found]


@pytest.mark.parametrize("recipe", TECHNIQUES)
def test_a_technique_follows_from_the_sections_of_a_recipe(recipe):
    assert technique_of(composed(recipe.removeprefix("recipes=")).tree["recipes"]) is TECHNIQUES[recipe]


def test_every_recipe_has_a_technique_like_its_folder():
    folders = {"SFT": "SFT", "DPO": "DPO", "PPO": "PPO", "CPT": "CPT", "distill": "DISTILLATION"}
    for name in NAMES:
        technique = technique_of(composed(name).tree["recipes"]).name
        if name.startswith("evaluation"):
            assert technique == "EVALUATION"
        elif "/RFT/" in name:
            assert technique == ("RFT_JOB" if "smtj" in name else "RFT")
        else:
            assert technique == folders[name.split("/")[-2]]


# Each row: a recipe, the overrides of a faulty launch, the code and key of its Problem, and overrides that are fine.
FAULTS = {
    "another model's weights": (SFT, ["recipes.run.model_name_or_path=nova-pro/prod"], "E560",
                                "run.model_name_or_path", ["recipes.run.model_name_or_path=s3://bucket/earlier"]),
    "an unknown model": (SFT, ["recipes.run.model_type=amazon.nova-huge-v1:0:1k"], "E560", "run.model_type", []),
    "too few nodes": (SFT, ["recipes.run.replicas=3"], "E561", "run.replicas", ["recipes.run.replicas=8"]),
    "one node of G5": (f"recipes={FOLDER}/nova_micro/SFT/nova_micro_1_0_g5_g6_12x_gpu_lora_sft",
                       ["recipes.run.replicas=2", "instance_type=g5.12xlarge"], "E561", "run.replicas",
                       ["instance_type=g6.12xlarge"]),
    "no node": (SFT, ["recipes.run.replicas=0"], "E102", "run.replicas", []),
    "nodes of the launcher alone": (SFT, ["recipes.trainer.num_nodes=8"], "E562", "trainer.num_nodes", []),
    "a batch between": (SFT, ["recipes.training_config.global_batch_size=48"], "E563",
                        "training_config.global_batch_size", ["recipes.training_config.global_batch_size=16"]),
    "a batch of the other generation": (SFT_2, ["recipes.training_config.global_batch_size=16"], "E563",
                                        "training_config.global_batch_size",
                                        ["recipes.training_config.global_batch_size=256"]),
    "pairs with adapters": (DPO, ["recipes.training_config.global_batch_size=128"], "E563",
                            "training_config.global_batch_size", ["recipes.training_config.global_batch_size=16"]),
    "a scale of adapters": (SFT, ["recipes.training_config.model.peft.lora_tuning.alpha=100"], "E563",
                            "training_config.model.peft.lora_tuning.alpha",
                            ["recipes.training_config.model.peft.lora_tuning.alpha=192"]),
    "few steps": (CPT_2, ["recipes.training_config.trainer.max_steps=9"], "E563",
                  "training_config.trainer.max_steps", ["recipes.training_config.trainer.max_steps=11"]),
    "dropout above 1": (SFT, ["recipes.training_config.model.ffn_dropout=1.5"], "E102",
                        "training_config.model.ffn_dropout", ["recipes.training_config.model.ffn_dropout=0.1"]),
    "no epoch": (SFT, ["recipes.training_config.trainer.max_epochs=0"], "E102",
                 "training_config.trainer.max_epochs", ["recipes.training_config.trainer.max_epochs=100"]),
    "a text as dropout": (SFT, ["recipes.training_config.model.hidden_dropout='0.1'"], "E102",
                          "training_config.model.hidden_dropout", []),
    "a strong preference": (DPO, ["recipes.training_config.model.dpo_cfg.beta=0.5"], "E102",
                            "training_config.model.dpo_cfg.beta",
                            ["recipes.training_config.model.dpo_cfg.beta=0.05"]),
    "the other spelling": (SFT, ["++recipes.training_config.model.peft.lora_tuning.lora_plus_lr_ratio=8.0"], "E564",
                           "training_config.model.peft.lora_tuning.lora_plus_lr_ratio",
                           ["recipes.training_config.model.peft.lora_tuning.loraplus_lr_ratio=8.0"]),
    "steps of the other generation": (SFT, ["++recipes.training_config.max_steps=100"], "E564",
                                      "training_config.max_steps", []),
    "a key of nobody": (SFT, ["++recipes.training_config.max_stepz=100"], "E101", "training_config.max_stepz",
                        ["++recipes.training_config.own=1", "++recipes.extra_keys=[training_config.own]"]),
    "a placeholder": (SFT, ['recipes.run.data_s3_path="s3://<bucket>/data"'], "E122", "run.data_s3_path",
                      ["recipes.run.data_s3_path=s3://bucket/data"]),
    "a path that is not in S3": (SFT, ["recipes.run.data_s3_path=/fsx/train.jsonl"], "E102", "run.data_s3_path", []),
    "another way to ask": (BENCHMARK, ["recipes.evaluation.strategy=judge"], "E568", "evaluation.strategy",
                           ["recipes.evaluation.task=my_task", "recipes.evaluation.strategy=judge"]),
    "another metric": (OWN_DATA, ["recipes.evaluation.metric=accuracy"], "E568", "evaluation.metric", []),
    "hot answers": (BENCHMARK, ["recipes.inference.temperature=3"], "E102", "inference.temperature",
                    ["recipes.inference.temperature=1.5"]),
    "a folder of the node": (SFT, ["cluster.volumes=[{volumeName: fsx, hostPath: /fsx, mountPath: /fsx}]"], "E570",
                             "cluster.volumes", []),
    "a claim": (SFT, ["cluster.persistent_volume_claims=[{claimName: fsx, mountPath: /fsx}]"], "E570",
                "cluster.persistent_volume_claims", []),
    "an image of one's own": (SFT, ["cluster.runtime=launcher"], "E571", "cluster.runtime", []),
    "another instance": (SFT, ["instance_type=g5.48xlarge"], "E231", "instance_type", ["instance_type=p4d.24xlarge"]),
    "an instance that the table lacks": (SFT, ["instance_type=p77.48xlarge"], "E230", "instance_type", []),
    "an elastic job": (SFT, ["++recipes.elastic_policy={is_elastic: true, min_nodes: 1, max_nodes: 4, "
                             "use_graceful_shutdown: true}"], "E121", "elastic_policy.is_elastic", []),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_what_does_not_agree_is_a_problem(case, problems, prepare):
    recipe, faulty, code, key, fine = FAULTS[case]
    assert (code, key) in codes(problems(recipe, *K8S, *faulty))
    prepare(recipe, *K8S, *fine)


def test_the_other_spelling_names_the_right_one(problems):
    key = "recipes.training_config.model.peft.lora_tuning"
    (problem,) = problems(SFT, *K8S, f"++{key}.lora_plus_lr_ratio=8.0")
    assert problem.remedy == f"{key}.loraplus_lr_ratio=8.0"


def test_a_key_without_another_spelling_gets_no_remedy(problems):
    (problem,) = problems(SFT, *K8S, f"++recipes.run.reward_lambda_arn={FUNCTION}")
    assert (problem.code, problem.remedy) == ("E564", None)


def test_a_reward_needs_one_function(problems, prepare):
    key = "recipes.training_config.rollout.rewards.api_endpoint.lambda_arn"
    found = problems(*RFT_WORDS, f"{key}={FUNCTION}2")
    assert codes(found) == [("E566", key.removeprefix("recipes."))]
    assert (
        prepare(*RFT_WORDS).recipe_tree["training_config"]["rollout"]["rewards"]["api_endpoint"]["lambda_arn"]
        == FUNCTION
    )


def test_examples_of_published_recipes_are_refused_or_noted(problems, prepare):
    found = codes(problems(RFT_JOB, *JOBS))
    assert {("E122", "run.data_s3_path"), ("E122", "run.reward_lambda_arn")} <= set(found)
    messages = {notice.code: notice.message for notice in prepare(SFT_2, "cluster=k8s").notices}
    assert "run.data_s3_path and run.output_s3_path" in messages["N440"]
    own = ("recipes.run.data_s3_path=s3://mine/d", "recipes.run.output_s3_path=s3://mine/o")
    assert "N440" not in {notice.code for notice in prepare(SFT_2, *K8S, *own).notices}


def test_a_misspelt_task_is_noted(prepare):
    noted = [
        {notice.code for notice in prepare(BENCHMARK, *K8S, f"recipes.evaluation.task={task}").notices}
        for task in ("mmlo", "IFEval")
    ]
    assert ["N442" in found for found in noted] == [True, False]


def test_an_unknown_account_is_noted(prepare):
    assert "N441" in {notice.code for notice in prepare(SFT, *K8S).notices}
    known = prepare(SFT, *K8S, "++env_vars.X_AMZ_SOURCE_ACCOUNT='123456789012'")
    assert "N441" not in {notice.code for notice in known.notices}
    assert "N441" not in {notice.code for notice in prepare(SFT, *JOBS, DATA).notices}


def test_data_and_results_need_a_place(problems, prepare):
    found = codes(problems(SFT, "cluster=k8s"))
    assert found == [("E122", "run.data_s3_path"), ("E122", "run.output_s3_path")]
    assert codes(problems(SFT, *JOBS)) == [("E122", "run.data_s3_path")]
    prepare(SFT, *JOBS, "cluster.sm_jobs_config.inputs.s3={train: s3://data/train/}")
    assert codes(problems(BENCHMARK, "cluster=k8s")) == [("E122", "run.output_s3_path")]
    assert codes(problems(OWN_DATA, *JOBS)) == [("E122", "run.data_s3_path")]


def test_distillation_needs_its_bucket_and_key(problems, prepare):
    found = problems(DISTILL, *JOBS, "instance_type=r5.24xlarge")
    assert codes(found) == [("E122", f"training_config.{key}") for key in ("customer_bucket", "kms_key")]
    prepare(*DISTILL_WORDS)
    found = problems(*DISTILL_WORDS, "recipes.training_config.maxResponseLength='9000'")
    assert codes(found) == [("E563", "training_config.maxResponseLength")]


REFUSED = {
    "slurm": (*TECHNIQUES,),
    "local": (*TECHNIQUES,),
    "sm_local": (*TECHNIQUES,),
    "k8s": (RFT, RFT_JOB, DISTILL),
    "sm_jobs": (PPO, RFT, CPT, CPT_2),
}


@pytest.mark.parametrize(("cluster", "recipe"), [(c, r) for c, recipes in REFUSED.items() for r in recipes])
def test_a_technique_is_refused_where_it_does_not_run(cluster, recipe, problems):
    found = {problem.code: problem for problem in problems(recipe, f"cluster={cluster}")}
    assert not {"E305", "E371"} & set(found)
    others = [c for c, refused in REFUSED.items() if recipe not in refused]
    assert found["E120"].allowed == ", ".join(others)
    assert "E113" not in found  # one reason is enough


def test_programs_that_are_not_rendered_say_so(problems):
    found = {problem.code: problem for problem in problems(RFT, "cluster=k8s")}
    assert "not rendered yet" in found["E120"].message


IMAGES = {
    SFT: ("nova-fine-tune-repo:SM-HP-SFT-latest", "nova-fine-tune-repo:SM-TJ-SFT-latest"),
    SFT_2: ("nova-fine-tune-repo:SM-HP-SFT-V2-latest", "nova-fine-tune-repo:SM-TJ-SFT-V2-latest"),
    DPO: ("nova-fine-tune-repo:SM-HP-DPO-latest", "nova-fine-tune-repo:SM-TJ-DPO-latest"),
    CPT: ("nova-fine-tune-repo:HP-CPT-latest", None),
    CPT_2: ("nova-fine-tune-repo:SM-HP-CPT-V2-latest", None),
    PPO: ("nova-fine-tune-repo:SMHP-PPO-TRAIN-latest", None),
    BENCHMARK: ("nova-evaluation-repo:SM-HP-Eval-V2-latest", "nova-evaluation-repo:SM-TJ-Eval-V2-latest"),
}
ACCOUNTS = {"us-east-1": "708977205387", "us-west-2": "176779409107", "ap-northeast-1": "878185805882"}


@pytest.mark.parametrize("recipe", IMAGES)
@pytest.mark.parametrize("region", ACCOUNTS)
def test_an_image_follows_cluster_and_region(recipe, region, prepare):
    on_cluster, in_job = IMAGES[recipe]
    registry = f"{ACCOUNTS[region]}.dkr.ecr.{region}.amazonaws.com"
    assert prepare(recipe, *K8S, f"recipes.images.region={region}").image == f"{registry}/{on_cluster}"
    if in_job:
        assert prepare(recipe, *JOBS, DATA, f"{REGION}={region}").image == f"{registry}/{in_job}"


def test_no_region_needs_to_be_known_to_look(prepare, monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert ".us-east-1." in prepare(SFT, *K8S).image
    assert prepare(SFT, *K8S, "container=me/own:1").image == "me/own:1"


@pytest.mark.parametrize("container", [(), ("container=null",), ("container=''",)], ids=["default", "null", "empty"])
@pytest.mark.parametrize("recipe", [SFT, PPO])
def test_a_region_without_an_image_is_one_problem(recipe, container, problems, prepare):
    (found,) = problems(recipe, *K8S, *container, "recipes.images.region=eu-west-1")
    assert (found.code, found.path, found.allowed) == ("E613", "container", f"a job in {', '.join(ACCOUNTS)}")
    assert found.remedy.endswith(", or recipes.images.region=us-east-1")
    assert prepare(recipe, *K8S, "recipes.images.region=us-west-2").image


def test_an_image_of_one_s_own_needs_the_region_of_the_one_that_prepares_pods(problems, prepare):
    own = (SFT, *K8S, "container=me/own:1")
    (found,) = problems(*own, "recipes.images.region=eu-west-1")
    assert (found.code, found.path, found.remedy) == (
        "E567",
        "recipes.images.region",
        "recipes.images.region=us-east-1",
    )
    assert prepare(*own, found.remedy).image == "me/own:1"
    assert prepare(SFT, *JOBS, DATA, "container=me/own:1", "recipes.images.region=eu-west-1")


@pytest.mark.parametrize("container", [(), ("container=''",)], ids=["default", "empty"])
def test_a_job_in_a_region_without_an_image_is_refused(container, problems):
    (found,) = problems(SFT, *JOBS, DATA, *container, f"{REGION}=eu-west-1")
    assert found.code == "E613" and "eu-west-1" in found.message and "us-west-2" in found.allowed
    assert found.remedy == "container=<an image of your own>"


def test_an_empty_image_hides_that_of_the_recipe(problems):
    (found,) = problems(SFT, *K8S, "container=''")
    assert (found.code, found.remedy) == ("E305", "leave it out")


def test_a_dry_run_gives_every_file(render):
    assert {"configs/config.yaml", "manifests/configmap.yaml", "manifests/job.yaml"} <= set(
        render(SFT, *K8S, "dry_run=true").files
    )


def golden(request, name, text):
    file = ROOT / "tests" / "golden" / name
    if request.config.getoption("--rewrite-goldens"):
        file.write_text(text)
    assert text == file.read_text(), "review it, then accept it with --rewrite-goldens"


RENDERED = {
    "nova_sft": (SFT, "++env_vars.X_AMZ_SOURCE_ACCOUNT='123456789012'"),
    "nova_evaluation": (BENCHMARK,),
}  # fmt: skip


@pytest.mark.parametrize("name", RENDERED)
def test_the_manifests_are_those_reviewed(name, render, request):
    bundle = render(*RENDERED[name], *K8S)
    for kind in ("configmap", "job"):
        golden(request, f"{name}_{kind}.yaml", bundle.files[f"manifests/{kind}.yaml"])


def pods(bundle):
    specs = yaml_io.load(bundle.files["manifests/job.yaml"])["spec"]["pytorchReplicaSpecs"]
    return {name: (part["replicas"], part["template"]["spec"]) for name, part in specs.items()}


def test_the_image_starts_its_own_program(render):
    bundle = render(SFT, *K8S)
    found = pods(bundle)
    assert {name: count for name, (count, _) in found.items()} == {"Master": 1, "Worker": 3}
    for _, spec in found.values():
        (container,), (first,) = spec["containers"], spec["initContainers"]
        assert "command" not in container and "command" not in first
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert spec["nodeSelector"]["sagemaker.amazonaws.com/instance-group-type"] == "Restricted"
        assert [each["key"] for each in spec["tolerations"]] == ["sagemaker.amazonaws.com/RestrictedNode"]
        assert "hostNetwork" not in spec
    assert list(yaml_io.load(bundle.files["manifests/configmap.yaml"])["data"]) == ["config.yaml"]
    config = yaml_io.load(bundle.files["configs/config.yaml"])
    assert set(config) == {"run", "training_config"}
    assert not {"results_dir", "hf_access_token"} & set(config["run"])


def test_a_single_node_has_no_workers_and_its_own_devices(render):
    recipe = f"recipes={FOLDER}/nova_micro/SFT/nova_micro_1_0_g5_g6_12x_gpu_lora_sft"
    ((_, spec),) = pods(render(recipe, *K8S, "instance_type=g6.12xlarge")).values()
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert spec["nodeSelector"]["beta.kubernetes.io/instance-type"] == "ml.g6.12xlarge"


def test_an_instance_without_efa_is_selected_by_its_name(render):
    small = ("recipes.instance_types=[]", "instance_type=g5.xlarge")
    ((_, spec), *_) = pods(render(SFT, *K8S, *small)).values()
    assert spec["nodeSelector"]["beta.kubernetes.io/instance-type"] == "ml.g5.xlarge"
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize("scheme", ["null", "'null'"], ids=["nothing", "text"])
def test_both_forms_of_no_adapters_train_all_weights(scheme, prepare, problems):
    batch = "recipes.training_config.global_batch_size=128"
    assert ("E563", "training_config.global_batch_size") in codes(problems(DPO, *K8S, batch))  # with adapters
    job = prepare(DPO, *K8S, batch, f"recipes.training_config.model.peft.peft_scheme={scheme}")
    assert job.recipe_tree["training_config"]["global_batch_size"] == 128


def test_evaluations_use_the_network_of_the_node(render):
    ((_, spec),) = pods(render(BENCHMARK, *K8S)).values()
    assert spec["hostNetwork"] is True
    ((_, spec),) = pods(render(BENCHMARK, *K8S, "cluster.hostNetwork=false")).values()
    assert "hostNetwork" not in spec


def test_a_command_of_the_user_s_own_is_started(render):
    bundle = render(SFT, *K8S, "cluster.command=[sleep, infinity]")
    assert {tuple(spec["containers"][0]["command"]) for _, spec in pods(bundle).values()} == {("sleep", "infinity")}
    assert "start.sh" in yaml_io.load(bundle.files["manifests/configmap.yaml"])["data"]


def test_commands_before_training_are_refused(problems):
    (problem,) = problems(SFT, *K8S, "++recipes.pre_script=[date]")
    assert (problem.code, problem.path) == ("E322", "recipes.pre_script")


def request_of(bundle):
    return json.loads(bundle.files["request.json"])


def test_a_training_job_has_the_model(render):
    found = request_of(render(SFT, *JOBS, DATA))
    assert found["HyperParameters"] == {
        "sagemaker_recipe_local_path": "/opt/ml/input/data/recipe/config.yaml",
        "model_type": "amazon.nova-lite-v1:0:300k",
        "base_model": "nova-lite/prod",
    }
    assert found["ResourceConfig"]["InstanceCount"] == 4
    assert found["ProfilerConfig"] == {"DisableProfiler": True}
    assert "ContainerEntrypoint" not in found["AlgorithmSpecification"]
    later = request_of(render(SFT, *JOBS, DATA, "recipes.run.model_name_or_path=s3://bucket/earlier"))[
        "HyperParameters"
    ]
    assert later["base_model_location"] == "s3://bucket/earlier" and "base_model" not in later


def test_distillation_has_its_role_and_key(render):
    found = request_of(render(*DISTILL_WORDS))
    assert found["ResourceConfig"]["InstanceType"] == "ml.r5.24xlarge"
    assert found["HyperParameters"] == {
        "sagemaker_recipe_local_path": "/opt/ml/input/data/recipe/config.yaml",
        "model_type": "amazon.nova-pro-v1:0:300k",
        "distillation_data": "true",
        "role_arn": ROLE,
        "kms_key": "key-1",
    }


def test_functions_that_score_are_passed(render):
    scored = request_of(render(OWN_DATA, *JOBS, DATA, f"recipes.processor.lambda_arn={FUNCTION}"))["HyperParameters"]
    assert scored["eval_lambda_arn"] == FUNCTION
    assert request_of(render(*RFT_WORDS))["HyperParameters"]["reward_lambda_arn"] == FUNCTION


def test_hyperparameters_of_the_user_s_own_are_plain_too(render):
    found = request_of(render(SFT, *JOBS, DATA, "+cluster.sm_jobs_config.hyperparameters={a: text, b: 2}"))
    assert (found["HyperParameters"]["a"], found["HyperParameters"]["b"]) == ("text", "2")


def test_a_place_that_is_not_in_s3_names_the_form(problems):
    (problem,) = problems(SFT, "cluster=k8s", RESULTS, "recipes.run.data_s3_path=/fsx/data")
    assert problem.code == "E102" and problem.message == "should be an S3 URI such as s3://bucket/folder, or empty"
