"""The library as a script uses it: plain, under DistributedDataParallel and after fully_shard."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime_ranks import metrics, run_ranks, starts
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from launcher.runtime import stop_consensus
from launcher.runtime.checkpoint import latest_progress
from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.loss_weighting import OutsideOfSteps
from launcher.runtime.process_group import Place
from launcher.runtime.reporting import Reporter
from launcher.runtime.sampler import SamplerMismatch
from launcher.runtime.trainer import distribute

NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS = 50, 12, 3
NUM_STEPS = -(-NUM_SAMPLES * EPOCHS // SAMPLES_PER_STEP)
MAX_NORM = 0.05  # below every gradient's norm here


class Net(nn.Module):
    """Two blocks, as `distribute` shards them, and an odd width that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(7, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(NUM_SAMPLES, 7, generator=generator)
    return TensorDataset(inputs, torch.randint(3, (NUM_SAMPLES,), generator=generator), torch.arange(NUM_SAMPLES))


def parts(strategy: str) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    model = Net() if strategy == "plain" else distribute(Net(), strategy)
    # Momentum, not Adam: its steps depend on the gradients' scale, which Adam would forgive.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_STEPS)
    return model, optimizer, scheduler


def update(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


@pytest.fixture(scope="module")
def reference() -> list[float]:
    """Return each step's loss in one process that knows nothing of the library."""
    model, optimizer, scheduler = parts("plain")
    orders = [
        torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(5 + epoch)) for epoch in range(EPOCHS)
    ]
    inputs, labels, _ = dataset().tensors
    losses = []
    for indices in torch.cat(orders).split(SAMPLES_PER_STEP):
        loss = F.cross_entropy(model(inputs[indices]), labels[indices])
        loss.backward()
        update(model, optimizer, scheduler)
        losses.append(loss.item())
    return losses


def train(
    place: Place, strategy: str, run_dir: Path, until: int = 0, micro: int | None = None, tells_loss: bool = True
) -> list[int]:
    """Train as a script does, to the end or to step `until`; return the dataset indices this rank took."""
    model, optimizer, scheduler = parts(strategy)
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, seed=5, micro_batch_size=micro)
    job = Job(
        model,
        optimizer,
        scheduler,
        sampler=sampler,
        folder=run_dir / "checkpoints",
        save_every=4,
        # The ranks are told at different moments; one alone decides for all.
        event_pending=lambda: bool(until) and job.step + 1 >= until + place.rank,
    )
    taken = []
    for inputs, labels, indices in job.steps(DataLoader(dataset(), batch_sampler=sampler)):
        taken += indices[: len(job.batch.positions)].tolist()
        loss = F.cross_entropy(model(inputs), labels)
        (job.weigh(loss) if tells_loss else loss * job.weight).backward()
        if job.completes_step:
            update(model, optimizer, scheduler)
    assert job.finished == (not until) and job.step == (until or NUM_STEPS)
    return taken


def attempts(monkeypatch, folder: Path, plan: list[tuple], **arguments: Any) -> list[int]:
    """Train in attempts of (strategy, ranks, last step); return all indices taken."""
    monkeypatch.setenv("RECIPES_RUN_DIR", str(folder))
    taken = []
    for number, (strategy, world_size, until) in enumerate(plan):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
        work = partial(train, strategy=strategy, run_dir=folder, until=until, **arguments)
        taken += [index for rank in run_ranks(world_size, work, folder) for index in rank]
    return taken


PLANS = {
    "plain": [("plain", 1, 3), ("plain", 1, 0)],
    "ddp": [("ddp", 1, 2), ("ddp", 2, 5), ("ddp", 5, 8), ("ddp", 2, 11), ("ddp", 1, 0)],
    "fsdp2": [("fsdp2", 1, 2), ("fsdp2", 2, 5), ("fsdp2", 5, 8), ("fsdp2", 2, 11), ("fsdp2", 1, 0)],
    "mixed": [("fsdp2", 3, 1), ("ddp", 2, 4), ("plain", 1, 6), ("fsdp2", 4, 9), ("ddp", 3, 0)],
}


