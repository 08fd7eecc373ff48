"""The training loop: data, model, gradients, checkpoints and metrics tied together."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from launcher import contract
from launcher.runtime.batches import accumulate_gradients
from launcher.runtime.checkpoint import Checkpoints, Progress
from launcher.runtime.data import data_file, load_tokens
from launcher.runtime.model import build_model, next_token_loss
from launcher.runtime.process_group import Place
from launcher.runtime.reporting import Reporter, StepMetrics
from launcher.runtime.sampler import SampleStream, rank_positions, step_shares
from launcher.runtime.schedule import learning_rate
from launcher.runtime.settings import Settings

DRAIN_TIMEOUT_S = 5.0
"""How long a finished job waits for its metrics to be sent. The launcher sends the rest."""


class TrainingDirInUse(RuntimeError):
    """The training folder holds a checkpoint and `override_training_dir` is false."""


class Trainer:
    """Trains one model on this rank's part of the samples. All ranks of the group run one.

    Args:
        settings: What to train, with the shares of this world size.
        place: This process among the ranks; the process group is joined already.
        run_dir: Receives metrics and, unless the settings say otherwise, checkpoints.
        event_detected: Whether the cluster is about to change; called by all ranks before each step.
    """

    def __init__(self, settings: Settings, place: Place, run_dir: Path, event_detected: Callable[[], bool]):
        self.settings = settings
        self.place = place
        self.event_detected = event_detected
        tokens = load_tokens(data_file(settings.data_path), settings.max_len, settings.data_limit)
        self.tokens = tokens.to(place.device)
        self.stream = SampleStream(len(tokens), settings.seed)
        self.total_samples = len(tokens) * settings.max_epochs
        model = build_model(settings.model_type, settings.model, max_len=settings.max_len, seed=settings.seed)
        self.model = DistributedDataParallel(model.to(place.device))
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=settings.adam_betas, weight_decay=settings.weight_decay
        )
        folder = Path(settings.training_dir) if settings.training_dir else run_dir / contract.CHECKPOINT_DIR
        self.checkpoints = Checkpoints(folder, settings.max_checkpoints)
        tracking = settings.tracking
        self.reporter = Reporter(run_dir, tracking.uri, tracking.run_id) if place.rank == 0 else None
        self.progress = Progress(world_size=place.world_size)
        self.last_loss: float | None = None

    def run(self) -> bool:
        """Train to the end, or to the next scale event; return whether training is finished.

        Either way the work done is in a published checkpoint when this returns.
        """
        self._resume()
        while self.progress.cursor < self.total_samples:
            if self.event_detected():
                self._save()
                self._say(f"stopped at step {self.progress.step} for a scale event")
                self._close(timeout_s=0.0)
                return False
            self._step()
            save_steps = self.settings.save_steps
            if save_steps and self.progress.step % save_steps == 0:
                self._save()
        self._save()
        loss = "" if self.last_loss is None else f", loss {self.last_loss:.4f}"
        self._say(f"finished at step {self.progress.step}{loss}")
        self._close(timeout_s=DRAIN_TIMEOUT_S)
        return True

    def _resume(self) -> None:
        # Until a checkpoint says otherwise, dropout differs by rank; the weights are made already.
        torch.manual_seed(self.settings.seed + 1 + self.place.rank)
        # A restart inside a job goes on with the job's own checkpoints, whatever it began from.
        is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        if not is_restart and not self.settings.override_training_dir and self.checkpoints.latest():
            raise TrainingDirInUse(f"{self.checkpoints.folder} holds a checkpoint; override_training_dir is false")
        if not is_restart and not self.settings.load_checkpoint:
            self.checkpoints.clear()
        loaded = self.checkpoints.load(self.model, self.optimizer)
        if loaded:
            self.progress = replace(loaded, world_size=self.place.world_size)
            self._say(f"resumed from step {loaded.step} (saved by {loaded.world_size} ranks)")

    def _step(self) -> None:
        started = time.perf_counter()
        cursor, step = self.progress.cursor, self.progress.step + 1
        shares = step_shares(self.settings.shares.per_rank, self.total_samples - cursor)
        rate = learning_rate(self.settings.schedule, (cursor + sum(shares) / 2) / self.total_samples)
        loss = self._gradients(shares, cursor)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(loss)
        self.last_loss = loss.item()
        self.progress = replace(self.progress, step=step, cursor=cursor + sum(shares))
        self._report(rate, sum(shares), time.perf_counter() - started)

    def _gradients(self, shares: tuple[int, ...], cursor: int) -> torch.Tensor:
        positions = rank_positions(shares, self.place.rank, cursor)
        return accumulate_gradients(
            self.model,
            lambda rows: next_token_loss(self.model, rows),
            self.tokens[self.stream.indices(positions)],
            micro=self.settings.shares.micro,
            samples_per_step=sum(shares),
            world_size=self.place.world_size,
        )

    def _report(self, rate: float, samples: int, elapsed_s: float) -> None:
        if self.reporter is None:
            return
        step, world_size = self.progress.step, self.place.world_size
        speed = samples / elapsed_s
        self.reporter.report(
            StepMetrics(step, self.last_loss, rate, world_size, self.place.nodes, speed, samples, time.time())
        )
        if step % self.settings.logging_steps == 0:
            left = self.total_samples - self.progress.cursor
            total = step - (-left // self.settings.shares.samples_per_step)
            self._say(
                f"step {step}/{total}  loss {self.last_loss:.4f}  lr {rate:.5f}  "
                f"{speed:.0f} samples/s  world {world_size}"
            )

    def _save(self) -> None:
        if self.progress.step:
            self.checkpoints.save(self.model, self.optimizer, self.progress)

    def _say(self, message: str) -> None:
        if self.place.rank == 0:
            print(message, flush=True)

    def _close(self, timeout_s: float) -> None:
        if self.reporter:
            self.reporter.close(timeout_s)
