"""Stop strings: found where Hugging Face's `generate` finds them, whatever the tokens' borders."""

import functools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from keras_xla import XLAGenerationLayer
from keras_xla.generation.text import tokenizing
from keras_xla.generation.text.stop_strings import StopStrings
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference
from tests.tokenizers import tiny


def spelled(pieces):
    """A decoder of tokens that are these bytes."""
    return lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", errors="replace")


PIECES = [b"a", b"b", b"ab", b"\n", b"END", b"E", b"ND x", "é".encode()[:1], "é".encode()[1:], b""]


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=12),
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=12),
    st.lists(st.sampled_from(["END", "ab", "é", "ba", "\n\n", "aé"]), min_size=1, max_size=2),
    st.integers(1, 5),
)
@settings(max_examples=300, deadline=None)
def test_a_row_ends_with_the_first_token_that_completes_a_stop_string(prompt, new, stops, step):
    decode = spelled(PIECES)
    found = StopStrings(decode, stops, np.array(prompt, np.int32))
    got = None
    for count in range(step, len(new) + step, step):  # several tokens a call
        got = got or found.find(np.array(new[:count], np.int32))

    def completed(count):
        whole, before = (b"".join(PIECES[i] for i in [*prompt, *new[:n]]) for n in (count, count - 1))
        ends = (whole.find(stop.encode(), max(0, len(before) - len(stop.encode()) + 1)) for stop in stops)
        return any(end >= 0 for end in ends)

    assert got == next((count for count in range(1, len(new) + 1) if completed(count)), None)


@functools.cache
def with_byte_tokens():
    """As Llama 2 and Mistral have it: what is not in the vocabulary is written in bytes, newlines among it."""
    names = ["<unk>", "a", "b", *(f"<0x{byte:02X}>" for byte in "\né🎉".encode())]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"), [b"<unk>", b"a", b"b"]


@given(
    st.lists(st.integers(1, 9), max_size=10),
    st.lists(st.integers(1, 9), min_size=1, max_size=14),
    st.sampled_from(["\n", "a\n", "🎉\n", "é", "ab"]),
)
@settings(max_examples=300, deadline=None)
@example([3, 6, 7, 8], [9, 3, 1], "\n")  # a newline of the prompt in front of a character that is not whole yet
@example([1], [6, 7, 8, 9, 6, 7, 8, 9, 3, 1], "\n")  # and one so far behind the beginning that a character is cut
def test_tokens_of_one_byte_that_are_no_text_together_hide_nothing(prompt, new, stop):
    tokenizer, spelled = with_byte_tokens()
    byte_of = tokenizing.byte_tokens(tokenizer)
    pieces = [*spelled, *(bytes([byte_of[i]]) for i in range(3, 10))]

    def named(ids):
        return tokenizing.plain(tokenizer, ids, skip_special_tokens=False)

    found = StopStrings(named, [stop], np.array(prompt, np.int32), byte_of)

    def completed(count):
        whole, before = (b"".join(pieces[i] for i in [*prompt, *new[:n]]) for n in (count, count - 1))
        return whole.find(stop.encode(), max(0, len(before) - len(stop.encode()) + 1)) >= 0

    expected = next((count for count in range(1, len(new) + 1) if completed(count)), None)
    assert found.find(np.array(new, np.int32)) == expected


@pytest.fixture(scope="module")
def layer(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    return XLAGenerationLayer(model, tiny(), max_new_tokens=24, eos_token_id=None, pad_token_id=0)


@pytest.mark.parametrize("prompt", ["abc", "So it goes", "x"])
@pytest.mark.quick("x")
def test_rows_end_as_in_hugging_face(layer, prompt):
    whole = layer.generate(prompt)[0]
    ids = tiny()(prompt)["input_ids"]
    for begin in range(0, 20, 3):
        stop = whole[begin : begin + 2]
        options = dict(stop_strings=[stop, "never this"], tokenizer=tiny(), max_new_tokens=24)
        expected = reference.generate("llama-tied-gqa", ids, **options)
        made = layer.generate([ids], stop_strings=[stop, "never this"])
        assert made["sequences"][0, : made["lengths"][0]].tolist() == expected
        assert (made["sequences"][0, made["lengths"][0] :] == 0).all()
        assert layer.generate(prompt, stop_strings=stop) == [tiny().decode(expected)]
        assert "".join(layer.stream(prompt, stop_strings=stop)) == tiny().decode(expected)


@pytest.mark.slow
def test_each_row_has_its_own_end_and_scores_count_up_to_it(layer):
    prompts = ["abc", "So it goes"]
    stops = [layer.generate(prompt)[0][6:8] for prompt in prompts]
    together = layer.generate(prompts, stop_strings=stops)
    assert together == [layer.generate(prompt, stop_strings=stops)[0] for prompt in prompts]
    ids = [tiny()(prompt)["input_ids"] for prompt in prompts]
    out = layer.generate(ids, stop_strings=stops)
    for row, (length, score) in enumerate(zip(out["lengths"], out["scores"], strict=True)):
        alone = layer.generate([ids[row]], max_new_tokens=int(length))
        np.testing.assert_allclose(score, alone["scores"][0], rtol=1e-5)


def test_nothing_compiles_for_them(layer):
    layer.generate("abc")
    before = layer.trace_count
    layer.generate("abc", stop_strings="zz")
    layer.generate("abc", stop_strings=["z", "long enough to be another bucket of anything"])
    assert layer.trace_count == before


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(stop_strings=""), TypeError, "none of them empty"),
        (dict(stop_strings=[1]), TypeError, "a string or a list of strings"),
        (dict(stop_strings="a", num_beams=2), ValueError, "num_beams=1"),
    ],
)
def test_bad_stop_strings_raise(layer, options, error, text):
    with pytest.raises(error, match=text):
        layer.generate("abc", **options)


def test_without_a_tokenizer_they_cannot_be_found(layer):
    with pytest.raises(ValueError, match="no tokenizer to find them"):
        XLAGenerationLayer(layer.model, max_new_tokens=2).generate([[5]], stop_strings="a")
