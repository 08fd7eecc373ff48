"""Multi-turn RL, checkpointless training, evaluation and NeMo's adapter: rules, refusals, and what a job gets.

Each trap of the published launcher that concerns these families has a test.
"""

import json

import pytest

from launcher.common import yaml_io

GEMMA = "recipes=fine-tuning/gemma/mtrl-gemma-4-31b-lora"
NOVA = "recipes=fine-tuning/nova/nova_2_0/nova_lite/MTRL/mtrl_nova_lite_2_0_lora"
MTRL_EVAL = "recipes=evaluation/mtrl/mtrl_eval"
GPT_LORA = "recipes=fine-tuning/gpt_oss/checkpointless_gpt_oss_120b_lora"
GPT_FULL = "recipes=fine-tuning/gpt_oss/checkpointless_gpt_oss_120b_full_fine_tuning"
LLAMA_LORA = "recipes=fine-tuning/llama/checkpointless_llama3_70b_lora"
LLAMA_PRETRAIN = "recipes=training/llama/checkpointless_llama3_70b_pretrain"
BENCHMARK = "recipes=evaluation/open-source/open_source_deterministic_eval"
JUDGE = "recipes=evaluation/open-source/open_source_llmaj_eval"
FALCON = "recipes=training/custom_model/falcon"

JOBS = (
    "cluster=sm_jobs",
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
)
K8S = ("cluster=k8s",)
PROMPTS = "cluster.sm_jobs_config.inputs.s3={train: s3://data/prompts}"
PLACES = (
    "recipes.dataset.dataset_path=/data/samples",
    "recipes.log_dir=/data/logs",
    "recipes.exp_manager.exp_dir=/data/exp",
)
WEIGHTS = "recipes.resume.restore_config.path=/data/weights"
EVALUATED = (
    "recipes.run.base_model_name=qwen",
    "recipes.run.model_name_or_path=s3://models/mine",
    "recipes.output.eval_results_dir=s3://results/evaluation",
)
JUDGED = (
    "recipes.run.base_model_name=qwen",
    "recipes.run.judge_model_id=judge",
    "recipes.run.inference_data_s3_path=s3://data/answers",
)
FOLDERS = ("recipes.exp_manager.exp_dir=/fsx/exp", "recipes.model.data.train_dir=/fsx/train")

COPIES, EXPERTS = "strategy.num_distributed_optimizer_instances", "strategy.expert_model_parallel_size"
REWARD = "recipes.processor.preset_reward_function"

VALID = {
    "gemma": (GEMMA, *JOBS, PROMPTS),
    "gpt-oss": ("recipes=fine-tuning/gpt_oss/mtrl-gpt-oss-20b-lora", *JOBS, PROMPTS),
    "qwen": ("recipes=fine-tuning/qwen-0_7_0/mtrl-qwen-3-dot-6-27b-lora", *JOBS, PROMPTS),
    "nova": (NOVA, *JOBS, PROMPTS),
    "mtrl-eval": (MTRL_EVAL, *JOBS, "recipes.run.base_model_name=m", "recipes.model.model_name=m"),
    "gpt-lora": (GPT_LORA, *K8S, *PLACES, WEIGHTS),
    "gpt-full": (GPT_FULL, *K8S, *PLACES, WEIGHTS),
    "llama-lora": (LLAMA_LORA, *K8S, *PLACES, WEIGHTS),
    "llama-pretrain": (LLAMA_PRETRAIN, *K8S, *PLACES),
    "benchmark": (BENCHMARK, *K8S, *EVALUATED),
    "benchmark-job": (BENCHMARK, *JOBS, *EVALUATED),
    "judge": (JUDGE, *K8S, *JUDGED, "instance_type=m5.4xlarge"),
    "judge-job": (JUDGE, *JOBS, *JUDGED, "instance_type=m5.4xlarge"),
    "falcon": (FALCON, *K8S, *FOLDERS, "container=me/adapter:1"),
    "falcon-slurm": (FALCON, "cluster=slurm", *FOLDERS),
}
"""What each recipe needs of the user, with which it has no Problem."""


def found(problems, *words):
    return [(each.code, each.path) for each in problems(*words)]


def manifest(files):
    return yaml_io.load(files["manifests/job.yaml"])


