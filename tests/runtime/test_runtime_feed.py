"""Which loaders `Job.steps` takes: those that draw from its sampler, however they fetch."""

import gc
import itertools
import json
import multiprocessing
import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.feed import LoaderMismatch, log_samples

pytestmark = pytest.mark.slow

NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS = 25, 6, 2
NUM_STEPS = -(-NUM_SAMPLES * EPOCHS // SAMPLES_PER_STEP)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """End the workers of loaders that only a cycle of references keeps: later tests fork.

    The garbage collector closes a loader's queues before its workers are asked to end, and they then wait for 5 s.
    """
    yield
    if multiprocessing.active_children():
        for each in gc.get_objects():
            if hasattr(type(each), "_shutdown_workers"):
                each._shutdown_workers()
        gc.collect()


class Indices(Dataset):
    """Its samples are their own indices."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def new_job(folder: Path, micro: int | None = 4) -> Job:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, seed=5, micro_batch_size=micro)
    return Job(model, optimizer, sampler=sampler, folder=folder / "checkpoints", save_every=3)


def train(job: Job, loader: Iterable[Any], until: int = NUM_STEPS) -> list[int]:
    """Train to step `until`; return the indices that came, which are those that are reported as drawn."""
    taken = []
    for indices in job.steps(loader):
        found = torch.as_tensor(indices).tolist()
        assert found == list(job.draw.samples)
        taken += found
        job.weigh(job.model(torch.ones(1)).sum()).backward()
        if job.completes_step:
            job.optimizer.step()
            if job.step + 1 == until:
                break
    return taken


def expected(steps: slice = slice(None)) -> list[int]:
    orders = [torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(5 + epoch)) for epoch in (0, 1)]
    chosen = torch.cat(orders).split(SAMPLES_PER_STEP)[steps]
    return torch.cat(chosen).tolist()


class Threaded:
    """A wrapper that fetches ahead in a thread, which it begins when it is made."""

    def __init__(self, loader: Iterable[Any], depth: int = 3):
        self._items: queue.Queue = queue.Queue(depth)
        self._thread = threading.Thread(target=self._fill, args=(loader,), daemon=True)
        self._thread.start()

    def _fill(self, loader: Iterable[Any]) -> None:
        for item in itertools.chain(loader, [None]):
            self._items.put(item)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items.get, None)


def one_ahead(loader: Iterable[Any]) -> Iterator[Any]:
    """Fetch a batch before the one before it is given out, as accelerate's loaders do."""
    items = iter(loader)
    held = next(items)
    for item in items:
        yield held
        held = item
    yield held


def workers(sampler: StepSampler, **arguments: Any) -> DataLoader:
    return DataLoader(Indices(), batch_sampler=sampler, num_workers=2, **arguments)


def stateful(sampler: StepSampler, num_workers: int) -> Iterable[Any]:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(Indices(), batch_sampler=sampler, num_workers=num_workers)


class Wrapper:
    """A loader of nobody's class."""

    def __init__(self, loader: Iterable[Any]):
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader


GOOD: dict[str, Callable[[StepSampler], Iterable[Any]]] = {
    "sampler": lambda sampler: sampler,
    "loader": lambda sampler: DataLoader(Indices(), batch_sampler=sampler),
    "workers": workers,
    "workers_far_ahead": lambda sampler: workers(sampler, prefetch_factor=20),
    "persistent_workers": lambda sampler: workers(sampler, persistent_workers=True),
    "stateful": lambda sampler: stateful(sampler, 0),
    "stateful_workers": lambda sampler: stateful(sampler, 2),
    "generator": lambda sampler: (indices for indices in sampler),
    "wrapper": lambda sampler: Wrapper(DataLoader(Indices(), batch_sampler=sampler)),
    "one_ahead": lambda sampler: one_ahead(DataLoader(Indices(), batch_sampler=sampler)),
    "thread": lambda sampler: Threaded(DataLoader(Indices(), batch_sampler=sampler)),
    "thread_far_ahead": lambda sampler: Threaded(workers(sampler), depth=1000),
    "begun": lambda sampler: iter(workers(sampler)),
    "peeked_at": lambda sampler: peeked_at(workers(sampler, persistent_workers=True)),
    "custom_index_dataset": lambda sampler: DataLoader(Rows(sampler), batch_size=None),
}


class Rows(IterableDataset):
    """Draws from the sampler itself, in this process."""

    def __init__(self, sampler: StepSampler):
        self._sampler = sampler

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(indices) for indices in self._sampler)


def peeked_at(loader: Iterable[Any]) -> Iterable[Any]:
    next(iter(loader))
    return loader


