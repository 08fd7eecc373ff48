"""Where a launch of a recipe begins: at a checkpoint, or from scratch, as the recipe says."""

import os

import torch

from launcher.common import names
from launcher.runtime import process_group, startup_timing
from launcher.runtime.job import Job
from launcher.runtime.progress import Progress
from launcher.runtime.reporting import Reporter


class TrainingDirInUse(RuntimeError):
    """The training folder holds a checkpoint and `override_training_dir` is false."""


def resume(job: Job, reporter: Reporter | None, *, seed: int, resumes: bool, overrides: bool) -> Progress | None:
    """Restore the newest checkpoint, unless this launch is new and starts from scratch. Collective.

    A restart within a launch resumes from the launch's own checkpoints, whatever it began with. A mark in the folder
    shows whether this is the first start to get here: a fault may have ended earlier ones.

    Args:
        job: That is about to train.
        reporter: Of rank 0.
        seed: Of dropout, which differs by rank.
        resumes: Whether a new launch resumes from a checkpoint that it finds.
        overrides: Whether a new launch may use a folder that holds a checkpoint.

    Raises:
        TrainingDirInUse: It may not, and the folder holds one.
    """
    torch.manual_seed(seed + 1 + process_group.rank())
    checkpoints, launch = job.checkpoints, os.environ.get(names.ENV_LAUNCH_ID)
    if not checkpoints.is_taken_by(launch) if launch else startup_timing.attempt() == 0:
        if not overrides and checkpoints.latest():
            raise TrainingDirInUse(f"{checkpoints.folder} holds a checkpoint; override_training_dir is false")
        if not resumes:
            checkpoints.clear()
            if reporter:
                reporter.begin_new_curves()
        if launch:
            checkpoints.take(launch)
    return job.restore()