def container(files):
    spec = manifest(files)["spec"]
    specs = spec["replicaSpecs"][0] if "replicaSpecs" in spec else spec["pytorchReplicaSpecs"]["Master"]
    return specs["template"]["spec"]["containers"][0]


def variables(files):
    return {each["name"]: each.get("value") for each in container(files)["env"]}


def request(files):
    return json.loads(files["request.json"])


def configuration(files):
    return yaml_io.load(files["configs/config.yaml"])


@pytest.mark.parametrize("name", VALID)
def test_a_recipe_with_what_is_yours_becomes_a_bundle(render, name):
    files = render(*VALID[name]).files
    config = configuration(files)
    assert config["run"]["name"] and "images" not in config and "clusters" not in config
    assert "hf_access_token" not in config["run"]


# What must be given


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ((MTRL_EVAL, *JOBS), {"model.model_name", "run.base_model_name"}),
        ((GPT_LORA, *K8S), {"dataset.dataset_path", "log_dir", "exp_manager.exp_dir", "resume.restore_config.path"}),
        ((LLAMA_PRETRAIN, *K8S), {"dataset.dataset_path", "log_dir", "exp_manager.exp_dir"}),
        ((BENCHMARK, *K8S), {"run.base_model_name", "run.model_name_or_path", "output.eval_results_dir"}),
        (
            (JUDGE, *K8S, "instance_type=m5.4xlarge"),
            {"run.base_model_name", "run.judge_model_id", "run.inference_data_s3_path"},
        ),
        ((FALCON, "cluster=slurm"), {"exp_manager.exp_dir", "model.data.train_dir"}),
    ],
    ids=["mtrl", "checkpointless", "pretraining", "benchmark", "judge", "falcon"],
)
def test_values_that_only_the_user_knows_are_named_all_at_once(problems, words, keys):
    all_found = problems(*words)
    assert {(each.code, each.path) for each in all_found} == {("E122", f"recipes.{key}") for key in keys}
    assert all(each.remedy.startswith(f"{each.path}=") for each in all_found)


def test_made_up_data_needs_no_folder(prepare):
    words = (FALCON, "cluster=slurm", FOLDERS[0], "recipes.model.data.use_synthetic_data=true")
    assert prepare(*words).initial_nodes == 2


# Where they run


@pytest.mark.parametrize(
    ("name", "clusters"),
    [
        ("gemma", {"sm_jobs"}),
        ("mtrl-eval", {"sm_jobs"}),
        ("gpt-lora", {"k8s"}),
        ("benchmark", {"k8s", "sm_jobs"}),
        ("judge", {"k8s", "sm_jobs"}),
        ("falcon", {"k8s", "slurm"}),
    ],
)
@pytest.mark.parametrize("cluster", ["local", "sm_local", "k8s", "slurm", "sm_jobs"])
def test_a_recipe_is_refused_where_its_program_cannot_run(problems, name, clusters, cluster):
    words = [word for word in VALID[name] if not word.startswith("cluster")]
    # The second fault is the test's own: a recipe that is not refused has none.
    all_found = problems(*words, f"cluster={cluster}", "env_vars=text")
    refused = [each for each in all_found if each.code == "E120"]
    assert len(refused) == (cluster not in clusters)
    for each in refused:
        assert set(each.allowed.split(", ")) == clusters


POLICY = "++recipes.elastic_policy={is_elastic: true, min_nodes: 1, max_nodes: 2, use_graceful_shutdown: true}"


@pytest.mark.parametrize("name", ["gemma", "gpt-lora", "benchmark", "falcon"])
def test_no_job_of_these_families_changes_its_size(problems, name):
    assert found(problems, *VALID[name], POLICY) == [("E121", "recipes.elastic_policy.is_elastic")]


# Multi-turn RL