@pytest.mark.slow
@pytest.mark.parametrize("micro", [None, 2], ids=["whole_shares", "micro_batches"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_run_through_any_sizes_is_the_run_of_one_process(tmp_path, monkeypatch, reference, plan, micro):
    """12 samples a step on 5 ranks are uneven, and so is the last step of 6 on 4 ranks."""
    taken = attempts(monkeypatch, tmp_path, plan, micro=micro)
    assert Counter(taken) == dict.fromkeys(range(NUM_SAMPLES), EPOCHS)
    lines = metrics(tmp_path)
    assert [line["loss"] for line in lines] == pytest.approx(reference, abs=1e-5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR
    model, optimizer, _ = parts("plain")
    scheduler = cosine(optimizer, T_max=NUM_STEPS)
    for line in lines:
        assert line["learning_rate"] == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert [line["cursor"] for line in lines] == [*range(12, 150, 12), 150]
    assert [start["step"] for start in starts(tmp_path)] == [0, *(until for _, _, until in plan[:-1])]
    assert [start["world_size"] for start in starts(tmp_path)] == [world_size for _, world_size, _ in plan]


@pytest.mark.slow
def test_the_reference_is_not_met_by_chance(tmp_path, monkeypatch, reference):
    """One rank more that starts from nothing, instead of from the checkpoint, gives other losses."""
    attempts(monkeypatch, tmp_path, [("ddp", 2, 5)])
    shutil.rmtree(tmp_path / "checkpoints")
    attempts(monkeypatch, tmp_path, [("ddp", 3, 0)])
    assert [line["loss"] for line in metrics(tmp_path)][5:8] != pytest.approx(reference[5:8], abs=1e-3)


@pytest.mark.slow
def test_a_script_that_tells_no_loss_stops_and_counts_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_consensus, "SIGNAL_PERIOD_S", 0.0)
    taken = attempts(monkeypatch, tmp_path, [("ddp", 2, 3), ("ddp", 3, 0)], tells_loss=False)
    assert Counter(taken) == dict.fromkeys(range(NUM_SAMPLES), EPOCHS)
    assert {line["loss"] for line in metrics(tmp_path)} == {None}


def gradient_of_step(
    place: Place, strategy: str, folder: Path, per_rank: tuple[int, ...], micro: int | None, weighted: bool
) -> torch.Tensor:
    """Return the whole gradient of the first step, clipped where it is weighted."""
    model, optimizer, _ = parts(strategy)
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, seed=5, micro_batch_size=micro, per_rank=per_rank)
    job = Job(model, optimizer, sampler=sampler, folder=folder / "checkpoints")
    for inputs, labels, _ in job.steps(DataLoader(dataset(), batch_sampler=sampler)):
        loss = F.cross_entropy(model(inputs), labels)
        (job.weigh(loss) if weighted else loss).backward()
        if job.completes_step:
            break
    if weighted:
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    gradients = [parameter.grad for parameter in model.parameters()]
    whole = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in gradients]
    return torch.cat([gradient.flatten() for gradient in whole])


def full_batch_gradient(max_norm: float | None) -> torch.Tensor:
    model, _, _ = parts("plain")
    indices = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(5))[:SAMPLES_PER_STEP]
    inputs, labels, _ = dataset().tensors
    F.cross_entropy(model(inputs[indices]), labels[indices]).backward()
    if max_norm:
        assert nn.utils.clip_grad_norm_(model.parameters(), max_norm) > 2 * max_norm
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize(
    ("per_rank", "micro"),
    [((1, 4, 7), None), ((1, 4, 7), 2), ((4, 4, 4), 2), ((6, 6, 0), 4)],
    ids=["uneven", "uneven_in_micro_batches", "even_accumulated", "a_rank_without_samples"],
)
def test_weighted_gradient_is_the_full_batch_gradient(tmp_path, strategy, per_rank, micro):
    work = partial(
        gradient_of_step, strategy=strategy, folder=tmp_path, per_rank=per_rank, micro=micro, weighted=True
    )
    for found in run_ranks(3, work, tmp_path):
        assert (found - full_batch_gradient(MAX_NORM)).abs().max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_unweighted_uneven_gradient_is_not_the_full_batch_gradient(tmp_path, strategy):
    work = partial(
        gradient_of_step, strategy=strategy, folder=tmp_path, per_rank=(1, 4, 7), micro=None, weighted=False
    )
    for found in run_ranks(3, work, tmp_path):
        assert (found - full_batch_gradient(None)).abs().max() > 1e-3


