"""`prompt_lookup_num_tokens` of a layer: every family's tokens stay the same, in calls, streams and chats."""

import threading

import numpy as np
import pytest

from keras_xla.engine.runs.deadline import Deadline
from tests import reference
from tests.engine.prices import check_always
from tests.generation.guessing import NEW, SEQ2SEQ, layer_of, runs_of, same

ROWS = [[5, 6, 7], [8, 9, 10, 11] * 3, list(range(20, 40)) * 2]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    check_always(monkeypatch)


@pytest.fixture(scope="module")
def layer(checkpoint):
    return layer_of(checkpoint, "llama-tied-gqa")


MODES = {"greedy": {}, "sampled": dict(do_sample=True, temperature=0.4, seed=1), "ends": dict(eos_token_id=[5, 50, 60])}


@pytest.mark.parametrize("variant", [*reference.VARIANTS, *SEQ2SEQ])
@pytest.mark.slow
def test_tokens_of_every_family_stay_the_same(checkpoint, variant):
    layer = layer_of(checkpoint, variant)
    for options in MODES.values():
        same(layer.generate(ROWS, prompt_lookup_num_tokens=4, **options), layer.generate(ROWS, **options))
    assert runs_of(layer, ROWS, prompt_lookup_num_tokens=4)[1] > 0


@pytest.mark.slow
def test_a_source_may_have_tokens_that_the_decoder_has_not(checkpoint):
    """They are guessed, as they stand behind the first tokens of the answer, and are wrong."""
    layer = layer_of(
        checkpoint, "marian-two-vocabularies", decoder_start_token_id=3, forced_bos_token_id=7, max_new_tokens=12
    )
    sources = [[3, 7, 110, 119, 112, 2], [3, 7, 5, 118, 2]]
    assert layer.model.vocab_size < 110
    same(layer.generate(sources, prompt_lookup_num_tokens=4), layer.generate(sources))


@pytest.mark.slow
@pytest.mark.parametrize("guesses", [5, 20])
def test_int8_too(checkpoint, guesses):
    """Many guesses of several rows are as many rows of a product as int8 multiplies in another way."""
    layer = layer_of(checkpoint, "llama-tied-gqa", quantization="int8")
    same(layer.generate(ROWS, prompt_lookup_num_tokens=guesses), layer.generate(ROWS))


@pytest.mark.slow
def test_many_rows_write_their_slots_at_once(layer):
    rows = [[5 + i, 6, 7] * (1 + i % 4) for i in range(12)]
    same(layer.generate(rows, prompt_lookup_num_tokens=5), layer.generate(rows))


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_streams_and_texts(layer):
    prompts, guess = ["abcabcabc", "So it goes so it goes", "x"], dict(prompt_lookup_num_tokens=4)
    plain = layer.generate(prompts)
    assert layer.generate(prompts, **guess) == plain
    assert "".join(layer.stream(prompts[0], **guess)) == plain[0]
    joined = [""] * 3
    for row, piece in layer.stream(prompts, **guess):
        joined[row] += piece
    assert joined == plain
    stop = plain[1][3:5]
    assert layer.generate(prompts, stop_strings=stop, **guess) == layer.generate(prompts, stop_strings=stop)


class Told:
    """A streamer that keeps what it is told."""

    def __init__(self):
        self.put_, self.ended = [], False

    def put(self, ids):
        self.put_.append(np.array(ids))

    def end(self):
        self.ended = True


class Cancels(Told):
    """A streamer that ends the call."""

    def __init__(self, cancel):
        super().__init__()
        self.cancel = cancel

    def put(self, ids):
        super().put(ids)
        if len(self.put_) > 6:
            self.cancel.set()


@pytest.mark.quick_on_jax
def test_a_streamer_is_told_all_that_a_cancelled_call_returns(layer):
    cancel = threading.Event()
    told = Cancels(cancel)
    out = layer.generate(ROWS, streamer=told, cancel=cancel, prompt_lookup_num_tokens=4)
    longest = out["lengths"].max()
    assert longest < NEW
    np.testing.assert_array_equal(np.stack(told.put_[1:], axis=1), out["sequences"][:, :longest])


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_a_row_that_a_stop_string_ends_guesses_no_more(layer):
    """Else it would go ahead of the others, and the cache would grow for it."""
    text = layer.generate(["abcabcabc"], max_new_tokens=50)[0]
    options = dict(stop_strings=[text[:2]], prompt_lookup_num_tokens=4)
    completion = layer._text.completion(["abcabcabc"], layer._tokenizer, layer.options, options)
    run = layer._generator.start(completion.call)
    for _ in run.advance(Deadline(), completion._stops(), count=1):
        pass
    assert run.generation.step < 12
    run.close()


