"""Long lists: rows that have ended make room for others, and every completion is what it would be alone."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_xla import RecompileError
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.generator import Generator
from keras_xla.engine.runs.continuous_generation import ContinuousGeneration
from keras_xla.engine.runs.deadline import Deadline
from tests import examples
from tests.engine.fake import EOS, Recall, encode

CACHES = (32, 64, 256)


def new_generator(sharpness=10.0, batch=(1, 4), **options):
    return Generator(Recall(sharpness, None), Buckets("batch", batch), Buckets("cache", CACHES), **options)


generator = functools.cache(new_generator)


def options_of(**options):
    return GenerationOptions(**{"max_new_tokens": 20, "eos_token_id": EOS, "pad_token_id": 0, **options})


def one_by_one(texts, gen=None, **options):
    """Each prompt in a call of its own, with the number that it has in the list."""
    rows, asked = [encode(text) for text in texts], options_of(**options)
    made = [(gen or generator())(Call(rows[i : i + 1], asked.of_rows([i]), first_row=i)) for i in range(len(rows))]
    return {name: np.concatenate([_wide(each[name], asked) for each in made]) for name in made[0]}


def _wide(array, options):
    return np.pad(array, ((0, 0), (0, options.most_new_tokens - array.shape[1]))) if array.ndim == 2 else array


def same(made, wanted):
    for name in ("sequences", "lengths"):
        np.testing.assert_array_equal(made[name], wanted[name])
    np.testing.assert_allclose(made["scores"], wanted["scores"], rtol=1e-4, atol=1e-5)


def takes_turns(gen):
    """Whether the generator's last executables were those of long lists."""
    return any("continuous" in str(key) for key in gen.executables.keys)


@pytest.fixture
def runs(monkeypatch):
    """How often the model has run in each call of an executable for long lists."""
    counted, run = [], ContinuousGeneration._run

    def counting(self, key, count):
        counted.append(run(self, key, count))
        return counted[-1]

    monkeypatch.setattr(ContinuousGeneration, "_run", counting)
    return counted


TEXTS = st.lists(st.text("abcdefgh", min_size=1, max_size=20), min_size=8, max_size=30)


@examples(24)
@given(TEXTS, st.data())
@pytest.mark.slow
def test_every_completion_is_what_it_would_be_alone(texts, data):
    """Of any length, so that rows move in the cache, and it grows."""
    options = data.draw(
        st.sampled_from(
            [
                {},
                dict(repetition_penalty=1.5, min_new_tokens=3),
                dict(no_repeat_ngram_size=2, encoder_repetition_penalty=0.5, min_length=9),
                dict(suppress_tokens=[3], begin_suppress_tokens=[4, 5], forced_eos_token_id=EOS),
                dict(presence_penalty=3.0, frequency_penalty=2.0),
            ]
        )
    )
    most = data.draw(st.lists(st.integers(3, 60), min_size=len(texts), max_size=len(texts)))
    options = dict(options, max_new_tokens=most, eos_token_id=data.draw(st.sampled_from([EOS, (2, 5), None])))
    same(generator()(Call([encode(text) for text in texts], options_of(**options))), one_by_one(texts, **options))
    assert takes_turns(generator())


@pytest.mark.slow
@pytest.mark.quick_on_jax
@examples(10)
@given(TEXTS, st.integers(0, 2**40))
def test_draws_are_those_of_the_rows_number(texts, seed):
    options = dict(do_sample=True, seed=seed, max_new_tokens=30, gen=generator(2.0))
    rows, gen = [encode(text) for text in texts], options.pop("gen")
    same(gen(Call(rows, options_of(**options))), one_by_one(texts, gen, **options))
    seeds = list(range(len(texts)))
    made = gen(Call(rows, options_of(**{**options, "seed": seeds})))
    for i in (0, len(texts) - 1):
        alone = gen(Call(rows[i : i + 1], options_of(**{**options, "seed": seeds[i]})))
        np.testing.assert_array_equal(made["sequences"][i], alone["sequences"][0])


