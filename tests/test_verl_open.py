"""verl's SFT and DPO recipes with the open trainer: which are trained, as what, and what is refused."""

import dataclasses

import pytest
import yaml
from conftest import CACHE, shipped

from launcher.common.names import CONFIG_DIR, FINE_TUNING
from launcher.config.compose import compose
from launcher.families.verl.open_keys import TABLE
from launcher.families.verl.translation import trained
from launcher.model.config_tree import leaves
from launcher.model.family_registry import recipe_model
from launcher.model.validation import is_field
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.key_terms import Treatment
from launcher.runtime.finetune.keys import TABLE as LLMFT_TABLE
from launcher.runtime.finetune.settings import settings_of

NAMES = [entry.name for entry in shipped() if entry.model_type == "verl" and "verl-grpo" not in entry.name]
MEGATRON = [name for name in NAMES if "nemotron" in name]
GEMMA = [name for name in NAMES if "gemma" in name]
TRAINED = [name for name in NAMES if name not in (*MEGATRON, *GEMMA)]
SFT = "fine-tuning/qwen-0_7_0/verl-sft-qwen-3-4b-lora"
DPO = "fine-tuning/qwen-0_7_0/verl-dpo-qwen-3-dot-5-4b-lora"
EXPERTS = "fine-tuning/gpt_oss-0_7_0/verl-sft-gpt-oss-20b-lora"
GRPO = "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-4b-lora"
TRAINING = "recipes.training_config"
K8S = ("cluster=k8s", "instance_type=p5.48xlarge")
IMAGE = "container=registry.example/mine:1"

REFUSED = [
    # recipe, key, value, further overrides, a word of the text
    (DPO, "data.apply_chat_template_kwargs", "{documents: []}", (), "enable_thinking only"),
    (DPO, "data.apply_chat_template_kwargs.enable_thinking", "later", (), "true or false"),
    (SFT, "data.custom_cls.path", "own.py", (), "imported"),
    (SFT, "data.max_length", "null", (), "at a length"),
    (SFT, "data.messages_key", "chat", (), "in this column"),
    (DPO, "data.shuffle", "false", (), "shuffled"),
    (SFT, "data.train_files", "[a.parquet, b.parquet]", (), "one file"),
    (SFT, "data.val_files", "[a.parquet, b.parquet]", (), "one file"),
    (SFT, "data.truncation", "error", (), "cut"),
    (SFT, "model.custom_chat_template", "'{{ messages }}'", (), "tokenizer's own"),
    (SFT, "model.external_lib", "mine", (), "imported"),
    (SFT, "model.hf_config_path", "/models/other", (), "config.json"),
    (SFT, "model.lora", "{rank: 8}", (), "Megatron's"),
    (EXPERTS, "model.lora_dropout", "0.05", (), "target_parameters"),
    (SFT, "model.override_config", "{rope_theta: 1}", (), "config.json"),
    (SFT, "model.tokenizer_path", "/models/other", (), "tokenizer"),
    (SFT, "engine.forward_only", "true", (), "trains"),
    (SFT, "engine.fsdp_size", "4", (), "those of a node"),
    (SFT, "engine.strategy", "ddp", (), "FSDP"),
    (SFT, "engine.ulysses_sequence_parallel_size", "2", (), "one rank"),
    (SFT, "optim.num_cycles", "1.5", (), "falls once"),
    (SFT, "optim.optimizer", "SGD", (), "this optimizer"),
    (SFT, "optim.optimizer_impl", "torchao.optim", (), "implementation"),
    (SFT, "optim.override_optimizer_config", "fused", (), "further arguments"),
    (SFT, "optim.total_training_steps", "10", (), "epochs"),
    (SFT, "trainer.default_hdfs_dir", "hdfs://a/b", (), "HDFS"),
    (DPO, "trainer.loss_type", "kto_pair", (), "sigmoid"),
    (SFT, "trainer.total_training_steps", "10", (), "epochs"),
    (SFT, "trainer_callbacks", "[{_target_: os.system}]", (), "imported"),
]
NOTICED = [
    # recipe, key, value, further overrides, a word of the text
    (DPO, "data.remove_invalid_samples", "true", (), "error before training"),
    (SFT, "model.enable_activation_offload", "true", (), "speed or memory"),
    (SFT, "engine.dtype", "float16", (), "bf16"),
    (SFT, "engine.full_determinism", "true", (), "default"),
    (SFT, "engine.model_dtype", "bf16", (), "32 bits"),
    (SFT, "optim.warmup_style", "cosine", (), "lr_scheduler_type"),
    (DPO, "trainer.label_smoothing", "0.1", (f"{TRAINING}.trainer.loss_type=hinge",), "no label smoothing"),
    (DPO, "trainer.training_mode", "sft", (), "determine"),
    (SFT, "checkpoint.save_only_adapter_if_lora", "false", (), "trained parameters"),
]


