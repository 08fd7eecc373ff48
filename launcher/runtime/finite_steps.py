"""Steps whose loss or gradients are not finite: they change nothing, and too many in a row end the training."""

import math

import torch
from torch import nn


class NotFinite(RuntimeError):
    """Training has reached values that are not finite; a restart from the same checkpoint would reach them again."""


class FiniteSteps:
    """Counts skipped steps. All ranks decide the same, since they pass the same numbers.

    Args:
        most: Skipped steps in a row with which training continues.
    """

    def __init__(self, most: int):
        self._most = most
        self._found = ""
        self.in_a_row = self.total = 0

    def judge(self, loss: float | None, norm: float | None) -> bool:
        """Return whether a step may change the weights: its loss and the norm of its gradients are finite."""
        given = (("loss", loss), ("norm of the gradients", norm))
        found = {name: value for name, value in given if value is not None}
        if all(map(math.isfinite, found.values())):
            self.in_a_row = 0
            return True
        self.in_a_row += 1
        self.total += 1
        self._found = ", ".join(f"{name} {value:g}" for name, value in found.items())
        return False

    def describe(self, step: int) -> str:
        """Return the line of a skipped step."""
        return f"step {step}: skipped, {self._found} ({self.in_a_row} in a row, at most {self._most})"

    def check(self, step: int, *, is_last: bool) -> None:
        """Check that training may continue after a step, or end with it.

        Raises:
            NotFinite: Too many steps in a row were skipped, or all but the first of a training that ends.
        """
        if self.in_a_row > self._most or (is_last and self.in_a_row and self.in_a_row >= step - 1):
            raise NotFinite(
                f"the last {self.in_a_row} steps up to step {step} were skipped: {self._found}. Nothing of them is "
                "published. Lower learning_rate, or look for faulty samples in these steps; max_skipped_steps "
                f"({self._most}) is how many may be skipped in a row"
            )


def has_finite_weights(model: nn.Module) -> bool:
    """Return whether the trained parameters of this rank are finite."""
    largest = []
    for parameter in model.parameters():
        own = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own  # of a sharded one, this rank's part
        if parameter.requires_grad and own.numel():
            largest.append(torch.linalg.vector_norm(own, torch.inf).float())  # isfinite would need memory for each
    return not largest or bool(torch.stack(largest).isfinite().all().item())


def number(value: torch.Tensor | float | None) -> float | None:
    """Return a number that may be a tensor, of which all ranks together gather a sharded one."""
    if not isinstance(value, torch.Tensor):
        return value
    full: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full.item()