@pytest.mark.slow
def test_copies_of_a_prompt_draw_apart():
    rows, options = [encode(text) for text in ("ab", "c", "def")], dict(do_sample=True, top_k=0, num_return_sequences=4)
    made = generator(0.5)(Call(rows, options_of(seed=3, **options)))
    assert made["sequences"].shape == (12, 20)
    assert len({tuple(row) for row in made["sequences"].tolist()}) > 6
    unseeded = [generator(0.5)(Call(rows, options_of(**options)))["sequences"].tolist() for _ in range(3)]
    assert unseeded[0] != unseeded[1] != unseeded[2]


def test_a_batch_does_not_wait_for_its_slowest_row(runs):
    texts, most = ["abc"] * 32, [3, 3, 3, 40] * 8
    made = generator()(Call([encode(text) for text in texts], options_of(max_new_tokens=most, eos_token_id=None)))
    assert made["lengths"].tolist() == most
    least = sum(most) / 4  # runs, if no row ever waited
    assert sum(runs) < 1.35 * least  # one batch after the other makes 320 of them


@pytest.mark.quick_on_jax
def test_an_end_of_its_own_makes_room(runs):
    class At:
        def __init__(self, length):
            self.length = length

        def find(self, tokens):
            return self.length if len(tokens) >= self.length else None

    stops = [At(2 + i % 3) for i in range(20)]
    rows, options = [encode("abc")] * 20, options_of(max_new_tokens=200, eos_token_id=None)
    made, plain = generator()(Call(rows, options, stops=stops)), generator()(Call(rows[:1], options))
    assert made["lengths"].tolist() == [stop.length for stop in stops]
    for row, stop in zip(made["sequences"], stops, strict=True):
        np.testing.assert_array_equal(row[: stop.length], plain["sequences"][0][: stop.length])
        assert not row[stop.length :].any()


@pytest.mark.slow
def test_a_list_whose_longest_prompt_and_longest_answer_need_more_than_the_largest_cache(runs):
    """Each row fits; rows that take turns need a cache for both at once, so they run in batches."""
    gen = Generator(Recall(10.0, None), Buckets("batch", (1, 4)), Buckets("cache", (16, 32)))
    texts, most = ["ab", "abcdefgh" * 3] * 4, [24, 4] * 4
    made = gen(Call([encode(text) for text in texts], options_of(max_new_tokens=most, eos_token_id=None)))
    assert made["lengths"].tolist() == most and not runs


@pytest.mark.slow
def test_a_batch_of_a_few_rows_takes_no_turns(runs):
    rows = [encode("abcdefgh"[: 1 + i % 8]) for i in range(9)]
    gen = new_generator(batch=(1, 2))
    same(gen(Call(rows, options_of())), generator()(Call(rows, options_of())))
    assert not takes_turns(gen)


def test_what_is_kept_of_an_answer_is_not_the_whole_batch():
    made, completed = [], ContinuousGeneration.completed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContinuousGeneration, "completed", lambda *a: made.append(completed(*a)) or made[-1])
        generator()(Call([encode("abc")] * 12, options_of()))
    assert len(made) == 12 and all(each.tokens.base is None for each in made)


def test_reports_count_prompts():
    told = []
    rows = [encode("abcdefgh"[: 1 + i % 8]) for i in range(17)]
    generator()(Call(rows, options_of()), report=told.append)
    assert sum(told) == 17 and len(told) > 3
    told.clear()
    generator()(Call(rows, options_of(do_sample=True, seed=1, num_return_sequences=3)), report=told.append)
    assert sum(told) == 17


@pytest.mark.slow
def test_two_executables_serve_a_list_and_lists_alike(new_events):
    gen = Generator(Recall(10.0, None), Buckets("batch", (4,)), Buckets("cache", (64,)))
    for n in (8, 11, 30):
        gen(Call([encode("abcdefgh"[: 1 + i % 8]) for i in range(n)], options_of(repetition_penalty=1.0 + n)))
        assert gen.pool.nbytes  # the next list takes the states of this one
    assert [event.shapes for event in new_events("generate")] == [
        "prefill, batch 1, cache 64",
        "advance, continuous, batch 4, cache 64",
    ]


