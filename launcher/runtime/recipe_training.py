"""What the trainers of recipes share: where a launch begins, and the step of the optimizer."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from launcher.common import names
from launcher.runtime import process_group, startup_timing
from launcher.runtime.checkpoint import Checkpoints
from launcher.runtime.checkpoint_folder import is_checkpoint_name
from launcher.runtime.job import Job
from launcher.runtime.reporting import Reporter


class TrainingDirInUse(RuntimeError):
    """The training folder holds a checkpoint and `override_training_dir` is false."""


class NoCheckpointThere(RuntimeError):
    """`resume_checkpoint_path` names no checkpoint."""


def resume(
    job: Job, reporter: Reporter | None, *, seed: int, resumes: bool, overrides: bool, start: str = ""
) -> None:
    """Restore the newest checkpoint, unless this launch is new and starts from scratch. Collective.

    A restart within a launch resumes from the launch's own checkpoints, whatever it began with. A mark in the folder
    shows whether this is the first start to get here: a fault may have ended earlier ones.

    Args:
        seed: Of dropout, which differs by rank.
        resumes: Whether a new launch resumes from a checkpoint that it finds.
        overrides: Whether a new launch may use a folder that holds a checkpoint.
        start: Checkpoint, or folder of checkpoints, that a new launch continues; empty for none. It is published in
            the job's own folder at once, where a restart finds it.

    Raises:
        NoCheckpointThere: `start` holds none.
        TrainingDirInUse: It may not, and the folder holds one.
    """
    torch.manual_seed(seed + 1 + process_group.rank())
    checkpoints, launch = job.checkpoints, os.environ.get(names.ENV_LAUNCH_ID)
    if not checkpoints.is_taken_by(launch) if launch else startup_timing.attempt() == 0:
        if not overrides and checkpoints.latest():
            raise TrainingDirInUse(f"{checkpoints.folder} holds a checkpoint; override_training_dir is false")
        if start:
            _continue(job, Path(start))
        elif not resumes:
            checkpoints.clear()
        if reporter and not resumes:
            reporter.begin_new_curves()
        if launch:
            checkpoints.take(launch)
    resumed = job.restore()
    if resumed and job.kept_by is None:
        process_group.print_once(f"resumed from step {resumed.step} (saved by {resumed.world_size} ranks)")


def _continue(job: Job, path: Path) -> None:
    """Restore a checkpoint that is named by its path, and make it the job's newest one."""
    is_folder = not is_checkpoint_name(path)
    only, source = (None, path) if is_folder else (path, path.parent)
    if not process_group.share(path.is_dir()):
        raise NoCheckpointThere(f"resume_checkpoint_path={path}: there is no such folder")
    own = job.checkpoints
    is_own = isinstance(own, Checkpoints) and source.resolve() == own.folder.resolve()
    if is_own and only is None:
        return
    found = job.restore(lambda content: Checkpoints(source).load(content, only))
    if not found:
        raise NoCheckpointThere(f"resume_checkpoint_path={path}: the folder holds no checkpoint")
    if isinstance(own, Checkpoints):
        own.begin_at(own.folder / path.name if is_own else None)
    job.save()


def step_optimizer(job: Job, learning_rate: Callable[[float], float], grad_norm: torch.Tensor) -> None:
    """Step the optimizer of a job, if it may, and drop the gradients. Collective.

    Args:
        learning_rate: Returns the rate when so great a part of all samples is done; that of the step is the rate at
            the middle of its samples.
        grad_norm: Of all gradients, the same on every rank.
    """
    batch = job.batch
    rate = learning_rate((batch.step_start + batch.step_samples / 2) / job.sampler.total_samples)
    for group in job.optimizer.param_groups:
        group["lr"] = rate
    if job.may_step(grad_norm):
        job.optimizer.step()
    job.optimizer.zero_grad()
