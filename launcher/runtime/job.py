"""A training loop's companion: restores, counts, saves, reports and stops when the cluster changes."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from launcher import contract
from launcher.runtime import agent, process_group, starts
from launcher.runtime.agreement import StepAgreement
from launcher.runtime.checkpoint import Checkpoints, Progress
from launcher.runtime.content import Content, Stateful
from launcher.runtime.feed import LoaderMismatch, matched
from launcher.runtime.gradients import gradient_exchange, gradient_scale
from launcher.runtime.reporting import Reporter, StepMetrics
from launcher.runtime.sampler import Batch, Draw, SamplerMismatch, StepSampler
from launcher.runtime.tiers.journal import Journal
from launcher.runtime.tiers.settings import TierSettings, tier_settings_from_env
from launcher.runtime.waits import Fed

DRAIN_TIMEOUT_S = 5.0
"""How long a job that is in no hurry waits for its metrics to be sent. The launcher sends the rest."""

Data = TypeVar("Data")


class OutsideOfSteps(RuntimeError):
    """The script asked for the current batch where there is none."""


class Job:
    """One training run, through any number of restarts at any number of ranks. All ranks make one.

    Args:
        model: Plain, in DistributedDataParallel, or after fully_shard.
        optimizer: Of the model's parameters.
        scheduler: Of the optimizer; saved and restored with it.
        sampler: The `batch_sampler` of the loader that `steps` is given.
        folder: Receives checkpoints; None for the one under the run folder.
        save_every: Optimizer steps between two checkpoints; 0 for one at the end only.
        keep: Checkpoints kept; 0 keeps all.
        tiers: Where checkpoints go instead, and how often; None for what the launcher says, if anything.
        reporter: Rank 0's; None writes the files of the run folder where the launcher named one.
        on_step: Called on rank 0 with the metrics of each step.
        event_pending: Whether this rank was told to save and stop.
        user_content: Further objects to save and restore, by name: a gradient scaler, averaged weights, counters of
            the script. Each is replicated: its sharded tensors (DTensor) are saved by all ranks, its other tensors
            must be the same on all ranks, and of everything else the first rank's is saved. One that a checkpoint
            does not hold keeps its initial values, with a warning.
        save_frozen: Whether checkpoints hold frozen parameters too, for a model that changes them by other means than
            the optimizer. Otherwise the script gives them their values, from the base model.

    Raises:
        ValueError: A name in `user_content` is taken or malformed.
        TypeError: An object in `user_content` lacks `state_dict` or `load_state_dict`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Stateful | None = None,
        *,
        sampler: StepSampler,
        folder: Path | str | None = None,
        save_every: int = 50,
        keep: int = 3,
        tiers: TierSettings | None = None,
        reporter: Reporter | None = None,
        on_step: Callable[[StepMetrics], None] | None = None,
        event_pending: Callable[[], bool] = agent.event_pending,
        user_content: Mapping[str, Stateful] | None = None,
        save_frozen: bool = False,
    ):
        self.model, self.optimizer, self.scheduler, self.sampler = model, optimizer, scheduler, sampler
        self._content = Content(model, optimizer, scheduler, dict(user_content or {}), save_frozen)
        self._tiers = _tiers(tiers or tier_settings_from_env())
        self._reporter = reporter if reporter or process_group.rank() else _default_reporter()
        journal = Journal("job", process_group.rank(), self._reporter.run_dir if self._reporter else None)
        own = Checkpoints(Path(folder or contract.run_dir() / contract.CHECKPOINT_DIR), keep, journal)
        self.checkpoints = self._tiers or own
        self.save_every = save_every
        self.step = 0
        sampler.records_draws = True
        self._draw: Draw | None = None
        self._fed: Fed[Any] | None = None
        self._resumed: Progress | None = None
        self._restored_at: float | None = None
        self._on_step = on_step
        self._event_pending = event_pending
        self._agreement = StepAgreement()
        self._loss: torch.Tensor | None = None
        self._tells_loss = False
        self._scale: float | None = None
        self._rate: float | None = None
        self._has_stepped = False
        self._is_left = False
        self._start_told = False
        optimizer.register_step_pre_hook(self._note_rate)
        starts.reached("imported")  # in case the script joined the group in its own way
        starts.reached("joined")

    @property
    def finished(self) -> bool:
        """Whether every sample of every epoch is consumed."""
        return self.sampler.cursor >= self.sampler.total_samples

    @property
    def batch(self) -> Batch:
        """The current batch: where it lies in the stream and in its step."""
        return self.draw.batch

    @property
    def draw(self) -> Draw:
        """The current batch with the dataset indices that the loader drew for it."""
        if self._draw is None:
            raise OutsideOfSteps("there is a batch only while `steps` is being iterated")
        return self._draw

    @property
    def completes_step(self) -> bool:
        """Whether the optimizer steps after the current batch; always, without micro batches."""
        return self.batch.completes_step

    @property
    def weight(self) -> float:
        """The factor of a loss that is a mean over the samples of the current batch, as `weigh` applies it."""
        return self._sample_share * self._gradient_scale

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to run backward from, and note it for the metrics: the mean over samples.

        The gradient is that of the mean over all samples of the optimizer step, each counted the same, if `loss`
        is a mean over samples. The mean over the tokens of a batch is not: where samples differ in length, the
        result depends on how they are grouped, and so on the number of ranks. Use `weigh_sum` for it.

        A script that calls this or `weigh_sum` does so on all ranks; one that reports no loss multiplies by
        `weight` itself.

        Args:
            loss: Mean over the samples of the current batch, shape `()`.
        """
        return self._note_part(loss, self._sample_share)

    def weigh_sum(self, total: torch.Tensor, step_total: float) -> torch.Tensor:
        """Return the loss to run backward from, and note it for the metrics: the mean over tokens.

        The gradient is that of the sum over the optimizer step divided by `step_total`: the mean over trained
        tokens where `step_total` counts those, or over anything else that it counts. It depends neither on how
        samples are grouped nor on the number of ranks.

            job.weigh_sum(cross_entropy(..., reduction="sum"), job.step_sum(trained_tokens)).backward()

        Args:
            total: Sum over the current batch, shape `()`.
            step_total: What the sums of all ranks and batches of the optimizer step are divided by; the same
                number on all ranks, more than 0.
        """
        if not step_total > 0:
            raise ValueError(f"step_total={step_total}: a step needs something to train on; leave such samples out")
        return self._note_part(total, 1 / step_total if self.batch.positions else 0.0)

    def step_sum(self, per_sample: Sequence[float] | torch.Tensor) -> float:
        """Return the sum of `per_sample` over the samples of the current optimizer step, those of all ranks.

        Every rank knows the samples of all others: nothing is exchanged.

        Args:
            per_sample: One number per sample of the dataset, in the memory of the CPU, as the number of its trained
                tokens; shape `(num_samples,)`. A tensor or an array is not copied.
        """
        batch, stream = self.batch, self.sampler.stream
        numbers = torch.as_tensor(per_sample)
        if numbers.shape != (stream.num_samples,):
            raise ValueError(
                f"per_sample has shape {tuple(numbers.shape)}; the dataset has {stream.num_samples} samples"
            )
        return numbers[stream.indices(range(batch.step_start, batch.step_stop))].sum().item()

    @property
    def _sample_share(self) -> float:
        return len(self.batch.positions) / self.batch.step_samples

    @property
    def _gradient_scale(self) -> float:
        if self._scale is None:
            self._scale = gradient_scale(self.model, self.sampler.world_size)
        return self._scale

    def _note_part(self, loss: torch.Tensor, share: float) -> torch.Tensor:
        """Return `loss` as its `share` of the step's loss, scaled for the exchange of gradients."""
        # Each part is there once for every rank that trains on it.
        own = loss.detach() * (share * self.sampler.world_size / process_group.world_size())
        self._loss = own if self._loss is None else self._loss + own
        self._tells_loss = True
        if self.completes_step:
            self._agreement.begin(self._loss, self._event_pending())
        return loss * (share * self._gradient_scale)

    def restore(self) -> Progress | None:
        """Load the newest checkpoint if there is one; `steps` does so where it is not done yet.

        Raises:
            CheckpointBroken: There are checkpoints, and all of them are damaged.
            CheckpointUnavailable: The newest one could not be read in time.
            SamplerMismatch: It was saved by training on another number of samples, or with another seed.
        """
        if self._restored_at is None:
            self._resumed = self.checkpoints.load(self._content)
            if self._resumed:
                self._go_to(self._resumed)
            self._restored_at = time.time()
        return self._resumed

    def save(self) -> None:
        """Publish a checkpoint of the steps done; one that is published already is left as it is.

        Raises:
            CheckpointUnsaved: It could not be saved. Saves that `steps` makes while training continues do not raise:
                they are recorded as failed, and repeated when the next one is due.
        """
        self._save(is_last=True)

    def _save(self, *, is_last: bool) -> None:
        if not self.step:
            return
        with self._reporter.busy("checkpoint") if self._reporter else nullcontext():
            self._publish(is_last=is_last)

    def _publish(self, *, is_last: bool) -> None:
        progress = Progress(self.step, world_size=process_group.world_size(), **self.sampler.state_dict())
        self.checkpoints.save(self._content, progress, is_last=is_last)

    def _is_due(self) -> bool:
        """Return whether a checkpoint is due after this step."""
        if self._tiers:
            return self._tiers.is_due(self.step)
        return bool(self.save_every) and self.step % self.save_every == 0

    def steps(self, loader: Iterable[Data]) -> Iterator[Data]:
        """Yield the batches of `loader` that are still to be trained on.

        It ends with the last sample, or soon after any rank was told to stop: after the step, or where
        steps are short and the script tells no loss, after some. All ranks end at the same step, and the
        work done is then in a published checkpoint.

        A script that leaves the loop itself (`break`) does so on all ranks in the same pass. Nothing is saved
        then: `save`, called on all ranks, does it. A new loop goes on after the last step that was done.

        Args:
            loader: Draws this rank's batches from the sampler, in this process, and gives them in that order: a
                DataLoader that has it as its `batch_sampler`, or anything else that iterates over it.

        Raises:
            LoaderMismatch: The loader does not draw from the sampler; before the first batch is trained on.
            SamplerMismatch: The sampler splits a step over a number of ranks that does not divide theirs.
        """
        self._check_ranks()
        self.restore()
        self._scale = None
        if self._reporter:
            self._reporter.announce(contract.STEPS)
        began = time.perf_counter()
        try:
            self._fed = Fed(lambda: _begun(loader))
            for draw, data in matched(self.sampler, self._fed):
                with self._passing(draw, began):
                    yield data
                if not draw.batch.completes_step:
                    continue
                is_event = self._end_step(began)
                if is_event or self._is_due():
                    self._save(is_last=is_event)
                if is_event:
                    break
                began = time.perf_counter()
            self.save()
        finally:
            self._close()

    def _check_ranks(self) -> None:
        dp_size, world_size = self.sampler.world_size, process_group.world_size()
        if world_size % dp_size:
            raise SamplerMismatch(
                f"the sampler splits a step over {dp_size} data-parallel ranks of {world_size} ranks"
            )

    @contextmanager
    def _passing(self, draw: Draw, began: float) -> Iterator[None]:
        """Surround the script's work on a batch."""
        self._draw, self._has_stepped, self._is_left = draw, False, False
        if self._agreement.due and not (self._tells_loss or self._agreement.begun):
            self._agreement.begin(None, self._event_pending())
        try:
            with gradient_exchange(self.model, draw.batch.completes_step):
                yield
        except GeneratorExit:
            # A step that is in the model already counts, or it would be done twice.
            self._is_left = True
            if self._has_stepped and draw.batch.completes_step:
                self._end_step(began)
            raise

    def _go_to(self, progress: Progress) -> None:
        self.step = progress.step
        if progress.num_samples is None:  # written before the stream was written down with it
            self.sampler.cursor = progress.cursor
        else:
            names = ("cursor", "num_samples", "seed")
            self.sampler.load_state_dict({name: getattr(progress, name) for name in names})

    def _end_step(self, began: float) -> bool:
        """Count the step and report it; return whether training stops here for a scale event."""
        if not self._agreement.begun and (self._agreement.due or self._loss is not None):
            self._agreement.begin(self._loss, self._event_pending())
        loss, is_event = self._agreement.end_step()
        elapsed_s = time.perf_counter() - began
        self.step += 1
        self.sampler.cursor = self.batch.step_stop
        if process_group.rank() == 0:
            self._report(loss, elapsed_s)
        self._loss = None
        return is_event

    def _report(self, loss: float | None, elapsed_s: float) -> None:
        metrics = StepMetrics(
            step=self.step,
            loss=loss,
            learning_rate=self._rate,
            world_size=process_group.world_size(),
            nodes=process_group.num_nodes(),
            samples_per_s=self.batch.step_samples / elapsed_s,
            samples=self.batch.step_samples,
            time=time.time(),
            attempt=starts.attempt(),
            cursor=self.sampler.cursor,
            data_s=self._fed.take_waited_s() if self._fed else 0.0,
        )
        if self._reporter:
            self._reporter.report(metrics)
            self._tell_start(metrics.time)
        if self._on_step:
            self._on_step(metrics)

    def _tell_start(self, first_step: float | None) -> None:
        if self._start_told:
            return
        self._start_told = True
        resumed = self._resumed or Progress()
        self._reporter.started(
            starts.Start(
                attempt=starts.attempt(),
                world_size=process_group.world_size(),
                nodes=process_group.num_nodes(),
                spawned=starts.spawned(),
                imported=starts.time_of("imported"),
                joined=starts.time_of("joined"),
                restored=self._restored_at,
                first_step=first_step,
                step=resumed.step,
                cursor=resumed.cursor,
            )
        )

    def _note_rate(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._rate = float(optimizer.param_groups[0]["lr"])
        self._has_stepped = True

    def _close(self) -> None:
        self._draw = self._loss = None
        if self._reporter:
            self._tell_start(None)
            self._reporter.announce("after the steps")
            self._reporter.close(DRAIN_TIMEOUT_S if self.finished or self._is_left else 0.0)


def _tiers(settings: TierSettings | None) -> Any:
    if settings is None:
        return None
    from launcher.runtime.tiers.training import TieredCheckpoints

    return TieredCheckpoints(settings, contract.run_dir())


def _default_reporter() -> Reporter | None:
    return Reporter(contract.run_dir()) if contract.ENV_RUN_DIR in os.environ else None


def _begun(loader: Iterable[Data]) -> Iterator[Data]:
    """Return the loader's iterator, its workers begun.

    The workers are spared the stop signal, which goes to a whole process group: without a handler, as in
    spawned workers, it would end them. The seed that is drawn for them is put back, so that a resumed run
    draws the numbers of one that was not interrupted.
    """
    if getattr(loader, "in_order", True) is False:
        raise LoaderMismatch("the loader has in_order=False: its batches must come in the order of the sampler")
    with agent.stop_signal_held(), torch.random.fork_rng(devices=[]):
        return iter(loader)
