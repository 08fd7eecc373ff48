"""How large checkpoints are and how often to save: the document's numbers, published ones, and laws of the models."""

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.checkpointing import architecture, report
from launcher.checkpointing.architecture import lora_parameters
from launcher.checkpointing.forecast import (
    GB,
    GIB,
    MEMORY,
    PERSISTENT,
    RATE_PER_NODE_HOUR,
    SERVICE_HOST_COPIES,
    WAITING,
    Copies,
    Forecast,
    Saving,
    Share,
    daly,
    forecast,
    memory_needed,
    mtbf_s,
    share,
    young,
)
from launcher.config.compose import compose
from launcher.model.checkpointing import SHARDINGS, Checkpointing, Content, Estimate
from launcher.planning.check import check, examine
from launcher.runtime import model_configs

LORA = {"r": 16, "bias": "none", "target_modules": "all-linear", "use_dora": False}
LLMFT_MODEL = "recipes.training_config.model_config.model_name_or_path"
VERL_MODEL = "recipes.training_config.actor_rollout_ref.model.path"
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
TABLE_ONLY_70B, TABLE_ONLY_671B = 70 * 10**9, 671 * 10**9

PUBLISHED = {
    LLAMA_8B: 8_030_261_248,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3.5-4B": 4_205_751_296,
    "Qwen/Qwen3.5-9B": 8_953_803_264,
    "Qwen/Qwen3.5-27B": 26_895_998_464,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/DeepSeek-R1": 671_026_419_200,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "mistralai/Ministral-3-8B-Base-2512": 8_489_553_920,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "THUDM/glm-4-9b-chat-hf": 9_399_951_360,
    "baidu/ERNIE-4.5-0.3B-PT": 360_748_032,
    "inceptionai/Jais-2-8B-Chat": 8_090_401_280,
}
"""Parameters of the published weights.

Source: transformers 5.23, each model built from its config.json on torch's meta device; R1 with its routers' biases,
which are buffers there.
"""
QWEN3_30B_A3B = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
    **{"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    **{"num_experts": 128, "vocab_size": 151936, "tie_word_embeddings": False},
}
DEEPSEEK_V2_LITE = {
    **{"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408},
    **{"num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64},
    **{"n_shared_experts": 2, "first_k_dense_replace": 1, "vocab_size": 102400},
}
BIASED = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "vocab_size": 100, "attention_bias": True, "mlp_bias": True},
}

DOCUMENT_MTBF_HOURS = 3
"""Of the run that the failure rate is from. Source: AWS, managed tiered checkpointing, introduction."""


@pytest.mark.parametrize(
    ("parameters", "gib", "gib_with_optimizer"),
    [pytest.param(TABLE_ONLY_70B, 130.4, 521.5, id="70B"), pytest.param(TABLE_ONLY_671B, 1249.8, 4999.3, id="671B")],
)
def test_the_documents_table(parameters, gib, gib_with_optimizer):
    content = Content(parameters, "bfloat16", "adam_fp16", "fsdp")
    assert round(content.weight_bytes / GIB, 1) == gib
    assert round(content.total_bytes / GIB, 1) == gib_with_optimizer
    assert content.total_bytes == 4 * content.weight_bytes


def test_the_documents_1_43_tb_is_none_of_671_billion_parameters():
    bytes_ = Content(TABLE_ONLY_671B, "bfloat16", "none", "fsdp").total_bytes
    units = (1000 * GIB, 2**40, 1000 * GB)
    assert [round(bytes_ / unit, 2) for unit in units] == [1.25, 1.22, 1.34]


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_known_models_are_the_published_ones(name):
    assert architecture.num_parameters(model_configs.table()[name]) == PUBLISHED[name]


