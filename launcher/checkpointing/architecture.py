"""The weights of a transformer, from its config.json, and of adapters: no library, no download, no device.

Exact for the architectures of `KNOWN`; others raise `UnknownArchitecture` and are not guessed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

_MOST = 10**9
"""Largest dimension or number of experts that is accepted, far above any real one. Our own choice."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Weights of one name, in all layers and experts. A vector has one input, and its length of outputs.

    Args:
        name: Dotted name within a layer, as transformers has it: `self_attn.q_proj`.
        biases: Elements of the bias of each.
        kind: `linear`, `experts` (one parameter that holds every expert's), `router`, `head`, or `other`.
        layers: Last names of the linear layers that were in its place in transformers 4: PEFT still takes them as
            targets, all of them together.
    """

    name: str
    inputs: int
    outputs: int
    count: int
    biases: int = 0
    kind: str = "linear"
    layers: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Elements of all of them."""
        return self.count * (self.inputs * self.outputs + self.biases)


class UnknownArchitecture(ValueError):
    """A config.json of an architecture that is not counted, or without a value that it needs."""


def weights(config: Config) -> tuple[Weight, ...]:
    """Return every weight of a model. A model of several parts is counted by its `text_config`.

    Raises:
        UnknownArchitecture: Its `model_type` is not in `KNOWN`, or a size is missing.
    """
    part = config.get("text_config")
    config = part if isinstance(part, Mapping) else config
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in KNOWN:
        raise UnknownArchitecture(f"model_type {kind!r} is not supported; supported: {', '.join(sorted(KNOWN))}")
    try:
        found = (*_ends(config), *KNOWN[kind](config))
    except KeyError as error:
        raise UnknownArchitecture(f"the configuration lacks {error.args[0]}") from error
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise UnknownArchitecture(f"the configuration holds a value that is not a size: {error}") from error
    for weight in found:
        sizes = (weight.inputs, weight.outputs, weight.count, weight.biases)
        if not all(isinstance(size, int) and 0 <= size <= _MOST for size in sizes):
            raise UnknownArchitecture(
                f"the configuration holds a value that is not a size: {weight.name} would be {sizes}"
            )
    return found


def num_parameters(config: Config) -> int:
    """Return the parameters of a model. Raises like `weights`."""
    return sum(weight.parameters for weight in weights(config))


def _ends(config: Config) -> Iterator[Weight]:
    """Yield the weights that a model has once: embeddings, the last norm, and the head unless it shares the
    embeddings."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield Weight("embed_tokens", vocabulary, hidden, 1, kind="other")
    yield _vector("norm", hidden, 1)
    if not config.get("tie_word_embeddings", False):
        yield Weight("lm_head", hidden, vocabulary, 1, kind="head")


def _vector(name: str, length: int, count: int) -> Weight:
    return Weight(name, 1, length, count, kind="other")


def _linear(name: str, inputs: int, outputs: int, count: int, *, has_bias: bool = False) -> Weight:
    return Weight(name, inputs, outputs, count, outputs if has_bias else 0)


def _head_dim(config: Config) -> int:
    dim: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return dim


def _attention(config: Config, qkv_bias: bool, out_bias: bool) -> Iterator[Weight]:
    """Yield attention with grouped keys and values, and the two norms of each layer.

    Source: Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models (2023); Touvron et al., LLaMA.
    """
    layers, hidden, dim = config["num_hidden_layers"], config["hidden_size"], _head_dim(config)
    queries = config["num_attention_heads"] * dim
    keys = (config.get("num_key_value_heads") or config["num_attention_heads"]) * dim
    yield _linear("self_attn.q_proj", hidden, queries, layers, has_bias=qkv_bias)
    yield _linear("self_attn.k_proj", hidden, keys, layers, has_bias=qkv_bias)
    yield _linear("self_attn.v_proj", hidden, keys, layers, has_bias=qkv_bias)
    yield _linear("self_attn.o_proj", queries, hidden, layers, has_bias=out_bias)
    yield _vector("layernorm", hidden, 2 * layers)


def _mlp(prefix: str, hidden: int, inner: int, count: int, *, has_bias: bool = False) -> Iterator[Weight]:
    """Yield gated feed-forward layers. Source: Shazeer, GLU Variants Improve Transformer (2020)."""
    yield _linear(f"{prefix}.gate_proj", hidden, inner, count, has_bias=has_bias)
    yield _linear(f"{prefix}.up_proj", hidden, inner, count, has_bias=has_bias)
    yield _linear(f"{prefix}.down_proj", inner, hidden, count, has_bias=has_bias)


def _llama(config: Config) -> Iterator[Weight]:
    """Yield Llama's layers. Source: transformers, modeling_llama; Mistral's is the same without biases."""
    has_bias = bool(config.get("attention_bias"))
    yield from _attention(config, has_bias, has_bias)
    sizes = (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"])
    yield from _mlp("mlp", *sizes, has_bias=bool(config.get("mlp_bias")))


def _qwen2(config: Config) -> Iterator[Weight]:
    """Yield Qwen 2's layers. Source: transformers, modeling_qwen2: queries, keys and values have a bias."""
    yield from _attention(config, qkv_bias=True, out_bias=False)
    yield from _mlp("mlp", config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"])


def _qwen3(config: Config) -> Iterator[Weight]:
    """Yield Qwen 3's layers. Source: transformers, modeling_qwen3: queries and keys are normed by head."""
    yield from _llama(config)
    yield _vector("self_attn.qk_norm", _head_dim(config), 2 * config["num_hidden_layers"])


def _qwen3_5(config: Config) -> Iterator[Weight]:
    """Yield Qwen 3.5's layers: every n-th has gated attention, the others linear attention.

    Source: Yang et al., Gated Delta Networks (2024); transformers, modeling_qwen3_5.
    """
    layers, hidden, dim = config["num_hidden_layers"], config["hidden_size"], _head_dim(config)
    full = layers // config.get("full_attention_interval", 4)
    linear, heads = layers - full, config["linear_num_value_heads"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield _linear("self_attn.q_proj", hidden, 2 * queries, full)  # with a gate of the output
    yield _linear("self_attn.k_proj", hidden, keys, full)
    yield _linear("self_attn.v_proj", hidden, keys, full)
    yield _linear("self_attn.o_proj", queries, hidden, full)
    yield _vector("self_attn.qk_norm", dim, 2 * full)
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value = heads * config["linear_value_head_dim"]
    yield _linear("linear_attn.in_proj_qkv", hidden, 2 * key + value, linear)
    yield _linear("linear_attn.in_proj_z", hidden, value, linear)
    yield _linear("linear_attn.in_proj_b", hidden, heads, linear)
    yield _linear("linear_attn.in_proj_a", hidden, heads, linear)
    yield _linear("linear_attn.out_proj", value, hidden, linear)
    yield _vector("linear_attn.conv1d", (2 * key + value) * config["linear_conv_kernel_dim"], linear)
    yield _vector("linear_attn.A_log_and_dt_bias", heads, 2 * linear)
    yield _vector("linear_attn.norm", config["linear_value_head_dim"], linear)
    yield _vector("layernorm", hidden, 2 * layers)
    yield from _mlp("mlp", hidden, config["intermediate_size"], layers)


def _mixtral(config: Config) -> Iterator[Weight]:
    """Yield Mixtral's layers. Source: Jiang et al., Mixtral of Experts (2024); transformers, modeling_mixtral."""
    layers, hidden, experts = config["num_hidden_layers"], config["hidden_size"], config["num_local_experts"]
    yield from _attention(config, qkv_bias=False, out_bias=False)
    yield from _mixture(layers, experts, hidden, config["intermediate_size"], ("w1", "w3"), "w2")


def _qwen3_moe(config: Config) -> Iterator[Weight]:
    """Yield those of Qwen 3's mixtures. Source: transformers, modeling_qwen3_moe: some layers may be dense."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    sparse = layers // step - sum(1 for layer in set(dense) if 0 <= layer < layers and (layer + 1) % step == 0)
    has_bias = bool(config.get("attention_bias"))
    yield from _attention(config, has_bias, has_bias)
    yield _vector("self_attn.qk_norm", _head_dim(config), 2 * layers)
    yield from _mlp("mlp", hidden, config["intermediate_size"], layers - sparse)
    experts = config["num_local_experts"] if "num_local_experts" in config else config["num_experts"]
    yield from _mixture(sparse, experts, hidden, config["moe_intermediate_size"])


def _mixture(
    layers: int,
    experts: int,
    hidden: int,
    inner: int,
    gate_up: tuple[str, str] = ("gate_proj", "up_proj"),
    down: str = "down_proj",
) -> Iterator[Weight]:
    """Yield a router and its experts, which are one parameter per matrix.

    Source: transformers 5, its MoE layers; PEFT 0.21, utils/transformers_weight_conversion.py, for those of before.
    """
    yield Weight("mlp.gate", hidden, experts, layers, kind="router", layers=("gate",))
    yield from _experts("mlp", layers * experts, hidden, inner, gate_up, (down,))


def _experts(
    prefix: str,
    count: int,
    hidden: int,
    inner: int,
    gate_up: tuple[str, ...] = (),
    down: tuple[str, ...] = (),
) -> Iterator[Weight]:
    yield Weight(f"{prefix}.experts.gate_up_proj", hidden, 2 * inner, count, kind="experts", layers=gate_up)
    yield Weight(f"{prefix}.experts.down_proj", inner, hidden, count, kind="experts", layers=down)


def _deepseek(config: Config) -> Iterator[Weight]:
    """Yield the layers of DeepSeek V2 and V3: latent attention, shared and routed experts.

    Source: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 2.1; transformers, modeling_deepseek_v3.
    """
    layers, hidden, heads = config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]
    rope, nope, value = config["qk_rope_head_dim"], config["qk_nope_head_dim"], config["v_head_dim"]
    rank, latent = config.get("q_lora_rank"), config["kv_lora_rank"]
    has_bias = bool(config.get("attention_bias"))
    if rank:
        yield _linear("self_attn.q_a_proj", hidden, rank, layers, has_bias=has_bias)
        yield _vector("self_attn.q_a_layernorm", rank, layers)
        yield _linear("self_attn.q_b_proj", rank, heads * (nope + rope), layers)
    else:
        yield _linear("self_attn.q_proj", hidden, heads * (nope + rope), layers)
    yield _linear("self_attn.kv_a_proj_with_mqa", hidden, latent + rope, layers, has_bias=has_bias)
    yield _vector("self_attn.kv_a_layernorm", latent, layers)
    yield _linear("self_attn.kv_b_proj", latent, heads * (nope + value), layers)
    yield _linear("self_attn.o_proj", heads * value, hidden, layers, has_bias=has_bias)
    yield _vector("layernorm", hidden, 2 * layers)
    dense = min(config["first_k_dense_replace"], layers)
    inner, shared = config["moe_intermediate_size"], config.get("n_shared_experts") or 0
    yield from _mlp("mlp", hidden, config["intermediate_size"], dense)
    yield from _mixture(layers - dense, config["n_routed_experts"], hidden, inner)
    yield from _mlp("mlp.shared_experts", hidden, inner * shared, (layers - dense) if shared else 0)
    if config["model_type"] == "deepseek_v3":
        yield _vector("mlp.gate.e_score_correction_bias", config["n_routed_experts"], layers - dense)


def _gpt_oss(config: Config) -> Iterator[Weight]:
    """Yield gpt-oss' layers: everything has a bias. Source: OpenAI, gpt-oss model card (2025), section 2."""
    layers, hidden, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    experts, has_bias = config["num_local_experts"], bool(config.get("attention_bias", True))
    yield from _attention(config, has_bias, has_bias)
    yield _vector("self_attn.sinks", config["num_attention_heads"], layers)
    yield Weight("mlp.router", hidden, experts, layers, experts, kind="router")
    yield Weight("mlp.experts.gate_up_proj", hidden, 2 * inner, layers * experts, 2 * inner, kind="experts")
    yield Weight("mlp.experts.down_proj", inner, hidden, layers * experts, hidden, kind="experts")


def _llama4(config: Config) -> Iterator[Weight]:
    """Yield Llama 4's layers: every n-th is a mixture with a shared expert.

    Source: transformers, modeling_llama4.
    """
    layers, hidden, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    sparse = layers // config["interleave_moe_layer_step"]
    has_bias = bool(config.get("attention_bias"))
    yield from _attention(config, has_bias, has_bias)
    yield from _mlp("feed_forward", hidden, config["intermediate_size_mlp"], layers - sparse)
    experts = config["num_local_experts"]
    yield _linear("feed_forward.router", hidden, experts, sparse)
    yield from _experts("feed_forward", sparse * experts, hidden, inner)
    yield from _mlp("feed_forward.shared_expert", hidden, inner, sparse)


def _ernie4_5(config: Config) -> Iterator[Weight]:
    """Yield the layers of dense ERNIE 4.5. Source: transformers, modeling_ernie4_5: one key for all biases."""
    has_bias = config.get("use_bias")
    yield from _llama({**config, "attention_bias": has_bias, "mlp_bias": has_bias})


def _glm(config: Config) -> Iterator[Weight]:
    """Yield GLM 4's layers. Source: transformers, modeling_glm: queries, keys and values have a bias."""
    yield from _attention(config, bool(config.get("attention_bias", True)), out_bias=False)
    yield from _fused_mlp(config)


def _phi3(config: Config) -> Iterator[Weight]:
    """Yield the layers of Phi 3 and 4. Source: transformers, modeling_phi3: one matrix for queries, keys, values."""
    layers, hidden, dim = config["num_hidden_layers"], config["hidden_size"], _head_dim(config)
    queries = config["num_attention_heads"] * dim
    keys = (config.get("num_key_value_heads") or config["num_attention_heads"]) * dim
    yield _linear("self_attn.qkv_proj", hidden, queries + 2 * keys, layers)
    yield _linear("self_attn.o_proj", queries, hidden, layers)
    yield _vector("layernorm", hidden, 2 * layers)
    yield from _fused_mlp(config)


def _fused_mlp(config: Config) -> Iterator[Weight]:
    """Yield feed-forward layers whose gate is one matrix with the projection that it gates."""
    layers, hidden, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    yield _linear("mlp.gate_up_proj", hidden, 2 * inner, layers)
    yield _linear("mlp.down_proj", inner, hidden, layers)


def _jais2(config: Config) -> Iterator[Weight]:
    """Yield Jais 2's layers. Source: transformers, modeling_jais2: no gate; norms have biases, the last one too."""
    layers, hidden, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    has_bias, mlp_bias = bool(config.get("attention_bias", True)), bool(config.get("mlp_bias", True))
    yield from _attention(config, has_bias, has_bias)
    yield Weight("layernorm.bias", 0, hidden, 2 * layers + 1, hidden, kind="other")
    yield _linear("mlp.up_proj", hidden, inner, layers, has_bias=mlp_bias)
    yield _linear("mlp.down_proj", inner, hidden, layers, has_bias=mlp_bias)


KNOWN: Mapping[str, Callable[[Config], Iterator[Weight]]] = {
    "llama": _llama,
    "mistral": _llama,
    "ministral3": _llama,
    "smollm3": _llama,
    "phi3": _phi3,
    "glm": _glm,
    "ernie4_5": _ernie4_5,
    "jais2": _jais2,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_5_text": _qwen3_5,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
}
"""Architectures by the `model_type` of their config.json."""


def lora_parameters(weights: Iterable[Weight], peft: Mapping[str, Any]) -> int:
    """Return the trained parameters of low-rank adapters.

    Args:
        peft: The recipe's `peft_config`.

    Source: Hu et al., LoRA (2021), section 4.1: r·(inputs + outputs) each; PEFT 0.21, LoraConfig: all-linear omits
    the head, bias, use_dora (Liu et al., DoRA (2024): one magnitude for each output), target_parameters; its
    utils/transformers_weight_conversion.py: what is one parameter since transformers 5 has the ranks of its layers.
    """
    total, weights = 0, tuple(weights)
    moved = {name for weight in weights for name in weight.layers}
    for weight in weights:
        rank = peft["r"] * _num_adapters(weight, peft, moved)
        if rank:
            each = rank * (weight.inputs + weight.outputs)
            total += weight.count * (each + (weight.outputs if peft.get("use_dora") else 0))
        if peft["bias"] == "all" or (peft["bias"] == "lora_only" and rank):
            total += weight.count * weight.biases
    return total


def _num_adapters(weight: Weight, peft: Mapping[str, Any], moved: Collection[str]) -> int:
    """Return how many adapters a weight has: one for each layer that it replaces.

    Args:
        moved: Names of layers that are part of parameters now. PEFT takes no layer of these names as a target.
    """
    targets, excluded = _listed(peft["target_modules"]), _listed(peft.get("exclude_modules") or ())
    is_all = targets == ["all-linear"]
    if weight.layers and (is_all or not set(weight.layers).isdisjoint(map(_last, targets))):
        return len(weight.layers)
    if weight.kind == "experts":
        return int(_is_named(weight.name, peft.get("target_parameters") or ()))
    if weight.kind not in ("linear", "head") or _is_named(weight.name, excluded):
        return 0
    if is_all:
        return int(weight.kind == "linear" and _last(weight.name) not in moved)
    return int(_is_named(weight.name, [each for each in targets if _last(each) not in moved]))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _is_named(name: str, names: Iterable[str]) -> bool:
    """Return whether a weight is one of `names`, each its name or the end of it from a dot on."""
    return any(name == each or name.endswith(f".{each}") for each in names)
