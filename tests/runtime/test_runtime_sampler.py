import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from launcher.runtime import process_group
from launcher.runtime.sampler import SamplerMismatch, SampleStream, StepSampler
from launcher.runtime.shares import Shares, SharesMismatch, micro_batches, nearest_even, step_shares
from launcher.runtime.trainer import UnknownSchedule, learning_rate
from launcher.runtime.training_config import Schedule

shares_lists = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


def attempt(cursor: int, steps: int, world_size: int, **arguments) -> tuple[int, list[tuple[int, int]]]:
    """Take at most `steps` steps from `cursor` on ranks of a given number.

    Returns:
        The cursor then, and each position taken with its dataset index.
    """
    samplers = [StepSampler(rank=rank, world_size=world_size, **arguments) for rank in range(world_size)]
    for sampler in samplers:
        sampler.cursor = cursor
    planned = [list(zip(sampler.batches(), sampler, strict=True)) for sampler in samplers]
    assert len({len(plan) for plan in planned}) == 1 and len(planned[0]) == len(samplers[0])
    taken, done = [], 0
    for batches in zip(*planned, strict=True):
        if done == steps:
            break
        heads = [batch for batch, _ in batches]
        assert len({(head.step_start, head.step_stop, head.completes_step) for head in heads}) == 1
        for head, indices in batches:
            # A rank that has nothing to do in a step gets a sample to pass through.
            assert len(indices) == max(len(head.positions), 1)
            taken += zip(head.positions, indices, strict=False)
        if heads[0].completes_step:
            cursor, done = heads[0].step_stop, done + 1
    return cursor, taken


@pytest.mark.slow
@given(
    num_samples=st.integers(1, 50),
    epochs=st.integers(1, 3),
    samples_per_step=st.integers(1, 20),
    micro_batch_size=st.none() | st.integers(1, 5),
    seed=st.integers(0, 2**31),
    attempts=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), max_size=5),
)
def test_every_sample_of_every_epoch_once_whatever_the_world_sizes(num_samples, epochs, attempts, **arguments):
    arguments |= {"num_samples": num_samples, "epochs": epochs}
    cursor, taken = 0, []
    for world_size, steps in [*attempts, (2, 10_000)]:
        cursor, more = attempt(cursor, steps, world_size, **arguments)
        taken += more
    assert cursor == num_samples * epochs
    assert sorted(position for position, _ in taken) == list(range(num_samples * epochs))
    of_epoch = Counter((position // num_samples, index) for position, index in taken)
    assert of_epoch == Counter((epoch, index) for epoch in range(epochs) for index in range(num_samples))


@pytest.mark.slow
@given(per_rank=shares_lists, num_samples=st.integers(1, 60), micro=st.none() | st.integers(1, 4))
def test_explicit_shares_are_kept_to(per_rank, num_samples, micro):
    total, ranks = sum(per_rank), len(per_rank)
    arguments = {"num_samples": num_samples, "samples_per_step": total, "per_rank": per_rank}
    _, taken = attempt(0, 10_000, ranks, micro_batch_size=micro, **arguments)
    assert Counter(index for _, index in taken) == dict.fromkeys(range(num_samples), 1)
    if num_samples >= total:
        for rank, share in enumerate(per_rank):
            first_step = []
            for batch in StepSampler(rank=rank, world_size=ranks, micro_batch_size=micro, **arguments).batches():
                first_step += batch.positions
                if batch.completes_step:
                    break
            assert len(first_step) == share


@given(per_rank=shares_lists, remaining=st.integers(1, 100))
def test_shares_never_exceed_what_is_left(per_rank, remaining):
    shares = step_shares(per_rank, remaining)
    assert len(shares) == len(per_rank)
    assert sum(shares) == min(remaining, sum(per_rank))
    if remaining < sum(per_rank):
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("samples", "ranks", "shares"),
    [(32, 4, (8, 8, 8, 8)), (32, 6, (6, 6, 5, 5, 5, 5)), (1, 3, (1, 0, 0))],
    ids=["divides", "uneven", "fewer_samples_than_ranks"],
)
def test_shares_are_even_or_one_apart(samples, ranks, shares):
    assert nearest_even(samples, ranks) == shares
    assert StepSampler(100, samples, rank=0, world_size=ranks).per_rank == shares


@pytest.mark.parametrize("per_rank", [(4, 4, 4), (5, 4), (9, -1)], ids=["ranks", "sum", "negative"])
def test_shares_that_do_not_fit_are_refused(per_rank):
    with pytest.raises(SharesMismatch, match="per_rank"):
        list(StepSampler(100, 8, per_rank=per_rank, rank=0, world_size=2))


SIZES = ("num_samples", "samples_per_step", "epochs", "micro_batch_size")


@pytest.mark.parametrize("name", SIZES)
def test_a_size_below_one_is_refused(name):
    sizes = dict.fromkeys(SIZES, 1)
    StepSampler(**sizes)
    with pytest.raises(ValueError, match="at least 1"):
        StepSampler(**(sizes | {name: 0}))


def test_all_ranks_run_as_many_passes_as_the_largest_share_needs():
    assert list(micro_batches(range(3, 4), 5, 2)) == [range(3, 4), range(4, 4), range(4, 4)]
    assert list(micro_batches(range(0), 0, 2)) == [range(0)]


@given(start=st.integers(0, 200), length=st.integers(0, 60), cut=st.integers(0, 60))
def test_the_stream_does_not_depend_on_how_it_is_cut(start, length, cut):
    stream, middle, stop = SampleStream(17, 5), start + min(cut, length), start + length
    parts = stream.indices(range(start, middle)).tolist() + stream.indices(range(middle, stop)).tolist()
    assert stream.indices(range(start, stop)).tolist() == parts


def test_epochs_and_seeds_have_orders_of_their_own():
    stream = SampleStream(100, 5)
    first, second = stream.indices(range(100)).tolist(), stream.indices(range(100, 200)).tolist()
    assert first != second
    assert first != SampleStream(100, 6).indices(range(100)).tolist()


def test_a_step_takes_the_samples_that_a_distributed_sampler_gives_it():
    dataset, step_of = torch.zeros(24), {}
    for rank in range(2):
        theirs = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=3)
        order = []
        for epoch in range(2):
            theirs.set_epoch(epoch)
            order += list(theirs)
        for step, indices in enumerate(StepSampler(24, 8, 2, seed=3, rank=rank, world_size=2)):
            ours, other = step_of.setdefault(step, (set(), set()))
            ours.update(indices)
            other.update(order[step * 4 : (step + 1) * 4])
    assert len(step_of) == 6 and all(ours == other for ours, other in step_of.values())


