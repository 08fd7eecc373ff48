"""What a technique trains: the loss of its samples, and what is reported of it; supervised fine-tuning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import nn

from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.prepared import PreparedConversations
from launcher.runtime.finetune.token_scores import TokenBatch
from launcher.runtime.loss_weighting import LossWeighting

Samples = TypeVar("Samples", contravariant=True)
Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch after the forward pass.

    Args:
        loss: Sum over what the technique counts, tokens or pairs; shape `()`.
        sums: The same sum, the count, and whatever else is reported, without gradients; shape `(sums,)`.
        aux: Load-balancing loss of experts; None if it is not wanted.
    """

    loss: torch.Tensor
    sums: torch.Tensor
    aux: torch.Tensor | None


class Objective(Protocol[Samples, Rows]):
    """A technique: supervised, or by preference.

    Args:
        num_sums: Length of an outcome's sums.
    """

    num_sums: int

    def prepare(self, stopping: Callable[[], bool]) -> bool:
        """Do what has to precede training, while the model has its first weights. Collective.

        Return False if a stop interrupts that: `stopping` returns whether a rank was asked to stop; collective.
        """

    def lengths(self, samples: Samples) -> torch.Tensor:
        """Return the tokens that the model reads for each sample, shape `(samples,)`."""

    def rows(self, samples: Samples, indices: Sequence[int]) -> Rows:
        """Return the rows of a batch in the memory of the CPU; other threads may call this."""

    def outcome(self, root: nn.Module, samples: Samples, rows: Rows) -> Outcome:
        """Return the outcome of a batch. Collective: `root` may gather its parameters."""

    def weighed(self, outcome: Outcome, samples: Samples, job: LossWeighting) -> torch.Tensor:
        """Return the loss to run backward from: every token or pair of the optimizer step counts the same."""

    def metrics(self, sums: torch.Tensor) -> Mapping[str, float]:
        """Return what is reported of the sums over several batches; `loss` among it."""


class Supervised:
    """The mean loss over the trained tokens of an optimizer step.

    It does not depend on how samples are grouped, nor on the number of ranks.
    """

    num_sums = 2

    def __init__(self, batcher: Batcher):
        self._batcher = batcher

    def prepare(self, stopping: Callable[[], bool]) -> bool:
        """Return True: nothing is needed."""
        return True

    def lengths(self, samples: PreparedConversations) -> torch.Tensor:
        """Return the tokens of each conversation, shape `(samples,)`."""
        return torch.from_numpy(samples.offsets).diff()

    def rows(self, samples: PreparedConversations, indices: Sequence[int]) -> TokenBatch:
        """Return the rows of a batch in the memory of the CPU."""
        return self._batcher.laid_out([samples.sample(each) for each in indices])

    def outcome(self, root: nn.Module, samples: PreparedConversations, rows: TokenBatch) -> Outcome:
        """Return the loss, and the sums: loss and trained tokens."""
        log_probs, aux = root(self._batcher.placed(rows))
        loss = -log_probs.double().sum()
        sums = torch.stack((loss.detach(), torch.full_like(loss, len(log_probs))))  # nothing waits for it
        return Outcome(loss, sums, aux)

    def weighed(self, outcome: Outcome, samples: PreparedConversations, job: LossWeighting) -> torch.Tensor:
        """Return the loss to run backward from."""
        loss = job.weigh_sum(outcome.loss, job.step_sum(torch.from_numpy(samples.targets)))
        return loss if outcome.aux is None else loss + outcome.aux * job.weight

    def metrics(self, sums: torch.Tensor) -> Mapping[str, float]:
        """Return the loss per token."""
        loss, tokens = sums.tolist()
        return {"loss": loss / max(tokens, 1)}