def gradients_on_the_way(place: Place, strategy: str, folder: Path) -> list[float | None]:
    """Return one entry of this rank's gradient after each micro batch of a step."""
    model, optimizer, _ = parts(strategy)
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, micro_batch_size=2)
    job = Job(model, optimizer, sampler=sampler, folder=folder / "checkpoints")
    seen = []
    for inputs, labels, _ in job.steps(DataLoader(dataset(), batch_sampler=sampler)):
        job.weigh(F.cross_entropy(model(inputs), labels)).backward()
        gradient = next(model.parameters()).grad
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        seen.append(None if whole is None else whole[0, 0].item())
        if job.completes_step:
            break
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_gradients_are_exchanged_once_a_step_or_with_shards_in_every_pass(tmp_path, strategy):
    first, second = run_ranks(2, partial(gradients_on_the_way, strategy=strategy, folder=tmp_path), tmp_path)
    assert len(first) == 3 and first[-1] == second[-1]
    for own, other in zip(first[:-1], second[:-1], strict=True):
        assert (own == other) is (strategy == "fsdp2") and own is not None


@pytest.mark.slow
def test_without_a_process_group_a_job_runs_alone(tmp_path, reference):
    assert not dist.is_initialized()
    model, optimizer, scheduler = parts("plain")
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, seed=5)
    losses = []
    job = Job(
        model,
        optimizer,
        scheduler,
        sampler=sampler,
        folder=tmp_path,
        on_step=lambda metrics: losses.append(metrics.loss),
    )
    for inputs, labels, _ in job.steps(DataLoader(dataset(), batch_sampler=sampler)):
        job.weigh(F.cross_entropy(model(inputs), labels)).backward()
        update(model, optimizer, scheduler)
    assert losses == pytest.approx(reference, abs=1e-6)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.slow
def test_ranks_end_at_once_after_data_parallel_training(tmp_path):
    """A plain return hangs in about half of the exits on gloo."""

    def last_step_ended(place: Place) -> float:
        model, _, _ = parts("ddp")
        model(torch.ones(1, 7)).sum().backward()
        return time.time()

    for _ in range(5):
        ended = run_ranks(2, last_step_ended, tmp_path)
        assert time.time() - max(ended) < 60


def new_job(folder: Path) -> Job:
    model, optimizer, scheduler = parts("plain")
    return Job(model, optimizer, scheduler, sampler=StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP), folder=folder)


def test_there_is_no_batch_outside_of_the_steps(tmp_path):
    with pytest.raises(OutsideOfSteps):
        new_job(tmp_path).weigh(torch.zeros(()))


def train_and_leave(place: Place, run_dir: Path, last_step: int, leave_early: bool) -> tuple[int, int]:
    """Train as a script that breaks out of its loop, before or after its optimizer's step; return what counts."""
    model, optimizer, scheduler = parts("ddp")
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, seed=5)
    job = Job(model, optimizer, scheduler, sampler=sampler, folder=run_dir / "checkpoints")
    for inputs, labels, _ in job.steps(DataLoader(dataset(), batch_sampler=sampler)):
        loss = job.weigh(F.cross_entropy(model(inputs), labels))
        if leave_early and job.step == last_step:
            break
        loss.backward()
        update(model, optimizer, scheduler)
        if not leave_early and job.step + 1 == last_step:
            break
    assert not (run_dir / "checkpoints").exists()
    job.save()
    return job.step, sampler.cursor


