"""Encoder-decoders give PyTorch transformers' tokens: padded sources, greedy and beams, processors, decoder prompts."""

import numpy as np
import pytest
import torch

from keras_xla import XLAGenerationLayer
from tests import reference

VARIANTS = ["t5", "t5-gated", "bart", "mbart", "marian"]
SOURCES = [[5, 2], [7, 11, 13, 17, 19, 2], list(range(20, 36)), [90, 80, 70, 2]]
START, EOS = 3, (2, 9, 50)
COMMON = dict(max_new_tokens=12, decoder_start_token_id=START, pad_token_id=0)


def expected(variant, source, prompt=(), **options):
    """The reference's new tokens of each returned sequence, up to its end."""
    options = {"do_sample": False, **COMMON, "eos_token_id": list(EOS), "forced_eos_token_id": None, **options}
    options["use_cache"] = False  # transformers makes T5's cache for as many layers as the encoder has
    if prompt:
        options["decoder_input_ids"] = torch.tensor([prompt])
    with torch.no_grad():
        out = reference.torch_model(variant).generate(torch.tensor([source]), **options)
    rows = out[:, max(len(prompt), 1) :].tolist()
    return [row[: next((i + 1 for i, t in enumerate(row) if t in EOS), len(row))] for row in rows]


def made(out):
    return [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture
def layer(variant, checkpoint):
    return XLAGenerationLayer.from_pretrained(
        checkpoint(variant), eos_token_id=EOS, forced_eos_token_id=None, forced_bos_token_id=None, **COMMON
    )


@pytest.mark.quick("t5-gated")
def test_greedy_for_a_batch_of_mixed_lengths_on_both_padding_sides(layer, variant):
    wanted = [expected(variant, source)[0] for source in SOURCES]
    assert made(layer.generate(SOURCES)) == wanted
    width = max(map(len, SOURCES))
    for side in ("left", "right"):
        ids, mask = (np.zeros((len(SOURCES), width), "int64") for _ in range(2))
        for i, source in enumerate(SOURCES):
            where = slice(width - len(source), None) if side == "left" else slice(len(source))
            ids[i, where], mask[i, where] = source, 1
        assert made(layer.generate({"input_ids": ids, "attention_mask": mask})) == wanted, side
    assert layer.trace_count == 2  # the source, and the tokens


@pytest.mark.quick("mbart")
def test_beams_and_processors(layer, variant):
    for options in (
        dict(num_beams=3, num_return_sequences=3, length_penalty=2.0),
        dict(num_beams=3, early_stopping=True, min_length=6),
    ):
        wanted = [row for source in SOURCES for row in expected(variant, source, **options)]
        assert made(layer.generate(SOURCES, **options)) == wanted
    compiled = layer.trace_count
    options = dict(
        num_beams=3, repetition_penalty=1.3, no_repeat_ngram_size=2, forced_bos_token_id=8, forced_eos_token_id=2
    )
    options |= dict(bad_words_ids=[[5], [6, 7]], suppress_tokens=[11], begin_suppress_tokens=[12, 13])
    wanted = [row for source in SOURCES for row in expected(variant, source, **options)]
    assert made(layer.generate(SOURCES, **options)) == wanted
    assert layer.trace_count == compiled


@pytest.mark.quick("marian")
def test_decoder_prompts_of_mixed_lengths_go_on(layer, variant):
    prompts = [[START, 4], [START, 6, 7, 8], [START], [START, 5, 5]]
    wanted = [expected(variant, source, p)[0] for source, p in zip(SOURCES, prompts, strict=True)]
    inputs = {"input_ids": SOURCES, "decoder_input_ids": [p[1:] or p for p in prompts]}
    assert made(layer.generate(inputs)) == wanted
    assert made(layer.generate({**inputs, "decoder_input_ids": prompts})) == wanted


@pytest.mark.quick("mbart")
@pytest.mark.slow
def test_it_runs_in_a_model_and_survives_saving(layer, variant, tmp_path):
    import keras

    ids, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "attention_mask"))
    inputs = {"input_ids": ids, "attention_mask": mask}
    model = keras.Model(inputs, layer(inputs))
    width = max(map(len, SOURCES))
    arrays = {name: np.zeros((len(SOURCES), width), "int32") for name in inputs}
    for i, source in enumerate(SOURCES):
        arrays["input_ids"][i, : len(source)], arrays["attention_mask"][i, : len(source)] = source, 1
    out = model.predict(arrays, verbose=0)
    assert made(out) == [expected(variant, source)[0] for source in SOURCES]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert made(again.predict(arrays, verbose=0)) == made(out)


@pytest.mark.slow
def test_sources_may_have_a_vocabulary_of_their_own(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(
        checkpoint("marian-two-vocabularies"), eos_token_id=list(EOS), forced_eos_token_id=None, **COMMON
    )
    sources = [[110, 119, 5, 2], [96, 97, 2]]  # the decoder has 97 tokens
    out = layer.generate(sources)
    assert made(out) == [row for source in sources for row in expected("marian-two-vocabularies", source)]
    with pytest.raises(ValueError, match="Prompt 1 holds the token id 120; expected ids from 0 to 119"):
        layer.generate([[5, 2], [120, 2]])


def test_decoder_prompts_are_as_many_as_sources(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("t5"), max_new_tokens=2)
    for sources, starts in ((1, 2), (2, 1)):
        ids = {"input_ids": np.full((sources, 3), 5), "decoder_input_ids": np.full((starts, 1), 0)}
        with pytest.raises(ValueError, match=f"{starts} rows of decoder_input_ids with {sources} of input_ids"):
            layer.generate(ids)


def test_a_mask_with_zeros_between_tokens_is_refused(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("t5"), **COMMON)
    ids = np.array([[5, 6, 7, 8, 2]])
    with pytest.raises(ValueError, match=r"zeros between tokens for an encoder.*Leave these tokens out"):
        layer.generate({"input_ids": ids, "attention_mask": np.array([[1, 1, 0, 1, 1]])})
    padded = layer.generate({"input_ids": ids, "attention_mask": np.array([[0, 1, 1, 1, 0]])})
    np.testing.assert_array_equal(padded["sequences"], layer.generate([[6, 7, 8]])["sequences"])
