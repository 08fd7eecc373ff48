"""The weights that a config.json describes: their names and kinds, and the keys that change how many there are."""

import pytest
from test_checkpoint_sizes import BIASED, DEEPSEEK_V2_LITE, LORA, PUBLISHED, QWEN3_30B_A3B

from launcher.checkpointing.architecture import UnknownArchitecture, lora_parameters, num_parameters, weights
from launcher.runtime import model_configs

LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
SCOUT = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
GPT_OSS, R1, MIXTRAL = "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-R1", "mistralai/Mixtral-8x7B-v0.1"
GLM, PHI, JAIS = "THUDM/glm-4-9b-chat-hf", "microsoft/Phi-3-mini-4k-instruct", "inceptionai/Jais-2-8B-Chat"
ERNIE, QWEN35 = "baidu/ERNIE-4.5-0.3B-PT", "Qwen/Qwen3.5-9B"


def config_of(model):
    return model_configs.table()[model] if isinstance(model, str) else model


def changed(model, change):
    """Return a model's configuration with keys changed, in the part that is counted."""
    config = config_of(model)
    return {**config.get("text_config", config), **change}


def gated(prefix):
    return {f"{prefix}.{each}_proj" for each in ("gate", "up", "down")}


ATTENTION = {f"self_attn.{each}_proj" for each in "qkvo"}
LATENT = {"self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj"}
FUSED = {"mlp.gate_up_proj", "mlp.down_proj"}
LINEAR_ATTENTION = {
    f"linear_attn.{each}" for each in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        pytest.param(LLAMA_8B, ATTENTION | gated("mlp"), id="llama"),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", ATTENTION | gated("mlp"), id="qwen2"),
        pytest.param(QWEN35, ATTENTION | LINEAR_ATTENTION | gated("mlp"), id="qwen3_5"),
        pytest.param(MIXTRAL, ATTENTION, id="mixtral"),
        pytest.param(
            DEEPSEEK_V2_LITE,
            LATENT | {"self_attn.q_proj"} | gated("mlp") | gated("mlp.shared_experts"),
            id="deepseek_v2",
        ),
        pytest.param(
            R1,
            LATENT | {"self_attn.q_a_proj", "self_attn.q_b_proj"} | gated("mlp") | gated("mlp.shared_experts"),
            id="deepseek_v3",
        ),
        pytest.param(GPT_OSS, ATTENTION, id="gpt_oss"),
        pytest.param(
            SCOUT,
            ATTENTION | {"feed_forward.router"} | gated("feed_forward") | gated("feed_forward.shared_expert"),
            id="llama4",
        ),
        pytest.param(GLM, ATTENTION | FUSED, id="glm"),
        pytest.param(PHI, {"self_attn.qkv_proj", "self_attn.o_proj"} | FUSED, id="phi3"),
        pytest.param(JAIS, ATTENTION | {"mlp.up_proj", "mlp.down_proj"}, id="jais2"),
    ],
)
def test_linear_layers_have_the_names_of_transformers(model, names):
    """Source: transformers 5.23, the modules of torch.nn.Linear in each model but its head."""
    assert {each.name for each in weights(config_of(model)) if each.kind == "linear"} == names


