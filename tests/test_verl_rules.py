"""The arithmetic of verl's recipes, the types of what users change, and how its programs are started."""

import json

import pytest

from launcher.common import yaml_io
from launcher.common.names import BASE_CONFIG, CONFIG_DIR
from launcher.config.compose import compose
from launcher.model.family_registry import interface
from launcher.planning.check import check
from launcher.rules import all_notice_rules, all_rules

GRPO = "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora"
JUDGED = "fine-tuning/qwen/verl-grpo-rlaif-qwen-3-8b-lora"
BY_SAMPLES = "fine-tuning/qwen/verl-grpo-rlaif-qwen-3-32b-fft"
LATER = "fine-tuning/qwen-0_7_0/verl-grpo-rlvr-qwen-3-dot-5-9b-fft"
MEGATRON = "fine-tuning/nemotron-0_7_0/verl-grpo-rlvr-nemotron-3-nano-30b-lora"
SFT = "fine-tuning/qwen-0_7_0/verl-sft-qwen-3-8b-lora"
SFT_MEGATRON = "fine-tuning/nemotron-0_7_0/verl-sft-nemotron-3-nano-30b-lora"
DPO = "fine-tuning/qwen-0_7_0/verl-dpo-qwen-3-dot-5-9b-lora"
TRAINING = "recipes.training_config"
ACTOR, ROLLOUT = f"{TRAINING}.actor_rollout_ref.actor", f"{TRAINING}.actor_rollout_ref.rollout"
DATA = f"{TRAINING}.data.train_files=/data/train.parquet"


@pytest.fixture
def checked(context):
    """Return a function from overrides to a checked recipe."""
    return lambda *overrides: check(compose(overrides, context.cwd))


def words(recipe, *overrides, data=(DATA,)):
    return (f"recipes={recipe}", "cluster=k8s", "instance_type=p5.48xlarge", *data, *overrides)


