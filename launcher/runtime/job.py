"""A training loop's companion: restores, counts, saves, reports and stops when the cluster changes."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from launcher.common import names
from launcher.runtime import agent, process_group, startup_timing
from launcher.runtime.checkpoint import Checkpoints, Progress
from launcher.runtime.content import Content, Stateful
from launcher.runtime.feed import begun, matched
from launcher.runtime.gradients import gradient_exchange
from launcher.runtime.hooks import EXPORTED, HOOKED, Hooks, Marks, epochs_ended, untouched_randomness
from launcher.runtime.loss_weighting import Weighing
from launcher.runtime.reporting import Reporter, StepMetrics
from launcher.runtime.sampler import Draw, SamplerMismatch, StepSampler
from launcher.runtime.stop_consensus import any_rank
from launcher.runtime.tiers.checkpoint_log import Journal
from launcher.runtime.tiers.tier_settings import TierSettings, tier_settings_from_env
from launcher.runtime.timed_iterator import Fed
from launcher.runtime.user_metrics import FurtherMetrics

DRAIN_TIMEOUT_S = 5.0
"""How long a job that is in no hurry waits for its metrics to be sent. The launcher sends the rest."""

Data = TypeVar("Data")


class Job(Weighing):
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
        user_content: Further objects to save and restore, by name; see `Content` for how. One that a checkpoint does
            not hold keeps its initial values, with a warning.
        save_frozen: Whether checkpoints hold frozen parameters too, rather than leave them to the script.
        hooks: What the script does between steps: evaluation, an epoch's end, the final export.

    Raises:
        ValueError: A name in `user_content` is taken or malformed.
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
        hooks: Hooks | None = None,
    ):
        super().__init__(model, sampler, event_pending)
        self.optimizer, self.scheduler = optimizer, scheduler
        self._content = Content(model, optimizer, scheduler, dict(user_content or {}), save_frozen)
        self._hooks = hooks or Hooks()
        self._reporter = reporter if reporter or process_group.rank() else _default_reporter()
        marks = self._choose_checkpoints(tiers or tier_settings_from_env(), folder, keep)
        self._marks = Marks(marks, is_used=self._hooks.are_given)
        self._further = FurtherMetrics()
        self._saw_stop = False
        self._step_start = 0
        self.save_every = save_every
        self.step = 0
        sampler.records_draws = True
        self._fed: Fed[Any] | None = None
        self._resumed: Progress | None = None
        self._restored_at: float | None = None
        self._on_step = on_step
        self._rate: float | None = None
        self._has_stepped = False
        self._is_left = False
        self._start_told = False
        optimizer.register_step_pre_hook(self._note_rate)
        startup_timing.reached("imported")  # in case the script joined the group in its own way
        startup_timing.reached("joined")

    def _choose_checkpoints(self, settings: TierSettings | None, folder: Path | str | None, keep: int) -> Path:
        """Set where checkpoints go; return the folder for the marks of hooks."""
        self._tiers = _tiers(settings)
        if settings:
            self.checkpoints = self._tiers
            return names.run_dir() / f"{settings.namespace}-hooks"
        journal = Journal("job", process_group.rank(), self._reporter.run_dir if self._reporter else None)
        own = Path(folder or names.run_dir() / names.CHECKPOINT_DIR)
        self.checkpoints = Checkpoints(own, keep, journal)
        return own

    @property
    def finished(self) -> bool:
        """Whether every sample of every epoch is consumed."""
        return self.sampler.cursor >= self.sampler.total_samples

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
            self._marks.read(is_new=self._resumed is None)
            # Steps begin at multiples of their samples, but for those of a training that has got more epochs since.
            per_step = self.sampler.samples_per_step
            self._step_start = max(self.sampler.cursor - 1, 0) // per_step * per_step
            self._restored_at = time.time()
        return self._resumed

    def report(self, metrics: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Report further metrics of the current step, or in a hook of the step before: the gradient's norm, rewards.

        They go to the metrics file and to MLflow, under the step's number. Every rank calls this with the same
        names; the first rank's values count, none is reduced over the ranks, and the last value for a name counts.

            job.report(grad_norm=clip_grad_norm_(model.parameters(), 1.0))

        Args:
            metrics: By name, for names with slashes; a number or a tensor of one each.
            more: Likewise.

        Raises:
            MetricInvalid: A name or a value cannot be reported.
        """
        self._further.note({**(metrics or {}), **more})

    def stopping(self) -> bool:
        """Return whether any rank was told to stop, for an evaluation that takes long. Collective.

        An evaluation that is told so returns at once; what it returns is dropped, training stops with a checkpoint,
        and the evaluation is repeated after the restart. False once training is finished: an export is completed.
        """
        if not self.finished and not self._saw_stop:
            self._saw_stop = any_rank(self._event_pending())
        return not self.finished and self._saw_stop

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
        progress = Progress(self.step, world_size=process_group.world_size(), **self.sampler.state_dict())
        with self._busy(names.CHECKPOINT):
            self.checkpoints.save(self._content, progress, is_last=is_last)

    def _busy(self, what: str) -> AbstractContextManager[None]:
        return self._reporter.busy(what) if self._reporter else nullcontext()

    def _is_due(self) -> bool:
        """Return whether a checkpoint is due after this step."""
        if self._tiers:
            return self._tiers.is_due(self.step)
        return bool(self.save_every) and self.step % self.save_every == 0

    def steps(self, loader: Iterable[Data]) -> Iterator[Data]:
        """Yield the batches of `loader` that are still to be trained on.

        It ends with the last sample, or soon after any rank was told to stop: after the step, or where
        steps are short and the script tells no loss, after some. All ranks end at the same step, and the
        work done is then in a published checkpoint. Hooks that a stop or a crash left undone are called first;
        those of the last step and the export are called even if a stop is pending, for there may be no restart.

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
        self._scale, self._saw_stop = None, False
        if self._reporter:
            self._reporter.announce(names.STEPS)
        try:
            if self.finished or not self._call_hooks(is_repeat=True):
                yield from self._batches(loader)
            self.save()
            if self.finished:
                self._finish()
        finally:
            self._close()

    def _batches(self, loader: Iterable[Data]) -> Iterator[Data]:
        """Yield the batches up to the last one, or to a stop."""
        began = time.perf_counter()
        self._fed = Fed(lambda: begun(loader))
        for draw, data in matched(self.sampler, self._fed):
            with self._passing(draw, began):
                yield data
            if not draw.batch.completes_step:
                continue
            is_event = self._end_step(began)
            if not is_event and self._is_due():
                self._save(is_last=False)
            if not self.finished and (is_event or self._call_hooks()):
                return
            began = time.perf_counter()

    def _call_hooks(self, *, is_repeat: bool = False) -> bool:
        """Call the hooks that are due after the last step; return whether they were left for a stop.

        Args:
            is_repeat: Whether they were called before, unless a stop or a crash came between.
        """
        epochs = epochs_ended(self._step_start, self.sampler.cursor, self.sampler.stream.num_samples)
        calls = self._hooks.calls_after(self.step, epochs)
        if not calls or (is_repeat and self._marks.reached(HOOKED) >= self.step):
            return False
        self._draw = None
        for call in calls:
            with untouched_randomness(), self._busy("evaluation"):
                self._further.note(call() or {})
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
        self._step_start, self.sampler.cursor = self.batch.step_start, self.batch.step_stop
        if process_group.rank() == 0:
            self._report(loss, elapsed_s)
        self._further.forget()
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
            attempt=startup_timing.attempt(),
            cursor=self.sampler.cursor,
            data_s=self._fed.take_waited_s() if self._fed else 0.0,
            further=self._further.take(),
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
            startup_timing.Start(
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
            )
        )

    def _note_rate(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._rate = float(optimizer.param_groups[0]["lr"])
        self._has_stepped = True

    def _close(self) -> None:
        self._draw = self._loss = None
        self._further.forget()
        if self._reporter:
            self._tell_start(None)
            self._reporter.announce("after the steps")
            self._reporter.close(DRAIN_TIMEOUT_S if self.finished or self._is_left else 0.0)


def _tiers(settings: TierSettings | None) -> Any:
    if settings is None:
        return None
    from launcher.runtime.tiers.training import TieredCheckpoints  # start-up time: most jobs have no tiers

    return TieredCheckpoints(settings, names.run_dir())


def _default_reporter() -> Reporter | None:
    return Reporter(names.run_dir()) if names.ENV_RUN_DIR in os.environ else None