@pytest.mark.parametrize(
    ("words", "code", "path"),
    [
        (("recipes.batch.group_size=12",), "E480", "recipes.batch.group_size"),
        (("recipes.model.max_sequence_length=2048",), "E481", "recipes.sampling_params.max_tokens"),
        (("recipes.sampling_params.temperature=0",), "E482", "recipes.sampling_params.temperature"),
        (("recipes.batch.val_group_size=4",), "E482", "recipes.val_sampling_params.temperature"),
        (("recipes.batch.training_batch_size=16",), "E483", "recipes.batch.training_batch_size"),
        (("+recipes.model.lora_plus_lr_ratio=16",), "E483", "recipes.model.lora_plus_lr_ratio"),
        (("recipes.model.model_name=''",), "E122", "recipes.model.model_name"),
        (("cluster.sm_jobs_config.inputs.s3=null",), "E485", "cluster.sm_jobs_config.inputs.s3"),
        (("recipes.model.lora_rank=8",), "E102", "recipes.model.lora_rank"),
        (("recipes.model.lora_alpha=256",), "E102", "recipes.model.lora_alpha"),
        (("recipes.model.learning_rate=0.1",), "E102", "recipes.model.learning_rate"),
        (("recipes.batch.training_batch_size=100",), "E102", "recipes.batch.training_batch_size"),
        (("recipes.rl.advantage_method=grpo",), "E102", "recipes.rl.advantage_method"),
        (("recipes.rl.loss_fn=dapo",), "E102", "recipes.rl.loss_fn"),
        (("recipes.rl.clip_low_threshold=1.2",), "E102", "recipes.rl.clip_low_threshold"),
        (("recipes.rollout.max_concurrency=200",), "E102", "recipes.rollout.max_concurrency"),
        (("recipes.rollout.timeout=60",), "E102", "recipes.rollout.timeout"),
        (("recipes.schedule.max_steps=5000",), "E102", "recipes.schedule.max_steps"),
        (("+recipes.rollout.concurrency=8",), "E101", "recipes.rollout.concurrency"),
    ],
    ids=lambda value: value[0].partition("=")[0].rpartition(".")[2] if isinstance(value, tuple) else value,
)
def test_a_fault_of_multi_turn_rl_is_one_problem(problems, words, code, path):
    all_found = found(problems, *VALID["gemma"], *words)
    assert (code, path) in all_found and {each[0] for each in all_found} == {code}


def test_bounds_follow_the_model(problems, prepare):
    prepare(*VALID["nova"], "recipes.batch.training_batch_size=8", "recipes.batch.group_size=4")
    prepare(*VALID["gemma"], "recipes.model.lora_rank=64")
    assert found(problems, *VALID["nova"], "recipes.model.lora_rank=64") == [("E483", "recipes.model.lora_rank")]
    assert found(problems, *VALID["nova"], "recipes.batch.training_batch_size=128") == [
        ("E483", "recipes.batch.training_batch_size")
    ]


def test_bounds_are_the_recipe_s_whatever_weights_it_starts_from(prepare, problems):
    weights = "recipes.model.model_name=s3://escrow/nova"
    prepare(*VALID["nova"], weights, "recipes.batch.training_batch_size=16")
    assert found(problems, *VALID["nova"], weights, "recipes.model.lora_rank=64") == [
        ("E483", "recipes.model.lora_rank")
    ]


def test_one_conversation_of_each_prompt_may_be_the_most_likely(problems, prepare):
    prepare(*VALID["mtrl-eval"])
    (problem,) = problems(*VALID["mtrl-eval"], "recipes.batch.eval_group_size=4")
    assert (problem.code, problem.path) == ("E482", "recipes.eval_sampling_params.temperature")
    assert "recipes.batch.eval_group_size=1" in problem.remedy
    prepare(*VALID["mtrl-eval"], "recipes.batch.eval_group_size=4", "recipes.eval_sampling_params.temperature=0.7")


def test_a_dry_run_of_multi_turn_rl_is_a_request_and_says_that_it_never_ran(render, prepare):
    files = render(*VALID["gemma"]).files
    job = request(files)
    image = "920498770698.dkr.ecr.us-west-2.amazonaws.com/mtrl-recipes:rft-trainer-v1.0.0"
    assert job["AlgorithmSpecification"]["TrainingImage"] == image
    assert job["HyperParameters"] == {"sagemaker_recipe_local_path": "/opt/ml/input/data/recipe/config.yaml"}
    assert [each["ChannelName"] for each in job["InputDataConfig"]] == ["train", "recipe"]
    assert job["OutputDataConfig"]["S3OutputPath"] == "s3://results/out"
    config = configuration(files)
    assert config["recipe_version"] == "1.0.16" and config["batch"]["training_batch_size"] == 128
    assert not {"trainer", "version", "instance_types"} & config.keys()
    assert "N461" in {notice.code for notice in prepare(*VALID["gemma"]).notices}


