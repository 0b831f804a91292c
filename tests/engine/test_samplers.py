"""Filters keep what Hugging Face's keep; draws follow the distribution."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from keras_xla import backend
from keras_xla.engine.search import samplers
from keras_xla.engine.search.random import uniform, uniform_each
from tests import examples

OFF = samplers.Filters(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0)  # all filters
DTYPES = samplers.Filters("float32", "int32", *["float32"] * 5)
LEAST = 4  # tokens that a filter keeps, at most
filter_logits = backend.jit(functools.partial(samplers.filter_logits, room=LEAST), [])
top_k = backend.jit(samplers.keep_top_k, [])
draw = backend.jit(lambda logits, uniform: samplers.draw(samplers.weights(logits), uniform), [])


def tensors(filters):
    """Filters of one value each, or of one for each row."""
    pairs = zip(filters, DTYPES, strict=True)
    return samplers.Filters(*(ops.convert_to_tensor(np.asarray(value, dtype)) for value, dtype in pairs))


def kept(logits, filters, least=1):
    """Which tokens the reference leaves, and their probabilities."""
    f, keep = filters, {"min_tokens_to_keep": least}
    chain = [TemperatureLogitsWarper(f.temperature)]
    chain += [TopKLogitsWarper(f.top_k, **keep)] if f.top_k else []
    chain += [TopPLogitsWarper(f.top_p, **keep)] if f.top_p < 1 else []
    chain += [MinPLogitsWarper(f.min_p, **keep)] if f.min_p else []
    chain += [TypicalLogitsWarper(f.typical_p, **keep)] if f.typical_p < 1 else []
    chain += [EpsilonLogitsWarper(f.epsilon_cutoff, **keep)] if f.epsilon_cutoff else []
    chain += [EtaLogitsWarper(f.eta_cutoff, **keep)] if f.eta_cutoff else []
    scores = LogitsProcessorList(chain)(None, torch.tensor(logits))
    return torch.softmax(scores, -1).numpy()


def support(logits, filters, draws=64):
    """The tokens that an even grid of `draws` uniforms gives."""
    batch = np.repeat(logits, draws, axis=0)
    u = np.tile((np.arange(draws) + 0.5) / draws, len(logits)).astype("float32")
    tokens = draw(filter_logits(ops.convert_to_tensor(batch), tensors(filters)), ops.convert_to_tensor(u))
    return ops.convert_to_numpy(tokens).reshape(len(logits), draws)


FILTERS = st.builds(
    samplers.Filters,
    temperature=st.floats(0.2, 3),
    top_k=st.sampled_from([0, 0, 1, 3, 17, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    typical_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.1]),
    epsilon_cutoff=st.sampled_from([0.0, 0.0, 0.003, 0.4]),
    eta_cutoff=st.sampled_from([0.0, 0.0, 0.01, 0.6]),
)


@examples(60)
@given(seed=st.integers(0, 2**31), filters=FILTERS)
@pytest.mark.slow
def test_draws_have_the_references_distribution(seed, filters):
    logits = np.random.default_rng(seed).normal(0, 2, (2, 300)).astype("float32")
    expected = kept(logits, filters)
    draws = 2000
    tokens = support(logits, filters, draws)
    for row, probabilities in zip(tokens, expected, strict=True):
        counts = np.bincount(row, minlength=300)
        # An even grid hits each token's share of [0, 1) to within one point at either end.
        np.testing.assert_allclose(counts, probabilities * draws, atol=2.1)
        assert not counts[probabilities == 0].any()


@examples(60)
@given(
    values=st.sampled_from([9, 65]).flatmap(lambda size: st.lists(st.integers(0, 3), min_size=size, max_size=size)),
    p=st.sampled_from([0.0, 0.013, 0.31, 0.517, 0.83, 0.991]),
    least=st.integers(1, LEAST),
)
def test_top_p_keeps_no_more_equal_logits_than_it_needs(values, p, least):
    x, filters = np.array([values, values[::-1]], "float32"), OFF._replace(top_p=p)
    at_least = [] if least == 1 else [ops.convert_to_tensor(np.int32(least))]
    made = ops.convert_to_numpy(filter_logits(ops.convert_to_tensor(x), tensors(filters), *at_least))
    # Which of equal logits stay, torch leaves to its sort: as many do, of each value.
    ours, theirs = made > samplers.FORBIDDEN / 2, kept(x, filters, least) > 0
    for value in range(4):
        assert (ours & (x == value)).sum(axis=1).tolist() == (theirs & (x == value)).sum(axis=1).tolist()


@examples(20)
@given(
    seed=st.integers(0, 2**31),
    name=st.sampled_from(samplers.Filters._fields[1:]),
    least=st.integers(1, LEAST),
)
def test_every_filter_keeps_as_many_as_it_must(seed, name, least):
    logits = np.random.default_rng(seed).normal(0, 2, (2, 50)).astype("float32")
    filters = OFF._replace(temperature=0.7, **{name: {"top_k": 1, "min_p": 0.9, "eta_cutoff": 0.9}.get(name, 0.01)})
    least_tensor = ops.convert_to_tensor(np.int32(least))
    x = ops.convert_to_numpy(filter_logits(ops.convert_to_tensor(logits), tensors(filters), least_tensor))
    assert ((x > samplers.FORBIDDEN / 2) == (kept(logits, filters, least) > 0)).all()


@examples(40)
@given(seed=st.integers(0, 2**31), each=st.lists(FILTERS, min_size=3, max_size=3))
def test_each_row_has_filters_of_its_own(seed, each):
    logits = np.random.default_rng(seed).normal(0, 2, (3, 50)).astype("float32")
    columns = tensors(samplers.Filters(*(np.array(values)[:, None] for values in zip(*each, strict=True))))
    together = ops.convert_to_numpy(filter_logits(ops.convert_to_tensor(logits), columns))
    for row, (x, filters) in enumerate(zip(logits, each, strict=True)):
        alone = filter_logits(ops.convert_to_tensor(x[None]), tensors(filters))
        np.testing.assert_array_equal(together[row], ops.convert_to_numpy(alone)[0])


# TensorFlow and XLA compute with subnormal numbers as with zero: such a number is a tie with zero.
LOGITS = st.floats(-1e5, 1e5, width=32, allow_subnormal=False)


@examples(100)
@given(values=st.lists(LOGITS, min_size=8, max_size=8), k=st.integers(1, 9))
def test_top_k_keeps_the_k_largest_and_ties_with_the_last_however_close_they_are(values, k):
    x = np.array([values], "float32")
    kept = (
        ops.convert_to_numpy(top_k(ops.convert_to_tensor(x), ops.convert_to_tensor(np.int32(k))))[0]
        != samplers.FORBIDDEN
    )
    assert (kept == (x[0] >= np.sort(x[0])[::-1][min(k, 8) - 1])).all()


@pytest.mark.parametrize("size", [2, 255, 256, 257, 50257])
def test_a_draw_never_leaves_the_tokens_with_weight(size):
    weights = np.zeros((4, size), "float32")
    only = [0, size - 1, size // 2, 1]
    weights[np.arange(4), only] = [1e-20, 1.0, 3.0, 1e20]
    for u in (0.0, 0.3, 1 - 2**-24):
        tokens = samplers.draw(ops.convert_to_tensor(weights), ops.full((4,), u))
        assert ops.convert_to_numpy(tokens).tolist() == only


@pytest.mark.parametrize("size", [1, 5, 97, 256, 300])
def test_a_draw_of_nothing_is_a_token_of_the_vocabulary(size):
    for weights in (np.zeros((2, size), "float32"), np.full((2, size), np.nan, "float32")):
        drawn = np.asarray(samplers.draw(weights, np.array([0.0, 0.99], "float32")))
        assert ((drawn >= 0) & (drawn < size)).all()


@pytest.mark.parametrize("size", [1, 7, 50257])
def test_greedy_is_argmax_whatever_stands_in_a_row(size):
    rng = np.random.default_rng(size)
    rows = rng.integers(-3, 3, (12, size)).astype("float32")  # of equals, the first
    rows[1] = samplers.FORBIDDEN
    rows[2], rows[3] = -np.inf, np.nan
    rows[4, size // 2], rows[5, size // 3] = np.nan, np.inf
    rows[6, size // 3 :] = np.nan
    rows[7, -1], rows[7, 0] = np.inf, np.nan
    rows[8] = -0.0
    tokens = backend.jit(samplers.greedy, [])(ops.convert_to_tensor(rows))
    np.testing.assert_array_equal(ops.convert_to_numpy(tokens), rows.argmax(axis=-1))


def test_tokens_that_are_off_are_never_drawn_at_any_temperature():
    logits = np.array([[0.0, samplers.FORBIDDEN, 1.0]], "float32")
    for temperature in (0.01, 1.0, 1e6):
        for filters in (
            {},
            {"top_k": 2, "top_p": 0.9},
            {"typical_p": 0.9},
            {"epsilon_cutoff": 0.1},
            {"eta_cutoff": 0.1},
        ):
            assert 1 not in support(logits, OFF._replace(temperature=temperature, **filters))


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
        assert set(support(logits, OFF._replace(top_k=k)).ravel()) == set(range(k))
    assert set(support(logits, OFF._replace(top_p=0.3)).ravel()) == {0, 1}
