"""`guidance_scale` and `negative_prompt`: completions are led away from what follows the negative prompts."""

import itertools

import keras
import numpy as np
import pytest
import torch

from keras_xla import XLAGenerationLayer
from tests import reference
from tests.engine.fake import Follow
from tests.engine.prices import check_always
from tests.generation.guessing import NEW, layer_of, same

ROWS = [[5, 6, 7], [8], list(range(20, 40)) * 2]
NEGATIVE = [[9, 10, 11, 12], list(range(40, 70)), [3]]
MODES = {
    "greedy": dict(guidance_scale=1.5),
    "far": dict(guidance_scale=4.0, repetition_penalty=1.3),
    "back": dict(guidance_scale=-0.5, no_repeat_ngram_size=2),
    "ends": dict(guidance_scale=2.0, eos_token_id=list(range(40, 97)), min_new_tokens=3),
}


@pytest.fixture(scope="module")
def layer(checkpoint):
    return layer_of(checkpoint, "llama-tied-gqa")


def made(out):
    return [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]


@pytest.mark.quick_on_jax
@pytest.mark.quick("greedy-llama-tied-gqa")
@pytest.mark.parametrize("variant", reference.VARIANTS)
@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_the_references(checkpoint, variant, mode):
    layer, options = layer_of(checkpoint, variant), MODES[mode]
    wanted = [reference.generated(variant, row, max_new_tokens=NEW, **options)[0] for row in ROWS]
    assert made(layer.generate(ROWS, **options)) == wanted
    wanted = [
        reference.generated(variant, row, max_new_tokens=NEW, negative_prompt_ids=torch.tensor([other]), **options)[0]
        for row, other in zip(ROWS, NEGATIVE, strict=True)
    ]
    assert made(layer.generate(ROWS, negative_prompt=NEGATIVE, **options)) == wanted


DRAWN = dict(do_sample=True, seed=1, temperature=0.8)


@pytest.mark.parametrize("options", [{}, DRAWN])
@pytest.mark.slow
def test_a_scale_of_0_is_the_negative_prompt_and_one_of_1_the_prompt(layer, options):
    """Of each row by itself, at its own scale."""
    plain = layer.generate([NEGATIVE[0], ROWS[1], NEGATIVE[2]], **options)
    same(layer.generate(ROWS, negative_prompt=NEGATIVE, guidance_scale=[0.0, 1.0, 0.0], **options), plain)


@pytest.mark.slow
def test_a_row_without_guidance_among_others_is_as_if_alone(layer):
    """Also for processors that tell logits from log-probabilities."""
    options = dict(repetition_penalty=1.8, exponential_decay_length_penalty=(2, 1.2))
    made = layer.generate(ROWS, negative_prompt=NEGATIVE, guidance_scale=[1.0, 2.0, 1.0], **options)
    alone = layer.generate(ROWS, **options)
    for row in (0, 2):
        np.testing.assert_array_equal(made["sequences"][row], alone["sequences"][row])


@pytest.mark.slow
@pytest.mark.quick_on_jax("lookup")
@pytest.mark.parametrize("kind", ["lookup", "assistant"])
def test_guesses_change_nothing(layer, checkpoint, monkeypatch, kind):
    check_always(monkeypatch)
    options = dict(guidance_scale=1.5, negative_prompt=NEGATIVE)
    guessing = dict(prompt_lookup_num_tokens=4) if kind == "lookup" else dict(assistant=layer_of(checkpoint, "gpt2"))
    for more in ({}, DRAWN):
        same(layer.generate(ROWS, **options, **more, **guessing), layer.generate(ROWS, **options, **more))


@pytest.mark.slow
def test_texts_streams_streamers_and_chats(layer):
    prompts, options = ["abcabc", "So it goes"], dict(guidance_scale=1.5, negative_prompt="cba", max_new_tokens=12)
    texts = layer.generate(prompts, **options)
    assert texts == layer.generate(prompts, **{**options, "negative_prompt": ["cba", "cba"]})
    assert texts != layer.generate(prompts, max_new_tokens=12)
    pieces = ["", ""]
    for row, piece in layer.stream(prompts, **options):
        pieces[row] += piece
    assert pieces == texts
    stop = texts[0][2:4]
    cut = texts[0][: texts[0].index(stop) + len(stop)]
    assert layer.generate(prompts, stop_strings=stop, **options)[0] == cut

    class Told:
        def __init__(self):
            self.tokens = []

        def put(self, ids):
            self.tokens.append(ids)

        def end(self):
            pass

    told = Told()
    assert layer.generate(prompts, streamer=told, **options) == texts
    assert len(told.tokens) == 13
    assert layer.generate(prompts, reuse_prompt=True, **options) == texts
    assert layer.generate(prompts, reuse_prompt=True, max_new_tokens=12) == layer.generate(prompts, max_new_tokens=12)


