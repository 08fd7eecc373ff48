from hypothesis import given
from hypothesis import strategies as st

from launcher import batch

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


def test_even_split_exists_only_where_it_divides():
    assert batch.even_split(128, 32) == batch.BatchSplit(4, 4, 32)
    assert batch.even_split(128, 24) is None
    assert batch.even_split(4, 8) is None
