"""What the open trainer does with each key of a recipe: every key is named, and every refusal is one Problem."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from conftest import CACHE, ELASTIC, shipped

from launcher import pipeline
from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.families import verl
from launcher.families.llm_finetuning_aws import OPEN_RECIPE
from launcher.families.llm_finetuning_aws.rules import _TECHNIQUES
from launcher.families.verl import open_keys
from launcher.model.config_tree import leaves
from launcher.model.family_registry import recipe_model
from launcher.model.validation import field_names, is_field, submodel
from launcher.runtime.finetune.data.settings import _KNOWN
from launcher.runtime.finetune.key_terms import Treatment
from launcher.runtime.finetune.keys import TABLE

FAMILY = "llm_finetuning_aws"
ENTRIES = [entry for entry in shipped() if entry.model_type == FAMILY]
SFT = "fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
DPO = "fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_dpo"
EXPERTS = "fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_lora"
ARGS = "training_config.training_args"
MODEL = "training_config.model_config"
FSDP = f"{ARGS}.strategy.fsdp_config"
LORA = f"{MODEL}.peft_config"
STEPS = "training_config.datasets.preprocessor_cfgs"

REFUSED = [
    # recipe, key, value, further overrides, a word of the text
    (SFT, f"{MODEL}.multimodal", "true", (), "images"),
    (SFT, f"{MODEL}.model_revision", "v1", (f"recipes.{MODEL}.model_name_or_path=/models/mine",), "no revisions"),
    (SFT, f"{LORA}.bias", "all", (), "biases"),
    (SFT, f"{MODEL}.model_save_name", "models/../../mine", (), "without .."),
    (EXPERTS, f"{LORA}.lora_dropout", "0.05", (), "target_parameters"),
    (SFT, f"{LORA}.task_type", "SEQ_CLS", (), "language models"),
    (SFT, f"{LORA}.use_dora", "true", (), "DoRA"),
    (SFT, f"{ARGS}.disable_ds_ckpt", "true", (ELASTIC,), "elastic job"),
    (SFT, f"{ARGS}.l2", "0.1", (f"recipes.{ARGS}.weight_decay=0.2",), "weight decay"),
    (DPO, f"{ARGS}.loss_type", "robust", (), "hinge"),
    (SFT, f"{ARGS}.lr_scheduler", "reduce_lr_on_plateau", (), "evaluations"),
    (SFT, f"{ARGS}.ring_attn_size", "2", (f"recipes.{ARGS}.micro_train_batch_size=1",), "one rank"),
    (SFT, f"{ARGS}.ulysses_sequence_parallel_size", "2", (), "one rank"),
    (SFT, f"{FSDP}.auto_wrap_policy", "SIZE_BASED_WRAP", (), "transformer blocks"),
    (SFT, f"{FSDP}.state_dict_type", "LOCAL_STATE_DICT", (), "form of checkpoint"),
    (SFT, f"{ARGS}.trainer_callbacks", "[{_target_: os.system}]", (), "imported"),
    (SFT, STEPS, "[{type: Unheard}]", (), "unknown step type 'Unheard'"),
    (SFT, STEPS, "[{type: ApplyChatTemplate}]", (), "trainer_type sft"),
    (SFT, STEPS, "[{type: TrainingSFTSampleConverter, mode: x}]", (), "no argument mode"),
]
NOTICED = [
    # recipe, key, value, further overrides, a word of the text
    (SFT, "extra_keys", "[training_config.mine]", ("++recipes.training_config.mine=1",), "no further keys"),
    (SFT, f"{MODEL}.apply_chat_template", "true", (), "preprocessing steps"),
    (SFT, f"{MODEL}.chat_template_key", "mine", (), "published image"),
    (SFT, f"{MODEL}.device_map", "auto", (), "sharding"),
    (DPO, f"{ARGS}.M", "2", (), "image's trainer"),
    (SFT, f"{ARGS}.disable_fast_tokenizer", "true", (), "one kind"),
    (SFT, f"{ARGS}.grad_accum_dtype", "bf16", (), "32 bits"),
    (SFT, f"{ARGS}.gradient_checkpointing_use_reentrant", "true", (), "not reentrant"),
    (DPO, f"{ARGS}.label_smoothing", "0.1", (f"recipes.{ARGS}.loss_type=hinge",), "no label smoothing"),
    (SFT, f"{ARGS}.max_norm", "2.5", (), "gradient_clipping_threshold"),
    (DPO, f"{ARGS}.ref_offload", "true", (), "reference"),
    (SFT, f"{ARGS}.ring_head_stride", "2", (), "ring attention"),
    (DPO, f"{ARGS}.sampling_method", "other", (), "image's trainer"),
    (SFT, f"{FSDP}.backward_prefetch", "BACKWARD_POST", (), "gathered ahead"),
    (SFT, f"{FSDP}.cpu_ram_efficient_loading", "false", (), "always so"),
    (SFT, f"{FSDP}.sync_module_states", "false", (), "always so"),
    (SFT, f"{FSDP}.use_orig_params", "false", (), "always so"),
    (SFT, f"{ARGS}.use_tensorboard", "elsewhere", (), "MLflow"),
]


def words(recipe: str, key: str, value: str, more: tuple[str, ...]) -> list[str]:
    return [f"recipes={recipe}", "rehearse=true", f"++recipes.{key}={value}", *more]


def conditions(treatment: Treatment) -> set[str]:
    return {key.path for key in TABLE.keys if key.condition and key.condition.treatment is treatment}


def named_paths(model: Any, above: str = "") -> Iterator[str]:
    for name in field_names(model):
        inner = submodel(model, name)
        yield from named_paths(inner, f"{above}{name}.") if inner else (f"{above}{name}",)


def test_each_family_finds_its_keys_where_it_names_them():
    assert OPEN_RECIPE.table() is TABLE
    assert verl.OPEN_RECIPE.table() is open_keys.TABLE


@pytest.mark.slow
def test_every_key_of_every_recipe_is_named(tmp_path):
    assert len(ENTRIES) == 86 + 24  # published and our own
    trees: list[Mapping[str, Any]] = [
        compose([f"recipes={entry.name}"], tmp_path, cache=CACHE).tree["recipes"] for entry in ENTRIES
    ]
    unnamed = {path for tree in trees for path, _ in leaves(tree) if TABLE.key_of(path) is None}
    assert unnamed == set()


def test_every_key_that_a_recipe_may_have_is_named():
    assert [path for path in named_paths(recipe_model(FAMILY)) if TABLE.key_of(path) is None] == []


def test_no_named_key_is_stale_or_named_twice():
    paths = [key.path for key in TABLE.keys]
    assert [path for path in paths if not is_field(recipe_model(FAMILY), path)] == []
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("recipe", "key", "value", "more", "says"),
    REFUSED,
    ids=[f"{each[1].rpartition('.')[2]}={each[2]}" for each in REFUSED],
)
def test_a_value_that_cannot_be_followed_is_one_problem(problems, recipe, key, value, more, says):
    (problem,) = problems(*words(recipe, key, value, more))
    assert (problem.code, problem.path) == ("E118", f"recipes.{key}")
    assert says in str(problem) and problem.where


def test_every_refusal_is_tested():
    assert {each[1] for each in REFUSED} == conditions(Treatment.REFUSED)


@pytest.mark.parametrize(
    ("recipe", "key", "value", "more", "says"),
    NOTICED,
    ids=[f"{each[1].rpartition('.')[2]}={each[2]}" for each in NOTICED],
)
def test_a_value_without_effect_is_a_notice(prepare, recipe, key, value, more, says):
    found = [notice.message for notice in prepare(*words(recipe, key, value, more)).notices if notice.code == "N174"]
    (message,) = [message for message in found if key.removeprefix("training_config.") in message]
    assert says in message


def test_every_notice_is_tested():
    assert {each[1] for each in NOTICED} == conditions(Treatment.NOTICED)


@pytest.mark.parametrize(
    "override",
    ["recipes.training_config.force_rerun=true", f"recipes.{MODEL}.generation_cfg.top_p=0.5"],
    ids=["published value", "section"],
)
def test_an_override_of_a_key_without_effect_is_a_notice_whatever_its_value(prepare, override):
    name = override.partition("=")[0].removeprefix("recipes.training_config.")
    messages = [notice.message for notice in prepare(f"recipes={SFT}", "rehearse=true", override).notices]
    assert any(name in message for message in messages)


def test_a_refused_value_of_one_size_is_found_at_that_size(problems):
    key = f"scale_config.2.{MODEL}.multimodal"
    (problem,) = problems(f"recipes={SFT}", "rehearse=true", ELASTIC, f"++recipes.{key}=true")
    assert (problem.code, problem.path) == ("E118", f"recipes.{key}")


@pytest.mark.parametrize("size", ["", "scale_config.2."])
def test_a_key_of_the_open_trainer_is_refused_for_the_published_one(prepare, problems, size):
    key = f"{size}training_config.training_args.max_skipped_steps"
    (problem,) = problems(*words(SFT, key, 5, ("cluster=k8s", "rehearse=false", ELASTIC)))
    assert (problem.code, problem.path, problem.value) == ("E266", f"recipes.{key}", 5)
    prepare(*words(SFT, key, 5, (ELASTIC,)))


def test_the_published_program_is_asked_nothing_of_this(prepare):
    job = prepare(*words(SFT, f"{LORA}.use_dora", "true", ("cluster=k8s", "rehearse=false")))
    assert "N174" not in {notice.code for notice in job.notices}


@pytest.mark.slow
def test_every_recipe_rehearses(prepare):
    for entry in ENTRIES:
        job = prepare(f"recipes={entry.name}", "rehearse=true")
        assert (job.trainer, job.is_rehearsal) == ("open", True)


@pytest.mark.slow
def test_every_recipe_with_checkpoints_rehearses_elastically(context):
    refused = {}
    for entry in ENTRIES:
        words = [f"recipes={entry.name}", "rehearse=true", ELASTIC, "++recipes.scale_config=auto"]
        try:
            pipeline.prepare(words, context, CACHE)
        except ProblemsFound as error:
            refused[entry.name.rpartition("/")[2]] = [problem.path for problem in error.problems]
    key = f"recipes.{ARGS}.disable_ds_ckpt"
    names = ("deepseek_r1_distilled_qwen_1_dot_5b_seq4k_gpu", "qwen3_14b_seq4k_gpu", "qwen3_1_dot_7b_seq4k_gpu")
    assert refused == {f"llmft_{name}_sft_fft": [key] for name in names}


def test_both_trainers_agree_on_the_technique_of_a_preprocessor():
    assert _TECHNIQUES.keys() <= _KNOWN.keys()
    assert {step: _KNOWN[step][1] for step in _TECHNIQUES} == {step: (each,) for step, each in _TECHNIQUES.items()}
