"""Log-probabilities of made and of given tokens: PyTorch's, in every family, in parts, and beside text."""

import copy
import math
import pickle
import threading

import numpy as np
import pytest
import torch

from keras_xla import XLAGenerationLayer
from keras_xla.generation.text.logprobs import ScoredText, perplexity, windows
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference
from tests.generation.test_stream import with_byte_tokens
from tests.tokenizers import tiny

ROWS = [[5, 6, 7, 8], [9, 10], list(range(20, 60))]
SEQ2SEQ = ["t5", "bart", "marian"]


def layer_of(checkpoint, variant, **options):
    start = dict(decoder_start_token_id=3) if variant in SEQ2SEQ else {}
    options = {"max_new_tokens": 6, "generation_config": {}, "pad_token_id": 0, **start, **options}
    model = load_model(open_checkpoint(checkpoint(variant)))
    return XLAGenerationLayer(model, tiny(), cache_buckets=(32, 64, 128), **options)


@pytest.fixture(scope="module")
def layer(checkpoint):
    return layer_of(checkpoint, "llama-tied-gqa")


def theirs(variant, row, source=None):
    """PyTorch's log-probabilities `(n - 1, vocab)` of what follows each token."""
    model, ids = reference.torch_model(variant), torch.tensor([row[:-1]])
    inputs = dict(input_ids=ids) if source is None else dict(input_ids=torch.tensor([source]), decoder_input_ids=ids)
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), -1).numpy()


@pytest.mark.quick("llama-tied-gqa", "gpt2", "t5")
@pytest.mark.parametrize("variant", [*reference.VARIANTS, *SEQ2SEQ])
def test_scores_are_the_references(checkpoint, variant):
    layer = layer_of(checkpoint, variant)
    if variant in SEQ2SEQ:
        sources, answers = ROWS, [[11, 12, 13], [14], [15, 16, 17, 18, 19]]
        scored = layer.score(sources, answers, top_logprobs=3)
        rows, first = [[3, *answer] for answer in answers], [1] * 3
        expected = [theirs(variant, row, source) for row, source in zip(rows, sources, strict=True)]
    else:
        scored, rows, first = layer.score(ROWS, top_logprobs=3), ROWS, [1] * 3
        expected = [theirs(variant, row) for row in rows]
    for each, row, n, known in zip(scored, rows, first, expected, strict=True):
        assert each.tokens.tolist() == row[n:]
        np.testing.assert_allclose(each.logprobs, known[np.arange(len(row) - 1), row[1:]], atol=1e-4)
        np.testing.assert_allclose(each.top_logprobs, np.sort(known)[:, :-4:-1], atol=1e-4)
        at = np.arange(len(each.tokens))[:, None]
        np.testing.assert_allclose(known[at, each.top_tokens], each.top_logprobs, atol=1e-4)


def test_answers_are_scored_behind_their_prompts(layer):
    answers = [[30, 31, 32], [33], [34, 35]]
    for row, answer, each in zip(ROWS, answers, layer.score(ROWS, answers), strict=True):
        known = theirs("llama-tied-gqa", [*row, *answer])
        assert each.tokens.tolist() == answer and each.top_tokens.shape == (len(answer), 0)
        expected = known[np.arange(len(row) - 1, len(row) + len(answer) - 1), answer]
        np.testing.assert_allclose(each.logprobs, expected, atol=1e-4)


def test_an_answer_needs_a_token_to_stand_behind(layer):
    with pytest.raises(ValueError, match="Prompt 1 is empty"):
        layer.score([[5], []], [[6, 7], [8]])


def test_texts_are_scored_as_their_tokens_are(layer):
    ids = [tiny()(text)["input_ids"] for text in ("a b c d", "e")]
    for by_text, by_ids in zip(layer.score(["a b c d", "e"]), layer.score(ids), strict=True):
        np.testing.assert_array_equal(by_text.tokens, by_ids.tokens)
        np.testing.assert_allclose(by_text.logprobs, by_ids.logprobs, atol=1e-6)
    behind = layer.score("a b", " c d")[0]
    assert behind.tokens.tolist() == ids[0][3:]
    np.testing.assert_allclose(behind.logprobs, layer.score("a b c d")[0].logprobs[2:], atol=1e-5)


def test_an_answer_has_the_tokens_that_it_has_behind_its_prompt(checkpoint):
    """A tokenizer of SentencePiece puts a space in front of a text, and so of an answer alone."""
    tokenizer = with_byte_tokens()
    layer = XLAGenerationLayer.from_pretrained(checkpoint("llama-tied-gqa"), tokenizer=tokenizer)
    whole = tokenizer("a b")["input_ids"]
    assert tokenizer(" b")["input_ids"] != whole[1:]
    for prompt, answer in (("a", " b"), ("a ", "b")):
        n = len(tokenizer(prompt)["input_ids"])
        assert layer.score(prompt, answer)[0].tokens.tolist() == whole[n:]
    alone = layer.score([[2, 3]], " b")[0]  # ids are no text that goes on
    assert alone.tokens.tolist() == tokenizer(" b")["input_ids"]