def conditions(treatment):
    return {key.path for key in TABLE.keys if key.condition and key.condition.treatment is treatment}


def described(prepare, name, *words):
    """Return a recipe's configuration of the trainer, typed, and of its data."""
    job = prepare(f"recipes={name}", "rehearse=true", *words)
    found = trained(job.scales[0].config)
    return settings_of(found, job.scales[0].ranks), DataSettings.of(found["training_config"])


def test_every_recipe_is_trained_or_refused_with_a_reason():
    assert (len(NAMES), len(TRAINED), len(MEGATRON), len(GEMMA)) == (44, 37, 3, 4)


@pytest.mark.slow
def test_each_recipe_becomes_a_complete_configuration_of_the_open_trainer(prepare):
    for name in TRAINED:
        job = prepare(f"recipes={name}", "rehearse=true")
        assert (job.trainer, job.is_rehearsal) == ("open", True)
        found, verl = trained(job.scales[0].config), job.scales[0].config["training_config"]
        given = {path for path, _ in leaves(found) if path.startswith("training_config")}
        assert all(is_field(recipe_model(FINE_TUNING), path) or "preprocessor_cfgs" in path for path in given), name
        settings, data = settings_of(found, job.scales[0].ranks), DataSettings.of(found["training_config"])
        assert settings.technique == data.technique == ("dpo" if "verl-dpo" in name else "sft")
        assert settings.shares.samples_per_step == verl["data"]["train_batch_size"]
        assert settings.shares.micro * data.max_len <= max(verl["data"]["max_token_len_per_gpu"], data.max_len)
        lora = settings.model.lora
        assert (lora.r if lora else 0) == verl["model"]["lora_rank"]
        assert settings.optimizer.schedule.peak == verl["optim"]["lr"]
        assert list(settings.optimizer.betas) == verl["optim"]["betas"]
        assert settings.max_epochs == verl["trainer"]["total_epochs"]