@pytest.mark.parametrize("ends", [[], [5, 50, 60, 70]])
@pytest.mark.slow
def test_a_streamer_is_told_a_step_after_the_other(layer, ends):
    """Although rows come on at their own speed."""
    told, plain = Told(), Told()
    layer.generate(ROWS, streamer=told, prompt_lookup_num_tokens=4, eos_token_id=ends)
    layer.generate(ROWS, streamer=plain, eos_token_id=ends)
    assert told.ended
    np.testing.assert_array_equal(np.stack(told.put_[1:]), np.stack(plain.put_[1:]))


@pytest.mark.slow
def test_what_a_call_leaves_in_the_cache_serves_the_next(layer):
    """Rows of different lengths, and wrong guesses behind each."""
    guess = dict(prompt_lookup_num_tokens=4, eos_token_id=[5, 50, 60, 70])
    first = layer.generate(ROWS, reuse_prompt=True, max_new_tokens=12, **guess)
    longer = [
        [*row, *new[:n].tolist(), 7, 8] for row, new, n in zip(ROWS, first["sequences"], first["lengths"], strict=True)
    ]
    same(
        layer.generate(longer, reuse_prompt=True, max_new_tokens=12, **guess),
        layer.generate(longer, max_new_tokens=12, eos_token_id=guess["eos_token_id"]),
    )


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_a_saved_prompt_and_a_chat(layer):
    saved = layer.save_prompt("abcabc abcabc")
    options = dict(max_new_tokens=12)
    plain = layer.generate("abcabc abcabc abc", **options)
    assert layer.generate("abcabc abcabc abc", reuse_prompt=saved, prompt_lookup_num_tokens=4, **options) == plain

    def said(**guess):
        chat = layer.chat(**options, **guess)
        return [chat.send(text) for text in ("abcabc", "again abcabc", "abcabc")]

    assert said(prompt_lookup_num_tokens=4) == said()


@pytest.mark.slow
def test_inside_a_keras_model(layer, checkpoint):
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        pytest.skip("string inputs need TensorFlow")
    guessing = layer_of(checkpoint, "llama-tied-gqa", max_new_tokens=12, prompt_lookup_num_tokens=4)
    model = keras.Sequential([keras.Input((), dtype="string"), guessing])
    prompts = ["abcabc", "So it goes", "x"]
    made = model.predict(tf.constant(prompts), batch_size=2, verbose=0)
    assert [text.decode() for text in made] == layer.generate(prompts, max_new_tokens=12)


@pytest.mark.slow
def test_nothing_compiles_after_a_warmup(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", on_recompile="raise")
    layer.warmup(batch_sizes=(1, 3), prompt_lengths=40, prompt_lookup_num_tokens=5)
    before = layer.trace_count
    layer.generate(ROWS, prompt_lookup_num_tokens=5)
    layer.generate(ROWS[2:], prompt_lookup_num_tokens=5, do_sample=True, seed=1)
    assert layer.trace_count == before


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_what_a_layer_does_as_a_rule_gives_way_to_what_a_call_asks_for(checkpoint, layer):
    guessing = layer_of(checkpoint, "llama-tied-gqa", prompt_lookup_num_tokens=4)
    same(guessing.generate(ROWS, num_beams=2, max_new_tokens=8), layer.generate(ROWS, num_beams=2, max_new_tokens=8))


def test_a_checkpoint_does_not_switch_guesses_on(checkpoint, recwarn):
    stored = dict(prompt_lookup_num_tokens=100, num_assistant_tokens=20, assistant_confidence_threshold=0.4)
    layer = layer_of(checkpoint, "llama-tied-gqa", generation_config=stored)
    assert layer.options.prompt_lookup_num_tokens == 0 and not [w for w in recwarn if "generation_config" in str(w)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(num_beams=2), "prompt_lookup_num_tokens=4 with num_beams=2"),
        (dict(regex="[ab]+"), "prompt_lookup_num_tokens=4 with regex"),
        (dict(prompt_lookup_num_tokens=65), "prompt_lookup_num_tokens=65; expected an int of at most 64"),
        (dict(prompt_lookup_num_tokens=-1), "at least 0"),
    ],
)
def test_what_guesses_do_not_go_with_is_refused(layer, options, text):
    with pytest.raises(ValueError, match=text):
        layer.generate("abc", **{"prompt_lookup_num_tokens": 4, **options})


@pytest.mark.slow
def test_a_prompt_that_was_kept_by_guesses_brings_no_larger_cache(checkpoint):
    """Nothing was warmed up for plain calls at that size."""
    layer = layer_of(checkpoint, "llama-tied-gqa", on_recompile="raise", max_new_tokens=8)
    layer.warmup(1, 60, prompt_lookup_num_tokens=4)
    layer.warmup(1, 12)
    row = [5 + i % 40 for i in range(60)]
    layer.generate([row], reuse_prompt=True, prompt_lookup_num_tokens=4)
    same(layer.generate([row[:12]], reuse_prompt=True), layer.generate([row[:12]]))