@pytest.mark.parametrize("new_loader", GOOD.values(), ids=GOOD)
def test_a_loader_that_draws_from_the_sampler_is_taken_before_and_after_a_restart(tmp_path, new_loader):
    job = new_job(tmp_path)
    first = train(job, new_loader(job.sampler), until=4)
    job.save()
    second = new_job(tmp_path)
    second.restore()
    rest = train(second, new_loader(second.sampler))
    assert (first, rest) == (expected(slice(0, 4)), expected(slice(4, None)))


@pytest.mark.parametrize("kind", ["loader", "workers", "persistent_workers", "stateful", "stateful_workers"])
def test_a_loader_may_be_iterated_again_after_the_loop_was_left(tmp_path, kind):
    job = new_job(tmp_path)
    loader = GOOD[kind](job.sampler)
    assert train(job, loader, until=2) + train(job, loader) == expected()


BAD: dict[str, Callable[[StepSampler], Iterable[Any]]] = {
    "shuffle": lambda _: DataLoader(Indices(), batch_size=4, shuffle=True),
    "shuffle_in_workers": lambda _: DataLoader(Indices(), batch_size=4, shuffle=True, num_workers=2),
    "another_sampler": lambda _: DataLoader(
        Indices(), batch_sampler=StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS, seed=5, micro_batch_size=4)
    ),
    "copy_of_the_sampler": lambda sampler: DataLoader(Indices(), batch_sampler=pickle.loads(pickle.dumps(sampler))),
    "stateful": lambda _: stateful(StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS), 0),
    "list": lambda _: [[1, 2, 3, 4]] * 100,
    "generator": lambda _: ([number] for number in range(1000)),
    "beside_a_peek": lambda sampler: [next(iter(DataLoader(Indices(), batch_sampler=sampler)))] * 100,
    "in_any_order": lambda sampler: workers(sampler, in_order=False),
}


@pytest.mark.parametrize("new_loader", BAD.values(), ids=BAD)
def test_a_loader_that_does_not_draw_from_the_sampler_is_refused_before_any_step(tmp_path, new_loader):
    job = new_job(tmp_path)
    with pytest.raises(LoaderMismatch, match="sampler"):
        next(iter(job.steps(new_loader(job.sampler))))
    assert job.step == job.sampler.cursor == 0


def test_a_loader_that_was_begun_before_the_checkpoint_was_loaded_is_refused(tmp_path):
    job = new_job(tmp_path)
    train(job, job.sampler, until=4)
    job.save()
    second = new_job(tmp_path)
    loader = iter(DataLoader(Indices(), batch_sampler=second.sampler))
    next(loader)
    with pytest.raises(LoaderMismatch, match="position 0 .* training is at 24: .* after `restore`"):
        next(iter(second.steps(loader)))


def test_an_iterator_that_is_ahead_of_training_is_refused(tmp_path):
    """The loop is left in the middle of a step, whose first batch the iterator does not give again."""
    job = new_job(tmp_path)
    loader = iter(DataLoader(Indices(), batch_sampler=job.sampler))
    for _ in job.steps(loader):
        break
    with pytest.raises(LoaderMismatch, match="again after leaving the loop"):
        next(iter(job.steps(loader)))


def test_a_loader_that_drops_batches_is_an_error_at_its_end(tmp_path):
    job = new_job(tmp_path, micro=None)
    with pytest.raises(LoaderMismatch, match=f"ended after 5 of {NUM_STEPS} batches: it is shorter"):
        for _ in job.steps(itertools.islice(job.sampler, 5)):
            pass
    assert job.step == 5 and not job.finished


def test_a_loader_that_goes_on_after_the_last_sample_is_an_error(tmp_path):
    job = new_job(tmp_path)
    with pytest.raises(LoaderMismatch, match="longer"):
        for _ in job.steps(itertools.chain(job.sampler, [[1]])):
            pass


def test_the_sample_log_holds_what_was_drawn(tmp_path):
    """A rank without samples trains on a filler, which does not count; what was fetched ahead does neither."""
    job = new_job(tmp_path, micro=2)
    for _ in job.steps(workers(job.sampler, prefetch_factor=20)):
        log_samples(tmp_path, job.step + 1, job.draw)
        if job.step == 3:
            break
    lines = [json.loads(line) for line in (tmp_path / "samples/rank-0.jsonl").read_text().splitlines()]
    assert [index for line in lines for index in line["samples"]] == expected(slice(0, 3)) + expected(slice(3, 4))[:2]
    assert [line["position"] for line in lines] == list(range(0, 20, 2))


def test_draws_are_kept_for_a_job_only(tmp_path):
    sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP)
    iterator = iter(sampler)
    next(iterator)
    assert not iterator.draws
    assert pickle.loads(pickle.dumps(sampler)).state_dict() == sampler.state_dict()
