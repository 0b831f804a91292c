"""The decode loop over a fake model: what is written, when rows stop, what lengths and scores say."""

import functools

import keras
import numpy as np
import pytest

from keras_xla import RecompileError
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.generator import Generator
from tests.engine.fake import ALPHABET, EOS, Follow, decode, encode


def generator(model=None, **kwargs):
    buckets = (Buckets("batch"), Buckets("cache", None, 64))
    return Generator(model or Follow(), *buckets, **kwargs)


@functools.cache
def shared():
    """One for all tests that do not count compilations."""
    return generator()


def run(gen, texts, **options):
    options = GenerationOptions(**{"max_new_tokens": 4, "eos_token_id": EOS, "pad_token_id": 0, **options})
    return gen(Call([encode(text) for text in texts], options))


@pytest.mark.slow
def test_each_row_goes_on_from_its_own_prompt_and_stops_at_its_end():
    out = run(shared(), ["ab", "efg", "h"], max_new_tokens=6)
    assert [decode(row) for row in out["sequences"]] == ["cdefgh", "h.____", "._____"]
    assert out["lengths"].tolist() == [6, 2, 1]


@pytest.mark.slow
def test_scores_are_the_sum_of_log_probabilities_up_to_the_end():
    out = run(generator(Follow(sharpness=3.0)), ["ab", "h"], max_new_tokens=4)
    one = 3.0 - np.log(np.exp(3.0) + 9)
    np.testing.assert_allclose(out["scores"], [4 * one, one], rtol=1e-5)


@pytest.mark.slow
def test_without_eos_ids_every_row_runs_to_max_new_tokens():
    out = run(shared(), ["h"], max_new_tokens=3, eos_token_id=None)
    assert decode(out["sequences"][0]) == ".ab" and out["lengths"].tolist() == [3]


@pytest.mark.slow
def test_any_of_several_eos_ids_ends_a_row():
    ends = (EOS, int(encode("d")[0]))
    out = run(shared(), ["a", "f"], max_new_tokens=8, eos_token_id=ends)
    assert [decode(row) for row in out["sequences"]] == ["bcd_____", "gh._____"]


@pytest.mark.slow
def test_n_grams_that_are_longer_than_any_text_are_no_loop_without_an_end():
    out = run(shared(), ["h"], max_new_tokens=4, eos_token_id=None, no_repeat_ngram_size=2**31 - 1)
    assert decode(out["sequences"][0]) == ".abc"


def test_no_eos_before_min_new_tokens():
    out = run(shared(), ["h"], max_new_tokens=5, min_new_tokens=3)
    assert out["lengths"][0] > 3 and EOS not in out["sequences"][0, :3]


def test_the_outputs_shape_is_max_new_tokens_whatever_the_bucket():
    assert run(shared(), ["a", "b", "c"], max_new_tokens=5)["sequences"].shape == (3, 5)


def test_num_return_sequences_repeats_each_prompt_in_order():
    out = run(shared(), ["a", "e"], max_new_tokens=2, do_sample=True, top_k=1, num_return_sequences=2)
    assert [decode(row) for row in out["sequences"]] == ["bc", "bc", "fg", "fg"]


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_a_seed_gives_equal_draws_in_any_batch_bucket_and_another_seed_others():
    flat = Follow(sharpness=0.0)
    options = dict(max_new_tokens=8, do_sample=True, eos_token_id=None)
    gen = generator(flat)
    first = run(gen, ["a"], seed=1, **options)["sequences"]
    assert (run(gen, ["a", "b", "c"], seed=1, **options)["sequences"][0] == first[0]).all()
    assert (run(gen, ["a"], seed=2, **options)["sequences"] != first).any()
    unseeded = [run(gen, ["a"], **options)["sequences"].tolist() for _ in range(4)]
    assert any(row != unseeded[0] for row in unseeded)


@pytest.mark.parametrize("temperature", [1e-20, 1e-30, 1e-45, 5e-324])
@pytest.mark.quick_on_jax
def test_the_lowest_temperatures_leave_the_likeliest_token(temperature):
    for filters in ({}, {"top_p": 0.9, "min_p": 0.1, "typical_p": 0.9}):
        out = run(shared(), ["ab", "efg"], max_new_tokens=6, do_sample=True, temperature=temperature, seed=1, **filters)
        assert [decode(row) for row in out["sequences"]] == ["cdefgh", "h.____"]


