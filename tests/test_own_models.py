"""The models that no published recipe has, and mixtures: counts of weights and adapters are those of transformers."""

import pytest
from conftest import shipped

from launcher.checkpointing import architecture
from launcher.runtime import model_configs
from launcher.runtime.finetune.architectures import rehearsal_config

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

MODELS = (
    "mistralai/Mistral-7B-v0.1",
    "HuggingFaceTB/SmolLM3-3B",
    "mistralai/Ministral-3-8B-Base-2512",
    "microsoft/Phi-3-mini-4k-instruct",
    "THUDM/glm-4-9b-chat-hf",
    "baidu/ERNIE-4.5-0.3B-PT",
    "inceptionai/Jais-2-8B-Chat",
)
LORA = {"r": 16, "bias": "none", "target_modules": "all-linear", "use_dora": False}

pytestmark = pytest.mark.slow


def test_these_are_the_models_of_our_own_fine_tuning_recipes():
    own = (each for each in shipped() if each.model_type == "llm_finetuning_aws" and not each.is_published)
    assert {each.model_name_or_path for each in own} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_is_the_default_of_the_class_that_names_the_model(name):
    from launcher.runtime.finetune.models import model_config

    found = model_config(model_configs.table()[name])
    assert f"[{name.removesuffix('-hf')}]" in type(found).__doc__
    assert found.to_dict() == type(found)().to_dict()


@pytest.mark.parametrize("bias", ["none", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_adapters_are_as_many_as_in_the_model_that_is_built(name, bias):
    import peft

    from launcher.runtime.finetune.models import model_class, model_config

    config = rehearsal_config(name, "", 512)
    with torch.device("meta"):
        built = model_class(config)(model_config(config))
        assert architecture.num_parameters(config) == sum(each.numel() for each in built.parameters())
        adapted = peft.get_peft_model(built, peft.LoraConfig(**LORA | {"bias": bias}, task_type="CAUSAL_LM"))
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    assert architecture.lora_parameters(architecture.weights(config), LORA | {"bias": bias}) == trained


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    **{"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    **{"n_shared_experts": 2, "moe_intermediate_size": 24, "num_key_value_heads": 4},
}
MIXTURES = {
    "mixtral": {"num_local_experts": 4, "num_key_value_heads": 2},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24, "mlp_only_layers": [1], "num_key_value_heads": 2},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "llama4_text": {"num_local_experts": 4, "interleave_moe_layer_step": 2, "num_key_value_heads": 2, "head_dim": 8},
    "gpt_oss": {"num_local_experts": 4, "num_key_value_heads": 2, "head_dim": 8},
}
DENSE = {"num_key_value_heads": 2}
OF_A_MIXTURE = [
    *((kind, "all-linear") for kind in MIXTURES),
    *((kind, ["o_proj", "gate_proj", "up_proj"]) for kind in MIXTURES),
    *((kind, ["down_proj"]) for kind in ("qwen3_moe", "deepseek_v2", "llama4_text")),
    *((kind, ["mlp.gate"]) for kind in ("mixtral", "qwen3_moe", "deepseek_v3")),
    *(("mixtral", ["o_proj", "w1", "w3"]), ("mixtral", ["w2"]), ("llama4_text", ["router"])),
]


def as_built(kind, **given):
    """Return the adapters that are counted and those of PEFT, and the counted weights and names of a built model."""
    import peft
    import transformers

    sizes, is_tied = SMALL | MIXTURES.get(kind, DENSE), kind == "tied"
    config = transformers.AutoConfig.for_model("llama" if is_tied else kind, **sizes, tie_word_embeddings=is_tied)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
        found = {name for name, _ in built.named_parameters()} | {name for name, _ in built.named_buffers()}
        adapted = peft.get_peft_model(built, peft.LoraConfig(r=8, task_type="CAUSAL_LM", **given))
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    weights = architecture.weights(config.to_dict())
    return architecture.lora_parameters(weights, LORA | {"r": 8} | given), trained, weights, found


@pytest.mark.parametrize(("kind", "targets"), OF_A_MIXTURE)
def test_adapters_of_a_mixture_are_those_of_peft(kind, targets):
    """Also by the names that its experts had in transformers 4."""
    counted, trained, weights, found = as_built(kind, target_modules=targets)
    assert counted == trained
    named = [weight.name for weight in weights if weight.kind in ("linear", "experts", "router")]
    assert [name for name in named if not any(f".{name}" in each for each in found)] == []


BY_FORM = [
    *((kind, {"target_modules": r".*\.(q|v)_proj|.*kv_b_proj"}) for kind in ("llama", *MIXTURES)),
    *((kind, {"target_modules": r"model\.layers\.[1-3]\.self_attn\.o_proj"}) for kind in ("llama", *MIXTURES)),
    *((kind, {"target_modules": "all-linear", "exclude_modules": r".*\.mlp\..*"}) for kind in ("llama", *MIXTURES)),
    *(
        (kind, {"target_modules": "All-Linear", "exclude_modules": ["layers.1.self_attn.o_proj"]})
        for kind in MIXTURES
    ),
    *((kind, {"target_modules": r".*\.(gate|up|o)_proj"}) for kind in ("qwen3_moe", "deepseek_v2", "llama4_text")),
    *((kind, {"target_modules": r".*\.down_proj"}) for kind in ("llama", "qwen3_moe", "deepseek_v3")),
    ("deepseek_v2", {"target_modules": r".*\.down_proj", "exclude_modules": r".*experts.*"}),
    ("mixtral", {"target_modules": r".*\.experts\.w[123]|.*\.q_proj", "exclude_modules": r".*\.1\..*"}),
    ("mixtral", {"target_modules": r".*mlp\.gate|.*q_proj.*"}),
    ("llama", {"target_modules": ["q_proj"], "exclude_modules": ["0.self_attn.q_proj", "q"], "bias": "all"}),
    ("llama", {"target_modules": ["layers.0.self_attn.q_proj", "lm_head", "embed_tokens"]}),
    ("llama", {"target_modules": "lm_head"}),
    ("tied", {"target_modules": ["lm_head", "q_proj"]}),
    ("gpt_oss", {"target_modules": r".*q_proj", "bias": "all"}),
    ("gpt_oss", {"target_modules": r".*\.2\..*q_proj", "bias": "lora_only"}),
    ("gpt_oss", {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"], "bias": "lora_only"}),
    ("gpt_oss", {"target_modules": ["q_proj"], "target_parameters": ["layers.1.mlp.experts.gate_up_proj"]}),
]


@pytest.mark.parametrize(("kind", "given"), BY_FORM, ids=str)
def test_adapters_by_form_and_exclusion_are_those_of_peft(kind, given):
    """A text is a regular expression of a complete name; names may be of single layers."""
    counted, trained, *_ = as_built(kind, **given)
    assert counted == trained