def test_sft_is_the_same_training_by_either_familys_recipe(prepare):
    """Every setting that the trainer reads, of recipes with the same values; names and folders aside."""
    common = {"train_batch_size": 16, "max_epochs": 2, "lr": 2e-4, "warmup": 0.1}
    verl = (
        *(f"{TRAINING}.data.train_batch_size=16", f"{TRAINING}.trainer.total_epochs={common['max_epochs']}"),
        *(f"{TRAINING}.optim.lr={common['lr']}", f"{TRAINING}.optim.lr_warmup_steps_ratio={common['warmup']}"),
        *(f"{TRAINING}.optim.weight_decay=0", f"{TRAINING}.data.use_dynamic_bsz=false"),
        *(f"{TRAINING}.data.micro_batch_size_per_gpu=1", f"{TRAINING}.data.train_val_split_ratio=0.9"),
        f"++{TRAINING}.model.override_config.attn_implementation=sdpa",
    )
    args = f"{TRAINING}.training_args"
    llmft = (
        *(f"{args}.train_batch_size=16", f"{args}.micro_train_batch_size=1", f"{args}.max_epochs=2"),
        *(f"{args}.learning_rate={common['lr']}", f"{args}.lr_warmup_ratio=0.1", f"{args}.max_len=4096"),
        *(f"++{args}.lr_min_ratio=0", f"++{args}.merge_weights=true"),
        *(f"{TRAINING}.model_config.{key}" for key in ("peft_config.r=32", "peft_config.lora_alpha=64")),
        *(
            f"{TRAINING}.model_config.peft_config.lora_dropout=0",
            f"{args}.strategy.fsdp_config.forward_prefetch=true",
        ),
        f"{TRAINING}.model_config.model_name_or_path=Qwen/Qwen3-4B",
        *(f"{args}.strategy.fsdp_config.sharding_strategy=FULL_SHARD", f"{args}.save_hf_ckpt=true"),
    )
    found, of_data = described(prepare, SFT, *verl)
    job = prepare("recipes=fine-tuning/qwen/llmft_qwen3_4b_seq4k_gpu_sft_lora", "rehearse=true", *llmft)
    other = settings_of(job.scales[0].config, job.scales[0].ranks)
    same = dataclasses.replace(found, name=other.name, tracking=other.tracking)
    same = dataclasses.replace(same, model=dataclasses.replace(same.model, save_name=other.model.save_name))
    # verl's recipe starts anew in a folder with checkpoints; LLMFT's resumes
    same = dataclasses.replace(same, saving=dataclasses.replace(same.saving, resumes=True))
    assert same == other
    expected = DataSettings.of(job.scales[0].config["training_config"])
    assert (of_data.max_len, of_data.split_ratio, of_data.chain.ignore_prompt_labels) == (
        expected.max_len,
        expected.split_ratio,
        expected.chain.ignore_prompt_labels,
    )


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("optim.lr_warmup_steps=10", ("warmup_steps", 10)),
        ("optim.lr_warmup_steps=0", ("warmup_steps", None)),
        ("optim.min_lr_ratio=0.1", ("min_ratio", 0.1)),
        ("optim.lr_scheduler_type=constant", ("kind", "constant_with_warmup")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_schedule_is_verls(prepare, word, value):
    settings, _ = described(prepare, SFT, f"{TRAINING}.{word}")
    assert getattr(settings.optimizer.schedule, value[0]) == value[1]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("save_freq=after_each_epoch", {"every": 0}),
        ("save_freq=-1", {"every": -1}),
        ("save_freq=0", {"every": -1}),
        ("save_freq=7", {"every": 7}),
        ("resume_mode=auto", {"resumes": True, "resume_path": ""}),
        ("resume_mode=disable", {"resumes": False}),
        ("resume_mode=resume_path", {"resumes": False, "resume_path": ""}),
        ("resume_from_path=/c/step-3", {"resumes": True, "resume_path": "/c/step-3"}),
        ("default_local_dir=/fsx/mine", {"folder": "/fsx/mine"}),
        ("default_local_dir=/opt/ml/model", {"folder": ""}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_checkpoints_have_verls_rhythm_and_place(prepare, word, expected):
    settings, _ = described(prepare, SFT, f"{TRAINING}.trainer.{word}")
    assert {key: getattr(settings.saving, key) for key in expected} == expected


@pytest.mark.parametrize(("frequency", "steps"), [("-1", 0), ("5", 5), ("after_each_epoch", -1)])
def test_evaluation_has_verls_rhythm(prepare, frequency, steps):
    assert described(prepare, SFT, f"{TRAINING}.trainer.test_freq={frequency}")[0].eval_steps == steps


def test_a_pass_holds_as_many_of_the_longest_samples_as_the_budget_of_tokens(prepare):
    assert described(prepare, SFT, "rehearse.ranks=2")[0].shares.micro == 4  # 16,384 of 4096
    alone = (f"{TRAINING}.data.use_dynamic_bsz=false", f"{TRAINING}.data.micro_batch_size_per_gpu=2")
    assert described(prepare, SFT, "rehearse.ranks=2", *alone)[0].shares.micro == 2


def test_columns_and_thinking_go_to_the_data(prepare):
    words = (f"{TRAINING}.data.chosen_key=good", f"{TRAINING}.data.rejected_key=bad", f"{TRAINING}.data.prompt_key=q")
    thinking = f"++{TRAINING}.data.apply_chat_template_kwargs.enable_thinking=false"
    chain = described(prepare, DPO, *words, thinking)[1].chain
    assert (chain.prompt_key, chain.chosen_key, chain.rejected_key) == ("q", "good", "bad")
    assert chain.template_variables == (("enable_thinking", False),)


def test_the_bundle_has_the_trainers_own_configuration(render):
    words = (f"{TRAINING}.model.path=/opt/ml/model-4b", f"{TRAINING}.data.train_files=/opt/ml/a.parquet")
    bundle = render(f"recipes={SFT}", *K8S, "cluster.trainer=open", IMAGE, *words)
    config = yaml.safe_load(bundle.files[f"{CONFIG_DIR}/config.yaml"])
    assert config["run"]["model_type"] == FINE_TUNING
    assert config["training_config"]["model_config"]["model_name_or_path"] == "/opt/ml/model-4b"
    assert f"{CONFIG_DIR}/verl_config.yaml" not in bundle.files
    published = render(f"recipes={SFT}", *K8S, words[1])
    assert yaml.safe_load(published.files[f"{CONFIG_DIR}/config.yaml"])["run"]["model_type"] == "verl"


@pytest.mark.parametrize("name", [*MEGATRON[:1], GRPO], ids=["megatron", "grpo"])
@pytest.mark.parametrize(
    ("word", "code", "path"),
    [("cluster.trainer=open", "E114", "cluster.trainer"), ("rehearse=true", "E115", "rehearse")],
    ids=["trainer", "rehearse"],
)
def test_a_recipe_that_the_open_trainer_cannot_train_says_why(problems, name, word, code, path):
    found = {(each.code, each.path): each for each in problems(f"recipes={name}", "cluster=k8s", word)}
    says = "Megatron divides each layer" if "nemotron" in name else "GRPO generates answers"
    assert says in found[code, path].message


@pytest.mark.parametrize("name", GEMMA)
def test_an_unknown_architecture_does_not_rehearse(problems, name):
    (problem,) = problems(f"recipes={name}", "rehearse=true")
    assert (problem.code, problem.path) == ("E116", f"{TRAINING}.model.path")


def test_a_model_and_data_that_are_not_there_are_problems_before_the_launch(problems, prepare, tmp_path):
    (problem,) = problems(f"recipes={SFT}")
    assert (problem.code, problem.path) == ("E116", f"{TRAINING}.data.train_files")
    (tmp_path / "train.jsonl").touch()
    assert prepare(f"recipes={SFT}", f"{TRAINING}.data.train_files=[train.jsonl]").trainer == "open"


def test_an_elastic_job_keeps_its_one_size(problems):
    elastic = ("++recipes.elastic_policy={is_elastic:true,min_nodes:1,max_nodes:2,use_graceful_shutdown:true}",)
    assert "E121" in {each.code for each in problems(f"recipes={SFT}", "rehearse=true", *elastic)}


@pytest.mark.slow
def test_every_key_of_every_recipe_is_named(tmp_path):
    trees = [compose([f"recipes={name}"], tmp_path, cache=CACHE).tree["recipes"] for name in (*TRAINED, *GEMMA)]
    assert {path for tree in trees for path, _ in leaves(tree) if TABLE.key_of(path) is None} == set()


def test_no_key_is_named_twice():
    paths = [key.path for key in TABLE.keys]
    assert len(paths) == len(set(paths)) and LLMFT_TABLE.keys


@pytest.mark.parametrize(
    ("recipe", "key", "value", "more", "says"), REFUSED, ids=[f"{k}={v}" for _, k, v, *_ in REFUSED]
)
def test_a_value_that_cannot_be_followed_is_a_problem(problems, recipe, key, value, more, says):
    found = problems(f"recipes={recipe}", "rehearse=true", f"++{TRAINING}.{key}={value}", *more)
    (problem,) = [each for each in found if each.code == "E118"]
    assert problem.path == f"{TRAINING}.{key}" and says in str(problem)


def test_every_refusal_is_tested():
    assert {f"training_config.{key}" for _, key, *_ in REFUSED} == conditions(Treatment.REFUSED)


@pytest.mark.parametrize(
    ("recipe", "key", "value", "more", "says"), NOTICED, ids=[f"{k}={v}" for _, k, v, *_ in NOTICED]
)
def test_a_value_without_effect_is_a_notice(prepare, recipe, key, value, more, says):
    job = prepare(f"recipes={recipe}", "rehearse=true", f"++{TRAINING}.{key}={value}", *more)
    found = [notice.message for notice in job.notices if notice.code == "N174" and key in notice.message]
    assert len(found) == 1 and says in found[0]


def test_every_notice_is_tested():
    assert {f"training_config.{key}" for _, key, *_ in NOTICED} == conditions(Treatment.NOTICED)