@pytest.mark.slow
def test_nothing_compiles_twice_for_other_options_or_sizes_in_a_bucket(new_events):
    gen = generator()
    for n, text in enumerate(["a", "ab", "abc", "abcd"]):
        run(gen, [text] * 2, max_new_tokens=1 + n, do_sample=True, temperature=1.0 + n, top_k=n, seed=n)
        run(gen, [text] * 2, max_new_tokens=1 + n, do_sample=True, top_p=0.5 + n / 10, min_p=n / 10)
    assert gen.executables.trace_count == 2  # the prompt, and the loop
    assert [event.cause for event in new_events("generate")] == ["first call"] * 2


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_a_compilation_says_what_was_new(new_events):
    gen = generator()
    run(gen, ["a"])
    run(gen, ["abcde"])
    run(gen, ["abcde"], do_sample=True, repetition_penalty=1.5, max_new_tokens=20)
    run(gen, ["a", "b"], do_sample=True)
    run(gen, ["a"], max_new_tokens=40)
    assert [event.cause for event in new_events("generate")] == [
        "first call",  # the prompt, whole
        "first call",  # and the loop
        "batch bucket 1 -> 2",
        "batch bucket 1 -> 2",
        "cache bucket 64 -> 128",
        "cache bucket 64 -> 128",
    ]


def test_on_recompile_raise_names_the_change_and_compiles_nothing(new_events):
    gen = generator(on_recompile="raise")
    run(gen, ["a"])
    with pytest.raises(RecompileError, match="batch bucket 1 -> 2"):
        run(gen, ["a", "b"])
    assert len(new_events("generate")) == 2


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        ([], {}, "no prompts"),
        ([[]], {}, "Prompt 0 is empty"),
        ([[1], [1, 99]], {}, "Prompt 1 holds the token id 99; expected ids from 0 to 9"),
        ([[-1]], {}, "token id -1"),
        ([[1] * 64], {}, "Prompt 0 has 64 tokens; the model has 64 positions"),
        ([[1] * 60], {"max_new_tokens": 5}, "Pass max_new_tokens=4 or less"),
        ([[1]], {"eos_token_id": 10}, "Received eos_token_id with [10]"),
    ],
)
def test_bad_rows_raise_before_anything_compiles(rows, options, text, new_events):
    gen = generator()
    with pytest.raises(ValueError) as caught:
        gen(Call([np.array(row, np.int32) for row in rows], GenerationOptions(**{"max_new_tokens": 2, **options})))
    assert text in str(caught.value)
    assert not new_events() and gen.executables.trace_count == 0


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX's context managers")
def test_what_jax_has_set_for_a_thread_holds_where_its_call_compiles():
    import jax

    seen = []

    class Watching(Follow):
        def step(self, *args):
            seen.append(jax.config.jax_default_matmul_precision)  # as it is traced
            return super().step(*args)

    gen = generator(Watching())
    with jax.default_matmul_precision("float32"):
        run(gen, ["ab"])
        traced = list(seen)
        run(gen, ["ab"])
    assert set(traced) == {"float32"} and seen == traced


@pytest.mark.quick_on_jax
def test_nan_logits_are_an_error_not_a_token():
    model = Follow()
    model.table[:] = np.nan
    with pytest.raises(ValueError, match=r"logits are NaN for rows \[0\]"):
        run(generator(model), ["a"])


ALL_BUT_THREE = [token for token in range(len(ALPHABET)) if token not in encode("abc")]


@pytest.mark.quick_on_jax
@pytest.mark.parametrize(
    "how", [dict(do_sample=True, seed=0), dict(num_beams=2), dict(num_beams=2, do_sample=True, seed=0)]
)
@pytest.mark.quick("how2", "how0")
def test_options_that_leave_no_token_are_an_error_that_names_them(how):
    options = dict(suppress_tokens=ALL_BUT_THREE, no_repeat_ngram_size=1, **how)
    made = run(shared(), ["de"], max_new_tokens=3, **options)["sequences"]
    assert sorted(made[0].tolist()) == sorted(encode("abc"))
    with pytest.raises(ValueError, match=r"for rows \[0\], or the options forbid every token: .* suppress_tokens"):
        run(shared(), ["de"], max_new_tokens=5, **options)


@pytest.mark.parametrize("name", ["forced_bos_token_id", "forced_eos_token_id"])
def test_a_token_that_is_forced_may_come(name):
    with pytest.raises(ValueError, match=rf"Received {name} with \[1\], and suppress_tokens with the same"):
        run(shared(), ["a"], suppress_tokens=[1, 2], **{name: 1})


@pytest.mark.slow
def test_two_threads_with_the_same_new_bucket_compile_once():
    from concurrent.futures import ThreadPoolExecutor

    gen = generator()
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda text: decode(run(gen, [text], max_new_tokens=3)["sequences"][0]), "abcd"))
    assert outs == ["bcd", "cde", "def", "efg"]
    assert gen.executables.trace_count == 2
