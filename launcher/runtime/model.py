"""A small byte-level causal transformer.

Shapes: B samples, L tokens, D hidden size, H heads, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

INIT_STD = 0.02
"""Standard deviation of the initial weights.

Source: Radford et al., Improving Language Understanding by Generative Pre-Training (2018), section 4.1.
"""


class UnknownModelType(ValueError):
    """The recipe's `run.model_type` is not one this trainer can build."""


class Block(nn.Module):
    """Pre-norm attention and feed-forward.

    Source: Xiong et al., On Layer Normalization in the Transformer Architecture (2020).
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.attention_out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.feed_forward_norm = nn.LayerNorm(hidden_size)
        self.feed_forward_in = nn.Linear(hidden_size, 4 * hidden_size)
        self.feed_forward_out = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        """Return the block's output, shape `(B, L, D)`."""
        x_BLD = x_BLD + self._drop(self.attention_out(self._attend(self.attention_norm(x_BLD))))
        inner = F.gelu(self.feed_forward_in(self.feed_forward_norm(x_BLD)))
        return x_BLD + self._drop(self.feed_forward_out(inner))

    def _attend(self, x_BLD: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.query_key_value(x_BLD).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        out_BHLd = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return out_BHLd.transpose(1, 2).flatten(-2)

    def _drop(self, x_BLD: torch.Tensor) -> torch.Tensor:
        return F.dropout(x_BLD, self.dropout, self.training)


class TinyLM(nn.Module):
    """Next-token model: learned positions of at most `max_len` tokens, pre-norm blocks, a head of its own."""

    def __init__(
        self, vocab_size: int, hidden_size: int, num_layers: int, num_heads: int, dropout: float, max_len: int
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Embedding(max_len, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, vocab_size, bias=False)
        self.apply(_initialize)

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next token, shape `(B, L, V)`."""
        positions_L = torch.arange(x_BL.shape[1], device=x_BL.device)
        x_BLD = self.tokens(x_BL) + self.positions(positions_L)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        logits_BLV: torch.Tensor = self.head(self.norm(x_BLD))
        return logits_BLV


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


MODELS: dict[str, type[nn.Module]] = {"tiny_lm": TinyLM}
"""Model types this trainer can build, by the name a recipe gives them."""


def build_model(model_type: str, model_config: Mapping[str, Any], *, max_len: int, seed: int) -> nn.Module:
    """Return a model whose initial weights depend on `seed` alone.

    Raises:
        UnknownModelType: `model_type` is not in `MODELS`.
    """
    if model_type not in MODELS:
        raise UnknownModelType(f"run.model_type={model_type!r}; this trainer builds {', '.join(sorted(MODELS))}")
    torch.manual_seed(seed)
    return MODELS[model_type](max_len=max_len, **model_config)


def next_token_loss(model: nn.Module, tokens: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Return the cross entropy of predicting each token from those before it, in 64 bits, shape `()`.

    Args:
        model: Maps `(B, L)` tokens to `(B, L, V)` logits.
        tokens: Token ids, shape `(B, L + 1)`.
        reduction: `mean` or `sum` over the `B * L` tokens.
    """
    logits_BLV = model(tokens[:, :-1])
    losses = F.cross_entropy(logits_BLV.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").double()
    return losses.sum() if reduction == "sum" else losses.mean()
