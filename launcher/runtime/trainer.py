"""The training of a recipe: its data, model and schedule, in the loop that every script can have."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from launcher.common import names
from launcher.runtime import agent, startup_timing
from launcher.runtime.data import data_file, load_tokens
from launcher.runtime.job import Job
from launcher.runtime.model import build_model, next_token_loss
from launcher.runtime.process_group import Place
from launcher.runtime.reporting import Reporter, StepMetrics
from launcher.runtime.sample_log import SampleLog
from launcher.runtime.sampler import StepSampler
from launcher.runtime.schedule import learning_rate
from launcher.runtime.training_config import Settings


class TrainingDirInUse(RuntimeError):
    """The training folder holds a checkpoint and `override_training_dir` is false."""


class UnknownStrategy(ValueError):
    """The recipe's `strategy` is not one this trainer knows."""


def distribute(model: nn.Module, strategy: str) -> nn.Module:
    """Return `model`, on its device, as one of the ranks that train it together.

    Args:
        model: Its `blocks` are sharded one by one under `fsdp2`.
        strategy: `ddp`, parameters on every rank; `fsdp2`, parameters, gradients and optimizer state sharded.

    Raises:
        UnknownStrategy: It is neither.
    """
    if strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if strategy != "fsdp2":
        raise UnknownStrategy(f"strategy={strategy!r}; this trainer knows ddp and fsdp2")
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


class Trainer:
    """Trains one model on this rank's part of the samples. All ranks of the group run one.

    Args:
        settings: What to train, with the shares of this world size.
        place: This process among the ranks; the process group is joined already.
        run_dir: Receives metrics and, unless the settings say otherwise, checkpoints.
        event_pending: Whether this rank was told to save and stop.
    """

    def __init__(
        self,
        settings: Settings,
        place: Place,
        run_dir: Path,
        event_pending: Callable[[], bool] = agent.event_pending,
    ):
        self.settings = settings
        self.place = place
        tokens = load_tokens(data_file(settings.data_path), settings.max_len, settings.data_limit)
        self.tokens = tokens.to(place.device)
        model = build_model(settings.model_type, settings.model, max_len=settings.max_len, seed=settings.seed)
        self.model = distribute(model.to(place.device), settings.strategy)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=settings.adam_betas, weight_decay=settings.weight_decay
        )
        shares, tracking = settings.shares, settings.tracking
        self.reporter = Reporter(run_dir, tracking.uri, tracking.run_id) if place.rank == 0 else None
        self.job = Job(
            self.model,
            self.optimizer,
            sampler=StepSampler(
                len(tokens),
                shares.samples_per_step,
                settings.max_epochs,
                seed=settings.seed,
                micro_batch_size=shares.micro,
                per_rank=shares.per_rank,
            ),
            folder=Path(settings.training_dir) if settings.training_dir else run_dir / names.CHECKPOINT_DIR,
            save_every=settings.save_steps,
            keep=settings.max_checkpoints,
            tiers=settings.tiers,
            reporter=self.reporter,
            on_step=self._show,
            event_pending=event_pending,
        )
        self.sample_log = SampleLog(run_dir) if settings.log_samples else None
        self.last_loss: float | None = None

    def run(self) -> bool:
        """Train to the end, or to the next scale event; return whether training is finished.

        Either way the work done is in a published checkpoint when this returns.
        """
        self._resume()
        began = time.monotonic()
        for rows in self.job.steps(self._rows()):
            if self.sample_log:
                self.sample_log.note(self.job.step + 1, self.job.draw)
            step_tokens = self.job.batch.step_samples * self.settings.max_len
            self.job.weigh_sum(self._token_losses(rows), step_tokens).backward()
            if self.job.completes_step:
                self._update()
                time.sleep(max(0.0, began + self.settings.min_step_s - time.monotonic()))
                began = time.monotonic()
        if not self.job.finished:
            self._say(f"stopped at step {self.job.step} for a scale event")
            return False
        loss = "" if self.last_loss is None else f", loss {self.last_loss:.4f}"
        self._say(f"finished at step {self.job.step}{loss}")
        return True

    def _resume(self) -> None:
        # Until a checkpoint says otherwise, dropout differs by rank; the weights are made already.
        torch.manual_seed(self.settings.seed + 1 + self.place.rank)
        checkpoints, launch = self.job.checkpoints, os.environ.get(names.ENV_LAUNCH_ID)
        # A restart inside a launch goes on with the launch's own checkpoints, whatever it began from. Which start is
        # the first to come this far, only a mark in the folder can tell: a fault may end earlier ones on the way.
        if not checkpoints.is_taken_by(launch) if launch else startup_timing.attempt() == 0:
            if not self.settings.override_training_dir and checkpoints.latest():
                raise TrainingDirInUse(f"{checkpoints.folder} holds a checkpoint; override_training_dir is false")
            if not self.settings.load_checkpoint:
                self._start_anew()
            if launch:
                checkpoints.take(launch)
        if resumed := self.job.restore():
            self._say(f"resumed from step {resumed.step} (saved by {resumed.world_size} ranks)")

    def _start_anew(self) -> None:
        self.job.checkpoints.clear()
        if self.reporter:
            self.reporter.begin_anew()

    def _rows(self) -> Iterator[torch.Tensor]:
        for indices in self.job.sampler:
            yield self.tokens[indices]

    def _token_losses(self, rows: torch.Tensor) -> torch.Tensor:
        return next_token_loss(self.model, rows, reduction="sum")

    def _update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_norm)
        batch, sampler = self.job.batch, self.job.sampler
        rate = learning_rate(
            self.settings.schedule, (batch.step_start + batch.step_samples / 2) / sampler.total_samples
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _show(self, metrics: StepMetrics) -> None:
        self.last_loss = metrics.loss
        if metrics.step % self.settings.logging_steps == 0:
            self._say(
                f"step {metrics.step}/{metrics.step + self.job.sampler.steps_left}  loss {metrics.loss:.4f}  "
                f"lr {metrics.learning_rate:.5f}  {metrics.samples_per_s:.0f} samples/s  world {metrics.world_size}"
            )

    def _say(self, message: str) -> None:
        if self.place.rank == 0:
            print(message, flush=True)
