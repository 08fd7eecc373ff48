"""The agreement of the ranks in a step: on its loss, and on whether training stops after it."""

import time

import torch
import torch.distributed as dist

from launcher.runtime.process_group import world_size

SIGNAL_PERIOD_S = 0.2
"""Minimum interval at which ranks without a shared loss check for a stop signal; longer steps check every time."""

MAX_STEPS_APART = 100


class StopConsensus:
    """One small reduction, started before the backward pass and read after the step.

    It carries both the loss and the stop signal, so that the signal needs no exchange of its own and all ranks stop
    after the same step. Without a loss it carries the time of a step instead, from which all ranks derive the number
    of steps until the next reduction.

    A loss on an accelerator is reduced there, and `end_step` waits for the accelerator once per step. Without a loss
    nothing waits for it, if the group supports the CPU.
    """

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None
        self._work: dist.Work | None = None
        self._carries_loss = False
        self._step_ended: float | None = None
        self._step_s = 0.0
        self._steps_until_due = 0

    @property
    def begun(self) -> bool:
        return self._sums is not None

    @property
    def due(self) -> bool:
        """Whether the ranks check for a stop signal in this step even without a loss."""
        return self._steps_until_due == 0

    def begin(self, loss: torch.Tensor | None, event: bool) -> None:
        """Start the reduction; a second call in the same step replaces the first.

        Args:
            loss: This rank's part of the step's mean loss, shape `()`; None if the script reports none.
            event: Whether this rank was asked to stop.
        """
        self._carries_loss = loss is not None
        # The loss remains on its device: fetching it here would wait for the forward pass before the backward pass is
        # queued. Only `end_step` waits, when the complete step is queued.
        own = loss.detach() if loss is not None else torch.tensor(self._step_s, device=_control_device())
        own = own.double()
        # Only two numbers: over gloo the time of a small reduction grows with each.
        self._sums = torch.stack([own, own.new_full((), float(event))])
        self._work = dist.all_reduce(self._sums, async_op=True) if dist.is_initialized() else None

    def settle(self) -> None:
        """Wait for the reduction: after it, this step needs no other rank for its count."""
        if self._work:
            self._work.wait()
            self._work = None

    def loss(self) -> float | None:
        """Return the sum of the ranks' losses before the step has ended; None if they share none. Waits for it."""
        if self._sums is None or not self._carries_loss:
            return None
        self.settle()
        return self._sums[0].item()

    def end_step(self) -> tuple[float | None, bool]:
        """Return the sum of the ranks' losses, if shared, and whether any rank was asked to stop."""
        now = time.perf_counter()
        if self._step_ended is not None:
            self._step_s = now - self._step_ended
        self._step_ended = now
        self._steps_until_due = max(self._steps_until_due - 1, 0)
        if self._sums is None:
            return None, False
        self.settle()
        carried, events = self._sums.tolist()
        self._sums = None
        if self._carries_loss:
            return carried, events > 0
        steps = int(SIGNAL_PERIOD_S * world_size() / carried) if carried else 1
        self._steps_until_due = min(max(steps, 1), MAX_STEPS_APART) - 1
        return None, events > 0


def any_rank(flag: bool) -> bool:
    """Return whether `flag` is true on any rank. Collective."""
    if not dist.is_initialized():
        return flag
    flags = torch.tensor(float(flag), device=_control_device())
    dist.all_reduce(flags)
    return flags.item() > 0


def _control_device() -> torch.device:
    # For a reduction without a loss. On the CPU, if the group supports it, reading the result waits for no
    # accelerator.
    if not dist.is_initialized() or "cpu:" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
