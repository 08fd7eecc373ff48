"""What a training needs, by arithmetic: operations for each token, and device memory.

The launcher estimates checkpoints (`recipes checkpoint`), not device memory: the estimate is here, to be compared
with the peak that is measured.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.shapes import Shape
from launcher.checkpointing.architecture import lora_parameters, num_parameters, weights
from launcher.runtime.finetune.token_scores import CHUNK

MASTER, HALF = 4, 2
"""Bytes of a number in 32 and in 16 bits."""
ADAM = 2 * MASTER
"""Bytes that AdamW keeps of each trained parameter. Source: Loshchilov, Hutter, Decoupled Weight Decay (2019)."""
EXPERTS_PER_TOKEN = 4
"""Of gpt-oss, where its configuration does not name them. Source: transformers, GptOssConfig."""
EAGER = "gpt_oss"
"""The architecture whose attention keeps the scores of all pairs of tokens."""


def active_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters that each token meets: of the experts, only those that it is sent to."""
    experts = sum(each.parameters for each in weights(config) if each.kind == "experts")
    if not experts:
        return num_parameters(config)
    part = config.get("num_experts_per_tok", EXPERTS_PER_TOKEN) / config["num_local_experts"]
    return num_parameters(config) - round(experts * (1 - part))


def trained_parameters(shape: Shape, config: Mapping[str, Any]) -> int:
    """Return the parameters that train."""
    return lora_parameters(weights(config), shape.peft) if shape.peft else num_parameters(config)


def flops_per_token(shape: Shape, config: Mapping[str, Any]) -> int:
    """Return the operations of the model for each token, those that are done again not counted.

    2 for each parameter in the forward pass, 2 for the gradients of activations, 2 for those of weights, which frozen
    ones do without. Attention is not counted, as in the published figures. DPO with adapters also asks the model
    without them.

    Source: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1; Chowdhery et al., PaLM (2022),
    appendix B, model FLOPs utilization.
    """
    per_parameter = (4 if shape.peft else 6) + (2 if shape.technique == "dpo" and shape.peft else 0)
    return per_parameter * active_parameters(config)


def memory_bytes(shape: Shape, config: Mapping[str, Any], *, on_gpu: bool = True) -> dict[str, int]:
    """Return the device memory of a training on one rank, by part.

    Args:
        shape: Of the training.
        config: Of the model, as in config.json.
        on_gpu: Whether the rank has a GPU, where frozen weights and activations have 16 bits.
    """
    parameters, trained = num_parameters(config), trained_parameters(shape, config)
    short = HALF if on_gpu else MASTER
    frozen = 0 if not shape.peft else parameters * short
    tokens = shape.micro * shape.rows * shape.tokens
    layer = layer_activations(shape, config, short) * tokens
    layers = config["num_hidden_layers"]
    kept = layers * config["hidden_size"] * short * tokens + layer if shape.recomputes else layers * layer
    return {
        "weights": frozen + trained * MASTER,
        "gradients and optimizer": trained * (MASTER + ADAM),
        "gathered": _gathered(config) * short if on_gpu else 0,
        "activations": kept + _scores(shape, config, short) + _adapted_experts(shape, config, short),
        "logits": 3 * min(CHUNK, tokens) * config["vocab_size"] * MASTER,
    }


def layer_activations(shape: Shape, config: Mapping[str, Any], short: int) -> int:
    """Return the bytes that one layer keeps of each token for the backward pass.

    The norms keep their input in 32 bits and their output; attention queries, keys, values and output; the gated
    feed-forward layer its gate, that after the activation, the other factor and the product. In front of each adapter
    stand the input after dropout and one byte of its mask.

    Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4, by
    the same count for this kind of layer.
    """
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * dim, (config.get("num_key_value_heads") or heads) * dim
    inner = config["intermediate_size"] * (
        config.get("num_experts_per_tok", EXPERTS_PER_TOKEN) if _is_mixture(config) else 1
    )
    kept = 2 * hidden * (MASTER + short) + short * (2 * queries + 2 * keys + 4 * inner)
    if shape.peft:
        kept += (short + 1) * (5 * hidden + queries + inner)
    return kept


def _is_mixture(config: Mapping[str, Any]) -> bool:
    return "num_local_experts" in config


def _gathered(config: Mapping[str, Any]) -> int:
    """Return the parameters that fully_shard has gathered at a time: the embeddings, the head, and two layers."""
    ends = sum(each.parameters for each in weights(config) if each.name in ("embed_tokens", "lm_head"))
    return ends + 2 * (num_parameters(config) - ends) // config["num_hidden_layers"]


def _adapted_experts(shape: Shape, config: Mapping[str, Any], short: int) -> int:
    """Return the bytes of a layer's experts with their adapters added, and of what is added.

    Source: PEFT, `lora.ParamWrapper`: the sum has the size of the weights.
    """
    if not (shape.peft and shape.peft.get("target_parameters")):
        return 0
    experts = sum(each.parameters for each in weights(config) if each.kind == "experts")
    layers = 1 if shape.recomputes else config["num_hidden_layers"]
    return 2 * layers * short * experts // config["num_hidden_layers"]


def _scores(shape: Shape, config: Mapping[str, Any], short: int) -> int:
    """Return the bytes of attention that keeps the scores: scores, weights, and the gradient of one of them."""
    if config["model_type"] != EAGER:
        return 0
    layers = 1 if shape.recomputes else config["num_hidden_layers"]
    rows = shape.micro * shape.rows
    return 3 * layers * rows * config["num_attention_heads"] * shape.tokens**2 * short
