"""What a technique trains: the loss of its samples, and what is reported of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import nn

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

        Args:
            stopping: Returns whether a rank was asked to stop; collective.

        Returns:
            Whether it is done; False if a stop interrupts it.
        """

    def lengths(self, samples: Samples) -> torch.Tensor:
        """Return the tokens that the model reads for each sample, shape `(samples,)`."""

    def rows(self, samples: Samples, indices: Sequence[int]) -> Rows:
        """Return the rows of a batch in the memory of the CPU; other threads may call this.

        Args:
            samples: Prepared ones.
            indices: The batch, of `samples`.
        """

    def outcome(self, root: nn.Module, samples: Samples, rows: Rows) -> Outcome:
        """Return the outcome of a batch. Collective: `root` may gather its parameters.

        Args:
            root: Gives the log-probabilities of a `TokenBatch`.
            samples: Prepared ones.
            rows: Of a batch of them.
        """

    def weighed(self, outcome: Outcome, samples: Samples, job: LossWeighting) -> torch.Tensor:
        """Return the loss to run backward from: every token or pair of the optimizer step counts the same."""

    def metrics(self, sums: torch.Tensor) -> Mapping[str, float]:
        """Return what is reported of the sums over several batches; `loss` among it."""
