"""Supervised fine-tuning: the mean loss over the trained tokens of an optimizer step."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.prepared import PreparedConversations
from launcher.runtime.finetune.objectives import Outcome
from launcher.runtime.finetune.token_scores import TokenBatch
from launcher.runtime.loss_weighting import LossWeighting


class Supervised:
    """The loss of conversations; the mean does not depend on how samples are grouped, nor on the number of ranks.

    Args:
        batcher: Makes rows of samples.
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
