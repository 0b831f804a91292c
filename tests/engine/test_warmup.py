"""Warming up: what runs side by side, how much of it, and what happens when a call fails."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine import warmup
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.executables import Executables
from keras_xla.engine.generator import Generator
from keras_xla.engine.states.state_pool import StatePool
from keras_xla.engine.warmup import FirstCall, warm_up
from tests.engine.fake import EOS, Follow, Recall

LONG = 60  # seconds: nothing takes so long, unless calls wait for each other


@dataclass(frozen=True)
class Key:
    number: int


class State:
    def __init__(self, key):
        self.nbytes = key


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(warmup, "cores", lambda: 4)


@pytest.fixture
def pool():
    return StatePool(State)


@pytest.fixture
def first_call():
    executables = Executables("warm", lambda key: None, [])
    return lambda key, run=lambda *states: None, states=(): FirstCall(executables, key, run, states)


def warm(calls, pool, most_bytes=100, **more):
    warm_up(calls, pool, lambda key: key, most_bytes, **more)


def test_as_many_calls_run_at_once_as_there_are_cores(first_call, pool):
    meeting = threading.Barrier(4)
    warm([first_call(key, lambda: meeting.wait(LONG)) for key in range(8)], pool)


def test_one_core_makes_one_call_at_a_time(first_call, pool, monkeypatch):
    monkeypatch.setattr(warmup, "cores", lambda: 1)
    made = []
    warm([first_call(key, lambda key=key: made.append(key)) for key in range(5)], pool)
    assert made == [0, 1, 2, 3, 4]


def test_states_that_are_too_large_together_are_there_one_after_the_other(first_call, pool):
    lock, held, most = threading.Lock(), [], []

    def run(*states):
        with lock:
            held.extend(state.nbytes for state in states)
            most.append(sum(held))
        threading.Event().wait(0.02)
        with lock:
            for state in states:
                held.remove(state.nbytes)

    sizes = [(30, 20), (50,), (60,), (30,), (500,), (10,), (90,), (10,)]
    warm([first_call(i, run, states) for i, states in enumerate(sizes)], pool)
    assert len(most) == len(sizes)
    assert max(most) == 500 and max(size for size in most if size < 500) <= 100  # what is too large runs alone


def test_what_is_there_is_not_called_and_what_is_named_twice_is_called_once(pool, new_events):
    executables, told = Executables("warm", lambda key: ((lambda x: x + key.number), None), []), []

    def call_of(number):
        key, one = Key(number), ops.convert_to_tensor(np.float32(1))
        return FirstCall(executables, key, lambda: executables(key, one))

    def progress(count):
        told.append(count)
        return lambda call, seconds: told.append((call.key.number, seconds > 0))

    warm(map(call_of, (1, 2, 1)), pool, progress=progress)
    assert told[0] == 2 and sorted(told[1:]) == [(1, True), (2, True)]
    warm(map(call_of, (2, 1)), pool, progress=progress)
    assert len(told) == 3 and executables.trace_count == len(new_events("generate")) == 2


def test_of_states_one_of_each_size_stays(first_call, pool):
    meeting = threading.Barrier(3)
    warm([first_call(key, lambda state: meeting.wait(LONG), (20,)) for key in range(3)], pool)
    assert pool.nbytes == 20


def test_the_first_error_is_raised_when_all_that_had_begun_has_ended(first_call, pool, monkeypatch):
    monkeypatch.setattr(warmup, "cores", lambda: 2)
    meeting, ended = threading.Barrier(2), []

    def fails(state):
        meeting.wait(LONG)
        raise MemoryError("no room")

    def goes_on(state):
        meeting.wait(LONG)
        threading.Event().wait(0.1)
        ended.append(True)

    def never():
        raise AssertionError

    calls = [first_call(0, fails, (60,)), first_call(1, goes_on, (40,)), first_call(2, never), first_call(3, never)]
    with pytest.raises(MemoryError, match="no room"):
        warm(calls, pool)
    assert ended == [True] and pool.nbytes == 40  # what failed did not come back


CACHES = Buckets("cache", (16, 32, 64, 256))


def generator(model=None, **options):
    return Generator(model or Recall(10.0, None), Buckets("batch", (1, 4)), CACHES, **options)


def options_of(**options):
    return GenerationOptions(**{"max_new_tokens": 40, "eos_token_id": EOS, "pad_token_id": 0, **options})


def rows(count, length):
    return [np.zeros((length,), np.int32)] * count


# Of each: prompts, their length, options, and what compiles.
NEEDS = {
    "a prompt": (1, 8, {}, ["prefill", "advance"], (16, 32, 64)),
    "a prompt of one token": (1, 1, dict(max_new_tokens=10), ["advance"], (16,)),
    "a cache that grows": (1, 8, dict(max_new_tokens=100), ["prefill", "advance"], (16, 32, 64, 256)),
    "beams": (1, 8, dict(num_beams=2), ["prefill", "advance, 2 beams"], (16, 32, 64, 256)),
    "guesses": (1, 8, dict(prompt_lookup_num_tokens=4), ["prefill", "advance"], (16, 32, 64)),
}


@pytest.mark.quick_on_jax
@pytest.mark.quick("a prompt of one token")
@pytest.mark.parametrize("case", NEEDS)
def test_a_warmup_compiles_what_calls_of_so_many_tokens_or_fewer_need(case):
    count, length, options, names, caches = NEEDS[case]
    gen, options = generator(), options_of(**options)
    gen.warm_up(gen.first_calls(Call(rows(count, length), options)))
    made = {str(key).split(", 4 guesses")[0] for key in gen.executables.keys}
    assert made == {f"{name}, batch {count}, cache {cache}" for name in names for cache in caches}
    before = gen.executables.trace_count
    for most in (options.max_new_tokens, 2, options.max_new_tokens // 2):
        gen(Call(rows(count, length), options.replace(max_new_tokens=most)))
    assert gen.executables.trace_count == before == len(names) * len(caches)


@pytest.mark.slow
def test_it_compiles_for_more_rows_where_fewer_tokens_leave_room_for_them():
    gen = generator(on_recompile="raise", cache_bytes=4 * 16 * 8)  # four rows of 16 slots
    options = options_of(max_new_tokens=40)
    assert [len(part.rows) for part in gen.parts(Call(rows(4, 8), options))] == [1] * 4
    gen.warm_up(gen.first_calls(Call(rows(4, 8), options)))
    before = gen.executables.trace_count
    for most in (40, 8, 1):
        gen(Call(rows(4, 8), options.replace(max_new_tokens=most)))
    assert gen.executables.trace_count == before


@pytest.mark.slow
def test_a_cache_of_the_models_own_is_as_large_for_beams():
    gen = Generator(Follow(), Buckets("batch", (1,)), Buckets("cache", (34,)), on_recompile="raise")
    options = GenerationOptions(max_new_tokens=2, num_beams=4, pad_token_id=0)
    gen.warm_up(gen.first_calls(Call(rows(1, 8), options)))
    gen(Call(rows(1, 8), options))


def test_what_is_left_of_a_list_takes_the_batch_size_of_all():
    gen, options = generator(), options_of(eos_token_id=None, max_new_tokens=2)
    gen.warm_up(gen.first_calls(Call(rows(5, 8), options)))
    assert {key.batch for key in gen.executables.keys} == {4}


@pytest.mark.slow
def test_a_cache_of_the_models_own_is_smaller_for_fewer_tokens():
    gen, options = generator(Follow(max_positions=256), on_recompile="raise"), options_of(max_new_tokens=100)
    gen.warm_up(gen.first_calls(Call(rows(1, 8), options)))
    before = gen.executables.trace_count
    for most in (100, 40, 2):
        gen(Call(rows(1, 8), options.replace(max_new_tokens=most)))
    assert gen.executables.trace_count == before


@pytest.mark.slow
def test_side_by_side_it_compiles_what_it_does_one_after_the_other(monkeypatch):
    def compiled(cores):
        monkeypatch.setattr(warmup, "cores", lambda: cores)
        gen = generator()
        gen.warm_up(gen.first_calls(Call(rows(12, 8), options_of(max_new_tokens=20))))
        assert len(gen.executables.keys) == gen.executables.trace_count
        return sorted(map(str, gen.executables.keys))

    assert compiled(1) == compiled(4)


@pytest.mark.slow
def test_a_warmup_beside_a_call_changes_nothing():
    gen, alone = generator(on_recompile="raise"), generator()
    prompts = [np.array([1, 2, 3], np.int32)]
    wanted = alone(Call(prompts, options_of()))
    calls = list(gen.first_calls(Call(rows(1, 3), options_of())))
    beside = threading.Thread(target=gen.warm_up, args=(calls,))
    beside.start()
    made = [gen(Call(prompts, options_of())) for _ in range(3)]
    beside.join(LONG)
    for each in made:
        np.testing.assert_array_equal(each["sequences"], wanted["sequences"])
    assert gen.executables.trace_count == len(calls) > alone.executables.trace_count


def test_sizes_are_checked_before_anything_compiles():
    gen = generator()
    with pytest.raises(ValueError, match="needs a cache of 1040"):
        list(gen.first_calls(Call(rows(1, 1000), options_of())))
    assert gen.executables.trace_count == 0
