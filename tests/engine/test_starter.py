"""A first call: what makes tokens compiles beside what runs the prompts, where that can cost nobody anything."""

import threading

import numpy as np
import pytest

from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.executables import Executables
from keras_xla.engine.generator import Generator
from keras_xla.engine.runs import starter
from tests.engine.fake import Recall


class Fails(Recall):
    """As soon as it is asked for the token after a prompt: what compiled until then is known in no time."""

    def extend(self, tokens, slot, view, cache):
        if tokens.shape[1] == 1:
            raise ValueError("no token follows")
        return super().extend(tokens, slot, view, cache)


LONG = 60  # seconds: nothing takes so long, unless the two wait for each other
PROMPT = [np.array([1, 2, 3], np.int32)]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(starter, "cores", lambda: 2)


@pytest.fixture
def beside(monkeypatch):
    """The most compilations that went on at once, so far."""
    lock, going, most = threading.Lock(), [], [0]
    compile_one = Executables._compile

    def watched(self, key, *more):
        with lock:
            going.append(key)
            most[0] = max(most[0], len(going))
        threading.Event().wait(0.1)
        try:
            return compile_one(self, key, *more)
        finally:
            with lock:
                going.remove(key)

    monkeypatch.setattr(Executables, "_compile", watched)
    return lambda: most[0]


def generator(model=None, **options):
    return Generator(model or Recall(10.0), Buckets("batch", (1,)), Buckets("cache", (16, 32)), **options)


def options_of(**options):
    return GenerationOptions(**{"max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 0, **options})


def test_both_compile_side_by_side_and_each_once(monkeypatch, new_events):
    meeting, compile_one = threading.Barrier(2), Executables._compile

    def met(self, key, *more):
        meeting.wait(LONG)
        return compile_one(self, key, *more)

    monkeypatch.setattr(starter, "cores", lambda: 1)
    alone = generator()
    wanted = alone(Call(PROMPT, options_of()))
    monkeypatch.setattr(starter, "cores", lambda: 2)
    monkeypatch.setattr(Executables, "_compile", met)
    before, gen, other = len(new_events("generate")), generator(), alone.pool.nbytes
    for _ in range(2):
        np.testing.assert_array_equal(gen(Call(PROMPT, options_of()))["sequences"], wanted["sequences"])
    assert [event.cause for event in new_events("generate")[before:]] == ["first call"] * 2
    assert gen.executables.trace_count == 2
    assert gen.pool.nbytes == other  # one state is left, not two


@pytest.mark.parametrize(
    ("made", "prompt", "options"),
    [
        (dict(), [0], {}),  # nothing runs before its tokens
        (dict(), [1, 2, 3], dict(max_time=60.0)),  # which may be over before any
        (dict(on_recompile="raise"), [1, 2, 3], {}),  # whoever wants no compilation by surprise warms up
        (dict(cache_bytes=100), [1, 2, 3], {}),  # a second cache is more than there may be
    ],
    ids=["one token", "max_time", "on_recompile", "cache_bytes"],
)
def test_one_after_the_other_where_one_might_be_for_nothing(beside, made, prompt, options):
    with pytest.raises(ValueError, match="no token follows"):
        generator(Fails(10.0), **made)(Call([np.array(prompt, np.int32)], options_of(**options)))
    assert beside() == 1


def test_of_several_threads_one_compiles_beside(beside, monkeypatch):
    first_advance, begun = starter.Starter._first_advance, []

    def counted(self, *more):
        begun.append(more)
        return first_advance(self, *more)

    monkeypatch.setattr(starter.Starter, "_first_advance", counted)
    gen, together = generator(Fails(10.0)), threading.Barrier(4)

    def call():
        together.wait(LONG)
        with pytest.raises(ValueError, match="no token follows"):
            gen(Call(PROMPT, options_of()))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(LONG)
    assert len(begun) == 1 and beside() == 2


@pytest.mark.parametrize(("name", "value"), [("cores", lambda: 1), ("AHEAD_BYTES", 100)])
def test_one_after_the_other_where_there_is_no_room(beside, monkeypatch, name, value):
    monkeypatch.setattr(starter, name, value)
    with pytest.raises(ValueError, match="no token follows"):
        generator(Fails(10.0))(Call(PROMPT, options_of()))
    assert beside() == 1


def test_a_prompt_that_is_only_saved_compiles_nothing_else(beside):
    gen = generator()
    gen.save_prompt(PROMPT)
    assert beside() == gen.executables.trace_count == 1


def test_what_fails_beside_is_the_calls_own_error_and_nobody_elses(beside, monkeypatch):
    unseen = []
    monkeypatch.setattr(threading, "excepthook", unseen.append)
    gen = generator(Fails(10.0))
    for _ in range(2):
        with pytest.raises(ValueError, match="no token follows"):
            gen(Call(PROMPT, options_of()))
    assert beside() == 2 and not unseen
    assert len(gen.executables.keys) == 1  # the prompt's
