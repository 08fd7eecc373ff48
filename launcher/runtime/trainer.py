"""The training of a recipe: its data, model and schedule, in the loop that any script can use."""

import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from launcher.common import names
from launcher.runtime import agent, in_place
from launcher.runtime.feed import log_samples
from launcher.runtime.job import Job
from launcher.runtime.model import build_model, next_token_loss
from launcher.runtime.process_group import Place, print_once
from launcher.runtime.recipe_training import resume, step_optimizer
from launcher.runtime.reporting import StepMetrics, reporter_of
from launcher.runtime.sampler import StepSampler
from launcher.runtime.training_config import Schedule, Settings


class UnknownSchedule(ValueError):
    """This trainer does not support the recipe's `lr_scheduler`."""


class NotEnoughText(ValueError):
    """The data file holds less than one sample."""


class UnknownStrategy(ValueError):
    """This trainer does not support the recipe's `strategy`."""


@dataclass(slots=True)
class Prepared:
    """What a process makes once for all attempts: samples, model, and the optimizer of its parameters.

    A sharded model is made for one number of ranks: the first attempt takes it. Later ones take one without values.
    """

    tokens: torch.Tensor
    model: nn.Module | None
    optimizer: torch.optim.Optimizer | None


def prepare(settings: Settings, device: torch.device) -> Prepared:
    """Return what does not depend on the number of ranks."""
    tokens = load_tokens(data_file(settings.data_path), settings.max_len, settings.data_limit).to(device)
    model = _model(settings, device)
    return Prepared(tokens, model, _optimizer(settings, model) if settings.strategy == "ddp" else None)


def _model(settings: Settings, device: torch.device) -> nn.Module:
    with torch.device("meta" if device.type == "meta" else "cpu"):  # the same initial weights on every device
        model = build_model(settings.model_type, settings.model, max_len=settings.max_len, seed=settings.seed)
    return model.to(device)


def _optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), betas=settings.adam_betas, weight_decay=settings.weight_decay)


def distribute(model: nn.Module, strategy: str) -> nn.Module:
    """Return `model`, which is on its device, set up for the ranks that train it together.

    Args:
        strategy: `ddp`, parameters on every rank; `fsdp2`, parameters, gradients and optimizer state sharded.
    """
    if strategy == "ddp":
        # What a resize in place brings replaces the first rank's parameters, which may be the ones that it lacks.
        return nn.parallel.DistributedDataParallel(model, init_sync=not in_place.is_on())
    if strategy != "fsdp2":
        raise UnknownStrategy(f"strategy={strategy!r}; this trainer supports ddp and fsdp2")
    from torch.distributed.fsdp import fully_shard  # start-up time: ddp does without it

    for block in cast(nn.ModuleList, model.blocks):
        fully_shard(block)
    fully_shard(model)
    return model


def learning_rate(schedule: Schedule, progress: float) -> float:
    """Return the learning rate when `progress` (0 to 1) of all samples are done.

    It has no state to restore and does not depend on the number of ranks.

    Source: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017),
        equation 5, one cycle down to zero.
    """
    if schedule.kind not in ("cosine", "constant"):
        raise UnknownSchedule(f"lr_scheduler={schedule.kind!r}; this trainer supports cosine and constant")
    warmup = schedule.warmup_ratio
    if progress < warmup:
        return schedule.peak * progress / warmup
    if schedule.kind == "constant":
        return schedule.peak
    return schedule.peak * (1 + math.cos(math.pi * (progress - warmup) / max(1 - warmup, 1e-12))) / 2


def data_file(path: str) -> Path:
    """Return the file that a recipe's `file_path` names; `builtin:NAME` ships with this package."""
    if path.startswith(names.BUILTIN_DATA):
        return Path(__file__).parent / "data" / path.removeprefix(names.BUILTIN_DATA)
    return Path(path)