@pytest.mark.slow
def test_a_warmup_serves_lists_that_raise_otherwise():
    gen = new_generator(on_recompile="raise")
    rows = [encode("abcdefgh"[: 1 + i % 8]) for i in range(12)]
    gen.warm_up(gen.first_calls(Call([np.zeros((8,), np.int32)] * 12, options_of(max_new_tokens=40))))
    before = gen.executables.trace_count
    gen(Call(rows, options_of(max_new_tokens=40, eos_token_id=(2, 5))))
    assert takes_turns(gen) and gen.executables.trace_count == before


@pytest.mark.slow
def test_a_warmup_of_a_list_serves_what_runs_in_batches_too():
    gen = new_generator(on_recompile="raise")
    gen.warm_up(gen.first_calls(Call([np.zeros((8,), np.int32)] * 12, options_of(max_new_tokens=20))))
    rows = [encode("abcdefgh"[: 1 + i % 8]) for i in range(12)]
    before = gen.executables.trace_count
    gen(Call(rows, options_of(max_new_tokens=20)))
    call = Call(rows, options_of(max_new_tokens=20))
    for part in gen.parts(call):
        gen.start(call.of(part))
    assert gen.executables.trace_count == before


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        ([np.zeros((0,), np.int32)] * 12, {}, "Prompt 0 is empty"),
        ([np.zeros((3,), np.int32)] * 12, dict(suppress_tokens=[10**6]), "suppress_tokens with"),
    ],
)
def test_a_warmup_of_a_list_checks_what_it_is_for(rows, options, text):
    gen = new_generator()
    with pytest.raises(ValueError, match=text):
        gen.warm_up(gen.first_calls(Call(rows, options_of(**options))))
    gen.warm_up(gen.first_calls(Call([], options_of())))
    assert gen.executables.trace_count == 0


@pytest.mark.slow
def test_whoever_has_warmed_up_batches_gets_batches():
    gen = new_generator(on_recompile="raise")
    gen.warm_up(gen.first_calls(Call([np.zeros((8,), np.int32)] * 4, options_of(max_new_tokens=40))))
    rows = [encode("abcdefgh"[: 1 + i % 8]) for i in range(12)]
    same(gen(Call(rows, options_of(max_new_tokens=40))), generator()(Call(rows, options_of(max_new_tokens=40))))
    assert not takes_turns(gen)
    with pytest.raises(RecompileError):
        gen(Call([encode("abcdefgh" * 20)], options_of()))


@pytest.mark.parametrize(
    "options", [dict(eos_token_id=None), dict(num_beams=2), dict(prompt_lookup_num_tokens=2)], ids=str
)
@pytest.mark.quick("{'num_beams': 2}", "{'eos_token_id': None}")
def test_rows_that_end_together_and_other_ways_run_in_batches(runs, options):
    generator()(Call([encode("abc")] * 12, options_of(**options)))
    assert not runs


@pytest.mark.slow
def test_a_call_that_ends_before_returns_what_there_is(runs):
    class After(Deadline):
        @property
        def over(self):
            return sum(runs) >= 5

    rows, options = [encode("abc")] * 12, options_of(max_new_tokens=200, eos_token_id=9)
    made = generator(0.0)(Call(rows, options), deadline=After())
    full = generator(0.0)(Call(rows, options))
    assert 0 < sorted(made["lengths"])[-1] < 200 and min(made["lengths"]) == 0
    for row, whole, length in zip(made["sequences"], full["sequences"], made["lengths"], strict=True):
        np.testing.assert_array_equal(row[:length], whole[:length])


def test_logits_that_are_nan_name_their_row():
    rows = [encode("abc")] * 12
    with pytest.raises(ValueError, match=r"logits are NaN for rows \[\d"):
        generator(float("nan"))(Call(rows, options_of()))
