"""A save that fails while training continues is recorded and repeated; the last one must succeed."""

import contextlib
import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from runtime_ranks import run_ranks
from test_runtime_checkpoint import load, new_model, save
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from launcher.common import names
from launcher.runtime import checkpoint, checkpoint_folder
from launcher.runtime.checkpoint import Checkpoints, CheckpointUnsaved, FolderInUse, latest_progress
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content
from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.metric_shipping import _checkpoint_points
from launcher.runtime.process_group import Place
from launcher.runtime.reporting import Reporter


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let this process write no byte to any file: the system refuses it as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def failing(owner: object, name: str, is_hit: Callable[..., bool], number: int = errno.EIO) -> Iterator[None]:
    """Let calls of a function fail whose arguments `is_hit` picks."""
    real = getattr(owner, name)

    def call(*args, **kwargs):
        if is_hit(*args):
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, real)


FAULTS = {
    "disk full": full_disk,
    "no permission": lambda: failing(Path, "mkdir", lambda path, *_: "partial" in path.name, errno.EACCES),
    "file not synced": lambda: failing(checkpoint, "sync", lambda path: path.name.startswith("__")),
    "folder not renamed": lambda: failing(Path, "rename", lambda path, *_: path.name.startswith(".partial")),
    "progress not written": lambda: failing(checkpoint, "write_text", lambda path, *_: True, errno.ENOSPC),
    "pointer not written": lambda: failing(checkpoint_folder, "write_text", lambda path, *_: True, errno.ENOSPC),
    "folder not listed": lambda: failing(os, "listdir", lambda path: True, errno.ESTALE),
}
ONLY_FIRST = ("folder not renamed", "progress not written", "pointer not written", "folder not listed")
"""Faults of what the first rank does for all."""

CASES = [(name, rank) for name in FAULTS for rank in (0, 1) if not (rank and name in ONLY_FIRST)]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "rank"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_a_save_that_fails_on_one_rank_is_undone_on_all_and_the_next_one_succeeds(tmp_path, fault, rank):
    folder = tmp_path / "kept"

    def work(place: Place) -> str:
        checkpoints, training = Checkpoints(folder), new_model(1.0)
        checkpoints.save(Content(*training), Progress(1, 10, 2))
        with FAULTS[fault]() if place.rank == rank else contextlib.nullcontext():
            checkpoints.save(Content(*training), Progress(2, 20, 2), is_last=False)
            with pytest.raises(CheckpointUnsaved) as caught:
                checkpoints.save(Content(*training), Progress(2, 20, 2))
        torch.distributed.barrier()
        left = sorted(path.name for path in folder.iterdir()) if place.rank == 0 else []
        torch.distributed.barrier()
        checkpoints.save(Content(*training), Progress(3, 30, 2), is_last=False)
        return f"{left} {caught.value}"

    first, second = run_ranks(2, work, tmp_path)
    assert f"rank {rank}: " in first and second.removeprefix("[] ") in first
    assert first.startswith("['latest', 'step-00000001'] ")
    assert load(folder)[0] == Progress(3, 30, 2)


def test_an_older_checkpoint_that_cannot_be_removed_fails_no_save(tmp_path, capsys):
    save(tmp_path, 1)
    with failing(checkpoint, "remove", lambda path: True, errno.EACCES):
        Checkpoints(tmp_path, keep=1).save(Content(*new_model(2.0)), Progress(2, 20, 1))
    assert load(tmp_path) == (Progress(2, 20, 1), 2.0)
    assert "older checkpoints were not removed: [Errno 13]" in capsys.readouterr().out


def test_a_folder_in_the_way_fails_the_last_save_only(tmp_path, capsys):
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "model.pt").write_text("mine")
    Checkpoints(tmp_path).save(Content(*new_model(2.0)), Progress(2, 20, 1), is_last=False)
    assert "step-00000002 already exists" in capsys.readouterr().out
    with pytest.raises(FolderInUse):
        Checkpoints(tmp_path).save(Content(*new_model(2.0)), Progress(2, 20, 1))


def test_a_state_that_can_never_be_saved_ends_the_training(tmp_path):
    class Scheduler:
        def state_dict(self) -> dict:
            return {"not picklable": lambda: None}

    with pytest.raises((AttributeError, TypeError)):
        Checkpoints(tmp_path).save(Content(*new_model(1.0), Scheduler()), Progress(1, 10, 1), is_last=False)


def test_a_tensor_that_can_never_be_saved_ends_the_training(tmp_path):
    model = nn.Linear(2, 1, device="meta")  # it has no data: NotImplementedError, which is a RuntimeError
    content = Content(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CheckpointException, match="no data"):
        Checkpoints(tmp_path).save(content, Progress(1, 10, 1), is_last=False)


def train(place: Place, run_dir: Path, full_at: set[int], until: int = 0) -> list[float]:
    """Train 8 steps, the disk of the last rank full while the steps in `full_at` are saved; return the losses."""
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler, losses = StepSampler(64, 8, seed=1), []
    job = Job(
        model,
        optimizer,
        sampler=sampler,
        folder=run_dir / "checkpoints",
        save_every=2,
        reporter=Reporter(run_dir) if place.rank == 0 else None,
        on_step=lambda metrics: losses.append(metrics.loss),
        event_pending=lambda: job.step + 1 == until,
    )
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(5))
    with contextlib.ExitStack() as stack:
        for positions in job.steps(sampler):
            stack.close()  # after the save of the step before
            job.weigh(model(rows[positions]).pow(2).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.step + 1 in full_at and place.rank == place.world_size - 1:
                stack.enter_context(full_disk())
    return losses


@pytest.mark.slow
def test_training_continues_over_failed_saves_and_counts_them(tmp_path, capfd):
    """The disk of rank 1 is full while steps 2 and 4 are saved: the losses are those of an undisturbed run."""
    run_dir, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    losses = run_ranks(2, lambda place: train(place, run_dir, {2, 4}), tmp_path)[0]
    assert losses == run_ranks(2, lambda place: train(place, undisturbed, set()), tmp_path)[0]
    lines = (run_dir / names.CHECKPOINTS_FILE).read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    assert [(each["event"], each["step"], each["tier"]) for each in records] == [
        ("failed", 2, "folder"),
        ("failed", 4, "folder"),
        ("saved", 6, "folder"),
        ("saved", 8, "folder"),
    ]
    assert all("rank 1: [Errno 27]" in each["detail"] for each in records[:2])
    points = [point for line in lines[:2] for point in _checkpoint_points(line)]
    assert [(name, value, step) for name, value, _, step in points] == [
        ("checkpoint/folder/failed", 1.0, 2),
        ("checkpoint/folder/failed", 1.0, 4),
    ]
    output = capfd.readouterr().out
    assert output.count("training continues, and saves again when the next one is due") == 2
    assert latest_progress(run_dir / "checkpoints")[1].step == 8


@pytest.mark.slow
def test_the_save_before_a_stop_must_succeed(tmp_path):
    def work(place: Place) -> str:
        with pytest.raises(CheckpointUnsaved) as caught:
            train(place, tmp_path / "run", {3}, until=3)
        return str(caught.value)

    first, second = run_ranks(2, work, tmp_path)
    assert first == second and "rank 1: [Errno 27]" in first
    assert latest_progress(tmp_path / "run" / "checkpoints")[1].step == 2
