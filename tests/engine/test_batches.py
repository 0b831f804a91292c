"""Which prompts run together: each once, few at a time, of like size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Limits, most_rows, split
from keras_xla.engine.buckets import Buckets

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(lengths=lengths, most=st.integers(1, 16), copies=st.integers(1, 4))
def test_every_prompt_runs_once_in_parts_of_at_most_so_many_rows(lengths, most, copies):
    options = GenerationOptions(do_sample=True, num_return_sequences=copies)
    parts = split(lengths, options, most)
    assert sorted(i for part in parts for i in part.prompts) == list(range(len(lengths)))
    assert sorted(i for part in parts for i in part.answers) == list(range(len(lengths) * copies))
    assert all(len(part.rows) <= max(most, copies) for part in parts)
    if len(parts) > 1:  # the longest first
        ordered = [lengths[i] for part in parts for i in part.prompts]
        assert ordered == sorted(lengths, reverse=True)
    else:
        assert parts[0].prompts.tolist() == list(range(len(lengths)))


@given(lengths=lengths, most=st.integers(1, 16), data=st.data())
def test_options_of_each_prompt_stay_with_it(lengths, most, data):
    new = data.draw(st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths)))
    seeds = tuple(range(len(lengths)))
    options = GenerationOptions(do_sample=True, max_new_tokens=tuple(new), seed=seeds)
    parts = split(lengths, options, most)
    for part in parts:
        assert part.options.seed == tuple(part.prompts)
        assert part.options.max_new_tokens == tuple(new[i] for i in part.prompts)
    if len(parts) > 1:  # answers of like length end together
        assert [n for part in parts for n in part.options.max_new_tokens] == sorted(new, reverse=True)


@given(data=st.data(), most=st.integers(1, 16), room=st.integers(60, 90))
def test_what_fits_alone_runs_beside_what_fits_beside_it(data, most, room):
    """A batch needs room for its longest prompt and its longest answer, which may be those of two prompts."""
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=40))
    sizes = [(length, min(new, room - length)) for length, new in sizes]
    options = GenerationOptions(max_new_tokens=tuple(new for _, new in sizes))
    lengths = [length for length, _ in sizes]
    parts = split(lengths, options, most, lambda longest, options: longest + options.most_new_tokens <= room)
    assert sorted(i for part in parts for i in part.prompts) == list(range(len(sizes)))
    for part in parts:
        assert len(part.rows) <= part.room == min(most, len(sizes))  # the batch bucket stays that of the whole call
        assert max(lengths[i] for i in part.prompts) + part.options.most_new_tokens <= room
    if max(lengths) + options.most_new_tokens <= room:
        assert [part.prompts.tolist() for part in parts] == [
            part.prompts.tolist() for part in split(lengths, options, most)
        ]


def test_copies_of_a_prompt_stand_together():
    part = split([3, 3], GenerationOptions(do_sample=True, num_return_sequences=3), 64)[0]
    assert part.rows.tolist() == part.answers.tolist() == [0, 1, 2, 3, 4, 5]
    part = split([3, 3], GenerationOptions(num_beams=4, num_return_sequences=2), 64)[0]
    assert (part.rows.tolist(), part.answers.tolist()) == ([0, 1], [0, 1, 2, 3])
    assert part.of(["a", "b"]) == ["a", "b"] and np.array_equal(part.prompts, [0, 1])


def test_caches_hold_no_more_than_they_may():
    powers, given = Buckets("batch"), Buckets("batch", (2, 5, 9))
    assert [most_rows(powers, n, 100) for n in (0, 1, 2, 3, 30, 1000)] == [64, 64, 32, 32, 2, 1]
    assert [most_rows(given, n, 100) for n in (0, 20, 21, 1000)] == [9, 5, 2, 2]


def limits(cache=(16, 64, 256), most_bytes=1000, slot_bytes=1):
    return Limits(Buckets("batch"), Buckets("cache", cache), most_bytes, lambda: slot_bytes)


def test_a_cache_counts_as_large_as_its_bucket_is():
    options = GenerationOptions(max_new_tokens=10)
    assert limits().rows(6, options) == 32  # of 16 slots, there is room for 62
    assert limits().rows(7, options) == 8  # of 64 slots, for 15
    assert limits().rows(7, options, beside=1.0) == 4
    assert limits().rows(7, GenerationOptions(max_new_tokens=10, guidance_scale=2.0)) == 4
    assert limits().rows(60, options) == 2 and limits().rows(1000, options) == 2  # no cache holds the last one


def test_fewer_tokens_are_those_with_which_more_rows_run_at_once():
    options = GenerationOptions(max_new_tokens=200)
    found = list(limits().with_fewer_tokens(6, options))
    assert [each.max_new_tokens for each in found] == [200, 58, 10]
    assert [limits().rows(6, each) for each in found] == [2, 8, 32]
    assert list(limits(most_bytes=10**9).with_fewer_tokens(6, options)) == [options]
    assert [o.max_new_tokens for o in limits().with_fewer_tokens(6, options.replace(min_new_tokens=20))] == [200, 58]
    beams = GenerationOptions(max_new_tokens=64, num_beams=3)
    assert [each.max_new_tokens for each in limits().with_fewer_tokens(6, beams)] == [64, 19, 3]


def test_there_is_room_for_prompts_that_were_left_out():
    options = GenerationOptions()
    assert [part.room for part in split([3, 3], options, 8, room_for=5)] == [5]
    assert [part.room for part in split([3, 3], options, 4, room_for=50)] == [4]
    assert [part.room for part in split([3] * 6, options, 4, room_for=5)] == [4, 4]
    copies = GenerationOptions(do_sample=True, num_return_sequences=2)
    assert [part.room for part in split([3], copies, 8, room_for=3)] == [6]