def load_tokens(path: Path, max_len: int, limit: int | None = None) -> torch.Tensor:
    """Return the file's bytes as samples of `max_len` tokens and the token after them.

    Args:
        path: File of any encoding; a byte is a token.
        limit: Maximum samples to return; None for all.

    Returns:
        Token ids, shape `(num_samples, max_len + 1)`. Consecutive samples share one token; an incomplete last one is
        omitted.
    """
    text = bytearray(path.read_bytes())
    num_samples = (len(text) - 1) // max_len
    if num_samples < 1:
        raise NotEnoughText(f"{path} holds {len(text)} bytes; a sample takes {max_len + 1}")
    return torch.frombuffer(text, dtype=torch.uint8).unfold(0, max_len + 1, max_len)[:limit].to(torch.int64)


class Trainer:
    """Trains one model on this rank's part of the samples. All ranks of the group run one.

    Args:
        settings: With the shares of this world size.
        place: Of this process, which has joined the process group.
        run_dir: Receives metrics and, unless the settings name another folder, checkpoints.
        prepared: What this process has prepared; None to do so now.
    """

    def __init__(
        self,
        settings: Settings,
        place: Place,
        run_dir: Path,
        event_pending: Callable[[], bool] = agent.event_pending,
        prepared: Prepared | None = None,
    ):
        self.settings, self.place, self.run_dir = settings, place, run_dir
        prepared = prepared or prepare(settings, place.device)
        self.tokens = prepared.tokens
        self.model = self._distributed(prepared)
        self.optimizer = prepared.optimizer or _optimizer(settings, self.model)
        shares, tracking = settings.shares, settings.tracking
        self.reporter = reporter_of(run_dir, tracking.uri, tracking.run_id) if place.rank == 0 else None
        self.job = Job(
            self.model,
            self.optimizer,
            sampler=StepSampler(
                len(self.tokens),
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
            on_step=self._print_step,
            event_pending=event_pending,
            max_skipped_steps=settings.max_skipped_steps,
        )
        self.last_loss: float | None = None

    def _distributed(self, prepared: Prepared) -> nn.Module:
        if prepared.model:
            model = distribute(prepared.model, self.settings.strategy)
            if not prepared.optimizer:
                prepared.model = None
            return model
        model = distribute(_model(self.settings, torch.device("meta")), self.settings.strategy)
        in_place.never_begin_with(model)
        return model.to_empty(device=self.place.device)

    def run(self) -> bool:
        """Train to the end, or to the next scale event; return whether training is finished.

        In both cases a published checkpoint holds all work when this returns.
        """
        settings = self.settings
        resume(
            self.job,
            self.reporter,
            seed=settings.seed,
            resumes=settings.load_checkpoint,
            overrides=settings.override_training_dir,
        )
        began = time.monotonic()
        for rows in self.job.steps(self._rows()):
            if settings.log_samples:
                log_samples(self.run_dir, self.job.step + 1, self.job.draw)
            step_tokens = self.job.batch.step_samples * settings.max_len
            loss = self.job.weigh_sum(self._token_losses(rows), step_tokens)
            torch.autograd.backward(loss)
            if self.job.completes_step:
                norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_norm)
                step_optimizer(self.job, functools.partial(learning_rate, settings.schedule), norm)
                time.sleep(max(0.0, began + settings.min_step_s - time.monotonic()))
                began = time.monotonic()
        if not self.job.finished:
            print_once(f"stopped at step {self.job.step} as requested")
            return False
        last = "" if self.last_loss is None else f", loss {self.last_loss:.4f}"
        print_once(f"finished at step {self.job.step}{last}")
        return True

    def _rows(self) -> Iterator[torch.Tensor]:
        for indices in self.job.sampler:
            yield self.tokens[indices]

    def _token_losses(self, rows: torch.Tensor) -> torch.Tensor:
        return next_token_loss(self.model, rows, reduction="sum")

    def _print_step(self, metrics: StepMetrics) -> None:
        self.last_loss = metrics.loss
        if metrics.step % self.settings.logging_steps == 0 and metrics.loss is not None:
            print_once(
                f"step {metrics.step}/{metrics.step + self.job.sampler.steps_left}  loss {metrics.loss:.4f}  "
                f"lr {metrics.learning_rate:.5f}  {metrics.samples_per_s:.0f} samples/s  world {metrics.world_size}"
            )