@pytest.mark.parametrize(
    ("model", "router"), [(QWEN3_30B_A3B, "gate"), (R1, "gate"), (GPT_OSS, "router")], ids=["qwen3", "r1", "gpt-oss"]
)
def test_a_mixture_has_a_router_and_its_experts_in_one_parameter_for_each_matrix(model, router):
    kinds = {each.name: each.kind for each in weights(config_of(model)) if each.kind not in ("linear", "other")}
    experts = dict.fromkeys(("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), "experts")
    assert kinds == {"embed_tokens": "embedding", "lm_head": "head", f"mlp.{router}": "router", **experts}


def test_what_is_neither_a_layer_nor_an_expert_is_of_another_kind():
    def others(model):
        return {each.name for each in weights(config_of(model)) if each.kind == "other"}

    assert others(LLAMA_8B) == {"norm", "layernorm"}
    assert others(GPT_OSS) == {"norm", "layernorm", "self_attn.sinks"}
    latent = {"self_attn.q_a_layernorm", "self_attn.kv_a_layernorm", "mlp.gate.e_score_correction_bias"}
    assert others(R1) == {"norm", "layernorm"} | latent
    linear = {"self_attn.qk_norm", "linear_attn.conv1d", "linear_attn.norm", "linear_attn.A_log_and_dt_bias"}
    assert others(QWEN35) == {"norm", "layernorm"} | linear
    assert others(JAIS) == {"norm", "layernorm", "layernorm.bias", "norm.bias"}


ATTENTION_BIASES = {
    GPT_OSS: 24 * (64 * 64 + 2 * 8 * 64 + 2880),
    SCOUT: 48 * (5120 + 2 * 1024 + 5120),
    GLM: 40 * (4096 + 2 * 256),
    JAIS: 32 * (3 * 26 * 128 + 3328),
}
"""Biases of queries, keys and values, and of the output but in GLM: layers, times the outputs of each."""


@pytest.mark.parametrize(
    ("model", "change", "difference"),
    [
        pytest.param(GPT_OSS, {"attention_bias": False}, -ATTENTION_BIASES[GPT_OSS], id="gpt-oss without biases"),
        pytest.param(SCOUT, {"attention_bias": True}, ATTENTION_BIASES[SCOUT], id="llama 4 with biases"),
        pytest.param(GLM, {"attention_bias": False}, -ATTENTION_BIASES[GLM], id="glm without biases"),
        pytest.param(JAIS, {"attention_bias": False}, -ATTENTION_BIASES[JAIS], id="jais without biases"),
        pytest.param(JAIS, {"mlp_bias": False}, -32 * (26624 + 3328), id="jais without biases of the mlp"),
        pytest.param(
            ERNIE, {"use_bias": True}, 18 * (2048 + 2 * 256 + 1024 + 2 * 3072 + 1024), id="ernie with biases"
        ),
        pytest.param(PHI, {"num_key_value_heads": 8}, -32 * 2 * 24 * 96 * 3072, id="phi with fewer keys"),
        pytest.param(PHI, {"num_key_value_heads": None}, 0, id="phi with as many keys as queries"),
        pytest.param(LLAMA_8B, {"tie_word_embeddings": True}, -4096 * 128256, id="llama without a head"),
        pytest.param(LLAMA_8B, {"head_dim": 64}, -32 * 4096 * 64 * (32 + 8 + 8 + 32), id="llama with smaller heads"),
        pytest.param(
            SCOUT,
            {"interleave_moe_layer_step": 2},
            24 * (3 * 5120 * (16384 - 17 * 8192) - 16 * 5120),
            id="llama 4 with a mixture in every second layer",
        ),
    ],
)
def test_a_key_of_a_published_model_changes_its_parameters(model, change, difference):
    assert num_parameters(changed(model, change)) == PUBLISHED[model] + difference


@pytest.mark.parametrize("model", [GPT_OSS, GLM, JAIS])
def test_biases_are_the_default_of_architectures_that_have_them(model):
    """Source: transformers 5.23, GptOssConfig, GlmConfig and Jais2Config."""
    without = {key: value for key, value in config_of(model).items() if not key.endswith("_bias")}
    assert num_parameters(without) == PUBLISHED[model]


SPARSE = 128 * 3 * 2048 * 768 + 128 * 2048
"""Parameters of a mixture of Qwen3-30B-A3B: its experts and its router."""
DENSE = 3 * 2048 * 6144


@pytest.mark.parametrize(
    ("change", "num_dense"),
    [
        pytest.param({"decoder_sparse_step": 2}, 24, id="every second layer"),
        pytest.param({"mlp_only_layers": [0, 47, 47]}, 2, id="two named layers"),
        pytest.param({"mlp_only_layers": [-1, 48, 1]}, 1, id="layers that do not exist"),
        pytest.param({"decoder_sparse_step": 2, "mlp_only_layers": [0, 1, 3]}, 26, id="some are dense anyway"),
    ],
)
def test_some_layers_of_a_mixture_may_be_dense(change, num_dense):
    assert num_parameters(QWEN3_30B_A3B | change) == 30_532_122_624 - num_dense * (SPARSE - DENSE)


def test_a_mixture_with_biases_of_attention_has_them_in_all_four_projections():
    biases = 48 * (32 * 128 + 2 * 4 * 128 + 2048)
    assert num_parameters(QWEN3_30B_A3B | {"attention_bias": True}) == 30_532_122_624 + biases


def test_deepseek_without_shared_experts_has_none_to_adapt():
    without = DEEPSEEK_V2_LITE | {"n_shared_experts": None}
    assert num_parameters(without) == 15_706_484_224 - 26 * 3 * 2048 * 2 * 1408


def test_a_name_that_the_experts_had_once_adapts_them_and_no_layer_of_that_name():
    """Source: PEFT 0.21: 64 experts of 26 layers; a gate and its projection have the ranks of both."""
    of_all = {"target_modules": ["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "down_proj"]}
    experts = 26 * 64 * (2 * 16 * (2048 + 2 * 1408) + 16 * (1408 + 2048))
    assert lora_parameters(weights(DEEPSEEK_V2_LITE), LORA | of_all) == experts


def test_deepseek_has_no_more_dense_layers_than_layers():
    few = DEEPSEEK_V2_LITE | {"first_k_dense_replace": 5, "num_hidden_layers": 1}
    attention = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    norms = 2 * 2048 + 512 + 2048
    assert num_parameters(few) == 2 * 102400 * 2048 + attention + norms + 3 * 2048 * 10944


@pytest.mark.parametrize(
    ("model", "change", "parameters"),
    [
        pytest.param(LLAMA_8B, {"target_modules": ["lm_head"]}, 16 * (4096 + 128256), id="the head"),
        pytest.param(LLAMA_8B, {"target_modules": "q_proj"}, 0, id="a text is a complete name"),
        pytest.param(LLAMA_8B, {"target_modules": "lm_head"}, 16 * (4096 + 128256), id="a complete name"),
        pytest.param(LLAMA_8B, {"target_modules": r".*\.(q|v)_proj"}, 6_815_744, id="a regular expression"),
        pytest.param(LLAMA_8B, {"target_modules": ["q_proj", "v_proj"]}, 6_815_744, id="the same names"),
        pytest.param(LLAMA_8B, {"target_modules": r".*\.[01]\..*q_proj"}, 2 * 16 * 8192, id="some layers"),
        pytest.param(LLAMA_8B, {"target_modules": ["all-linear"]}, 0, id="not in a list"),
        pytest.param(
            LLAMA_8B, {"exclude_modules": r".*\.mlp\..*"}, 41_943_040 - 3 * 32 * 16 * 18432, id="excluded by form"
        ),
        pytest.param(
            LLAMA_8B,
            {"exclude_modules": ["layers.3.mlp.up_proj", "model.layers.4.mlp.up_proj", "mlp.up"]},
            41_943_040 - 2 * 16 * 18432,
            id="excluded in two layers",
        ),
        pytest.param(LLAMA_8B, {"target_modules": ["proj"]}, 0, id="not a part of a name"),
        pytest.param(LLAMA_8B, {"target_modules": ["norm"]}, 0, id="not layers"),
        pytest.param(LLAMA_8B, {"target_modules": ["embed_tokens"]}, 16 * (4096 + 128256), id="embeddings"),
        pytest.param(GPT_OSS, {"target_modules": ["router"]}, 0, id="not a router"),
        pytest.param(
            GPT_OSS,
            {"target_modules": ["q_proj"], "bias": "all"},
            24 * 16 * (2880 + 4096) + ATTENTION_BIASES[GPT_OSS] + 24 * 32,
            id="every bias but those of experts",
        ),
    ],
)
def test_adapters_are_counted_by_the_names_of_their_targets(model, change, parameters):
    assert lora_parameters(weights(config_of(model)), LORA | change) == parameters


def test_the_largest_size_that_is_accepted_is_a_billion():
    assert num_parameters(BIASED | {"vocab_size": 10**9}) == 96_192 + 2 * 64 * (10**9 - 100)
    with pytest.raises(UnknownArchitecture, match="not a size: embed_tokens would be"):
        num_parameters(BIASED | {"vocab_size": 10**9 + 1})
