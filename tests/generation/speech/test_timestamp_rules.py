"""The timestamp rules forbid what WhisperTimeStampLogitsProcessor forbids, and compile once for all steps."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from keras import ops
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from keras_xla import backend
from keras_xla.engine.search.samplers import FORBIDDEN
from keras_xla.generation.speech.timestamp_rules import timestamp_rules

TEXT, EOS, NO_TIMESTAMPS, FIRST, VOCAB = 6, 6, 8, 9, 16
BEGIN, SLOTS = 2, 7
LAST = VOCAB - 1


def theirs(scores, made, max_initial):
    config = SimpleNamespace(
        eos_token_id=EOS,
        bos_token_id=EOS,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=max_initial,
    )
    prompt = [7, 7, 7]
    rules = WhisperTimeStampLogitsProcessor(config, begin_index=len(prompt))
    ids = torch.tensor([[*prompt, *row] for row in made])
    return np.maximum(rules(ids, torch.tensor(scores)).numpy(), FORBIDDEN)


def arguments(scores, made, max_initial):
    padded = np.full((len(made), BEGIN + SLOTS), FIRST, "int32")  # prompts, and what is not generated yet, do not count
    padded[:, BEGIN : BEGIN + len(made[0])] = made
    numbers = (BEGIN, len(made[0]), FIRST, NO_TIMESTAMPS, EOS, VOCAB if max_initial is None else max_initial)
    return [ops.convert_to_tensor(x) for x in (scores, padded, *map(np.int32, numbers))]


def ours(scores, made, max_initial, rules=timestamp_rules):
    return ops.convert_to_numpy(rules(*arguments(scores, made, max_initial)))


@functools.cache
def compiled():
    return backend.jit(lambda *args: timestamp_rules(*args), [])


def noise(seed, rows, spread=2.0):
    return np.random.default_rng(seed).normal(0, spread, (rows, VOCAB)).astype("float32")


# Timestamps and text alike are few and repeat, so that every rule has its turn.
token = st.integers(0, TEXT - 1) | st.integers(FIRST, LAST)
batches = st.integers(0, SLOTS - 1).flatmap(
    lambda step: st.lists(st.lists(token, min_size=step, max_size=step), min_size=2, max_size=2)
)


@settings(max_examples=150, deadline=None)
@given(
    made=batches, seed=st.integers(0, 99), spread=st.sampled_from([0.5, 2.0, 6.0]), top=st.none() | st.integers(0, 9)
)
@example(made=[[], []], seed=0, spread=2.0, top=2)
@example(made=[[FIRST], [1]], seed=0, spread=2.0, top=None)
@example(made=[[FIRST, 1, FIRST + 2]] * 2, seed=0, spread=2.0, top=None)
@example(made=[[FIRST, 1, FIRST + 2, FIRST + 2]] * 2, seed=0, spread=2.0, top=None)
@example(made=[[FIRST, 1, LAST]] * 2, seed=0, spread=2.0, top=None)
def test_the_rules_are_the_references(made, seed, spread, top):
    scores = noise(seed, len(made), spread)
    np.testing.assert_array_equal(ours(scores, made, top, compiled()), theirs(scores, made, top))


def allowed(made, scores=None, max_initial=None):
    """The ids left for one row; with even scores, all that the grammar allows of the likelier kind."""
    scores = np.zeros((1, VOCAB), "float32") if scores is None else scores
    return set(np.flatnonzero(ours(scores, [made], max_initial)[0] > FORBIDDEN / 2).tolist())


TIMES, WORDS = set(range(FIRST, VOCAB)), set(range(TEXT))


def test_it_begins_with_an_early_timestamp():
    assert allowed([], max_initial=2) == {FIRST, FIRST + 1, FIRST + 2}
    assert allowed([]) == TIMES


def test_text_follows_the_first_timestamp_and_the_second_of_a_pair():
    likely_timestamps = np.where(np.arange(VOCAB) >= FIRST, 9.0, 0.0)[None].astype("float32")
    for made in ([FIRST], [FIRST, 1, FIRST + 2, FIRST + 2]):
        assert allowed(made, likely_timestamps) == WORDS | {EOS, 7}


def test_a_segments_end_is_followed_by_a_later_beginning_or_the_end_of_all():
    likely_end = np.where(np.arange(VOCAB) == EOS, 9.0, 0.0)[None].astype("float32")
    assert allowed([FIRST, 1, FIRST + 2], likely_end) == {EOS, 7} | {t for t in TIMES if t >= FIRST + 2}
    assert allowed([FIRST, 1, FIRST + 2]) == {t for t in TIMES if t >= FIRST + 2}


def test_a_segment_takes_time():
    assert allowed([FIRST + 1, 1]) == {t for t in TIMES if t > FIRST + 1}


@pytest.mark.parametrize(("word", "left"), [(1.9, {3, *WORDS, EOS, 7}), (1.7, set())])
def test_timestamps_win_if_they_are_likelier_together_than_any_word(word, left):
    scores = np.zeros((1, VOCAB), "float32")  # 6 later timestamps, log(6) = 1.79 together
    scores[0, 3] = word
    scores[0, FIRST] = 9.0  # in the past
    assert allowed([FIRST, 1], scores) == left | TIMES - {FIRST}


def test_one_executable_serves_every_step_and_limit():
    traces = []

    def rules(*args):
        traces.append(1)
        return timestamp_rules(*args)

    once = backend.jit(rules, [])
    row = [FIRST, 1, 2, FIRST + 3, FIRST + 3, 4]
    for step in range(SLOTS):
        made = [row[:step]] * 2
        for top in (0, 3):
            scores = noise(step, 2)
            np.testing.assert_array_equal(ours(scores, made, top, once), theirs(scores, made, top))
    assert len(traces) == 1