BAD = {
    "nodes of verl alone": (GRPO, [f"{TRAINING}.trainer.nnodes=2"], "E280", f"{TRAINING}.trainer.nnodes"),
    "nodes of SFT alone": (SFT, [f"{TRAINING}.trainer.nnodes=2"], "E280", f"{TRAINING}.trainer.nnodes"),
    "workers alone": (
        GRPO,
        ["recipes.ray_cluster.worker_nodes.replicas=3"],
        "E280",
        "recipes.ray_cluster.worker_nodes.replicas",
    ),
    "GPUs of a worker": (
        GRPO,
        ["recipes.ray_cluster.worker_nodes.gpu='4'"],
        "E280",
        "recipes.ray_cluster.worker_nodes.gpu",
    ),
    "processors that no node has": (
        GRPO,
        ["recipes.ray_cluster.worker_nodes.cpu='192'"],
        "E309",
        "recipes.ray_cluster.worker_nodes.cpu",
    ),
    "no quantity": (
        GRPO,
        ["recipes.ray_cluster.head_node.memory=much"],
        "E309",
        "recipes.ray_cluster.head_node.memory",
    ),
    "a limit below the request": (
        GRPO,
        ["recipes.ray_cluster.worker_nodes.memoryLimit=147455Mi"],
        "E309",
        "recipes.ray_cluster.worker_nodes.memoryLimit",
    ),
    "mini batch": (GRPO, [f"{ACTOR}.ppo_mini_batch_size=256"], "E282", f"{ACTOR}.ppo_mini_batch_size"),
    "batch over GPUs": (
        GRPO,
        ["recipes.trainer.num_nodes=3", f"{ACTOR}.ppo_mini_batch_size=24"],
        "E283",
        f"{TRAINING}.data.train_batch_size",
    ),
    "mini batch over GPUs": (
        GRPO,
        ["recipes.trainer.num_nodes=3", f"{TRAINING}.data.train_batch_size=384"],
        "E283",
        f"{ACTOR}.ppo_mini_batch_size",
    ),
    "micro batch": (
        BY_SAMPLES,
        [f"{ACTOR}.ppo_micro_batch_size_per_gpu=3"],
        "E284",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    ),
    "micro batch with a budget of tokens": (
        GRPO,
        [f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", f"{ACTOR}.use_dynamic_bsz=true"],
        "E284",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    ),
    "engines": (
        GRPO,
        [f"{ROLLOUT}.tensor_model_parallel_size=3"],
        "E285",
        f"{ROLLOUT}.tensor_model_parallel_size",
    ),
    "copies of the model": (LATER, [f"{ACTOR}.fsdp_config.fsdp_size=6"], "E285", f"{ACTOR}.fsdp_config.fsdp_size"),
    "shared sequences": (
        SFT,
        [f"{TRAINING}.engine.ulysses_sequence_parallel_size=3"],
        "E285",
        f"{TRAINING}.engine.ulysses_sequence_parallel_size",
    ),
    "Megatron's model": (
        SFT_MEGATRON,
        [f"{TRAINING}.engine.pipeline_model_parallel_size=2"],
        "E285",
        f"{TRAINING}.engine.tensor_model_parallel_size",
    ),
    "Megatron's experts": (
        MEGATRON,
        [f"{ACTOR}.megatron.expert_model_parallel_size=16"],
        "E285",
        f"{ACTOR}.megatron.expert_model_parallel_size",
    ),
    "model length": (GRPO, [f"{ROLLOUT}.max_model_len=1000"], "E286", f"{ROLLOUT}.max_model_len"),
    "prompt length": (GRPO, [f"{ROLLOUT}.prompt_length=256"], "E286", f"{ROLLOUT}.prompt_length"),
    "steps of vLLM": (
        GRPO,
        [f"{TRAINING}.data.max_prompt_length=8000"],
        "E287",
        f"{ROLLOUT}.max_num_batched_tokens",
    ),
    "tokens of a pass": (
        GRPO,
        [f"{ACTOR}.ppo_max_token_len_per_gpu=1024"],
        "E288",
        f"{ACTOR}.ppo_max_token_len_per_gpu",
    ),
    "tokens of the reference": (
        GRPO,
        [f"{TRAINING}.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=1024"],
        "E288",
        f"{TRAINING}.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    ),
    "tokens of a sample": (
        SFT,
        [f"{TRAINING}.data.max_length=32768"],
        "E288",
        f"{TRAINING}.data.max_token_len_per_gpu",
    ),
    "adapters of FSDP": (
        MEGATRON,
        [f"{TRAINING}.actor_rollout_ref.model.lora.rank=0"],
        "E289",
        f"{TRAINING}.actor_rollout_ref.model.lora_rank",
    ),
    "adapters of SFT": (SFT_MEGATRON, [f"~{TRAINING}.model.lora"], "E289", f"{TRAINING}.model.lora_rank"),
    "samples over GPUs": (SFT, ["recipes.trainer.num_nodes=3"], "E290", f"{TRAINING}.data.train_batch_size"),
    "passes of samples": (
        SFT,
        [f"{TRAINING}.data.use_dynamic_bsz=false", f"{TRAINING}.data.micro_batch_size_per_gpu=3"],
        "E290",
        f"{TRAINING}.data.micro_batch_size_per_gpu",
    ),
    "learning rate": (GRPO, [f"{ACTOR}.optim.lr=0.1"], "E102", f"{ACTOR}.optim.lr"),
    "learning rate of SFT": (SFT, [f"{TRAINING}.optim.lr=1.0"], "E102", f"{TRAINING}.optim.lr"),
    "schedule": (SFT, [f"{TRAINING}.optim.lr_scheduler_type=linear"], "E102", f"{TRAINING}.optim.lr_scheduler_type"),
    "loss": (DPO, [f"{TRAINING}.trainer.loss_type=sigmod"], "E102", f"{TRAINING}.trainer.loss_type"),
    "beta": (DPO, [f"{TRAINING}.trainer.beta=3.0"], "E102", f"{TRAINING}.trainer.beta"),
    "epochs": (GRPO, [f"{TRAINING}.trainer.total_epochs=0"], "E102", f"{TRAINING}.trainer.total_epochs"),
    "Lambda": (
        GRPO,
        [f"{TRAINING}.custom_reward_function.lambda_arn=my-function"],
        "E102",
        f"{TRAINING}.custom_reward_function.lambda_arn",
    ),
    "judge": (
        JUDGED,
        [f"{TRAINING}.reward_model.reward_kwargs.kwargs.max_workers=0"],
        "E102",
        f"{TRAINING}.reward_model.reward_kwargs.kwargs.max_workers",
    ),
    "unknown key": (GRPO, [f"++{ROLLOUT}.temprature=1.0"], "E101", f"{ROLLOUT}.temprature"),
    "type of a passed key": (GRPO, [f"{ROLLOUT}.max_num_seqs=many"], "E102", f"{ROLLOUT}.max_num_seqs"),
    "elastic": (
        SFT,
        [
            "++recipes.elastic_policy={is_elastic:true,min_nodes:1,max_nodes:2,use_graceful_shutdown:false}",
            "++recipes.scale_config={1:{trainer:{num_nodes:1}},2:{trainer:{num_nodes:2}}}",
        ],
        "E121",
        "recipes.elastic_policy.is_elastic",
    ),
    "no optimizer": (SFT, [f"~{TRAINING}.optim"], "E291", f"{TRAINING}.optim"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_a_recipe_that_cannot_work_is_refused(problems, case):
    recipe, overrides, code, path = BAD[case]
    assert (code, path) in [(problem.code, problem.path) for problem in problems(*words(recipe, *overrides))]


GOOD = {
    "more nodes": (GRPO, ["recipes.trainer.num_nodes=4"]),
    "fewer GPUs": (GRPO, ["recipes.trainer.devices=4", "recipes.instance_types=[]"]),
    "one step a round": (GRPO, [f"{ACTOR}.ppo_mini_batch_size=128"]),
    "three nodes": (
        GRPO,
        ["recipes.trainer.num_nodes=3", f"{TRAINING}.data.train_batch_size=96", f"{ACTOR}.ppo_mini_batch_size=96"],
    ),
    "passes by tokens": (MEGATRON, [f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", f"{ACTOR}.use_dynamic_bsz=true"]),
    "passes of eight": (BY_SAMPLES, [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"]),
    "length of the model": (GRPO, [f"{ROLLOUT}.max_model_len=1536"]),
    "long prompts whole": (
        GRPO,
        [f"{TRAINING}.data.max_prompt_length=8000", f"{ROLLOUT}.enable_chunked_prefill=false"],
    ),
    "long prompts of verl 0.7": (LATER, [f"{TRAINING}.data.max_prompt_length=8192"]),
    "a sequence for two": (
        SFT,
        [f"{TRAINING}.engine.ulysses_sequence_parallel_size=2", f"{TRAINING}.data.max_length=32768"],
    ),
    "Megatron on two nodes": (
        SFT_MEGATRON,
        ["recipes.trainer.num_nodes=2", f"{TRAINING}.engine.pipeline_model_parallel_size=2"],
    ),
    "all weights on Megatron": (
        MEGATRON,
        [f"{TRAINING}.actor_rollout_ref.model.lora.rank=0", f"{TRAINING}.actor_rollout_ref.model.lora_rank=0"],
    ),
    "samples on four nodes": (SFT, ["recipes.trainer.num_nodes=4"]),
    "DPO": (DPO, [f"{TRAINING}.trainer.loss_type=ipo"]),
    "a function of one's own": (
        GRPO,
        [
            f"{TRAINING}.custom_reward_function.path=/data/reward.py",
            f"{TRAINING}.custom_reward_function.name=grade",
            f"{TRAINING}.custom_reward_function.lambda_arn="
            "'arn:aws:lambda:us-east-1:123456789012:function:grade:live'",
        ],
    ),
    "a template's own argument": (
        LATER,
        [f"++{TRAINING}.data.apply_chat_template_kwargs={{enable_thinking: false}}"],
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_recipe_that_works_is_not_refused(prepare, case):
    recipe, overrides = GOOD[case]
    assert prepare(*words(recipe, *overrides)).model_type == "verl"


def test_every_rule_of_the_family_has_a_bad_recipe():
    codes = {
        rule.code
        for rule in (*all_rules(), *all_notice_rules())
        if rule.check.__module__ == "launcher.families.verl.rules"
    }
    assert codes == {code for _, _, code, _ in BAD.values() if "E279" < code < "E300"} | {"N181", "N182"}


def test_the_data_is_to_be_given(problems):
    (problem,) = problems(*words(GRPO, data=()))
    assert (problem.code, problem.path) == ("E122", f"{TRAINING}.data.train_files")
    assert problem.remedy == f"{TRAINING}.data.train_files=/data/train.parquet"


def test_a_problem_says_which_numbers_fit(problems):
    (problem,) = problems(*words(SFT, "recipes.trainer.num_nodes=3"))
    assert problem.allowed == "48 or 72" and problem.remedy == f"{TRAINING}.data.train_batch_size=72"
    first, _ = problems(*words(GRPO, "recipes.trainer.num_nodes=3"))
    assert first.message == "128·8 answers do not divide among 3 nodes × 8 GPUs"
    assert first.allowed == "126 or 129"


@pytest.mark.parametrize(
    ("batch", "mini", "nodes"), [(100, 256, 1), (100, 64, 3), (8, 5, 1), (4, 7, 2), (21, 100, 3)]
)
def test_remedies_that_are_typed_together_hold(problems, prepare, batch, mini, nodes):
    sizes = (f"recipes.trainer.num_nodes={nodes}", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", f"{ROLLOUT}.n=1")
    given = (*sizes, f"{TRAINING}.data.train_batch_size={batch}", f"{ACTOR}.ppo_mini_batch_size={mini}")
    found = problems(*words(GRPO, *given))
    assert {problem.code for problem in found} <= {"E282", "E283", "E284"} and found
    remedies = [word for problem in found if problem.code != "E284" for word in problem.remedy.split()]
    prepare(*words(GRPO, *given, *remedies))


def test_a_share_of_any_number_of_answers_is_divided(problems):
    """A share that is the product of two prime numbers is not searched for passes of every size."""
    first, second = 2**31 - 1, 2**28 - 57
    numbers = (f"{TRAINING}.data.train_batch_size={first}", f"{ACTOR}.ppo_mini_batch_size={first}")
    answers = (f"{ROLLOUT}.n={8 * second}", f"{ACTOR}.ppo_micro_batch_size_per_gpu={second - 1}")
    found = problems(*words(BY_SAMPLES, *numbers, *answers, "recipes.trainer.num_nodes=1"))
    assert [(each.code, each.allowed) for each in found] == [("E284", "1")]


def test_a_problem_names_the_key_that_an_overridden_one_follows(problems):
    (problem,) = problems(*words(GRPO, f"{TRAINING}.trainer.nnodes=2"))
    assert problem.remedy == "recipes.trainer.num_nodes=2, which it follows"


def test_an_instance_with_fewer_gpus_needs_the_number_in_one_place(problems, prepare):
    small = [*words(SFT, "recipes.instance_types=[]")[:2], DATA, "recipes.instance_types=[]"]
    found = problems(*small, "instance_type=g5.12xlarge")
    assert {problem.path for problem in found} == {f"{TRAINING}.trainer.n_gpus_per_node"}
    assert "recipes.trainer.devices=4" in found[0].remedy
    assert prepare(*small, "instance_type=g5.12xlarge", "recipes.trainer.devices=4").nproc_per_node == 4


def notices_of(job, code):
    return [notice.message for notice in job.notices if notice.code == code]


def test_untested_numbers_are_noted(prepare):
    assert notices_of(prepare(*words(GRPO)), "N181") == []
    job = prepare(*words(GRPO, f"{ROLLOUT}.n=12", f"{TRAINING}.actor_rollout_ref.model.lora_rank=24"))
    assert notices_of(job, "N181") == [
        "actor_rollout_ref.rollout.n is 12; the published parameters offer 1, 2, 4, 8, 16, 32",
        "actor_rollout_ref.model.lora_rank is 24; the published parameters offer 0, 8, 16, 32, 64, 128",
    ]


def test_names_that_no_published_recipe_has_are_noted(prepare):
    job = prepare(*words(GRPO, f"{TRAINING}.algorithm.adv_estimator=grpoo", f"{ROLLOUT}.name=sglang"))
    assert notices_of(job, "N181") == [
        "algorithm.adv_estimator is grpoo; the published recipes have grpo",
        "actor_rollout_ref.rollout.name is sglang; the published recipes have vllm",
    ]


def test_answers_that_end_before_the_data_s_length_are_noted(prepare):
    assert notices_of(prepare(*words(GRPO)), "N182") == []
    (message,) = notices_of(prepare(*words(JUDGED)), "N182")
    assert message == "answers end after rollout.response_length=1024 tokens; data.max_response_length=4096"


def test_sft_and_dpo_are_started_on_every_gpu_with_verl_s_configuration(render, prepare):
    for recipe in (SFT, DPO):
        job = prepare(*words(recipe))
        workers = interface(job).workers
        program = ("-m", "verl.trainer.sft_trainer", "--config-name", "verl_config", "--config-path=/config")
        assert not interface(job).is_ray
        assert workers.image_command(job)[-len(program) :] == program
        assert workers.image_command(job)[0] == "hyperpodrun"
    files = render(*words(SFT)).files
    own, whole = (yaml_io.load(files[f"{CONFIG_DIR}/{name}"]) for name in ("verl_config.yaml", BASE_CONFIG))
    assert own == whole["training_config"]
    assert own["data"]["train_files"] == "/data/train.parquet"
    assert "${" not in files[f"{CONFIG_DIR}/verl_config.yaml"]


@pytest.mark.parametrize("recipe", [SFT, DPO])
def test_a_job_of_sft_and_dpo_starts_verl_and_no_program_of_a_repository(render, recipe):
    job = yaml_io.load(render(*words(recipe)).files["manifests/job.yaml"])
    assert job["kind"] == "HyperPodPyTorchJob"
    (container,) = job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"]
    assert container["command"][-4:] == [
        "verl.trainer.sft_trainer",
        "--config-name",
        "verl_config",
        "--config-path=/config",
    ]
    assert not {"GIT_REPO_URL", "SCRIPT_PATH"} & {each["name"] for each in container["env"]}


def test_the_configuration_is_complete_where_sagemaker_gives_it(render):
    role = "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train"
    output = "cluster.sm_jobs_config.output_path=s3://bucket/out"
    files = render(f"recipes={SFT}", "cluster=sm_jobs", "instance_type=p5.48xlarge", DATA, role, output).files
    (start,) = (text for name, text in files.items() if name.endswith("start.sh"))
    assert "-m verl.trainer.sft_trainer --config-name verl_config --config-path" in " ".join(start.split())
    assert "${" not in files[f"{CONFIG_DIR}/verl_config.yaml"]


def test_the_program_s_own_calls_of_mlflow_go_to_the_job_s_run(prepare):
    mlflow = [f"{TRAINING}.mlflow.{key}" for key in ("tracking_uri=https://mlflow.example", "run_id=abc")]
    job = prepare(*words(SFT, *mlflow))
    env = interface(job).workers.env(job)
    assert env == {"MLFLOW_TRACKING_URI": "https://mlflow.example", "MLFLOW_RUN_ID": "abc"}
    assert interface(prepare(*words(SFT))).workers.env(job) == env


def test_grpo_runs_on_a_ray_cluster_with_a_worker_for_each_node(render, prepare):
    job = prepare(*words(GRPO, "recipes.trainer.num_nodes=2"))
    assert interface(job).is_ray
    own = yaml_io.load(render(*words(GRPO, "recipes.trainer.num_nodes=2")).files[f"{CONFIG_DIR}/verl_config.yaml"])
    assert own["trainer"]["nnodes"] == 2


@pytest.mark.parametrize(
    ("recipe", "saved", "dtype", "optimizer"),
    [
        (GRPO, "adapters", "bfloat16", "adam_16bit"),
        ("fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-fft", "model", "bfloat16", "none"),
        (BY_SAMPLES, "model", "float32", "none"),
        (SFT, "adapters", "bfloat16", "adam_16bit"),
        ("fine-tuning/qwen-0_7_0/verl-sft-qwen-3-8b-fft", "model", "bfloat16", "adam_16bit"),
    ],
)
def test_a_checkpoint_holds_what_the_recipe_saves(checked, recipe, saved, dtype, optimizer):
    content = checked(*words(recipe)).recipe.content(published_model="Qwen/Qwen3-8B")
    assert (content.dtype, content.optimizer, content.sharding) == (dtype, optimizer, "fsdp")
    if saved == "model":
        assert content.saved == content.parameters > 8e9
    else:
        assert 0 < content.saved < content.parameters / 50


def test_the_published_model_is_known_by_the_beginning_of_its_name(checked):
    name = "fine-tuning/gpt_oss/verl-grpo-rlvr-gpt-oss-20b-lora"
    assert checked(*words(name)).published_model == "openai/gpt-oss-20b"


def test_the_report_of_a_plan_counts_nodes_and_ranks(prepare):
    (point,) = prepare(*words(GRPO, "recipes.trainer.num_nodes=2")).scales
    assert (point.nodes, point.ranks, point.batch) == (2, 16, None)
    assert json.dumps(point.config["training_config"]["trainer"]["nnodes"]) == "2"


PASSED = f"{TRAINING}.trainer"


@pytest.mark.parametrize(
    ("overrides", "code", "path"),
    [
        ([f"++{PASSED}.made_up=1"], "E101", f"{PASSED}.made_up"),
        ([f"++{TRAINING}.made_up.deep=1"], "E101", f"{TRAINING}.made_up.deep"),
        ([f"{PASSED}.experiment_name=5"], "E102", f"{PASSED}.experiment_name"),
        ([f"{PASSED}.log_val_generations=few"], "E102", f"{PASSED}.log_val_generations"),
        ([f"{TRAINING}.data.shuffle=1"], "E102", f"{TRAINING}.data.shuffle"),
    ],
)
def test_what_is_passed_on_has_the_published_keys_and_types(problems, overrides, code, path):
    found = problems(*words(GRPO, *overrides))
    assert [(each.code, each.path) for each in found] == [(code, path)]


@pytest.mark.parametrize(
    "overrides",
    [
        [f"++{PASSED}.made_up=1", "++recipes.extra_keys=[training_config.trainer.made_up]"],
        [f"++{TRAINING}.actor_rollout_ref.model.override_config.attn_implementation=eager"],
        [f"{PASSED}.experiment_name=null"],
        [f"{ACTOR}.grad_clip=2"],
    ],
    ids=["declared", "in an empty mapping", "null", "whole for a number"],
)
def test_what_may_be_passed_on(prepare, overrides):
    assert prepare(*words(GRPO, *overrides)).model_type == "verl"
