from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.runtime.sampler import SampleStream, rank_positions, step_shares
from launcher.runtime.schedule import UnknownSchedule, learning_rate
from launcher.runtime.settings import Schedule

shares_lists = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


@given(
    num_samples=st.integers(1, 50),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 2**31),
    sizes=st.lists(shares_lists, min_size=1, max_size=5),
)
@settings(deadline=None)
def test_every_sample_once_an_epoch_whatever_the_world_sizes(num_samples, epochs, seed, sizes):
    stream = SampleStream(num_samples, seed)
    cursor, step, taken = 0, 0, []
    while (remaining := num_samples * epochs - cursor) > 0:
        shares = step_shares(sizes[step % len(sizes)], remaining)
        for rank in range(len(shares)):
            taken += stream.indices(rank_positions(shares, rank, cursor)).tolist()
        cursor, step = cursor + sum(shares), step + 1
    assert cursor == num_samples * epochs
    for epoch in range(epochs):
        assert Counter(taken[epoch * num_samples : (epoch + 1) * num_samples]) == Counter(range(num_samples))


@given(per_rank=shares_lists, remaining=st.integers(1, 100))
def test_shares_never_exceed_what_is_left(per_rank, remaining):
    shares = step_shares(per_rank, remaining)
    assert len(shares) == len(per_rank)
    assert sum(shares) == min(remaining, sum(per_rank))
    if remaining < sum(per_rank):
        assert max(shares) - min(shares) <= 1


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


def test_learning_rate_warms_up_and_falls_to_zero():
    cosine = Schedule(peak=0.1, kind="cosine", warmup_ratio=0.2)
    rates = [learning_rate(cosine, progress) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0.0, 0.05, 0.1, 0.05, 0.0])
    assert learning_rate(Schedule(0.1, "constant", 0.0), 0.0) == 0.1
    with pytest.raises(UnknownSchedule, match="linear"):
        learning_rate(Schedule(0.1, "linear", 0.0), 0.5)