@pytest.mark.parametrize("length", [2, 3, 8, 9, 11, 12, 13, 40])
def test_windows_score_each_token_once(length):
    parts = list(windows(length, 8, 3))
    scored = [i for begin, end, first in parts for i in range(begin + first, end)]
    assert scored == list(range(1, length))
    assert all(end - begin <= 8 and first > 0 for begin, end, first in parts)
    assert all(first >= 8 - 3 for _, _, first in parts[1:])  # what stands before


def test_long_texts_are_scored_in_parts(layer):
    row = list(range(5, 55))
    whole, parts = layer.score([row])[0], layer.score([row], window=16, stride=4)[0]
    assert parts.tokens.tolist() == whole.tokens.tolist() == row[1:]
    for begin, end, first in windows(len(row), 16, 4):
        known = theirs("llama-tied-gqa", row[begin:end])
        expected = known[np.arange(first - 1, end - begin - 1), row[begin + first : end]]
        np.testing.assert_allclose(parts.logprobs[begin + first - 1 : end - 1], expected, atol=1e-4)
    assert perplexity([parts]) == pytest.approx(math.exp(-parts.logprobs.mean()), rel=1e-5)
    assert perplexity(each for each in [parts]) == perplexity([parts])
    assert perplexity([parts, whole]) == pytest.approx(
        math.exp(-(parts.logprobs.sum() + whole.logprobs.sum()) / 98), rel=1e-5
    )