@pytest.mark.slow
@pytest.mark.parametrize("leave_early", [True, False], ids=["before_the_step", "after_the_step"])
def test_a_script_that_breaks_and_saves_loses_and_repeats_nothing(tmp_path, monkeypatch, reference, leave_early):
    monkeypatch.setenv("RECIPES_RUN_DIR", str(tmp_path))
    left = run_ranks(2, partial(train_and_leave, run_dir=tmp_path, last_step=5, leave_early=leave_early), tmp_path)
    assert left == [(5, 60), (5, 60)]
    attempts(monkeypatch, tmp_path, [("ddp", 3, 0)])
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, NUM_STEPS + 1))
    assert [line["loss"] for line in metrics(tmp_path)] == pytest.approx(reference, abs=1e-5)
    assert [start["step"] for start in starts(tmp_path)] == [0, 5]


class NotingReporter(Reporter):
    """Notes when it is closed."""

    closed = 0

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        self.closed += 1


@pytest.mark.slow
def test_a_loop_may_be_left_and_taken_up_again(tmp_path, reference):
    model, optimizer, scheduler = parts("plain")
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, seed=5)
    loader, reporter = DataLoader(dataset(), batch_sampler=sampler), NotingReporter(tmp_path)
    job = Job(model, optimizer, scheduler, sampler=sampler, folder=tmp_path / "checkpoints", reporter=reporter)
    closed = []
    while not job.finished:
        for inputs, labels, _ in job.steps(loader):
            job.weigh(F.cross_entropy(model(inputs), labels)).backward()
            update(model, optimizer, scheduler)
            if job.step + 1 == 3:
                break
        closed.append(reporter.closed)
        with pytest.raises(OutsideOfSteps):
            assert job.batch
    assert closed == [1, 2]
    assert [line["loss"] for line in metrics(tmp_path)] == pytest.approx(reference, abs=1e-6)


def trained_on(folder: Path, num_samples: int, seed: int = 0) -> Job:
    model, optimizer, _ = parts("plain")
    sampler = StepSampler(num_samples, SAMPLES_PER_STEP, 2, seed=seed)
    job = Job(model, optimizer, sampler=sampler, folder=folder)
    for indices in job.steps(sampler):
        job.weigh(model(torch.ones(len(indices), 7)).sum()).backward()
        optimizer.step()
    return job


@pytest.mark.parametrize(
    ("num_samples", "seed", "says"),
    [(32, 0, "64 samples with seed 0; this one is of 32 samples with seed 0"), (64, 1, "this one is .* seed 1")],
    ids=["other_data", "other_seed"],
)
def test_a_checkpoint_of_another_stream_is_refused(tmp_path, num_samples, seed, says):
    """Its cursor, 128, would pass for the end of 32 samples done twice."""
    trained_on(tmp_path, 64)
    with pytest.raises(SamplerMismatch, match=says):
        trained_on(tmp_path, num_samples, seed)


def test_a_checkpoint_that_names_no_stream_is_gone_on_from(tmp_path):
    trained_on(tmp_path, 64)
    path = latest_progress(tmp_path)[0] / "progress.json"
    written = json.loads(path.read_text())
    del written["checksum"], written["metadata"]  # that version wrote none
    assert (written.pop("num_samples"), written.pop("seed")) == (64, 0)
    path.write_text(json.dumps(written | {"cursor": 64}))
    model, optimizer, _ = parts("plain")
    job = Job(model, optimizer, sampler=StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP), folder=tmp_path)
    job.restore()
    assert job.sampler.cursor == 64


@pytest.mark.slow
def test_a_start_waits_for_no_module_that_only_loading_and_saving_need():
    heavy = "{'torch.distributed.checkpoint', 'torch.distributed.fsdp', 'boto3', 'mlflow'}"
    program = f"import sys, launcher.runtime.elastic; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