@pytest.mark.slow
def test_a_chat_is_guided_in_each_turn(layer):
    options = dict(guidance_scale=2.0, max_new_tokens=8)
    chat = layer.chat(**options)
    said = [chat.send(text) for text in ("abcabc", "again")]
    assert said == [layer.generate(chat.messages[:n], **options)[0] for n in (1, 3)]


@pytest.mark.slow
def test_copies_and_batches_one_after_the_other(layer, checkpoint):
    options = dict(guidance_scale=1.5, max_new_tokens=6)
    one = layer.generate(ROWS, negative_prompt=NEGATIVE, **options)
    small = layer_of(checkpoint, "llama-tied-gqa", cache_bytes=1)
    same(small.generate(ROWS, negative_prompt=NEGATIVE, verbose=0, **options), one)
    copies = layer.generate(ROWS, negative_prompt=NEGATIVE, num_return_sequences=2, do_sample=True, top_k=1, **options)
    np.testing.assert_array_equal(copies["sequences"], np.repeat(one["sequences"], 2, axis=0))


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_only_whether_there_is_guidance_compiles(checkpoint, new_events):
    layer = layer_of(checkpoint, "llama-tied-gqa", max_new_tokens=8)
    layer.generate(ROWS[:2])
    before = layer.trace_count
    layer.generate(ROWS[:2], guidance_scale=1.5)
    assert layer.trace_count == before + 2  # prompts of twice as many rows, and the loop
    assert any("advance, guided, batch 2" in event.shapes for event in new_events("generate"))
    for scale, negative in itertools.product((-1.0, 1.5, [2.0, 3.0]), (None, NEGATIVE[:1], NEGATIVE[1:])):
        layer.generate(ROWS[:2], guidance_scale=scale, negative_prompt=negative)
    assert layer.trace_count == before + 2


@pytest.mark.slow
def test_a_warmup_serves_all_calls(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", on_recompile="raise", guidance_scale=1.5)
    layer.warmup(batch_sizes=4, prompt_lengths=40, verbose=0)
    layer.generate(ROWS)
    layer.generate(ROWS, negative_prompt=NEGATIVE, do_sample=True)


@pytest.mark.slow
def test_a_layer_is_guided_in_predict(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", guidance_scale=2.0, max_new_tokens=5)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    out = model.predict(np.array([ROWS[0]] * 3), verbose=0)
    np.testing.assert_array_equal(out["sequences"], layer.generate([ROWS[0]] * 3)["sequences"])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (dict(guidance_scale=1.5, num_beams=2), ValueError, "guidance_scale=1.5 with num_beams=2; .* without beams"),
        (dict(guidance_scale=float("nan")), ValueError, "guidance_scale=nan; expected .* finite"),
        (dict(negative_prompt=NEGATIVE), ValueError, "negative_prompt without a guidance_scale"),
        (dict(guidance_scale=2, negative_prompt=NEGATIVE[:2]), ValueError, "2 negative prompts for 3 prompts"),
        (dict(guidance_scale=2, negative_prompt=[[97]]), ValueError, "Negative prompt 0 holds the token id 97"),
        (dict(guidance_scale=2, negative_prompt=[[]]), ValueError, "Negative prompt 0 is empty"),
        (dict(guidance_scale=2, negative_prompt=[[1] * 100]), ValueError, "Negative prompt 0 has 100 tokens"),
        (dict(guidance_scale=2, negative_prompt="abc"), TypeError, "ids with ids"),
        (dict(guidance_scale=[2, 1]), ValueError, "guidance_scale with 2 values for 3 prompts"),
    ],
)
def test_bad_input_is_refused_before_anything_compiles(layer, new_events, options, error, match):
    with pytest.raises(error, match=match):
        layer.generate(ROWS, **options)
    with pytest.raises(error, match=match):
        layer.check(ROWS, **options)
    assert not new_events("generate")


def test_models_without_guidance_say_so(checkpoint, layer, new_events):
    with pytest.raises(ValueError, match="guidance_scale for an encoder-decoder"):
        layer_of(checkpoint, "t5").generate(ROWS, guidance_scale=2.0)
    with pytest.raises(ValueError, match="guidance_scale for a model with a cache of its own"):
        XLAGenerationLayer(Follow()).generate([[1, 2]], guidance_scale=2.0)
    assert not new_events("generate")
    saved = layer.save_prompt([ROWS[2]])
    with pytest.raises(ValueError, match="a saved prompt with guidance_scale"):
        layer.generate(ROWS, guidance_scale=2.0, reuse_prompt=saved)
