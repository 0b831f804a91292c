"""Attention over blocks of slots is attention to all of them: on its own, and in models beside PyTorch transformers."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_xla import XLAGenerationLayer, backend
from keras_xla.models.interface import View
from keras_xla.models.layers import blockwise_attention
from keras_xla.models.layers.attention import attend
from keras_xla.models.layers.blockwise_attention import attend_blockwise, span
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import examples, reference

# B batch, S queries, T slots, H heads, D head size

CLOSE = dict(atol=2e-4, rtol=1e-4)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """On a GPU, too: blocks there are larger than what is tested here."""
    monkeypatch.setattr(blockwise_attention, "BLOCK_ELSEWHERE", blockwise_attention.BLOCK_ON_CPU)


def tensors(*arrays):
    return [None if x is None else ops.convert_to_tensor(x) for x in arrays]


def both(q, k, v, mask, bias):
    """Attention to all slots, and in blocks."""
    inputs = tensors(q, k, v, mask, bias)
    slots = span(inputs[3], q.shape[2], k.shape[1])
    assert slots is not None
    whole, blocks = attend(*inputs, 0.3), attend_blockwise(*inputs, 0.3, slots)
    inputs[1] = ops.transpose(inputs[1], (0, 2, 1))
    transposed = attend(*inputs, 0.3, keys_transposed=True), attend_blockwise(*inputs, 0.3, slots, keys_transposed=True)
    for expected, got in zip((whole, blocks), transposed, strict=True):
        got, expected = (ops.convert_to_numpy(x).astype("float32") for x in (got, expected))
        np.testing.assert_allclose(got, expected, **(CLOSE if v.dtype == "float32" else dict(atol=4e-3)))
    return ops.convert_to_numpy(whole), ops.convert_to_numpy(blocks), tuple(map(int, slots))


def drawn(rng, batch, heads, kv_heads, queries, slots, width=8, dtype="float32"):
    def normal(*shape):
        return rng.normal(0, 2, shape).astype(dtype)

    rows = batch * kv_heads
    return normal(batch, heads, queries, width), normal(rows, slots, width), normal(rows, slots, width)


def causal(first, queries, slots, starts, window=None):
    """`[B, 1, S, T]`: what tokens at the slots from `first` on see."""
    slot, query = np.arange(slots), first + np.arange(queries)[:, None]
    seen = (slot <= query) & (slot >= np.array(starts)[:, None, None])
    return (seen if window is None else seen & (slot > query - window))[:, None]


@pytest.mark.quick_on_jax
@examples(25)
@given(st.data())
def test_blocks_give_what_all_slots_at_once_give(data):
    draw = data.draw
    slots, queries = draw(st.sampled_from([513, 1024])), 17
    batch, (heads, kv_heads) = 2, draw(st.sampled_from([(4, 2), (3, 3)]))
    first = draw(st.integers(0, slots - queries))
    starts = draw(st.lists(st.integers(0, first), min_size=batch, max_size=batch))
    mask = causal(first, queries, slots, starts, draw(st.sampled_from([None, 1, 40, 300])))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    bias = rng.normal(0, 2, (draw(st.sampled_from([1, batch])), heads, queries, slots)).astype("float32")
    q, k, v = drawn(rng, batch, heads, kv_heads, queries, slots)
    whole, blocks, _ = both(q, k, v, mask, draw(st.sampled_from([None, bias])))
    np.testing.assert_allclose(blocks, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("slots", [512, 620])
def test_without_a_mask_all_slots_are_in_the_blocks(slots):
    q, k, v = drawn(np.random.default_rng(0), 2, 4, 4, 20, slots)
    whole, blocks, visited = both(q, k, v, None, None)
    assert visited == (0, slots)
    np.testing.assert_allclose(blocks, whole, atol=1e-5, rtol=1e-4)


def test_slots_that_nobody_sees_are_not_visited():
    """What stands there cannot matter, and takes no time."""
    q, k, v = drawn(np.random.default_rng(0), 1, 2, 2, 16, 1024)
    mask = causal(600, 16, 1024, [520])
    k[:, :512], v[:, :512], k[:, 768:], v[:, 768:] = np.nan, np.nan, np.nan, np.nan
    _, blocks, visited = both(q, k, v, mask, None)
    assert visited == (520, 616) and np.isfinite(blocks).all()


def test_where_nobody_sees_anything_the_result_is_finite():
    q, k, v = drawn(np.random.default_rng(0), 1, 2, 2, 16, 512)
    _, blocks, visited = both(q, k, v, np.zeros((1, 1, 16, 512), bool), None)
    assert visited == (511, 512) and np.isfinite(blocks).all()


def test_large_scores_and_half_precision_lose_nothing():
    q, k, v = drawn(np.random.default_rng(0), 1, 2, 1, 16, 512, dtype="float16")
    q[0, :, 0] *= 100  # one slot has all the weight
    whole, blocks, _ = both(q, k, v, causal(400, 16, 512, [0]), None)
    assert blocks.dtype == np.float16
    np.testing.assert_allclose(blocks.astype("float32"), whole.astype("float32"), atol=4e-3)


def test_values_that_are_not_seen_do_not_overflow_half_precision():
    """Those of padding, each of which has the weight 1 for a query that has seen nothing yet."""
    q, k, v = drawn(np.random.default_rng(0), 1, 2, 2, 16, 768, dtype="float16")
    v[:, :600] = 3e4
    whole, blocks, _ = both(q, k, v, causal(700, 16, 768, [0], window=80), None)
    np.testing.assert_allclose(blocks.astype("float32"), whole.astype("float32"), atol=4e-3)
    v[:] = 3e4
    whole, blocks, _ = both(q, k, v, causal(700, 16, 768, [0]), None)
    np.testing.assert_allclose(blocks.astype("float32"), whole.astype("float32"), rtol=2e-3)


def test_a_value_in_double_precision_stays_what_it_is():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 unless it is switched on")
    q, k, v = drawn(np.random.default_rng(0), 1, 2, 2, 16, 512, dtype="float64")
    mask = np.zeros((1, 1, 16, 512), bool)
    mask[..., 7] = True
    _, blocks, _ = both(q, k, v, mask, None)
    np.testing.assert_array_equal(blocks[0, 0], np.concatenate([v[0, 7], v[1, 7]]))


@pytest.mark.parametrize(("queries", "slots"), [(15, 512), (16, 511), (1, 4096)])
def test_few_queries_or_slots_are_computed_at_once(queries, slots):
    assert span(None, queries, slots) is None


def load(variant, checkpoint):
    return load_model(open_checkpoint(checkpoint(variant)))


def in_chunks(decoder, ids, starts, slots, size):
    """Logits `[B, S, V]` of `ids`, which run through compiled chunks of `size`."""
    variables = decoder.variables

    def extend(tokens, slot, cache):
        view = View.causal(slot, size, slots, ops.convert_to_tensor(starts))
        return decoder.extend(tokens, slot, view, cache)

    run, cache, made = backend.jit(extend, variables), decoder.empty_cache(len(ids), slots), []
    for first in range(0, ids.shape[1], size):
        logits, cache = run(*tensors(ids[:, first : first + size], np.int32(first)), cache)
        made.append(ops.convert_to_numpy(logits))
    return np.concatenate(made, axis=1)


@pytest.mark.parametrize("variant", reference.LONG)
@pytest.mark.quick_on_jax("mistral")
def test_long_prompts_in_chunks_give_the_reference_s_logits(variant, checkpoint):
    rows = np.random.default_rng(0).integers(3, reference.VOCAB, (2, 960)).astype("int32")
    start, model = 200, load(variant, checkpoint)
    padded = rows.copy()
    padded[1, :start] = 0
    logits = in_chunks(model, padded, np.array([0, start], "int32"), 1024, 64)
    np.testing.assert_allclose(logits[0], reference.logits(variant, rows[:1])[0], **CLOSE)
    np.testing.assert_allclose(logits[1, start:], reference.logits(variant, rows[1:, start:])[0], **CLOSE)


@pytest.mark.parametrize("variant", reference.LONG)
@pytest.mark.slow
def test_long_prompts_give_the_reference_s_tokens(variant, checkpoint):
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, reference.VOCAB, n).tolist() for n in (620, 1, 900)]
    layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), eos_token_id=None, max_new_tokens=8)
    expected = [reference.generate(variant, prompt, max_new_tokens=8) for prompt in prompts]
    assert layer.generate(prompts)["sequences"].tolist() == expected
    assert layer.trace_count == 2


def conditioned(model, source, mask):
    def remembered(source, mask):
        return model.remember(model.encode(source, mask), mask)

    return model.with_memory(backend.jit(remembered, model.variables)(*tensors(source, mask)))


@pytest.mark.parametrize("variant", reference.LONG_SEQ2SEQ)
@pytest.mark.quick_on_jax("t5")
def test_long_sources_and_long_answers_give_the_reference_s_logits(variant, checkpoint):
    rng = np.random.default_rng(2)
    source = rng.integers(3, reference.VOCAB, (2, 700)).astype("int32")
    ids = rng.integers(3, reference.VOCAB, (2, 640)).astype("int32")
    model, mask = load(variant, checkpoint), np.arange(700)[None] < np.array([[530], [700]])
    logits = in_chunks(conditioned(model, source * mask, mask), ids, np.zeros(2, "int32"), 1024, 32)
    for row, length in enumerate((530, 700)):
        expected = reference.seq2seq_logits(variant, source[row : row + 1, :length], ids[row : row + 1])
        np.testing.assert_allclose(logits[row], expected[0], **CLOSE)


@pytest.mark.quick_on_jax
def test_long_speech_gives_the_reference_s_logits(checkpoint):
    rng = np.random.default_rng(3)
    features = rng.normal(0, 1, (2, reference.MEL, reference.LONG_FRAMES)).astype("float32")
    ids = rng.integers(3, reference.VOCAB, (2, 16)).astype("int32")
    model = load("whisper-long", checkpoint)
    logits = in_chunks(conditioned(model, features, None), ids, np.zeros(2, "int32"), 32, 16)
    np.testing.assert_allclose(logits, reference.seq2seq_logits("whisper-long", features, ids), **CLOSE)
    np.testing.assert_allclose(model(source=features, ids=ids), logits, **CLOSE)