@pytest.mark.parametrize(
    "options",
    [{}, dict(do_sample=True, seed=1, num_return_sequences=2), dict(num_beams=3, num_return_sequences=2)],
    ids=["greedy", "sampled", "beams"],
)
def test_what_is_made_has_log_probabilities(layer, options):
    ends = list(range(60, 97))
    out = layer.generate(ROWS, output_logprobs=True, top_logprobs=2, eos_token_id=ends, **options)
    plain = layer.generate(ROWS, eos_token_id=ends, **options)
    assert (out["sequences"] == plain["sequences"]).all()
    for i, (ids, length) in enumerate(zip(out["sequences"], out["lengths"], strict=True)):
        row = [*ROWS[i // options.get("num_return_sequences", 1)], *ids[:length]]
        known = theirs("llama-tied-gqa", row)[-length:]
        np.testing.assert_allclose(out["logprobs"][i, :length], known[np.arange(length), ids[:length]], atol=1e-4)
        np.testing.assert_allclose(out["top_logprobs"][i, :length], np.sort(known)[:, :-3:-1], atol=1e-4)
        assert (out["logprobs"][i, length:] == 0).all()
        total = out["logprobs"][i].sum() / (length if "num_beams" in options else 1)
        np.testing.assert_allclose(out["scores"][i], total, atol=1e-4)


def test_encoder_decoders_tell_them_too(checkpoint):
    layer = layer_of(checkpoint, "t5")
    out = layer.generate(ROWS, output_logprobs=True)
    for source, ids, logprobs in zip(ROWS, out["sequences"], out["logprobs"], strict=True):
        known = theirs("t5", [3, *ids], source)
        np.testing.assert_allclose(logprobs, known[np.arange(len(ids)), ids], atol=1e-4)


def test_text_carries_its_log_probabilities(layer):
    plain, (made,) = layer.generate("a b"), layer.generate("a b", output_logprobs=True, top_logprobs=2)
    assert [made] == plain and isinstance(made, ScoredText)
    assert made.scored.top_tokens.shape == (6, 2)
    assert (made.scored.tokens == made.scored.top_tokens[:, 0]).all()  # greedy
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made and (other.scored.logprobs == made.scored.logprobs).all()


def test_scores_compile_once_for_a_size(layer):
    layer.score(ROWS)
    layer.score(ROWS, [[5]] * 3)
    before = layer.trace_count
    layer.score([row[::-1] for row in ROWS])
    layer.score([ROWS[0], ROWS[1], ROWS[2][:-3]], [[5], [6], [7, 8]])
    assert layer.trace_count == before


def test_many_texts_come_in_input_order(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", batch_buckets=(4,))
    rows = [list(range(5, 7 + i * 7 % 20)) for i in range(10)]
    for row, each in zip(rows, layer.score(rows), strict=True):
        assert each.tokens.tolist() == row[1:]
        known = theirs("llama-tied-gqa", row)
        np.testing.assert_allclose(each.logprobs, known[np.arange(len(row) - 1), row[1:]], atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda layer: layer.score([[5]], [[6], [7]]), ValueError, "2 answers for 1 inputs"),
        (lambda layer: layer.score([[500]]), ValueError, "token id 500"),
        (lambda layer: layer.score([[5, 500]]), ValueError, "token id 500"),
        (lambda layer: layer.score([[5, 6]], top_logprobs=21), ValueError, "from 0 to 20"),
        (lambda layer: layer.score([[5, 6]], window=1), ValueError, "window=1"),
        (lambda layer: layer.score([[5, 6]], window=4, stride=4), ValueError, "stride=4"),
        (lambda layer: layer.score([[5, 6]], window=2.5), TypeError, "window=2.5"),
        (lambda layer: layer.score([[5, 6]], window=4, stride="1"), TypeError, "stride='1'"),
        (lambda layer: layer.warmup(top_logprobs=2), ValueError, "without output_logprobs"),
        (lambda layer: layer.warmup(num_assistant_tokens=2), ValueError, "without an assistant"),
        (lambda layer: layer.score([[5, 6]], [[7]], window=4), ValueError, "whole texts only"),
        (lambda layer: layer.score(["a"], max_new_tokens=3), TypeError, "max_new_tokens"),
        (lambda layer: layer.generate([[5]], top_logprobs=2), ValueError, "without output_logprobs"),
        (lambda layer: perplexity(layer.score([[5]])), ValueError, "no tokens"),
    ],
)
def test_bad_calls(layer, call, error, text):
    with pytest.raises(error, match=text):
        call(layer)


def test_rows_may_fill_the_largest_cache(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", max_new_tokens=12)
    layer = XLAGenerationLayer(
        layer.model, max_new_tokens=12, generation_config={}, pad_token_id=0, cache_buckets=(32,)
    )
    rows = [list(range(5, 25)), [5, 6]]
    out = layer.generate(rows, output_logprobs=True)
    assert (out["logprobs"] < 0).all()
    assert len(layer.score([list(range(5, 37)), [5, 6]])[0].logprobs) == 31


@pytest.mark.slow
def test_warmup_compiles_for_them(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", on_recompile="raise")
    layer.warmup([1, 2], [8], output_logprobs=True, top_logprobs=3, verbose=0)
    before = layer.trace_count
    layer.generate(ROWS[:2], output_logprobs=True, top_logprobs=3)
    layer.generate(ROWS[:1], output_logprobs=True, top_logprobs=1)
    assert layer.trace_count == before


@pytest.mark.slow
def test_warmup_compiles_for_all_answers_of_a_prompt(checkpoint):
    layer, options = layer_of(checkpoint, "llama-tied-gqa", on_recompile="raise"), dict(num_return_sequences=2)
    for more in (dict(do_sample=True), dict(num_beams=2)):
        layer.warmup(1, 8, output_logprobs=True, verbose=0, **options, **more)
        before = layer.trace_count
        layer.generate(ROWS[:1], output_logprobs=True, **options, **more)
        assert layer.trace_count == before


def test_a_cancelled_call_has_none(layer):
    cancel = threading.Event()
    cancel.set()
    before = layer.trace_count
    out = layer.generate(ROWS, output_logprobs=True, top_logprobs=2, cancel=cancel)
    assert (out["lengths"] == 0).all() and (out["logprobs"] == 0).all() and out["top_tokens"].shape == (3, 6, 2)
    (text,) = layer.generate("a b", output_logprobs=True, cancel=cancel)
    assert text == "" and len(text.scored.tokens) == 0 and layer.trace_count == before


def test_decoder_prompts_stand_before_answers(checkpoint):
    layer = layer_of(checkpoint, "t5")
    inputs = {"input_ids": np.array([[5, 6, 7]]), "decoder_input_ids": np.array([[3, 20]])}
    (each,) = layer.score(inputs, [[30, 31]])
    known = theirs("t5", [3, 20, 30, 31], [5, 6, 7])
    np.testing.assert_allclose(each.logprobs, known[[1, 2], [30, 31]], atol=1e-4)


def test_nan_rows_are_named_by_their_place(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", batch_buckets=(1, 2))
    table = next(v for v in layer.model.variables if v.shape[0] == 97)
    values = table.numpy()
    values[50] = np.nan
    table.assign(values)
    # A tied table: the head gives NaN for every row, so the numbers of all are named, in the order of the call.
    with pytest.raises(ValueError, match=r"rows \[0, 1, 2\]"):
        layer.score([[6, 7], [8, 9, 10], [5, 6, 7, 8]])


def test_answers_that_no_cache_holds_raise_before_anything_compiles(checkpoint):
    layer = layer_of(checkpoint, "t5", batch_buckets=(1,))
    sources = [list(range(5, 25)), [5, 6]]
    with pytest.raises(ValueError, match="cache"):
        layer.score(sources, [[7, 8], [7] * 200])
    assert layer.trace_count == 0
