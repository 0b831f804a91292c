"""Buckets hold what is asked for, and are few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_xla.engine.buckets import Buckets, make_buckets


@given(st.integers(1, 100_000), st.sampled_from([1, 4, 32]))
def test_powers_of_two_hold_the_size_and_waste_less_than_half(size, smallest):
    bucket = Buckets("prompt", None, smallest).fit(size)
    assert size <= bucket and (bucket == smallest or bucket < 2 * size)
    assert bucket & (bucket - 1) == 0


def test_own_sizes_are_used_in_order():
    buckets = make_buckets("prompt", [10, 100], 32)
    assert [buckets.fit(n) for n in (1, 10, 11, 100)] == [10, 10, 100, 100]
    with pytest.raises(ValueError, match="prompt of 101; the largest of"):
        buckets.fit(101)


@pytest.mark.parametrize("sizes", [[], [0, 1], [4, 4], [8, 2]])
def test_bad_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="increasing sizes above 0"):
        make_buckets("batch", sizes, 1)


@given(st.integers(1, 200), st.integers(0, 200))
def test_those_between_two_sizes_are_the_ones_that_hold_any_size_between_them(first, more):
    for buckets in (Buckets("cache", None, 32), make_buckets("cache", [10, 50, 400], 1)):
        held = sorted({buckets.fit(n) for n in range(first, first + more + 1)})
        assert list(buckets.between(first, first + more)) == held
