import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.model import batch
from launcher.model.job_spec import ScalePoint, StepBatch
from launcher.runtime.shares import passes

sizes = st.integers(1, 4096)


@given(samples=st.integers(1, 100_000), ranks=sizes)
def test_nearest_split_deals_out_every_sample(samples, ranks):
    split = batch.nearest_split(samples, ranks)
    if samples < ranks:
        assert split is None
    else:
        assert split.samples(ranks) == samples
        assert 1 <= split.small <= split.large <= split.small + 1
        assert 0 < split.num_small <= ranks


@given(samples=st.integers(1, 300), ranks=st.integers(1, 40))
def test_no_split_has_a_smaller_largest_share(samples, ranks):
    split = batch.nearest_split(samples, ranks)
    if split is not None:
        assert ranks * (split.large - 1) < samples


@given(share=st.integers(1, 2000), limit=st.integers(1, 200))
def test_largest_micro_batch_divides_and_fits(share, limit):
    micro = batch.largest_micro_batch(share, limit)
    assert share % micro == 0 and micro <= limit
    assert not any(share % bigger == 0 for bigger in range(micro + 1, min(share, limit) + 1))


def test_nearest_split_reproduces_the_published_ones():
    assert batch.nearest_split(128, 24) == batch.BatchSplit(small=5, large=6, num_small=16)
    assert batch.nearest_split(128, 48) == batch.BatchSplit(small=2, large=3, num_small=16)


def test_a_split_is_even_only_where_it_divides():
    assert batch.nearest_split(128, 32) == batch.BatchSplit(4, 4, 32) and batch.nearest_split(128, 32).is_even
    assert not batch.nearest_split(128, 24).is_even
    assert batch.nearest_split(4, 8) is None


@given(samples=st.integers(1, 20_000), ranks=st.integers(1, 2000), limit=st.integers(1, 64))
def test_a_fit_deals_out_every_sample_in_passes_that_fit(samples, ranks, limit):
    fit = batch.fit(samples, ranks, limit)
    assert (fit is None) == (samples < ranks)
    if fit is None:
        return
    passes = fit.micro_batch_size * fit.grad_accumulation
    assert fit.split.samples(ranks) == samples and 1 <= fit.micro_batch_size <= limit
    assert passes == fit.split.large if fit.split.is_even else passes >= fit.split.large


@given(share=st.integers(1, 5000), limit=st.integers(1, 100))
def test_passes_are_the_fewest_and_their_batch_the_smallest(share, limit):
    micro, steps = passes(share, limit)
    assert micro <= limit and (steps - 1) * micro < share <= steps * micro
    assert (steps - 1) * limit < share, "fewer passes would exceed the limit"
    assert steps * (micro - 1) < share, "a smaller batch would need another pass"


@given(samples=st.integers(1, 5000), ranks=st.integers(1, 500))
def test_idle_time_is_what_equal_shares_would_save(samples, ranks):
    split = batch.nearest_split(samples, ranks)
    if split is None:
        return
    idle = sum(split.large - share for share in [split.small] * split.num_small)
    point = ScalePoint(1, ranks, ranks, StepBatch(split, split.large, 1, None), {})
    assert point.idle == pytest.approx(idle / (split.large * ranks))
    assert point.balance >= 1 and (point.balance == 1) == split.is_even


def test_a_size_is_as_fast_as_the_first_that_has_its_share():
    assert list(batch.no_faster_than([16, 8, 6, 4, 4, 3, 3, 2, 2])) == [None, None, None, None, 3, None, 5, None, 7]
    assert list(batch.no_faster_than([4, 6, 4, 3])) == [None, 0, 0, None]


def test_divisors_are_listed_between_their_bounds():
    assert batch.divisors(12) == "1, 2, 3, 4, 6, 12"
    assert batch.divisors(12, least=2, most=6) == "2, 3, 4, 6"
    assert batch.divisors(1, least=2) == ""
    assert batch.divisors(2**62, most=4) == "1, 2, 4"


@given(number=st.integers(1, 500), least=st.integers(1, 30), most=st.none() | st.integers(1, 600))
def test_divisors_are_those_that_a_division_finds(number, least, most):
    found = [n for n in range(least, min(number, most or number) + 1) if number % n == 0]
    assert batch.divisors(number, least, most) == ", ".join(map(str, found))


@pytest.mark.parametrize(
    ("samples", "split"), [(96, (4, 4, 24)), (128, (5, 6, 16))], ids=["equal shares", "unequal shares"]
)
def test_a_fit_counts_its_passes_in_whole_numbers(samples, split):
    fit = batch.fit(samples, 24, 3)
    assert repr(fit) == repr(batch.Fit(batch.BatchSplit(*split), 2 if samples == 96 else 3, 2))
