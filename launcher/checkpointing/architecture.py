"""The weights of a transformer, from its config.json, and of adapters: no library, no download, no device.

Exact for the architectures of `KNOWN`; others raise `UnknownArchitecture` and are not guessed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Config = Mapping[str, Any]

_MOST = 10**9
"""Largest dimension or number of experts that is accepted, far above any real one. Our own choice."""
_MOST_LAYERS = 10**4
"""Most layers that are accepted. Our own choice, too."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Weights of one name, in all layers and experts. A vector has one input, and its length of outputs.

    Args:
        name: Dotted name within a layer, as transformers has it: `self_attn.q_proj`.
        layers: Numbers of the layers that have it; None for a weight outside the layers.
        each: How many a layer has.
        biases: Elements of the bias of each.
        kind: `linear`, `experts` (one parameter that holds every expert's), `router`, `head`, `embedding` or `other`.
        replaces: Last names of the linear layers that were in its place in transformers 4: PEFT still takes them as
            targets, all of them together.
        is_shared: Whether its elements are those of another weight.
    """

    name: str
    inputs: int
    outputs: int
    layers: Sequence[int] | None
    each: int = 1
    biases: int = 0
    kind: str = "linear"
    replaces: tuple[str, ...] = ()
    is_shared: bool = False

    @property
    def parameters(self) -> int:
        """Elements of all of them; 0 if another weight has them."""
        if self.is_shared:
            return 0
        return (
            (1 if self.layers is None else len(self.layers)) * self.each * (self.inputs * self.outputs + self.biases)
        )

    @property
    def paths(self) -> list[str]:
        """Their names in the model, one for each layer. Source: transformers, the language models of `KNOWN`."""
        if self.layers is None:
            return [self.name if self.kind == "head" else f"model.{self.name}"]
        return [f"model.layers.{layer}.{self.name}" for layer in self.layers]


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
        sizes = (weight.inputs, weight.outputs, weight.each, weight.biases)
        if not all(isinstance(size, int) and 0 <= size <= _MOST for size in sizes):
            raise UnknownArchitecture(
                f"the configuration holds a value that is not a size: {weight.name} would be {sizes}"
            )
    return found


def num_parameters(config: Config) -> int:
    """Return the parameters of a model. Raises like `weights`."""
    return sum(weight.parameters for weight in weights(config))


def _ends(config: Config) -> Iterator[Weight]:
    """Yield the weights that a model has once: embeddings, the last norm, and the head, which may share the
    embeddings' elements."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield Weight("embed_tokens", vocabulary, hidden, None, kind="embedding")
    yield _vector("norm", hidden, None)
    is_tied = bool(config.get("tie_word_embeddings", False))
    yield Weight("lm_head", hidden, vocabulary, None, kind="head", is_shared=is_tied)


def _layers(config: Config) -> range:
    number = config["num_hidden_layers"]
    if not 0 <= number <= _MOST_LAYERS:
        raise UnknownArchitecture(f"the configuration holds a value that is not a size: {number} layers")
    return range(number)


def _parted(layers: Iterable[int], condition: Callable[[int], bool]) -> tuple[list[int], list[int]]:
    """Return the layers that meet a condition, and the others."""
    return list(filter(condition, layers)), [layer for layer in layers if not condition(layer)]


def _vector(name: str, length: int, layers: Sequence[int] | None, each: int = 1) -> Weight:
    return Weight(name, 1, length, layers, each, kind="other")


def _linear(name: str, inputs: int, outputs: int, layers: Sequence[int], *, has_bias: bool = False) -> Weight:
    return Weight(name, inputs, outputs, layers, biases=outputs if has_bias else 0)


def _head_dim(config: Config) -> int:
    dim: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return dim


def _attention(config: Config, qkv_bias: bool, out_bias: bool) -> Iterator[Weight]:
    """Yield attention with grouped keys and values, and the two norms of each layer.

    Source: Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models (2023); Touvron et al., LLaMA.
    """
    layers, hidden, dim = _layers(config), config["hidden_size"], _head_dim(config)
    queries = config["num_attention_heads"] * dim
    keys = (config.get("num_key_value_heads") or config["num_attention_heads"]) * dim
    yield _linear("self_attn.q_proj", hidden, queries, layers, has_bias=qkv_bias)
    yield _linear("self_attn.k_proj", hidden, keys, layers, has_bias=qkv_bias)
    yield _linear("self_attn.v_proj", hidden, keys, layers, has_bias=qkv_bias)
    yield _linear("self_attn.o_proj", queries, hidden, layers, has_bias=out_bias)
    yield _vector("layernorm", hidden, layers, 2)


def _mlp(prefix: str, hidden: int, inner: int, layers: Sequence[int], *, has_bias: bool = False) -> Iterator[Weight]:
    """Yield gated feed-forward layers. Source: Shazeer, GLU Variants Improve Transformer (2020)."""
    yield _linear(f"{prefix}.gate_proj", hidden, inner, layers, has_bias=has_bias)
    yield _linear(f"{prefix}.up_proj", hidden, inner, layers, has_bias=has_bias)
    yield _linear(f"{prefix}.down_proj", inner, hidden, layers, has_bias=has_bias)


def _llama(config: Config) -> Iterator[Weight]:
    """Yield Llama's layers. Source: transformers, modeling_llama; Mistral's is the same without biases."""
    has_bias = bool(config.get("attention_bias"))
    yield from _attention(config, has_bias, has_bias)
    sizes = (config["hidden_size"], config["intermediate_size"], _layers(config))
    yield from _mlp("mlp", *sizes, has_bias=bool(config.get("mlp_bias")))


def _qwen2(config: Config) -> Iterator[Weight]:
    """Yield Qwen 2's layers. Source: transformers, modeling_qwen2: queries, keys and values have a bias."""
    yield from _attention(config, qkv_bias=True, out_bias=False)
    yield from _mlp("mlp", config["hidden_size"], config["intermediate_size"], _layers(config))


def _qwen3(config: Config) -> Iterator[Weight]:
    """Yield Qwen 3's layers. Source: transformers, modeling_qwen3: queries and keys are normed by head."""
    yield from _llama(config)
    yield _vector("self_attn.qk_norm", _head_dim(config), _layers(config), 2)


def _qwen3_5(config: Config) -> Iterator[Weight]:
    """Yield Qwen 3.5's layers: every n-th has gated attention, the others linear attention.

    Source: Yang et al., Gated Delta Networks (2024); transformers, modeling_qwen3_5.
    """
    layers, hidden, dim = _layers(config), config["hidden_size"], _head_dim(config)
    interval, heads = config.get("full_attention_interval", 4), config["linear_num_value_heads"]
    full, linear = _parted(layers, lambda layer: (layer + 1) % interval == 0)
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield _linear("self_attn.q_proj", hidden, 2 * queries, full)  # with a gate of the output
    yield _linear("self_attn.k_proj", hidden, keys, full)
    yield _linear("self_attn.v_proj", hidden, keys, full)
    yield _linear("self_attn.o_proj", queries, hidden, full)
    yield _vector("self_attn.qk_norm", dim, full, 2)
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value = heads * config["linear_value_head_dim"]
    yield _linear("linear_attn.in_proj_qkv", hidden, 2 * key + value, linear)
    yield _linear("linear_attn.in_proj_z", hidden, value, linear)
    yield _linear("linear_attn.in_proj_b", hidden, heads, linear)
    yield _linear("linear_attn.in_proj_a", hidden, heads, linear)
    yield _linear("linear_attn.out_proj", value, hidden, linear)
    yield _vector("linear_attn.conv1d", (2 * key + value) * config["linear_conv_kernel_dim"], linear)
    yield _vector("linear_attn.A_log_and_dt_bias", heads, linear, 2)
    yield _vector("linear_attn.norm", config["linear_value_head_dim"], linear)
    yield _vector("layernorm", hidden, layers, 2)
    yield from _mlp("mlp", hidden, config["intermediate_size"], layers)


def _mixtral(config: Config) -> Iterator[Weight]:
    """Yield Mixtral's layers. Source: Jiang et al., Mixtral of Experts (2024); transformers, modeling_mixtral."""
    layers, hidden, experts = _layers(config), config["hidden_size"], config["num_local_experts"]
    yield from _attention(config, qkv_bias=False, out_bias=False)
    yield from _mixture(layers, experts, hidden, config["intermediate_size"], ("w1", "w3"), "w2")


def _qwen3_moe(config: Config) -> Iterator[Weight]:
    """Yield those of Qwen 3's mixtures. Source: transformers, modeling_qwen3_moe: some layers may be dense."""
    layers, hidden = _layers(config), config["hidden_size"]
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    sparse, others = _parted(layers, lambda layer: layer not in dense and (layer + 1) % step == 0)
    has_bias = bool(config.get("attention_bias"))
    yield from _attention(config, has_bias, has_bias)
    yield _vector("self_attn.qk_norm", _head_dim(config), layers, 2)
    yield from _mlp("mlp", hidden, config["intermediate_size"], others)
    experts = config["num_local_experts"] if "num_local_experts" in config else config["num_experts"]
    yield from _mixture(sparse, experts, hidden, config["moe_intermediate_size"])


def _mixture(
    layers: Sequence[int],
    experts: int,
    hidden: int,
    inner: int,
    gate_up: tuple[str, str] = ("gate_proj", "up_proj"),
    down: str = "down_proj",
) -> Iterator[Weight]:
    """Yield a router and its experts, which are one parameter per matrix.

    Source: transformers 5, its MoE layers; PEFT 0.21, utils/transformers_weight_conversion.py, for those of before.
    """
    yield Weight("mlp.gate", hidden, experts, layers, kind="router", replaces=("gate",))
    yield from _experts("mlp", layers, experts, hidden, inner, gate_up, (down,))


def _experts(
    prefix: str,
    layers: Sequence[int],
    experts: int,
    hidden: int,
    inner: int,
    gate_up: tuple[str, ...] = (),
    down: tuple[str, ...] = (),
) -> Iterator[Weight]:
    yield Weight(f"{prefix}.experts.gate_up_proj", hidden, 2 * inner, layers, experts, 0, "experts", gate_up)
    yield Weight(f"{prefix}.experts.down_proj", inner, hidden, layers, experts, 0, "experts", down)


def _deepseek(config: Config) -> Iterator[Weight]:
    """Yield the layers of DeepSeek V2 and V3: latent attention, shared and routed experts.

    Source: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 2.1; transformers, modeling_deepseek_v3.
    """
    layers, hidden, heads = _layers(config), config["hidden_size"], config["num_attention_heads"]
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
    yield _vector("layernorm", hidden, layers, 2)
    dense, sparse = _parted(layers, lambda layer: layer < config["first_k_dense_replace"])
    inner, shared = config["moe_intermediate_size"], config.get("n_shared_experts") or 0
    yield from _mlp("mlp", hidden, config["intermediate_size"], dense)
    yield from _mixture(sparse, config["n_routed_experts"], hidden, inner)
    yield from _mlp("mlp.shared_experts", hidden, inner * shared, sparse if shared else ())
    if config["model_type"] == "deepseek_v3":
        yield _vector("mlp.gate.e_score_correction_bias", config["n_routed_experts"], sparse)


def _gpt_oss(config: Config) -> Iterator[Weight]:
    """Yield gpt-oss' layers: everything has a bias. Source: OpenAI, gpt-oss model card (2025), section 2."""
    layers, hidden, inner = _layers(config), config["hidden_size"], config["intermediate_size"]
    experts, has_bias = config["num_local_experts"], bool(config.get("attention_bias", True))
    yield from _attention(config, has_bias, has_bias)
    yield _vector("self_attn.sinks", config["num_attention_heads"], layers)
    yield Weight("mlp.router", hidden, experts, layers, 1, experts, "router")
    yield Weight("mlp.experts.gate_up_proj", hidden, 2 * inner, layers, experts, 2 * inner, "experts")
    yield Weight("mlp.experts.down_proj", inner, hidden, layers, experts, hidden, "experts")


def _llama4(config: Config) -> Iterator[Weight]:
    """Yield Llama 4's layers: every n-th is a mixture with a shared expert.

    Source: transformers, modeling_llama4.
    """
    layers, hidden, inner = _layers(config), config["hidden_size"], config["intermediate_size"]
    sparse, dense = _parted(layers, lambda layer: (layer + 1) % config["interleave_moe_layer_step"] == 0)
    has_bias = bool(config.get("attention_bias"))
    yield from _attention(config, has_bias, has_bias)
    yield from _mlp("feed_forward", hidden, config["intermediate_size_mlp"], dense)
    experts = config["num_local_experts"]
    yield _linear("feed_forward.router", hidden, experts, sparse)
    yield from _experts("feed_forward", sparse, experts, hidden, inner)
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
    queries, keys, values, *others = _attention(config, qkv_bias=False, out_bias=False)
    outputs = sum(each.outputs for each in (queries, keys, values))
    yield replace(queries, name="self_attn.qkv_proj", outputs=outputs)
    yield from others
    yield from _fused_mlp(config)


def _fused_mlp(config: Config) -> Iterator[Weight]:
    """Yield feed-forward layers whose gate is one matrix with the projection that it gates."""
    layers, hidden, inner = _layers(config), config["hidden_size"], config["intermediate_size"]
    yield _linear("mlp.gate_up_proj", hidden, 2 * inner, layers)
    yield _linear("mlp.down_proj", inner, hidden, layers)


def _jais2(config: Config) -> Iterator[Weight]:
    """Yield Jais 2's layers. Source: transformers, modeling_jais2: no gate; norms have biases, the last one too."""
    layers, hidden, inner = _layers(config), config["hidden_size"], config["intermediate_size"]
    has_bias, mlp_bias = bool(config.get("attention_bias", True)), bool(config.get("mlp_bias", True))
    yield from _attention(config, has_bias, has_bias)
    yield Weight("layernorm.bias", 0, hidden, layers, 2, hidden, "other")
    yield Weight("norm.bias", 0, hidden, None, 1, hidden, "other")
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

    Raises:
        re.error: A text of modules is not a regular expression, which the recipe's type does not accept.

    Source: Hu et al., LoRA (2021), section 4.1: r·(inputs + outputs) each; PEFT 0.21, LoraConfig: bias, use_dora (Liu
    et al., DoRA (2024): one magnitude for each output).
    """
    weights = tuple(weights)
    targets, total = _targets(weights, peft), 0
    for weight in weights:
        adapters = weight.each * _num_adapters(weight, targets, peft)
        total += adapters * peft["r"] * (weight.inputs + weight.outputs)
        total += adapters * weight.outputs if peft.get("use_dora") else 0
        if weight.kind != "experts":  # whose biases are parameters of other names
            num_biases = {"all": weight.each * len(weight.paths), "lora_only": adapters}.get(peft["bias"], 0)
            total += num_biases * weight.biases
    return total


def has_adapters(weights: Iterable[Weight], peft: Mapping[str, Any]) -> bool:
    """Return whether a weight gets an adapter. Args and errors are those of `lora_parameters`."""
    return lora_parameters(weights, {**peft, "bias": "none"}) > 0


def layer_names(weights: Iterable[Weight]) -> list[str]:
    """Return the last names of the linear layers, and of the head."""
    return sorted({_last(weight.name) for weight in weights if weight.kind in ("linear", "head")})


class _Targets(NamedTuple):
    """What gets adapters: layers, by names or a regular expression, and what replaces layers of the names `moved`."""

    layers: str | Collection[str]
    moved: frozenset[str] = frozenset()


def _targets(weights: Sequence[Weight], peft: Mapping[str, Any]) -> _Targets:
    """Return the targets of a recipe as PEFT resolves them.

    Source: PEFT 0.21, tuners/tuners_utils.py, _maybe_include_all_linear_layers, which omits the head;
    utils/transformers_weight_conversion.py, _resolve_string_target_modules and _convert_peft_config_moe: if layers
    of before are one parameter now, a text stands for the last names of what it matches.
    """
    names: str | Collection[str] = peft["target_modules"]
    moved = {name for weight in weights for name in weight.replaces}
    if isinstance(names, str) and names.lower() == "all-linear":
        names = {path for weight in weights if weight.kind == "linear" for path in weight.paths}
        names = {_last(path) for path in names} | moved if moved else names
    elif isinstance(names, str) and moved:
        paths = {
            (path, name) for weight in weights for path in weight.paths for name in (_last(path), *weight.replaces)
        }
        before = (f"{path.removesuffix(_last(path))}{name}" for path, name in paths)
        names = {_last(path) for path in before if _is_adapted(path, names, peft)}
    if isinstance(names, str):
        return _Targets(names)
    return _Targets(
        {name for name in names if _last(name) not in moved}, frozenset(moved.intersection(map(_last, names)))
    )


def _num_adapters(weight: Weight, targets: _Targets, peft: Mapping[str, Any]) -> int:
    """Return how many adapters a weight has, in all layers: one with the ranks of each layer that it replaces.

    Source: PEFT 0.21, tuners/tuners_utils.py, check_target_module_exists and _inject_parameters.
    """
    if not targets.moved.isdisjoint(weight.replaces):
        return len(weight.replaces) * len(weight.paths)
    is_layer = weight.kind in ("linear", "head", "embedding")
    suffix, parameters = "" if weight.kind == "experts" else ".weight", peft.get("target_parameters") or ()
    return sum(
        (is_layer and _is_adapted(path, targets.layers, peft)) or _is_named(path + suffix, parameters)
        for path in weight.paths
    )


def _is_adapted(path: str, names: str | Collection[str], peft: Mapping[str, Any]) -> bool:
    return _is_named(path, names) and not _is_named(path, peft.get("exclude_modules") or ())


def _is_named(path: str, names: str | Collection[str]) -> bool:
    """Return whether a path is one of `names`, each complete or its end from a dot on, or matches a regular
    expression."""
    if isinstance(names, str):
        return re.fullmatch(names, path) is not None
    return path in names or any(path.endswith(f".{name}") for name in names)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