def test_every_known_model_is_counted_and_tested_or_shares_its_weights_with_one_that_is():
    counts = {name: architecture.num_parameters(config) for name, config in model_configs.table().items()}
    assert set(counts.values()) == set(PUBLISHED.values())


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        pytest.param(QWEN3_30B_A3B, 30_532_122_624, id="Qwen3-30B-A3B"),
        pytest.param(DEEPSEEK_V2_LITE, 15_706_484_224, id="DeepSeek-V2-Lite"),
        pytest.param(DEEPSEEK_V2_LITE | {"attention_bias": True}, 15_706_555_072, id="latent biases"),
        pytest.param(BIASED, 96_192, id="biases everywhere"),
        pytest.param({"model_type": "mllama", "text_config": BIASED}, 96_192, id="a model of several parts"),
    ],
)
def test_other_configurations_are_counted(config, parameters):
    assert architecture.num_parameters(config) == parameters


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"model_type": "mamba"}, "'mamba' is not supported", id="architecture"),
        pytest.param({"hidden_size": None}, "not a size", id="no size"),
        pytest.param({"num_attention_heads": 0}, "not a size", id="zero"),
        pytest.param({"vocab_size": "32"}, "not a size", id="text"),
        pytest.param({"hidden_size": 64.5}, "not a size", id="fraction"),
        pytest.param({"num_hidden_layers": -2}, "not a size", id="negative"),
        pytest.param({"vocab_size": 10**200}, "not a size", id="too many"),
        pytest.param({"model_type": ["llama"]}, "is not supported", id="architectures"),
        pytest.param({"model_type": None, "text_config": "llama"}, "is not supported", id="no part"),
    ],
)
def test_what_cannot_be_counted_is_not_guessed(change, says):
    with pytest.raises(architecture.UnknownArchitecture, match=says):
        architecture.num_parameters({**BIASED, **change})


def test_a_size_that_is_missing_is_named():
    config = {key: value for key, value in BIASED.items() if key != "intermediate_size"}
    with pytest.raises(architecture.UnknownArchitecture, match="intermediate_size"):
        architecture.num_parameters(config)


@pytest.mark.parametrize(
    ("name", "change", "parameters"),
    [
        pytest.param(LLAMA_8B, {}, 41_943_040, id="all-linear"),
        pytest.param(LLAMA_8B, {"r": 8, "target_modules": ["q_proj", "v_proj"]}, 3_407_872, id="q and v"),
        pytest.param(LLAMA_8B, {"exclude_modules": ["down_proj"]}, 41_943_040 - 32 * 16 * 18432, id="excluded"),
        pytest.param(LLAMA_8B, {"use_dora": True}, 41_943_040 + 32 * (4096 * 3 + 2 * 1024 + 2 * 14336), id="dora"),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", {"bias": "lora_only"}, 40_370_176 + 28 * 4608, id="biases"),
        pytest.param(
            "openai/gpt-oss-20b", {"target_modules": "all-linear"}, 24 * 16 * 2 * (6976 + 3392), id="experts apart"
        ),
        pytest.param(
            "openai/gpt-oss-20b",
            {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
            24 * 16 * (2 * (6976 + 3392) + 32 * (8640 + 5760)),
            id="experts too",
        ),
    ],
)
def test_adapters_alone_are_counted(name, change, parameters):
    assert lora_parameters(architecture.weights(model_configs.table()[name]), LORA | change) == parameters


SIZES = {"total": st.integers(1, 10**13), "nodes": st.integers(1, 4096), "per_node": st.integers(1, 64)}


@given(**SIZES)
def test_shares_cover_the_checkpoint_once(total, nodes, per_node):
    fsdp, hsdp, ddp = (share(total, sharding, nodes, per_node) for sharding in SHARDINGS)
    ranks = nodes * per_node
    for spread in (fsdp, hsdp):
        assert total <= spread.written * spread.writers < total + ranks
        assert total <= spread.node_written * nodes < total + nodes
    assert ddp.written * ddp.writers == total == ddp.held == ddp.node_written
    assert fsdp.held <= hsdp.held <= ddp.held
    dealt = share(total, "ddp", nodes, per_node, is_dealt=True)
    assert (dealt.held, dealt.written, dealt.node_written) == (total, hsdp.written, hsdp.node_written)
    assert fsdp == share(total, "fsdp", nodes, per_node) and (nodes > 1 or fsdp.held == hsdp.held)


def test_memory_holds_what_is_kept_what_is_written_and_what_is_copied():
    assert memory_needed(10, retention=3, replicas=1) == 90
    assert memory_needed(10, retention=1, replicas=0) == 30
    # a node's service: three staged saves and the body of a request
    assert memory_needed(10, 3, 1, SERVICE_HOST_COPIES) == 10 * (4 * 2 + 3 + 1)


@pytest.mark.parametrize(
    ("mtbf_min", "minutes"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)], ids=["24 h", "6 h", "15 min"]
)
def test_intervals_are_those_of_dalys_examples(mtbf_min, minutes):
    """Source: Daly (2006), figures 3 to 5: a dump of 5 minutes."""
    found = daly(5 * 60, mtbf_min * 60) / 60
    assert round(found, 1 if minutes < 10 else 0) == minutes


