"""The support of a training loop: it restores, counts, saves, reports, and stops when the cluster changes."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from launcher.common import names
from launcher.runtime import agent, in_place, process_group, startup_timing
from launcher.runtime.checkpoint import Checkpoints
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content, Stateful
from launcher.runtime.feed import TimedIterator, begun, matched
from launcher.runtime.finite_steps import FiniteSteps, NotFinite, has_finite_weights, number
from launcher.runtime.hooks import EXPORTED, HOOKED, Hooks, Marks, epochs_ended, untouched_randomness
from launcher.runtime.loss_weighting import LossWeighting, gradient_exchange
from launcher.runtime.reporting import Reporter, StepMetrics
from launcher.runtime.sampler import Draw, SamplerMismatch, StepSampler
from launcher.runtime.stop_consensus import any_rank
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.tier_settings import TierSettings, tier_settings_from_env
from launcher.runtime.training_config import MAX_SKIPPED_STEPS
from launcher.runtime.user_metrics import UserMetrics

if TYPE_CHECKING:  # start-up time, as in `Job.__init__`
    from launcher.runtime import peers
    from launcher.runtime.staying import Stay
    from launcher.runtime.tiers.training import TieredCheckpoints

DRAIN_TIMEOUT_S = 5.0
"""How long a finished job waits for its metrics to be sent. The launcher sends the rest."""

Data = TypeVar("Data")


class Job(LossWeighting):
    """One training run, through any number of restarts at any number of ranks. All ranks create one.

    Args:
        model: Plain, in DistributedDataParallel, or after fully_shard.
        optimizer: Of the model's parameters.
        scheduler: Of the optimizer; saved and restored with it.
        sampler: The `batch_sampler` of the loader passed to `steps`.
        folder: Receives checkpoints; None for the default under the run folder.
        save_every: Optimizer steps between two checkpoints; 0 for one at the end only.
        keep: Number of checkpoints to keep; 0 keeps all.
        max_bytes: Disk space of checkpoints; the oldest are removed while they take more. None for no limit.
        tiers: Tiers that replace `folder`; None for those in the environment, if any.
        reporter: Of rank 0; None for the files of the run folder, if the environment names one.
        on_step: Called on rank 0 with the metrics of each step.
        event_pending: Returns whether this rank was asked to save and stop.
        user_content: Further objects to save and restore, by name, as described in `Content`. An object that a
            checkpoint lacks keeps its initial values, with a warning.
        save_frozen: Whether checkpoints hold frozen parameters, too, rather than leave them to the script.
        hooks: Called between steps: evaluation, end of an epoch, final export.
        max_skipped_steps: Steps in a row that `may_step` may refuse before training ends.

    Raises:
        ValueError: A name in `user_content` is reserved or malformed.
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
        max_bytes: float | None = None,
        tiers: TierSettings | None = None,
        reporter: Reporter | None = None,
        on_step: Callable[[StepMetrics], None] | None = None,
        event_pending: Callable[[], bool] = agent.event_pending,
        user_content: Mapping[str, Stateful] | None = None,
        save_frozen: bool = False,
        hooks: Hooks | None = None,
        max_skipped_steps: int = MAX_SKIPPED_STEPS,
    ):
        super().__init__(model, sampler, event_pending)
        self.optimizer, self.scheduler, self.save_every = optimizer, scheduler, save_every
        self._content = Content(model, optimizer, scheduler, dict(user_content or {}), save_frozen)
        self._hooks, self._on_step = hooks or Hooks(), on_step
        if not reporter and not process_group.rank() and names.ENV_RUN_DIR in os.environ:
            reporter = Reporter(names.run_dir())
        self._reporter = reporter
        self.checkpoints: Checkpoints | TieredCheckpoints
        if settings := tiers or tier_settings_from_env():
            from launcher.runtime.tiers import training  # start-up time: most jobs have no tiers

            self.checkpoints = training.TieredCheckpoints(settings, names.run_dir())
            marks = names.run_dir() / f"{settings.namespace}-hooks"
        else:
            log = CheckpointLog("job", process_group.rank(), self._reporter.run_dir if self._reporter else None)
            marks = Path(folder or names.run_dir() / names.CHECKPOINT_DIR)
            self.checkpoints = Checkpoints(marks, keep, log, max_bytes=max_bytes, every=save_every)
        self._marks = Marks(marks, is_used=self._hooks.are_given)
        self._further = UserMetrics()
        self._finite, self._is_save_postponed = FiniteSteps(max_skipped_steps), False
        self.step = self._step_start = 0
        self._timed: TimedIterator[Any] | None = None
        self._resumed: Progress | None = None
        self._restored_at: float | None = None
        self.longest_step_s = 0.0
        """Of this attempt, in seconds."""
        self._rate: float | None = None
        self._last: StepMetrics | None = None
        self._saw_stop = self._has_stepped = self.is_left = self._is_start_recorded = self._is_dirty = False
        sampler.records_draws = True
        self._step_hook = optimizer.register_step_pre_hook(self._before_step)
        self._stay: Stay | None = None
        if in_place.stays():
            from launcher.runtime import staying  # start-up time: other jobs do without

            in_place.register(self)
            self._stay = staying.Stay(self._content)
        startup_timing.reached("imported")  # in case the script joined the process group by itself
        startup_timing.reached("joined")

    @property
    def finished(self) -> bool:
        """Whether every sample of every epoch is consumed."""
        return self.sampler.cursor >= self.sampler.total_samples

    def restore(self, load: Callable[[Content], Progress | None] | None = None) -> Progress | None:
        """Load the newest checkpoint if there is one; `steps` does so if it has not been done.

        Args:
            load: Loads a checkpoint of another training, which this one continues; None for this job's newest.

        Raises:
            CheckpointBroken: There are checkpoints, and all of them are damaged.
            CheckpointUnavailable: The newest one could not be read in time.
            SamplerMismatch: It was saved for another number of samples, or another seed.
        """
        if self._restored_at is None:
            self._resumed = None if load else self._take_over()
            if self._resumed is None:
                with self._busy("restore"):
                    self._resumed = (load or self.checkpoints.load)(self._content)
                if not self._resumed:
                    in_place.begin_anew_if_trained(self.plain_model)
            if progress := self._resumed:
                self.step = progress.step
                if progress.num_samples is None:  # saved by a version that did not record the stream
                    self.sampler.cursor = progress.cursor
                else:
                    keys = ("cursor", "num_samples", "seed")
                    self.sampler.load_state_dict({key: getattr(progress, key) for key in keys})
            self._marks.read(is_new=self._resumed is None or load is not None)
            # Steps begin at multiples of their samples, except if the number of epochs was increased since.
            per_step = self.sampler.samples_per_step
            self._step_start = max(self.sampler.cursor - 1, 0) // per_step * per_step
            self._restored_at = time.time()
        return self._resumed

    @property
    def is_restored(self) -> bool:
        """Whether this job has its state: that of a checkpoint, of another rank, or the initial one."""
        return self._restored_at is not None

    @property
    def plain_model(self) -> nn.Module:
        """The model without its DistributedDataParallel."""
        return self._content.plain

    def _take_over(self) -> Progress | None:
        """Continue with the state that ranks of the last attempt have kept; None if they need a checkpoint."""
        taken = self._stay.take_over() if self._stay else None
        if taken is None:
            return None
        if self._reporter and taken.last and self._reporter.last_step() < taken.last.step:
            self._reporter.report(taken.last)  # the first rank was lost between this step and its report
        self._last = taken.last
        return taken.progress

    def left(self) -> "tuple[peers.Kept, ...]":
        """Return the states that this rank keeps for the next attempt, and let go of everything else."""
        self._step_hook.remove()
        if self._reporter:
            self._reporter.close(0.0)
        self.optimizer.zero_grad()
        return self._stay.left(self._progress(), self._last, is_complete=not self._is_dirty) if self._stay else ()

    @property
    def kept_by(self) -> int | None:
        """How many ranks had the state that this attempt began with in memory; None for a checkpoint."""
        return self._stay.taken.num_holders if self._stay and self._stay.taken else None

    def report(self, metrics: Mapping[str, object] | None = None, /, **more: object) -> None:
        """Report further metrics of the current step or, in a hook, of the step before: gradient norm, rewards.

        They go to the metrics file and to MLflow, under the step's number. Every rank calls this with the same names;
        the first rank's values count, without a reduction over ranks, and the last value of a name counts.

            job.report(grad_norm=clip_grad_norm_(model.parameters(), 1.0))

        Args:
            metrics: By name, for names with slashes; each a number or a tensor with one element.
            more: Likewise.

        Raises:
            MetricInvalid: A name or a value cannot be reported.
        """
        self._further.add({**(metrics or {}), **more})

    def may_step(self, grad_norm: torch.Tensor | float | None = None) -> bool:
        """Return whether the optimizer may step: the loss of all ranks, and the norm, are finite. Collective.

        A step that may not is skipped: its samples count as consumed, and the schedule continues. It is printed and
        counted, and too many in a row end training. Every rank gets the same answer.

            norm = clip_grad_norm_(model.parameters(), 1.0)
            if job.may_step(norm):
                optimizer.step()
            optimizer.zero_grad()

        Args:
            grad_norm: Of all gradients, the same on every rank; None to look at the loss alone.
        """
        is_finite = self._finite.judge(self._consensus.loss(), number(grad_norm))
        if not is_finite:
            self._record_rate()
            self.report(skipped_steps=self._finite.total)
            process_group.print_once(self._finite.describe(self.step + 1))
        return is_finite

    def stopping(self) -> bool:
        """Return whether any rank was asked to stop, for use in long evaluations. Collective.

        If True, an evaluation should return at once: its result is dropped, training stops with a checkpoint, and the
        evaluation is repeated after the restart. False once training is finished: an export runs to its end.
        """
        if not self.finished and not self._saw_stop:
            self._saw_stop = any_rank(self._event_pending())
        return not self.finished and self._saw_stop

    def save(self) -> None:
        """Publish a checkpoint of the steps done, unless it is published already.

        After skipped steps there is none until one is not skipped, or training ends: the weights may be the reason.

        Raises:
            CheckpointUnsaved: It could not be saved. Saves by `steps` while training continues do not raise: the
                failure is recorded, and the next save takes place when it is due.
            NotFinite: The weights are not finite; on all ranks.
        """
        self._save(is_last=True)

    def _save(self, *, is_last: bool) -> None:
        was_postponed = self._is_save_postponed
        self._is_save_postponed = bool(self._finite.in_a_row) and not self.finished
        if not self.step or self._is_save_postponed:
            return
        if any_rank(not has_finite_weights(self.model)):
            raise NotFinite(
                f"the weights are not finite after step {self.step}: no checkpoint is published; lower learning_rate"
            )
        progress = self._progress()
        with self._busy(names.LAST_CHECKPOINT if is_last else names.CHECKPOINT):
            is_late = was_postponed and not is_last
            self.checkpoints.save(self._content, progress, is_last=is_last, is_late=is_late)

    def _progress(self) -> Progress:
        return Progress(self.step, world_size=process_group.world_size(), **self.sampler.state_dict())

    def _busy(self, what: str) -> AbstractContextManager[None]:
        return self._reporter.busy(what) if self._reporter else nullcontext()

    def steps(self, loader: Iterable[Data]) -> Iterator[Data]:
        """Yield the remaining batches of `loader`.

        The iteration ends with the last sample, or soon after any rank was asked to stop: after the current step or,
        if steps are short and the script reports no loss, a few steps later. All ranks end at the same step, and a
        published checkpoint then holds all work. Hooks that a stop or a crash left undone are called first; those of
        the last step and the export are called even if a stop is pending, since there may be no restart.

        A script that leaves the loop itself (`break`) must do so on all ranks in the same pass. Nothing is saved
        then: call `save` on all ranks. A new loop continues after the last step that was done.

        Args:
            loader: Draws this rank's batches from the sampler, in this process, and returns them in that order: a
                DataLoader with the sampler as its `batch_sampler`, or any other iteration over it.

        Raises:
            LoaderMismatch: The loader does not draw from the sampler; raised before the first batch.
            SamplerMismatch: The sampler divides a step among a number of ranks that does not divide the world size.
            NotFinite: Too many steps in a row were skipped, or the weights are not finite.
        """
        dp_size, world_size = self.sampler.world_size, process_group.world_size()
        if world_size % dp_size:
            raise SamplerMismatch(
                f"the sampler divides a step among {dp_size} data-parallel ranks of {world_size} ranks"
            )
        self.restore()
        self._scale, self._saw_stop = None, False
        if self._reporter:
            self._reporter.announce(names.STEPS)
        try:
            if self.finished or not self._call_hooks(is_repeat=True):
                yield from self._batches(loader)
            stay = self._stay if not self.finished else None
            if not (stay and stay.leaves_state(is_postponed=self._is_save_postponed)):
                self.save()
            if self.finished:
                self._finish()
        finally:
            self._close()

    def _batches(self, loader: Iterable[Data]) -> Iterator[Data]:
        """Yield the batches up to the last one, or to a stop."""
        began = time.perf_counter()
        self._timed = TimedIterator(lambda: begun(loader))
        for draw, data in matched(self.sampler, self._timed):
            with self._passing(draw, began):
                yield data
            if not draw.batch.completes_step:
                continue
            is_event = self._end_step(began)
            if self._stay and not is_event:
                self._stay.copy_if_due(self._progress(), self._last)
            if not is_event and (self.checkpoints.is_due(self.step) or self._is_save_postponed):
                self._save(is_last=False)
            if not self.finished and (is_event or self._call_hooks()):
                return
            began = time.perf_counter()

    def _call_hooks(self, *, is_repeat: bool = False) -> bool:
        """Call the hooks that are due after the last step; return whether a stop interrupted them.

        Args:
            is_repeat: Whether they were called before, unless a stop or a crash prevented it.
        """
        epochs = epochs_ended(self._step_start, self.sampler.cursor, self.sampler.stream.num_samples)
        calls = self._hooks.calls_after(self.step, epochs)
        if not calls or (is_repeat and self._marks.reached(HOOKED) >= self.step):
            return False
        self._draw = None
        for call in calls:
            with untouched_randomness(), self._busy("evaluation"):
                self._further.add(call() or {})
            if self._saw_stop:
                self._further.forget()
                return True
        self._report_further()
        self._marks.put(HOOKED, self.step)
        return False

    def _finish(self) -> None:
        """Call the hooks of the last step and the export, unless they have succeeded already."""
        self._call_hooks(is_repeat=True)
        if self._hooks.export and self._marks.reached(EXPORTED) != self.step:
            self._draw = None
            with self._busy("export"):
                self._hooks.export()
            self._report_further()
            self._marks.put(EXPORTED, self.step)

    def _report_further(self) -> None:
        if self._reporter and (further := self._further.take()):
            self._reporter.report_further(self.step, startup_timing.attempt(), further)
        self._further.forget()

    @contextmanager
    def _passing(self, draw: Draw, began: float) -> Iterator[None]:
        """Prepare for the script's work on a batch, and complete it."""
        self._draw, self._has_stepped, self.is_left = draw, False, False
        if self._consensus.due and not (self._reports_loss or self._consensus.begun):
            self._consensus.begin(None, self._event_pending())
        try:
            with gradient_exchange(self.model, draw.batch.completes_step):
                yield
        except GeneratorExit:
            # The optimizer has stepped already: without this, the step would be repeated.
            self.is_left = True
            if self._has_stepped and draw.batch.completes_step:
                self._end_step(began)
            raise

    def _end_step(self, began: float) -> bool:
        """Count the step and report it; return whether training stops here for a scale event."""
        if not self._consensus.begun and (self._consensus.due or self._loss is not None):
            self._consensus.begin(self._loss, self._event_pending())
        loss, is_event = self._consensus.end_step()
        elapsed_s = time.perf_counter() - began
        self.longest_step_s = max(elapsed_s, self.longest_step_s)
        self.step += 1
        self._step_start, self.sampler.cursor = self.batch.step_start, self.batch.step_stop
        if process_group.rank() == 0 or in_place.stays():
            self._last = self._metrics(loss, elapsed_s)
        if process_group.rank() == 0 and self._last:
            self._report(self._last)
        self._further.forget()
        self._loss = None
        self._is_dirty = False
        self._finite.check(self.step, is_last=self.finished)
        return is_event

    def _metrics(self, loss: float | None, elapsed_s: float) -> StepMetrics:
        further: Mapping[str, float] = self._further.take()
        if self._finite.in_a_row:  # neither JSON nor curves have what is not finite
            loss, further = None, {name: value for name, value in further.items() if math.isfinite(value)}
        return StepMetrics(
            step=self.step,
            loss=loss,
            learning_rate=self._rate,
            world_size=process_group.world_size(),
            nodes=process_group.num_nodes(),
            samples_per_s=self.batch.step_samples / elapsed_s,
            samples=self.batch.step_samples,
            time=time.time(),
            attempt=startup_timing.attempt(),
            cursor=self.sampler.cursor,
            data_s=self._timed.take_waited_s() if self._timed else 0.0,
            further=further,
        )

    def _report(self, metrics: StepMetrics) -> None:
        if self._reporter:
            self._reporter.report(metrics)
            self._record_start(metrics.time)
        if self._on_step:
            self._on_step(metrics)

    def _record_start(self, first_step: float | None) -> None:
        if self._is_start_recorded or not self._reporter:
            return
        self._is_start_recorded = True
        resumed = self._resumed or Progress()
        self._reporter.started(
            startup_timing.StartRecord(
                attempt=startup_timing.attempt(),
                world_size=process_group.world_size(),
                nodes=process_group.num_nodes(),
                spawned=startup_timing.spawned(),
                imported=startup_timing.time_of("imported"),
                joined=startup_timing.time_of("joined"),
                restored=self._restored_at,
                first_step=first_step,
                step=resumed.step,
                cursor=resumed.cursor,
                kept_by=self.kept_by,
                moved_bytes=self._stay.taken.num_bytes if self._stay and self._stay.taken else 0,
                ready_s=startup_timing.ready_s(),
            )
        )

    def _before_step(self, *_: Any) -> None:
        """Record the rate. What this step needs of other ranks for its count is waited for: none stops it halfway."""
        self._consensus.settle()
        self._record_rate()
        self._is_dirty = True

    def _record_rate(self) -> None:
        self._rate = float(self.optimizer.param_groups[0]["lr"])
        self._has_stepped = True

    def _close(self) -> None:
        self._draw = self._loss = None
        self._further.forget()
        if self._reporter:
            self._record_start(None)
            if self.finished or self.is_left or not in_place.stays():  # otherwise nothing follows but the next size
                self._reporter.announce("after the steps")
            is_last = self.finished or (self.is_left and not in_place.stays())
            self._reporter.close(DRAIN_TIMEOUT_S if is_last else 0.0)
