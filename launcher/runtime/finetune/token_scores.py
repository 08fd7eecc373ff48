"""Log-probabilities of tokens, without the logits of a complete sequence in memory."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from launcher.runtime.finetune.models import language_model

CHUNK = 1024
"""Tokens whose logits are in memory at a time: 0.5 GB in 32 bits for 128,256 entries. Our own choice."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Rows of tokens, and the tokens whose probability counts.

    Args:
        ids: Shape `(rows, length)`.
        mask: 1 for a token, 0 for padding, shape `(rows, length)`; additive masks by kind of layer; None for none.
        positions: Place of each token in its sample, shape `(rows, length)`; None for its place in the row.
        sources: Place in the flat rows of the token before each counted one, shape `(counted,)`.
        targets: The counted tokens, shape `(counted,)`.
        samples: The sample of each counted token, shape `(counted,)`.
        num_samples: Samples in the rows.
    """

    ids: torch.Tensor
    mask: torch.Tensor | dict[str, torch.Tensor] | None
    positions: torch.Tensor | None
    sources: torch.Tensor
    targets: torch.Tensor
    samples: torch.Tensor
    num_samples: int

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "TokenBatch":
        """Return the batch with each of its tensors as `move` returns it."""

        def each(value: Any) -> Any:
            if isinstance(value, dict):
                return {kind: move(mask) for kind, mask in value.items()}
            return move(value) if isinstance(value, torch.Tensor) else value

        return TokenBatch(*(each(getattr(self, field.name)) for field in fields(self)))


class TokenScorer(nn.Module):
    """The root of the trained model: its forward pass gives the log-probability of each counted token.

    `aux_coef` is the weight of the load-balancing loss of experts, 0 for none; `autocast` the precision of the
    operations, None for that of the parameters.
    """

    def __init__(self, model: nn.Module, aux_coef: float = 0.0):
        super().__init__()
        self.model = model
        self.aux_coef = aux_coef
        self.autocast: torch.dtype | None = None

    def forward(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return log-probabilities in 32 bits, shape `(counted,)`, and the load-balancing loss, if it is wanted."""
        if not self.autocast:
            return self._scores(batch)
        with torch.autocast(batch.ids.device.type, self.autocast):
            return self._scores(batch)

    def _scores(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        causal = language_model(self.model)
        wants_aux = {"output_router_logits": True} if self.aux_coef else {}
        body = causal.model(
            input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False, **wants_aux
        )
        hidden = body.last_hidden_state.flatten(0, 1)[batch.sources]
        return _log_probs(causal.lm_head, hidden, batch.targets), self._aux_loss(causal, body, batch)

    def _aux_loss(self, causal: Any, body: Any, batch: TokenBatch) -> torch.Tensor | None:
        if not self.aux_coef:
            return None
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

        mask = batch.mask if isinstance(batch.mask, torch.Tensor) else None
        experts, chosen = causal.config.num_local_experts, causal.config.num_experts_per_tok
        loss = load_balancing_loss_func(body.router_logits, experts, chosen, mask)
        return cast(torch.Tensor, self.aux_coef * loss)


def _log_probs(head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each target, shape `(counted,)`."""
    if len(targets) <= CHUNK:
        return _chunk_log_probs(head, hidden, targets)
    parts = [
        checkpoint(_chunk_log_probs, head, part, wanted, use_reentrant=False)
        for part, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
    ]
    return torch.cat(cast(list[torch.Tensor], parts))


def _chunk_log_probs(head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -nn.functional.cross_entropy(head(hidden).float(), targets, reduction="none")
