"""What a technique trains: the loss of its samples, and what is reported of it.

Supervised fine-tuning, and direct preference optimization.

Source: Rafailov et al., Direct Preference Optimization (2023); Azar et al., A General Theoretical Paradigm to
    Understand Learning from Human Preferences (2023), for `ipo`; Zhao et al., SLiC-HF (2023), for `hinge`;
    Mitchell, A note on DPO with noisy preferences (2023), for label smoothing.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import logsigmoid

from launcher.runtime.finetune.batches import Batcher, Sample
from launcher.runtime.finetune.data.prepared import PreparedConversations, PreparedPairs
from launcher.runtime.finetune.settings import LOSSES, PreferenceSettings
from launcher.runtime.finetune.token_scores import TokenBatch
from launcher.runtime.loss_weighting import LossWeighting

Samples = TypeVar("Samples")
Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch after the forward pass.

    Args:
        loss: Sum over what the technique counts, tokens or pairs; shape `()`.
        sums: The same sum, the count, and whatever else is reported, without gradients; shape `(num_sums,)`.
        aux: Load-balancing loss of experts; None if it is not wanted.
    """

    loss: torch.Tensor
    sums: torch.Tensor
    aux: torch.Tensor | None


class Objective(ABC, Generic[Samples, Rows]):
    """A technique: supervised, or by preference. Its `metrics` are means over what it counts, tokens or pairs."""

    names: tuple[str, ...] = ("loss",)
    """Of the metrics: the sums without their count."""

    def __init__(self, batcher: Batcher):
        self._batcher = batcher

    @property
    def num_sums(self) -> int:
        """Length of an outcome's sums."""
        return 1 + len(self.names)

    def prepare(self, stopping: Callable[[], bool]) -> bool:
        """Do what has to precede training, while the model has its first weights. Collective.

        Return False if a stop interrupts that: `stopping` returns whether a rank was asked to stop; collective.
        """
        return True

    @abstractmethod
    def lengths(self, samples: Samples) -> torch.Tensor:
        """Return the tokens that the model reads for each sample, shape `(samples,)`."""

    @abstractmethod
    def rows(self, samples: Samples, indices: Sequence[int]) -> Rows:
        """Return the rows of a batch in the memory of the CPU; other threads may call this."""

    @abstractmethod
    def outcome(self, root: nn.Module, samples: Samples, rows: Rows) -> Outcome:
        """Return the outcome of a batch. Collective: `root` may gather its parameters."""

    @abstractmethod
    def _weighed(self, loss: torch.Tensor, samples: Samples, job: LossWeighting) -> torch.Tensor: ...

    def weighed(self, outcome: Outcome, samples: Samples, job: LossWeighting) -> torch.Tensor:
        """Return the loss to run backward from: every token or pair of the optimizer step counts the same."""
        loss = self._weighed(outcome.loss, samples, job)
        return loss if outcome.aux is None else loss + outcome.aux * job.weight

    def metrics(self, sums: torch.Tensor) -> Mapping[str, float]:
        """Return what is reported of the sums over several batches."""
        loss, count, *others = sums.tolist()
        return {name: each / max(count, 1) for name, each in zip(self.names, (loss, *others), strict=True)}


class Supervised(Objective[PreparedConversations, TokenBatch]):
    """The mean loss over the trained tokens of an optimizer step.

    It does not depend on how samples are grouped, nor on the number of ranks.
    """

    def lengths(self, samples: PreparedConversations) -> torch.Tensor:
        return torch.from_numpy(samples.offsets).diff()

    def rows(self, samples: PreparedConversations, indices: Sequence[int]) -> TokenBatch:
        return self._batcher.laid_out([samples.sample(each) for each in indices])

    def outcome(self, root: nn.Module, samples: PreparedConversations, rows: TokenBatch) -> Outcome:
        log_probs, aux = root(self._batcher.placed(rows))
        loss = -log_probs.double().sum()
        sums = torch.stack((loss.detach(), torch.full_like(loss, len(log_probs))))  # nothing waits for it
        return Outcome(loss, sums, aux)

    def _weighed(self, loss: torch.Tensor, samples: PreparedConversations, job: LossWeighting) -> torch.Tensor:
        return job.weigh_sum(loss, job.step_sum(torch.from_numpy(samples.targets)))


class LossUnknown(ValueError):
    """The open trainer does not have the recipe's `loss_type`."""


