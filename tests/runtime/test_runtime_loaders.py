"""The sampler under PyTorch's DataLoader and torchdata's StatefulDataLoader, which fetch ahead."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from background import await_true
from runtime_ranks import run_ranks
from torch.utils.data import DataLoader, Dataset

from launcher.runtime import agent
from launcher.runtime.checkpoint import latest_progress
from launcher.runtime.sampler import StepSampler

stateful = pytest.importorskip("torchdata.stateful_dataloader")
ROOT = Path(__file__).parents[2]
NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS = 25, 6, 2
WORLDS = [(2, 3), (3, 2), (1, 4), (4, 100)]
"""Ranks, and steps until the next change of their number. 6 on 4 ranks is uneven; the last step takes 2."""


class Indices(Dataset):
    """Its samples are their own indices."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def sampler_of(rank: int, world_size: int) -> StepSampler:
    return StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, rank=rank, world_size=world_size)


def real(batch, indices) -> list[int]:
    return indices.tolist()[: len(batch.positions)]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_loader_goes_on_from_the_cursor(num_workers):
    state, taken = sampler_of(0, 1).state_dict(), []
    for world_size, steps in WORLDS:
        states = []
        for rank in range(world_size):
            sampler = sampler_of(rank, world_size)
            sampler.load_state_dict(state)
            loader = DataLoader(Indices(), batch_sampler=sampler, num_workers=num_workers)
            assert len(loader) == sampler.steps_left
            for step, (batch, indices) in enumerate(zip(sampler.batches(), loader, strict=True)):
                if step == steps:
                    break
                taken += real(batch, indices)
                sampler.cursor = batch.step_stop
            states.append(sampler.state_dict())
        assert all(other == states[0] for other in states)
        state = states[-1]
    assert Counter(taken) == dict.fromkeys(range(NUM_SAMPLES), EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loaders_own_state_goes_on_at_any_size(num_workers):
    """The state of rank 0 serves every rank of the next size; what was fetched ahead does not count."""
    state, taken = None, []
    for world_size, steps in WORLDS:
        for rank in range(world_size):
            sampler = sampler_of(rank, world_size)
            loader = stateful.StatefulDataLoader(Indices(), batch_sampler=sampler, num_workers=num_workers)
            if state:
                loader.load_state_dict(state)
            batches = iter(loader)
            planned = sampler.batches()
            for _ in range(min(steps, sampler.steps_left)):
                taken += real(next(planned), next(batches))
            if rank == 0:
                following = loader.state_dict()
            del batches, loader
        state = following
    assert Counter(taken) == dict.fromkeys(range(NUM_SAMPLES), EPOCHS)


def test_a_stateful_loader_in_the_middle_of_a_step_begins_it_again():
    """Its gradients are lost with the process."""
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, micro_batch_size=2, rank=0, world_size=1)
    loader = stateful.StatefulDataLoader(Indices(), batch_sampler=sampler)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(4)]  # three a step
    other = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, micro_batch_size=3, rank=0, world_size=1)
    resumed = stateful.StatefulDataLoader(Indices(), batch_sampler=other)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist()[:2] == seen[3]
    assert other.cursor == SAMPLES_PER_STEP


SCRIPT = """
from launcher.runtime import elastic

import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((1,), float(index))


def main():
    method, guarded = sys.argv[1:]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    sampler = elastic.StepSampler(100_000, 4)
    loader = DataLoader(Slow(), batch_sampler=sampler, num_workers=1, multiprocessing_context=method)
    job = elastic.Job(model, optimizer, sampler=sampler)
    batches = job.steps(loader) if guarded == "job" else loader
    for number, inputs in enumerate(batches):
        model(inputs).mean().backward()
        optimizer.step()
        if number == 2:
            print("trained", number, flush=True)
        if number == 60 and guarded != "job":
            break
    print("stopped at", job.step, flush=True)
    elastic.leave()


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "guarded"),
    [("fork", "job"), ("spawn", "job"), ("spawn", "import")],
    ids=["fork", "spawn", "spawn_outside_of_a_job"],
)
def test_loader_workers_survive_the_stop_signal(tmp_path, method, guarded):
    """The signal goes to the whole process group. Outside of `steps` the script's own import protects them."""
    pytest.importorskip(agent.PACKAGE)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"HYPERPOD_SIGNAL_COORDINATION": "distributed", "PYTHONPATH": str(ROOT)}
    environment.pop("RECIPES_RUN_DIR", None)
    process = subprocess.Popen(
        [sys.executable, str(script), method, guarded],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "trained 2\n"
    os.killpg(process.pid, signal.SIGUSR1)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    if guarded == "job":
        assert "Traceback" not in errors
        step = int(output.removeprefix("stopped at "))
        assert latest_progress(tmp_path / "checkpoints")[1].step == step
    else:
        assert output == "stopped at 0\n"
    await_true(lambda: not group_lives(process.pid))  # no worker; multiprocessing's tracker ends in its own time


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_forked_rank_leaves_the_workers_of_its_parent_alone(tmp_path):
    batches = iter(DataLoader(range(6), num_workers=1))
    assert next(batches).item() == 0
    assert run_ranks(1, lambda place: place.rank, tmp_path) == [0]
    assert [batch.item() for batch in batches] == [1, 2, 3, 4, 5]