def test_an_image_is_that_of_the_job_s_region(render, problems):
    region = "cluster.sm_jobs_config.region=us-east-1"
    image = request(render(*VALID["nova"], region).files)["AlgorithmSpecification"]["TrainingImage"]
    assert image == "327873000638.dkr.ecr.us-east-1.amazonaws.com/mtrl-recipes:rft-trainer-v1.0.0"
    assert found(problems, *VALID["gemma"], region) == [("E613", "container")]  # Gemma's is in us-west-2 only


# Checkpointless training


def test_shares_of_any_number_of_experts_are_found(problems):
    """The number of experts bounds no search; 16 ranks that have the same layers are 2 copies of 8 shares at most."""
    numbers = (f"recipes.{EXPERTS}=16", "recipes.model.config.num_moe_experts=1600000000000")
    (problem,) = problems(*VALID["gpt-lora"], *numbers)
    assert (problem.code, problem.path, problem.allowed) == ("E487", f"recipes.{EXPERTS}", "1, 2, 4, 8")


@pytest.mark.parametrize(
    ("name", "words", "code", "path"),
    [
        ("gpt-lora", ("data.global_batch_size=20",), "E221", "data.global_batch_size"),
        ("gpt-lora", ("data.micro_batch_size=2",), "E221", "data.global_batch_size"),
        ("llama-lora", ("strategy.tensor_model_parallel_size=6",), "E497", "strategy.tensor_model_parallel_size"),
        ("gpt-lora", (f"{COPIES}=1",), "E486", COPIES),
        ("gpt-lora", (f"{COPIES}=3",), "E486", COPIES),
        ("gpt-lora", (f"{EXPERTS}=16",), "E487", EXPERTS),
        ("gpt-lora", (f"{EXPERTS}=3",), "E487", EXPERTS),
        ("llama-lora", (f"+{EXPERTS}=2",), "E487", EXPERTS),
        ("gpt-lora", ("data.seq_length=3000",), "E102", "data.seq_length"),
        ("gpt-lora", ("optim.config.lr=0.1",), "E102", "optim.config.lr"),
        ("gpt-lora", ("trainer.max_steps=0",), "E102", "trainer.max_steps"),
        ("gpt-lora", ("trainer.accumulate_grad_batches=4",), "E102", "trainer.accumulate_grad_batches"),
        ("gpt-lora", ("run.time_limit=6days",), "E102", "run.time_limit"),
        ("gpt-lora", ("trainer.limit_val_batches=32", "+trainer.max_epochs=3"), "E101", "trainer.max_epochs"),
        ("gpt-lora", ("entry_script=train.py",), "E102", "entry_script"),
        ("gpt-lora", ("+checkpointing={memory: {frequency: 5}}",), "E489", "checkpointing"),
    ],
)
def test_a_fault_of_checkpointless_training_is_one_problem(problems, name, words, code, path):
    overrides = [f"+recipes.{word[1:]}" if word[0] == "+" else f"recipes.{word}" for word in words]
    all_found = found(problems, *VALID[name], *overrides)
    assert (code, f"recipes.{path}") in all_found and {each[0] for each in all_found} == {code}


def test_copies_need_enough_nodes(problems):
    (problem,) = problems(*VALID["llama-lora"], "recipes.trainer.num_nodes=1", "recipes.data.global_batch_size=1")
    assert (problem.code, problem.value) == ("E486", 2)
    assert "more nodes" in problem.remedy


def test_the_data_parallel_size_follows_from_all_parallelism(prepare):
    sizes = {
        name: prepare(*VALID[name]).scales[0] for name in ("gpt-full", "gpt-lora", "llama-lora", "llama-pretrain")
    }
    assert {name: size.data_parallel_size for name, size in sizes.items()} == {
        "gpt-full": 16,
        "gpt-lora": 16,
        "llama-lora": 2,
        "llama-pretrain": 4,
    }
    assert sizes["llama-pretrain"].batch.grad_accumulation == 128
    assert {size.samples_per_step for size in sizes.values()} == {256, 16, 2, 512}