class PairRows:
    """Rows of preference pairs: the chosen answers, then the rejected ones, each after its prompt."""

    def __init__(self, pairs: PreparedPairs, indices: Sequence[int], batcher: Batcher):
        parts = [pairs.sample(each) for each in indices]
        rows = [_answered(prompt, chosen) for prompt, chosen, _ in parts]
        rows += [_answered(prompt, rejected) for prompt, _, rejected in parts]
        self.indices = list(indices)
        self._batcher, self._laid_out = batcher, batcher.laid_out(rows)
        # Counted on the CPU: an accelerator would have to be waited for.
        self._num_tokens = torch.bincount(self._laid_out.samples, minlength=2 * len(self.indices)).clamp(min=1)

    @functools.cached_property
    def batch(self) -> TokenBatch:
        """The rows on their device."""
        return self._batcher.placed(self._laid_out)

    def sums(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the sums over the tokens of each answer, chosen and rejected, in 64 bits; shape `(pairs, 2)`.

        In 32 bits, the sum over 2,000 tokens was off by 0.01.
        """
        sums = torch.zeros(2 * len(self.indices), dtype=torch.float64, device=log_probs.device)
        return sums.index_add(0, self.batch.samples, log_probs.double()).view(2, -1).T

    @property
    def num_tokens(self) -> torch.Tensor:
        """Tokens of each answer, at least 1; shape `(pairs, 2)`."""
        return self.on_device(self._num_tokens).view(2, -1).T

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device of the rows."""
        return self._batcher.to_device(tensor)


Reference = Callable[[PreparedPairs, PairRows], torch.Tensor]
"""Returns the reference's log-probabilities of chosen and rejected answers, shape `(pairs, 2)`."""


def _answered(prompt: np.ndarray, answer: np.ndarray) -> Sample:
    trained = np.concatenate([np.zeros(len(prompt), np.uint8), np.ones(len(answer), np.uint8)])
    return np.concatenate([prompt, answer]), trained


def uniform_reference(pairs: PreparedPairs, rows: PairRows) -> torch.Tensor:
    """Return zeros: every answer is as likely as any other."""
    return torch.zeros((len(rows.indices), 2), dtype=torch.float64, device=rows.batch.ids.device)


def preference_losses(gains: torch.Tensor, num_tokens: torch.Tensor, preference: PreferenceSettings) -> torch.Tensor:
    """Return the loss of each pair, shape `(pairs,)`.

    Args:
        gains: Log-probability of chosen and rejected answers beyond the reference's, shape `(pairs, 2)`.
        num_tokens: Of the answers, shape `(pairs, 2)`; `ipo` compares the means over tokens.
    """
    margins = gains[:, 0] - gains[:, 1]
    scaled, smoothing = preference.beta * margins, preference.label_smoothing
    if preference.loss_type == "sigmoid":
        return -(1 - smoothing) * logsigmoid(scaled) - smoothing * logsigmoid(-scaled)
    if preference.loss_type == "hinge":
        return torch.relu(1 - scaled)
    means = gains / num_tokens
    return (means[:, 0] - means[:, 1] - 1 / (2 * preference.beta)) ** 2


class Preference(Objective[PreparedPairs, PairRows]):
    """Direct preference optimization: the mean loss over the preference pairs of an optimizer step.

    Raises:
        LossUnknown: The form of the loss is none of `LOSSES`.
    """

    names = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margin", "rewards/accuracy")

    def __init__(
        self,
        batcher: Batcher,
        preference: PreferenceSettings,
        reference: Reference,
        prepare: Callable[[Callable[[], bool]], bool] | None = None,
    ):
        if preference.loss_type not in LOSSES:
            raise LossUnknown(f"loss_type={preference.loss_type!r}; the open trainer supports {', '.join(LOSSES)}")
        super().__init__(batcher)
        self._preference, self._reference, self._prepare = preference, reference, prepare

    def prepare(self, stopping: Callable[[], bool]) -> bool:
        return self._prepare(stopping) if self._prepare else True

    def lengths(self, samples: PreparedPairs) -> torch.Tensor:
        prompt, chosen, rejected = torch.from_numpy(samples.offsets).diff().view(-1, 3).T
        total: torch.Tensor = 2 * prompt + chosen + rejected  # each answer is in a row with the prompt
        return total

    def rows(self, samples: PreparedPairs, indices: Sequence[int]) -> PairRows:
        return PairRows(samples, indices, self._batcher)

    def outcome(self, root: nn.Module, samples: PreparedPairs, rows: PairRows) -> Outcome:
        reference = self._reference(samples, rows)
        log_probs, aux = root(rows.batch)
        policy, num_tokens = rows.sums(log_probs), rows.num_tokens
        gains = policy - reference
        losses = preference_losses(gains, num_tokens, self._preference)
        if self._preference.nll_coef:
            losses = losses - self._preference.nll_coef * (policy / num_tokens)[:, 0]
        loss = losses.sum()
        chosen, rejected = (self._preference.beta * gains.detach()).T
        parts = (chosen.sum(), rejected.sum(), (chosen - rejected).sum(), (chosen > rejected).sum())
        pairs = torch.full_like(loss, len(chosen))  # nothing waits for the device
        sums = torch.stack([part.double() for part in (loss.detach(), pairs, *parts)])
        return Outcome(loss, sums, aux)

    def _weighed(self, loss: torch.Tensor, samples: PreparedPairs, job: LossWeighting) -> torch.Tensor:
        return job.weigh(loss / max(len(job.batch.positions), 1))