def test_a_cursor_of_another_stream_is_refused():
    state = StepSampler(24, 8).state_dict()
    with pytest.raises(SamplerMismatch, match="23"):
        StepSampler(23, 8).load_state_dict(state)
    with pytest.raises(SamplerMismatch, match="seed 1"):
        StepSampler(24, 8, seed=1).load_state_dict(state)


def test_a_sampler_without_a_seed_draws_those_of_seed_0():
    plain, zero = (list(StepSampler(24, 8, rank=0, world_size=1, **seed)) for seed in ({}, {"seed": 0}))
    assert plain == zero and StepSampler(24, 8).state_dict()["seed"] == 0


def test_ranks_are_those_of_the_process_group_unless_given(monkeypatch):
    monkeypatch.setattr(process_group, "rank", lambda: 1)
    monkeypatch.setattr(process_group, "world_size", lambda: 3)
    sampler = StepSampler(24, 8)
    assert (sampler.rank, sampler.world_size, sampler.per_rank) == (1, 3, (3, 3, 2))
    given_ranks = StepSampler(24, 8, rank=0, world_size=2)
    assert (given_ranks.rank, given_ranks.world_size) == (0, 2)


def test_a_copied_sampler_has_the_state_and_none_of_the_iterators():
    sampler = StepSampler(24, 8, rank=0, world_size=1)
    iterator = iter(sampler)
    sampler.cursor = 16
    copied = pickle.loads(pickle.dumps(sampler))
    assert sampler.iterators() == [iterator] and copied.iterators() == []
    assert copied.state_dict() == sampler.state_dict() and list(copied) == list(sampler)
    assert len(copied.iterators()) <= 1, "an exhausted iterator is not kept"


def test_an_iterator_records_draws_only_for_a_sampler_that_does():
    sampler = StepSampler(5, 4, rank=1, world_size=2, micro_batch_size=2)
    unrecorded = iter(sampler)
    next(unrecorded)
    assert (unrecorded.num_drawn, list(unrecorded.draws)) == (0, [])
    sampler.records_draws = True
    iterator = iter(sampler)
    assert iterator.number > unrecorded.number and iter(iterator) is iterator
    full, tail = next(iterator), next(iterator)
    planned = list(sampler.batches())
    assert [(draw.batch, draw.samples) for draw in iterator.draws] == [(planned[0], tuple(full)), (planned[1], ())]
    assert iterator.num_drawn == 2 and len(tail) == 1, "a rank without samples passes one through"


def test_an_iterator_s_state_is_that_after_its_last_full_step_and_can_be_loaded():
    sampler = StepSampler(12, 4, rank=0, world_size=1, micro_batch_size=2)
    sampler.records_draws = True
    iterator = iter(sampler)
    assert iterator.state_dict()["cursor"] == 0
    batches = [next(iterator) for _ in range(3)]
    assert iterator.state_dict() == {"cursor": 4, "num_samples": 12, "seed": 0}
    iterator.load_state_dict(iterator.state_dict())
    assert sampler.cursor == 4 and iterator.state_dict()["cursor"] == 4 and not iterator.draws
    assert next(iterator) == batches[2], "what was drawn of the step that was not complete is drawn again"


def test_no_positions_have_no_indices_of_the_dataset_s_type():
    empty = SampleStream(17, 5).indices(range(0))
    assert empty.shape == (0,) and empty.dtype == torch.int64


def test_a_step_s_samples_are_the_sum_of_its_shares():
    assert Shares((3, 3, 2), micro=2).samples_per_step == 8


def test_learning_rate_warms_up_and_falls_to_zero():
    cosine = Schedule(peak=0.1, kind="cosine", warmup_ratio=0.2)
    rates = [learning_rate(cosine, progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0.0, 0.05, 0.1, 0.05, 0.0])
    assert learning_rate(Schedule(0.1, "constant", 0.0), 0.0) == 0.1
    with pytest.raises(UnknownSchedule, match="linear"):
        learning_rate(Schedule(0.1, "linear", 0.0), 0.5)