SCRIPTS = {
    "gpt-full": "gpt_oss/gpt_oss_120b_full_finetune_checkpointless.py",
    "gpt-lora": "gpt_oss/gpt_oss_120b_peft_checkpointless.py",
    "llama-lora": "llama3/llama3_70b_peft_checkpointless.py",
    "llama-pretrain": "llama3/llama3_70b_pretrain_checkpointless.py",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkpointless_job_starts_the_program_of_its_model_and_technique(render, name):
    files = render(*VALID[name]).files
    env, pod = variables(files), container(files)
    assert env["SCRIPT_PATH"] == f"/opt/amazon/examples/{SCRIPTS[name]}"
    assert env["SCRIPT_ARGS"] == "--config-path=/config --config-name=config.yaml"
    assert env["USE_HYPERPODRUN"] == "true"
    assert pod["command"] == ["/bin/bash", "/config/start.sh", "/opt/bin/scripts/train-script-gpu.sh"]
    assert pod["image"] == "839249767557.dkr.ecr.us-west-2.amazonaws.com/hyperpod-checkpointless-training:v1.0.0"
    assert manifest(files)["kind"] == "HyperPodPyTorchJob"
    assert "entry_script" not in configuration(files)


def test_a_copy_of_a_recipe_starts_the_same_program_wherever_it_is(render, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [/recipes/training/llama/checkpointless_llama3_70b_pretrain@_here_, _self_]\nrun: {name: mine}\n"
    )
    _, *words = VALID["llama-pretrain"]
    env = variables(render(f"recipes={tmp_path}/mine.yaml", *words).files)
    assert env["SCRIPT_PATH"] == f"/opt/amazon/examples/{SCRIPTS['llama-pretrain']}"


def test_the_user_s_variables_and_nccl_s_stay_beside_those_of_recovery(render):
    words = (*VALID["gpt-lora"], "+env_vars.WANDB_MODE=offline", "env_vars.NCCL_DEBUG=INFO")
    env = variables(render(*words, "+env_vars.INPROCESS_RESTART_TIMEOUT=600").files)
    assert (env["HPCT_USE_ROOTLESS"], env["INPROCESS_RESTART"]) == ("1", "1")
    assert (env["WANDB_MODE"], env["NCCL_DEBUG"], env["INPROCESS_RESTART_TIMEOUT"]) == ("offline", "INFO", "600")
    assert env["NCCL_SOCKET_IFNAME"] and env["FI_PROVIDER"] == "efa"
    assert variables(render(*VALID["gpt-lora"]).files)["INPROCESS_RESTART_TIMEOUT"] == "1800"


def test_commands_before_training_may_be_one_text(render, problems):
    text = variables(render(*VALID["gpt-lora"]).files)["PRE_SCRIPT_COMMANDS"]
    assert text.startswith("sysctl -w net.ipv4.ip_local_port_range='20000 65535'; export LD_LIBRARY_PATH=")
    listed = render(*VALID["gpt-lora"], "recipes.pre_script=[echo a, echo b]").files
    assert variables(listed)["PRE_SCRIPT_COMMANDS"] == "echo a;echo b"
    token = "hf_" + 34 * "a"
    assert found(problems, *VALID["gpt-lora"], f"recipes.pre_script='login {token}'") == [
        ("E609", "recipes.pre_script")
    ]


def test_a_container_without_privileges_is_told_that_sysctl_does_nothing(prepare):
    def codes(*words):
        return {notice.code for notice in prepare(*VALID["gpt-lora"], *words).notices}

    assert "N460" in codes()
    assert "N460" not in codes("recipes.pre_script=null")
    assert "N460" not in codes("cluster.security_context={privileged: true, runAsUser: 0}")


def test_memory_of_a_recipe_is_a_request_without_a_limit(render):
    resources = container(render(*VALID["gpt-lora"]).files)["resources"]
    assert resources["requests"]["memory"] == "32000Mi" and "memory" not in resources["limits"]
    assert resources["requests"]["hugepages-2Mi"] == resources["limits"]["hugepages-2Mi"] == "5120Mi"
    assert resources["limits"]["nvidia.com/gpu"] == 8


def test_the_node_s_network_is_used_if_the_user_wants_it(render):
    pods = manifest(render(*VALID["gpt-lora"], "cluster.hostNetwork=true").files)["spec"]["replicaSpecs"][0]
    assert pods["template"]["spec"]["hostNetwork"] is True


def test_a_kubeflow_job_cannot_lead_the_recovery(problems):
    key = "cluster.use_hyperpod_pytorch_job"
    assert found(problems, *VALID["gpt-lora"], f"{key}=false") == [("E490", key)]


def test_a_program_of_the_user_s_own_replaces_the_image_s(render):
    env = variables(render(*VALID["gpt-lora"], "git.entry_script=/data/mine.py").files)
    assert env["SCRIPT_PATH"] == "/data/mine.py"


# Evaluation


@pytest.mark.parametrize(
    ("name", "words", "code", "path"),
    [
        ("benchmark", ("recipes.evaluation.task=hellaswag",), "E102", "recipes.evaluation.task"),
        ("benchmark", ("recipes.evaluation.strategy=few",), "E102", "recipes.evaluation.strategy"),
        ("benchmark", ("recipes.evaluation.metric=f1",), "E102", "recipes.evaluation.metric"),
        ("benchmark", ("recipes.evaluation.subtask=algbra",), "E102", "recipes.evaluation.subtask"),
        ("benchmark", ("recipes.evaluation.subtask=navigate",), "E493", "recipes.evaluation.subtask"),
        ("benchmark", ("recipes.evaluation.task=gen_qa",), "E492", "recipes.run.data_s3_path"),
        ("benchmark", ("recipes.run.data_s3_path=/data",), "E102", "recipes.run.data_s3_path"),
        ("benchmark", ("recipes.inference.max_new_tokens=12000",), "E494", "recipes.inference.max_new_tokens"),
        ("benchmark", ("recipes.trainer.num_nodes=2",), "E495", "recipes.trainer.num_nodes"),
        ("benchmark", ("recipes.processor.aggregation=mode",), "E102", "recipes.processor.aggregation"),
        ("benchmark", (f"{REWARD}=x",), "E102", REWARD),
        ("benchmark", ("+recipes.evaluation.shots=5",), "E101", "recipes.evaluation.shots"),
        ("judge", ("recipes.llm_as_judge.metrics=Kindness",), "E102", "recipes.llm_as_judge.metrics"),
        ("judge", ("+recipes.run.data_s3_path=s3://data/x",), "E491", "recipes.run.data_s3_path"),
        ("benchmark", ("+recipes.run.judge_model_id=judge",), "E491", "recipes.run.judge_model_id"),
        ("judge", ("+recipes.run.data_s3=s3://data/x",), "E101", "recipes.run.data_s3"),
    ],
)
def test_a_fault_of_an_evaluation_is_one_problem(problems, name, words, code, path):
    assert found(problems, *VALID[name], *words) == [(code, path)]


def test_parts_of_a_benchmark_belong_to_it(prepare, problems):
    prepare(*VALID["benchmark"], "recipes.evaluation.task=bbh", "recipes.evaluation.subtask=navigate")
    (problem,) = problems(*VALID["benchmark"], "recipes.evaluation.subtask=navigate")
    assert problem.remedy == "recipes.evaluation.task=bbh"
    (misspelt,) = problems(*VALID["benchmark"], "recipes.evaluation.subtask=algbra")
    assert "did you mean algebra?" in misspelt.message


def test_an_evaluation_s_configuration_is_the_recipe_and_not_empty(render):
    files = render(*VALID["benchmark"]).files
    config_map = yaml_io.load(files["manifests/configmap.yaml"])["data"]
    assert list(config_map) == ["config.yaml"]  # no start script: the image starts itself
    config = yaml_io.load(config_map["config.yaml"])
    assert config["evaluation"] == {"task": "mmlu", "strategy": "zs_cot", "subtask": "", "metric": "accuracy"}
    assert config["run"]["model_name_or_path"] == "s3://models/mine" and "model_type" not in config["run"]
    assert config.keys() == {"run", "output", "evaluation", "inference", "processor"}


def test_an_evaluation_s_pod_has_gpus_and_starts_itself(render):
    files = render(*VALID["benchmark"], "instance_type=ml.g5.12xlarge").files
    pod, env = container(files), variables(files)
    assert manifest(files)["kind"] == "PyTorchJob"
    assert "command" not in pod
    assert env["CONFIG_FILE_PATH"] == "/config/config.yaml"
    assert env["INSTANCE_TYPE"] == "ml.g5.12xlarge"
    assert pod["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert pod["image"] == "763104351884.dkr.ecr.us-east-1.amazonaws.com/sagemaker-evaluation:latest"


def test_an_evaluation_takes_the_instance_the_policy_and_the_queue_that_are_given(render):
    words = ("instance_type=g6.48xlarge", "cluster.pullPolicy=IfNotPresent", "cluster.queue_name=team-queue")
    job = manifest(render(*VALID["benchmark"], *words).files)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-queue"
    spec = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert spec["nodeSelector"] == {"beta.kubernetes.io/instance-type": "ml.g6.48xlarge"}
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert request(render(*VALID["benchmark-job"], words[0]).files)["ResourceConfig"]["InstanceType"] == (
        "ml.g6.48xlarge"
    )


def test_replicas_of_an_evaluation_are_pods(render):
    replicas = manifest(render(*VALID["benchmark"], "recipes.run.replicas=3").files)["spec"]["pytorchReplicaSpecs"]
    assert {name: each["replicas"] for name, each in replicas.items()} == {"Master": 1, "Worker": 2}


def test_a_judge_needs_no_gpu_and_a_benchmark_does(render, problems):
    assert "nvidia.com/gpu" not in str(container(render(*VALID["judge"]).files).get("resources"))
    assert found(problems, *VALID["benchmark"], "instance_type=m5.4xlarge") == [("E235", "instance_type")]


def test_an_evaluation_job_has_its_model_its_data_and_its_configuration(render):
    data = "recipes.run.data_s3_path=s3://data/prompts"
    job = request(render(*VALID["benchmark-job"], data, "recipes.evaluation.task=gen_qa").files)
    uris = {each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"] for each in job["InputDataConfig"]}
    assert (uris["model"], uris["data"]) == ("s3://models/mine", "s3://data/prompts")
    assert job["Environment"]["CONFIG_FILE_PATH"] == "/opt/ml/input/data/recipe/config.yaml"
    own = "cluster.sm_jobs_config.inputs.s3={model: s3://other/model}"
    job = request(render(*VALID["benchmark-job"], own).files)
    uris = {each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"] for each in job["InputDataConfig"]}
    assert uris["model"] == "s3://other/model" and "data" not in uris


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("input_mode=FastFile",), ("E372", "recipes.run.model_name_or_path")),
        (("inputs.s3={model: s3://other/model/}", "input_mode=FastFile"), None),
        (
            ("inputs.s3={model_1: s3://other/model}", "input_mode=Pipe"),
            ("E374", "cluster.sm_jobs_config.inputs.s3.model_1"),
        ),
        (
            (f"inputs.s3={{{', '.join(f'c{i}: s3://other/c' for i in range(19))}}}",),
            ("E374", "cluster.sm_jobs_config.inputs"),
        ),
    ],
    ids=["folder", "replaced", "fifo", "count"],
)
def test_channels_of_what_a_recipe_names_are_checked_like_the_user_s(words, fault, problems, prepare):
    words = (*VALID["benchmark-job"], *(f"cluster.sm_jobs_config.{word}" for word in words))
    if fault is None:
        assert prepare(*words)
    else:
        assert found(problems, *words) == [fault]


def test_a_recipe_s_place_in_s3_has_a_valid_bucket(problems):
    words = (*VALID["benchmark-job"], "recipes.run.model_name_or_path=s3://My_Models/mine")
    assert found(problems, *words) == [("E372", "recipes.run.model_name_or_path")]


def test_commands_that_nothing_runs_are_refused(problems):
    words = (*VALID["benchmark"], "++recipes.pre_script=[echo a]")
    assert found(problems, *words) == [("E322", "recipes.pre_script")]


# The training adapter for NeMo


@pytest.mark.parametrize(
    ("words", "code", "path"),
    [
        (("recipes.trainer.num_nodes=1",), "E496", "recipes.model.shard_degree"),
        (("recipes.model.shard_degree=3",), "E496", "recipes.model.shard_degree"),
        (("recipes.model.sharding_strategy=zero3",), "E102", "recipes.model.sharding_strategy"),
        (("recipes.model.optim.lr=0",), "E102", "recipes.model.optim.lr"),
        (("+recipes.model.batch=4",), "E101", "recipes.model.batch"),
        (("recipes.trainer.accelerator=tpu",), "E102", "recipes.trainer.accelerator"),
        (("recipes.trainer.precision=bf17",), "E102", "recipes.trainer.precision"),
        (("recipes.model.precision=8",), "E102", "recipes.model.precision"),
        (("recipes.model.optim.name=foo",), "E102", "recipes.model.optim.name"),
        (("recipes.model.optim.betas=[0.9]",), "E102", "recipes.model.optim.betas"),
        (("recipes.model.optim.sched.name=foo",), "E102", "recipes.model.optim.sched.name"),
        (("recipes.model.backward_fetch_policy=never",), "E102", "recipes.model.backward_fetch_policy"),
        (("recipes.model.auto_wrap_policy=none",), "E102", "recipes.model.auto_wrap_policy"),
    ],
    ids=[
        *("nodes", "degree", "strategy", "rate", "unknown", "accelerator", "precision", "model-precision"),
        *("optimizer", "betas", "schedule", "fetch-policy", "wrap-policy"),
    ],
)
def test_a_fault_of_the_adapter_is_one_problem(problems, words, code, path):
    assert found(problems, *VALID["falcon"], *words) == [(code, path)]


def test_a_number_that_is_written_as_a_text_is_suggested_as_one(problems):
    (problem,) = problems(*VALID["falcon"], "recipes.trainer.precision='16'")
    assert problem.remedy == "did you mean recipes.trainer.precision=16?"


def test_ranks_need_no_groups_without_hybrid_shards(prepare):
    prepare(*VALID["falcon"], "recipes.trainer.num_nodes=1", "recipes.model.sharding_strategy=full_shard")


def test_the_adapter_s_program_comes_from_its_repository(render):
    env = variables(render(*VALID["falcon"]).files)
    repository = "https://github.com/aws/sagemaker-hyperpod-training-adapter-for-nemo.git"
    assert env["GIT_REPO_URL"] == repository
    assert env["SCRIPT_PATH"] == "examples/custom_model/custom_pretrain.py"
    files = render(*VALID["falcon-slurm"]).files
    assert json.loads(files["slurm/code.json"])["repository"] == repository
    node = files["slurm/node.sh"]
    assert "run/code/cwd/examples/custom_model/custom_pretrain.py --config-name=config.yaml" in node
    assert '--config-path "$bundle"/configs' in node


def test_the_adapter_s_program_may_be_another(render):
    words = ("git.repo_url_or_path=https://example.com/mine.git", "git.entry_script=train.py")
    env = variables(render(*VALID["falcon"], *words).files)
    assert (env["GIT_REPO_URL"], env["SCRIPT_PATH"]) == ("https://example.com/mine.git", "train.py")
    assert "run/code/cwd/train.py" in render(*VALID["falcon-slurm"], words[1]).files["slurm/node.sh"]
    module = render(*VALID["falcon-slurm"], "git.entry_module=my.train").files["slurm/node.sh"]
    assert "-m my.train --config-name=config.yaml" in module


def test_an_image_of_the_adapter_is_the_user_s(problems):
    assert found(problems, FALCON, *K8S, *FOLDERS) == [("E305", "container")]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ((LLAMA_LORA, *PLACES, WEIGHTS), "container"),
        ((BENCHMARK, *EVALUATED), "cluster.runtime"),
        ((BENCHMARK, *EVALUATED, "container=me/own:1"), "cluster.runtime"),
    ],
    ids=["checkpointless", "evaluation", "evaluation in an image of your own"],
)
def test_published_programs_are_not_in_an_image_with_our_entrypoint(problems, words, path):
    (problem,) = problems(*words, *K8S, "cluster.runtime=launcher")
    assert (problem.code, problem.path) == ("E367", path)
