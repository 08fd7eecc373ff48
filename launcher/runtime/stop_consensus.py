"""What the ranks settle together in a step: its loss, and whether training stops after it."""

import time

import torch
import torch.distributed as dist

from launcher.runtime.process_group import world_size

SIGNAL_PERIOD_S = 0.2
"""How often ranks that share no loss look for a stop signal, at most; a step that takes longer has its own look."""

MAX_STEPS_APART = 100


class StopConsensus:
    """One small reduction, begun before the backward pass and read after the step.

    It carries both the loss and the stop signal: the signal costs no exchange of its own, and all ranks
    stop after the same step. Where there is no loss to carry, it carries the time of a step instead, from
    which all ranks derive how many steps to do until the next one.

    A loss on an accelerator is reduced there, and `end_step` waits for the accelerator to read it, once a
    step. Without a loss nothing waits for it, where the group reaches the CPU.
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
        """Whether the ranks look for a stop signal in this step even if they share no loss."""
        return self._steps_until_due == 0

    def begin(self, loss: torch.Tensor | None, event: bool) -> None:
        """Begin the reduction; a second call in the same step replaces the first.

        Args:
            loss: This rank's part of the step's mean loss, shape `()`; None where the script tells none.
            event: Whether this rank was told to stop.
        """
        self._carries_loss = loss is not None
        # The loss stays where it is: to fetch it here would wait for the forward pass before the backward
        # pass is queued. What waits is `end_step`, when all of the step is queued.
        own = torch.tensor(self._step_s, device=_control_device()) if loss is None else loss.detach().float()
        # Two numbers, no more: over gloo the time of so small a reduction grows with each.
        self._sums = torch.stack([own, own.new_full((), float(event))])
        self._work = dist.all_reduce(self._sums, async_op=True) if dist.is_initialized() else None

    def end_step(self) -> tuple[float | None, bool]:
        """Return the sum of the ranks' losses if they shared them, and whether any rank was told to stop."""
        now = time.perf_counter()
        if self._step_ended is not None:
            self._step_s = now - self._step_ended
        self._step_ended = now
        self._steps_until_due = max(self._steps_until_due - 1, 0)
        if self._sums is None:
            return None, False
        if self._work:
            self._work.wait()
        carried, events = self._sums.tolist()
        self._sums = self._work = None
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
    # Of what goes without a loss. The CPU where the group reaches it: reading the answer waits for no accelerator.
    if not dist.is_initialized() or "cpu:" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
