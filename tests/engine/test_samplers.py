"""Filters keep what Hugging Face's keep; draws follow the distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from keras_xla import backend
from keras_xla.engine.search import samplers
from keras_xla.engine.search.random import uniform, uniform_each

filter_logits = backend.jit(samplers.filter_logits, [])
top_k = backend.jit(samplers.keep_top_k, [])
draw = backend.jit(lambda logits, uniform: samplers.draw(samplers.weights(logits), uniform), [])


def kept(logits, temperature, top_k, top_p, min_p, least=1):
    """Which tokens the reference leaves, and their probabilities."""
    chain = [TemperatureLogitsWarper(temperature)]
    chain += [TopKLogitsWarper(top_k, min_tokens_to_keep=least)] if top_k else []
    chain += [TopPLogitsWarper(top_p, min_tokens_to_keep=least)] if top_p < 1 else []
    chain += [MinPLogitsWarper(min_p, min_tokens_to_keep=least)] if min_p else []
    scores = LogitsProcessorList(chain)(None, torch.tensor(logits))
    return torch.softmax(scores, -1).numpy()


def support(logits, temperature, top_k, top_p, min_p, draws=64):
    """The tokens that an even grid of `draws` uniforms gives."""
    batch = np.repeat(logits, draws, axis=0)
    u = np.tile((np.arange(draws) + 0.5) / draws, len(logits)).astype("float32")
    values = (np.float32(temperature), np.int32(top_k), np.float32(top_p), np.float32(min_p))
    tokens = draw(filter_logits(*map(ops.convert_to_tensor, (batch, *values))), ops.convert_to_tensor(u))
    return ops.convert_to_numpy(tokens).reshape(len(logits), draws)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.floats(0.2, 3),
    top_k=st.sampled_from([0, 1, 3, 17, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)
def test_draws_have_the_references_distribution(seed, temperature, top_k, top_p, min_p):
    logits = np.random.default_rng(seed).normal(0, 2, (2, 300)).astype("float32")
    expected = kept(logits, temperature, top_k, top_p, min_p)
    draws = 2000
    tokens = support(logits, temperature, top_k, top_p, min_p, draws)
    for row, probabilities in zip(tokens, expected, strict=True):
        counts = np.bincount(row, minlength=300)
        # An even grid hits each token's share of [0, 1) to within one point at either end.
        np.testing.assert_allclose(counts, probabilities * draws, atol=2.1)
        assert not counts[probabilities == 0].any()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.9]),
    least=st.integers(1, 4),
)
def test_every_filter_keeps_as_many_as_it_must(seed, top_k, top_p, min_p, least):
    logits = np.random.default_rng(seed).normal(0, 2, (2, 50)).astype("float32")
    values = (np.float32(0.7), np.int32(top_k), np.float32(top_p), np.float32(min_p), np.int32(least))
    x = ops.convert_to_numpy(filter_logits(*map(ops.convert_to_tensor, (logits, *values))))
    assert ((x > samplers.OFF / 2) == (kept(logits, 0.7, top_k, top_p, min_p, least) > 0)).all()


# TensorFlow and XLA compute with subnormal numbers as with zero: such a number is a tie with zero.
LOGITS = st.floats(-1e5, 1e5, width=32, allow_subnormal=False)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(LOGITS, min_size=8, max_size=8), k=st.integers(1, 9))
def test_top_k_keeps_the_k_largest_and_ties_with_the_last_however_close_they_are(values, k):
    x = np.array([values], "float32")
    kept = ops.convert_to_numpy(top_k(ops.convert_to_tensor(x), ops.convert_to_tensor(np.int32(k))))[0] != samplers.OFF
    assert (kept == (x[0] >= np.sort(x[0])[::-1][min(k, 8) - 1])).all()


@pytest.mark.parametrize("size", [2, 255, 256, 257, 50257])
def test_a_draw_never_leaves_the_tokens_with_weight(size):
    weights = np.zeros((4, size), "float32")
    only = [0, size - 1, size // 2, 1]
    weights[np.arange(4), only] = [1e-20, 1.0, 3.0, 1e20]
    for u in (0.0, 0.3, 1 - 2**-24):
        tokens = samplers.draw(ops.convert_to_tensor(weights), ops.full((4,), u))
        assert ops.convert_to_numpy(tokens).tolist() == only


def test_greedy_takes_the_first_of_equals():
    assert ops.convert_to_numpy(samplers.greedy(ops.convert_to_tensor([[1.0, 3.0, 3.0]]))).tolist() == [1]


def test_tokens_that_are_off_are_never_drawn_at_any_temperature():
    logits = np.array([[0.0, samplers.OFF, 1.0]], "float32")
    for temperature in (0.01, 1.0, 1e6):
        assert 1 not in support(logits, temperature, 0, 1.0, 0.0)
        assert 1 not in support(logits, temperature, 2, 0.9, 0.0)


def test_uniforms_are_uniform_and_independent_of_the_batch_size():
    seed = ops.convert_to_tensor(np.array([0, 7], "uint32"))
    many = np.stack(
        [ops.convert_to_numpy(uniform(seed, np.arange(1000), ops.convert_to_tensor(s, "int32"))) for s in range(20)]
    )
    few = ops.convert_to_numpy(uniform(seed, np.arange(3), ops.convert_to_tensor(4, "int32")))
    np.testing.assert_array_equal(few, many[4, :3])
    assert many.min() >= 0 and many.max() < 1
    counts = np.histogram(many, 50, (0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 100  # chi-squared, 49 degrees of freedom: p < 1e-4 beyond
    assert abs(np.corrcoef(many[0], many[1])[0, 1]) < 0.12


def test_uniforms_of_a_row_are_open_at_both_ends_and_the_same_in_any_batch():
    seed = ops.convert_to_tensor(np.array([0, 7], "uint32"))
    many = ops.convert_to_numpy(uniform_each(seed, np.arange(3), 5000, ops.convert_to_tensor(4, "int32")))
    one = ops.convert_to_numpy(uniform_each(seed, np.arange(1), 5000, ops.convert_to_tensor(4, "int32")))
    np.testing.assert_array_equal(many[:1], one)
    assert many.min() > 0 and many.max() < 1
    counts = np.histogram(many, 50, (0, 1))[0]
    assert ((counts - 300) ** 2 / 300).sum() < 100
    assert abs(np.corrcoef(many[0], many[1])[0, 1]) < 0.06


def test_masked_tokens_cost_the_thresholds_no_digits():
    logits = np.array([[1.0, 1.0 - 1e-5, 1.0 - 2e-5, 0.5, -1e9, -1e9]], "float32")
    for k in (1, 2, 3):
        assert set(support(logits, 1.0, k, 1.0, 0.0).ravel()) == set(range(k))
    assert set(support(logits, 1.0, 0, 0.3, 0.0).ravel()) == {0, 1}