def test_the_first_order_is_the_square_root():
    assert young(2, 900) == 60
    assert [daly(7, 3), daly(6, 3)] == [3, 3]


def test_the_higher_order_is_the_sum_of_its_terms():
    """δ = 2 and M = 4: √16 · (1 + ⅓·½ + ⅑·¼) − 2."""
    assert daly(2, 4) == pytest.approx(4 * (1 + 1 / 6 + 1 / 36) - 2)


def test_the_published_rate_is_the_documents_one_failure_in_three_hours():
    assert mtbf_s(RATE_PER_NODE_HOUR, 2048) / 3600 == pytest.approx(DOCUMENT_MTBF_HOURS, rel=0.04)


@given(cost=st.floats(0.01, 600), mtbf=st.floats(1800, 1e7), restart=st.floats(0, 3600))
def test_no_interval_is_much_better_than_the_chosen_one(cost, mtbf, restart):
    saving = Saving(cost, cost, restart, mtbf)
    chosen = saving.goodput(saving.interval_s)
    others = (saving.goodput(saving.interval_s * factor) for factor in (0.25, 0.5, 0.8, 0.95, 1.05, 1.25, 2, 4))
    assert 0 < chosen < 1 and max(others) <= chosen * 1.002


def simulated(saving, interval_s, rng, until_s):
    """Return the goodput of a job that fails at random: work counts once the checkpoint that holds it is complete."""
    now, kept, next_failure = 0.0, 0.0, rng.expovariate(1 / saving.mtbf_s)
    while now < until_s:
        behind = saving.save_s - saving.blocked_s
        begins, done, safe = now, 0.0, 0.0
        while True:
            now += interval_s + saving.blocked_s
            done += interval_s
            if now + behind > next_failure:
                # of this round's saves, those that were complete when it failed
                whole = int((next_failure - begins - behind) // (interval_s + saving.blocked_s))
                safe = max(0, whole) * interval_s
                break
            if now > until_s:
                return (kept + done) / now
        kept += safe
        now = next_failure
        while True:  # a failure while restarting begins the restart again
            next_failure = now + rng.expovariate(1 / saving.mtbf_s)
            if next_failure > now + saving.restart_s:
                now += saving.restart_s
                break
            now = next_failure
    return kept / now


@pytest.mark.parametrize(
    "saving",
    [
        pytest.param(Saving(300, 300, 600, 6 * 3600), id="training waits"),
        pytest.param(Saving(20, 600, 300, 3 * 3600), id="behind training"),
        pytest.param(Saving(1, 30, 300, 24 * 3600), id="to memory"),
    ],
)
def test_goodput_is_what_a_simulation_finds(saving):
    found = simulated(saving, saving.interval_s, random.Random(7), until_s=4000 * saving.mtbf_s)
    assert saving.goodput(saving.interval_s) == pytest.approx(found, rel=0.01)


def test_saves_never_overlap_and_hopeless_jobs_make_no_progress():
    slow = Saving(1, 500, 60, 3600)
    assert slow.interval_s == 499 > daly(1, 3600)
    assert Saving(1e6, 1e6, 60, 10).goodput(1e6) == 0 == Saving(1, 1, 1e6, 10).goodput(1)
    free = Saving(0, 0, 0, 1e-3)
    assert free.interval_s == 2**-52 and math.isfinite(free.goodput(free.interval_s))


EIGHT_BILLION = Content(8 * 10**9, "bfloat16", "adam_fp16", "fsdp")
"""64 GB: 2 bytes of a weight and 6 of the optimizer for each parameter."""
EXPECTED = Forecast(
    content=EIGHT_BILLION,
    ranks_per_node=8,
    sizes=(1, 2, 4),
    section=Checkpointing(copy_every=5),
    failures_per_node_hour=0.01,
    restart_s=300,
    step_s=None,
    copy_rate=40,
    memory_rate=8,
    persistent_rate=1,
    storage_rate=None,
)


@pytest.mark.parametrize(
    ("way", "blocked_s", "save_s"), [(WAITING, 16.4, 16.4), (PERSISTENT, 0.4, 16.4), (MEMORY, 0.4, 2.4)]
)
def test_each_way_of_saving_takes_its_bytes_over_its_rate(way, blocked_s, save_s):
    """Each of 4 nodes has 16 GB of 64: 0.4 s to copy at 40 GB/s, then 16 s at 1 GB/s, or 2 s at 8 GB/s."""
    found = EXPECTED.saving(way, 4)
    assert (found.blocked_s, found.save_s) == pytest.approx((blocked_s, save_s))
    assert (found.restart_s, found.mtbf_s) == pytest.approx((300, 3600 / 0.04))


def test_storage_that_all_nodes_share_bounds_a_save_where_it_is_the_slower_part():
    shared = dataclasses.replace(EXPECTED, storage_rate=2)
    assert [shared.persistent_s(nodes) for nodes in (1, 4)] == pytest.approx([64, 32])
    assert [EXPECTED.persistent_s(nodes) for nodes in (1, 4)] == pytest.approx([64, 16])
    assert dataclasses.replace(EXPECTED, persistent_rate=1000).persistent_s(4) == pytest.approx(0.016)
    assert (GIB, GB) == (1_073_741_824, 1_000_000_000)


def test_a_forecast_shares_a_checkpoint_as_its_content_is_sharded_or_another_way():
    one_writes = share(64 * 10**9, "ddp", 2, 8)
    assert one_writes == Share("ddp", 64 * 10**9, 64 * 10**9, 1, 64 * 10**9) == EXPECTED.share(2, "ddp")
    assert EXPECTED.share(2) == Share("fsdp", 4 * 10**9, 4 * 10**9, 16, 32 * 10**9)
    assert EXPECTED.share(2, "hsdp") == Share("hsdp", 8 * 10**9, 4 * 10**9, 16, 32 * 10**9)
    dealt = dataclasses.replace(EXPECTED, content=EIGHT_BILLION._replace(is_dealt=True))
    assert dealt.share(2, "ddp") == Share("ddp", 64 * 10**9, 4 * 10**9, 16, 32 * 10**9)


def test_copies_with_neighbours_take_four_parts_of_a_node_and_the_time_of_two_transfers():
    assert EXPECTED.copies(4) == Copies(5, 64 * 10**9, pytest.approx(0.4 + 2))
    assert EXPECTED.copies(2) == Copies(5, 128 * 10**9, pytest.approx(0.8 + 4))
    replicated = dataclasses.replace(EXPECTED, content=EIGHT_BILLION._replace(sharding="hsdp"))
    unasked = dataclasses.replace(EXPECTED, section=Checkpointing())
    assert (EXPECTED.copies(1), replicated.copies(4), unasked.copies(4)) == (None, None, None)


TINY, LLAMA_1B = "training/tiny/tiny_lm_cpu", "fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_fft"

QWEN3_8B = "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-fft"
"""A recipe that does not name its model, which is known by the recipe's own name."""


@pytest.fixture
def forecast_of(context):
    """Return a function from a recipe, an estimate and a configuration to the forecast."""

    def found(recipe, *given, words=()):
        return forecast(check(compose((f"recipes={recipe}", *words), context.cwd)), *given)

    return found


def test_a_recipe_without_an_estimate_has_the_published_failures_and_slow_rates(forecast_of):
    """Source: The Llama 3 Herd of Models, section 3.3.4: 419 interruptions in 54 days, of 16,384 GPUs."""
    found = forecast_of(TINY)
    assert 1 / (found.failures_per_node_hour * 16_384 / 8) == pytest.approx(54 * 24 / 419)
    assert (found.copy_rate, found.memory_rate, found.persistent_rate, found.storage_rate) == (40, 10, 1, None)
    assert (found.restart_s, found.step_s, found.section) == (300, None, Checkpointing())


def test_an_estimate_replaces_every_value_of_a_forecast(forecast_of):
    rates = {"copy_gb_per_s": 2.0, "memory_gb_per_s": 3.0, "persistent_gb_per_s": 4.0, "storage_gb_per_s": 5.0}
    content = {"parameters": 7, "dtype": "float8", "optimizer": "none", "sharding": "hsdp"}
    given = Estimate(failures_per_node_hour=0.5, restart_s=6.0, step_s=8.0, **rates, **content)
    found = forecast_of(LLAMA_1B, given, {"model_type": "not counted"})
    assert (found.copy_rate, found.memory_rate, found.persistent_rate, found.storage_rate) == (2, 3, 4, 5)
    assert (found.failures_per_node_hour, found.restart_s, found.step_s) == (0.5, 6, 8)
    assert found.content == Content(7, "float8", "none", "hsdp", None)


def test_a_recipes_own_estimate_counts_until_another_is_given(forecast_of):
    words = ("++recipes.checkpointing.estimate.step_s=2.5", "++recipes.checkpointing.copy_every=4")
    found = forecast_of(TINY, words=words)
    assert (found.step_s, found.section.copy_every) == (2.5, 4)
    assert forecast_of(TINY, Estimate(), words=words).step_s is None


def test_the_content_of_a_forecast_is_that_of_the_recipes_model_or_of_a_given_one(forecast_of):
    found = forecast_of(LLAMA_1B)
    assert found.content == Content(1_235_814_400, "bfloat16", "adam_fp32_master", "ddp", 1_235_814_400)
    other = forecast_of(LLAMA_1B, None, DEEPSEEK_V2_LITE).content
    assert (other.saved, other.parameters) == (15_706_484_224, 15_706_484_224)
    published = ("cluster=k8s", "instance_type=p5.48xlarge", "recipes.training_config.data.train_files=/data/a")
    assert forecast_of(QWEN3_8B, words=published).content.parameters == PUBLISHED["Qwen/Qwen3-8B"]


def test_the_tiny_model_is_counted_as_it_is_built(prepare):
    torch = pytest.importorskip("torch")
    from launcher.families.tiny_lm import ModelConfig, _num_parameters
    from launcher.runtime.model import TinyLM

    for sizes in ({"hidden_size": 64, "num_layers": 2}, {"hidden_size": 24, "num_layers": 5}):
        config = {"vocab_size": 256, "num_heads": 4, "dropout": 0.0} | sizes
        with torch.device("meta"):
            built = TinyLM(**config, max_len=48)
        assert _num_parameters(ModelConfig(**config), 48) == sum(p.numel() for p in built.parameters())


def test_a_model_in_a_folder_is_counted_by_its_config_json(recipes, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(DEEPSEEK_V2_LITE))
    name = "llmft_llama3_3_70b_instruct_seq4k_gpu_dpo_fft"
    key = "recipes.training_config.model_config.model_name_or_path"
    code, out, _ = recipes("checkpoint", name, "cluster=k8s", f"{key}={tmp_path}/model", "--json")
    assert code == 0 and json.loads(out)["saved"] == 15_706_484_224


def test_a_models_config_json_is_counted_by_the_command(recipes, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    code, out, _ = recipes("checkpoint", "tiny_lm_cpu", "--config", "config.json", "--json")
    assert code == 0 and json.loads(out)["saved"] == 30_532_122_624


@pytest.mark.parametrize("method", ["dpo_fft", "sft_fft"])
def test_a_variant_of_a_published_model_has_its_parameters(tmp_path, method):
    name = f"fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_{method}"
    checked = check(compose([f"recipes={name}", "cluster=k8s"], tmp_path))
    assert checked.recipe.content(None, checked.published_model).parameters == 20_914_757_184


@pytest.mark.parametrize(
    ("recipe", "key", "model", "parameters"),
    [
        ("llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_fft", LLMFT_MODEL, "/fsx/weights", 8_030_261_248),
        ("gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_fft", LLMFT_MODEL, "s3://mine/weights", 20_914_757_184),
        ("llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_fft", LLMFT_MODEL, "mine/of-unknown-size", None),
        ("qwen/verl-grpo-rlvr-qwen-2-dot-5-7b-instruct-fft", VERL_MODEL, "/fsx/weights", 7_615_616_512),
        ("qwen/verl-grpo-rlvr-qwen-2-dot-5-7b-instruct-fft", VERL_MODEL, "mine/of-unknown-size", None),
    ],
)
def test_weights_in_a_folder_are_counted_as_those_of_the_recipes_model(recipe, key, model, parameters):
    checked, _ = examine(compose([f"recipes=fine-tuning/{recipe}", "cluster=k8s", f"{key}={model}"], Path.cwd()))
    found = forecast(checked)
    assert (found and found.content.saved) == parameters
    assert (found is None) == (parameters is None)
    assert found is None or next(report.lines(found, 1))[0].endswith(
        f", as many as {found.assumed_model}, the recipe's model, has"
    )
