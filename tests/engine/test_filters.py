"""Filters keep what Hugging Face's keep; draws follow the distribution."""

import functools

import keras
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
from keras_xla.engine.search.filters import _GROUP, _GROUPS, Filters, filter_logits
from tests import examples

OFF = Filters(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0)  # all filters
DTYPES = Filters("float32", "int32", *["float32"] * 5)
LEAST = 4  # tokens that a filter keeps, at most
filtered = backend.jit(functools.partial(filter_logits, room=LEAST), [])
draw = backend.jit(lambda logits, uniform: samplers.draw(samplers.weights(logits), uniform), [])


def tensors(filters):
    """Filters of one value each, or of one for each row."""
    pairs = zip(filters, DTYPES, strict=True)
    return Filters(*(ops.convert_to_tensor(np.asarray(value, dtype)) for value, dtype in pairs))


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
    tokens = draw(filtered(ops.convert_to_tensor(batch), tensors(filters)), ops.convert_to_tensor(u))
    return ops.convert_to_numpy(tokens).reshape(len(logits), draws)


FILTERS = st.builds(
    Filters,
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
    made = ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), tensors(filters), *at_least))
    # Which of equal logits stay, torch leaves to its sort: as many do, of each value.
    ours, theirs = made > samplers.FORBIDDEN / 2, kept(x, filters, least) > 0
    for value in range(4):
        assert (ours & (x == value)).sum(axis=1).tolist() == (theirs & (x == value)).sum(axis=1).tolist()


@examples(20)
@given(
    seed=st.integers(0, 2**31),
    name=st.sampled_from(Filters._fields[1:]),
    least=st.integers(1, LEAST),
)
def test_every_filter_keeps_as_many_as_it_must(seed, name, least):
    logits = np.random.default_rng(seed).normal(0, 2, (2, 50)).astype("float32")
    filters = OFF._replace(temperature=0.7, **{name: {"top_k": 1, "min_p": 0.9, "eta_cutoff": 0.9}.get(name, 0.01)})
    least_tensor = ops.convert_to_tensor(np.int32(least))
    x = ops.convert_to_numpy(filtered(ops.convert_to_tensor(logits), tensors(filters), least_tensor))
    assert ((x > samplers.FORBIDDEN / 2) == (kept(logits, filters, least) > 0)).all()


@examples(40)
@given(seed=st.integers(0, 2**31), each=st.lists(FILTERS, min_size=3, max_size=3))
def test_each_row_has_filters_of_its_own(seed, each):
    logits = np.random.default_rng(seed).normal(0, 2, (3, 50)).astype("float32")
    columns = tensors(Filters(*(np.array(values)[:, None] for values in zip(*each, strict=True))))
    together = ops.convert_to_numpy(filtered(ops.convert_to_tensor(logits), columns))
    for row, (x, filters) in enumerate(zip(logits, each, strict=True)):
        alone = filtered(ops.convert_to_tensor(x[None]), tensors(filters))
        np.testing.assert_array_equal(together[row], ops.convert_to_numpy(alone)[0])


# TensorFlow and XLA compute with subnormal numbers as with zero: such a number is a tie with zero.
LOGITS = st.floats(-1e5, 1e5, width=32, allow_subnormal=False)


@examples(100)
@given(values=st.lists(LOGITS, min_size=8, max_size=8), k=st.integers(1, 9))
def test_top_k_keeps_the_k_largest_and_ties_with_the_last_however_close_they_are(values, k):
    x = np.array([values], "float32")
    kept = (
        ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), tensors(OFF._replace(top_k=k))))[0]
        != samplers.FORBIDDEN
    )
    assert (kept == (x[0] >= np.sort(x[0])[::-1][min(k, 8) - 1])).all()


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


def test_masked_tokens_cost_the_thresholds_no_digits():
    logits = np.array([[1.0, 1.0 - 1e-5, 1.0 - 2e-5, 0.5, -1e9, -1e9]], "float32")
    for k in (1, 2, 3):
        assert set(support(logits, OFF._replace(top_k=k)).ravel()) == set(range(k))
    assert set(support(logits, OFF._replace(top_p=0.3)).ravel()) == {0, 1}


LARGE = 3 * _GROUP * _GROUPS + 5  # of which most is in no likely group


@examples(25)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.1, 1.0, 4.0, 9.0]),
    top_k=st.sampled_from([0, 1, 50, 127, 128, 129, 3000, LARGE + 5]),
    top_p=st.sampled_from([1.0, 0.97, 0.6]),
    steps=st.sampled_from([None, 4]),
)
def test_a_large_vocabulary_is_filtered_as_the_reference_does(seed, spread, top_k, top_p, steps):
    x = np.random.default_rng(seed).normal(0, spread, (1, LARGE)).astype("float32")
    x = x if steps is None else np.round(x * steps) / steps  # many equal logits
    made = ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), tensors(OFF._replace(top_k=top_k, top_p=top_p))))
    ours = (made > samplers.FORBIDDEN / 2)[0]
    assert (made[0][ours] == x[0][ours]).all()
    falling = np.sort(x[0])[::-1].astype("float64")
    if 0 < top_k < LARGE:
        falling = falling[falling >= falling[top_k - 1]]
    assert (np.sort(x[0][ours])[::-1] == falling[: ours.sum()]).all()
    if top_p == 1:
        assert ours.sum() == len(falling)
    else:  # as few as hold the probability, but for how sums of float32 round
        held = np.cumsum(np.exp(falling - falling[0])) / np.exp(falling - falling[0]).sum()
        assert held[ours.sum() - 1] >= top_p - 1e-5
        assert ours.sum() == 1 or held[ours.sum() - 2] <= top_p + 1e-5


def test_a_row_of_a_large_vocabulary_is_filtered_alike_in_any_batch():
    rng = np.random.default_rng(3)
    x = (rng.normal(0, 1, (4, LARGE)) * [[0.1], [9], [9], [0.5]]).astype("float32")  # flat rows among peaked ones
    x[2] = np.round(x[2])
    chosen = tensors(OFF._replace(top_p=0.9, typical_p=0.95))
    together = ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), chosen))
    for row, alone in zip(together, x, strict=True):
        np.testing.assert_array_equal(
            row, ops.convert_to_numpy(filtered(ops.convert_to_tensor(alone[None]), chosen))[0]
        )


@pytest.mark.parametrize("size", [2 * _GROUP * _GROUPS - 1, 2 * _GROUP * _GROUPS, LARGE])
@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        dict(top_k=50),
        dict(top_k=128, top_p=0.8),
        dict(top_k=700, top_p=0.99),
        dict(top_p=0.6),  # of the flat row, more than is searched at first
        dict(top_p=0.001),
        dict(min_p=0.2, temperature=0.5),
        dict(top_k=60, typical_p=0.7),
        dict(typical_p=0.3),
        dict(epsilon_cutoff=3e-4),
        dict(top_p=0.9, eta_cutoff=2e-3),
    ],
    ids=str,
)
def test_each_filter_of_a_large_vocabulary_keeps_what_the_reference_keeps(size, options, least):
    x = np.random.default_rng(4).normal(0, [[1.0], [2.5], [7.0]], (3, size)).astype("float32")
    filters = OFF._replace(**options)
    at_least = [] if least == 1 else [ops.convert_to_tensor(np.int32(least))]
    made = ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), tensors(filters), *at_least))
    np.testing.assert_array_equal(made > samplers.FORBIDDEN / 2, kept(x, filters, least) > 0)


@pytest.mark.parametrize(("size", "step"), [(50, 2), (LARGE, 100), (LARGE, 40)], ids=["few", "in groups", "in all"])
def test_the_last_of_equal_logits_stay(size, step):
    x = np.full((1, size), -20.0, "float32")
    x[0, ::step] = 1.0
    made = ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), tensors(OFF._replace(top_p=0.45))))
    equal = np.flatnonzero(x[0] == 1)
    assert (
        np.flatnonzero(made[0] > samplers.FORBIDDEN / 2).tolist() == equal[-int(np.ceil(0.45 * len(equal))) :].tolist()
    )


def test_rows_with_few_tokens_none_or_nan_are_filtered_beside_others():
    x = np.random.default_rng(5).normal(0, 3, (4, LARGE)).astype("float32")
    x[0, 7:] = samplers.FORBIDDEN  # as a grammar leaves it
    x[1] = samplers.FORBIDDEN
    x[2, 11] = np.nan
    made = ops.convert_to_numpy(filtered(ops.convert_to_tensor(x), tensors(OFF._replace(top_k=50, top_p=0.999))))
    left = made > samplers.FORBIDDEN / 2
    assert left[0].sum() > 3 and not left[0, 7:].any() and not left[1].any()
    assert (left[3] == (kept(x[3:], OFF._replace(top_k=50, top_p=0.999)) > 0)[0]).all()


def test_rows_that_are_not_to_be_filtered_stay_as_they_are():
    x = np.random.default_rng(6).normal(0, 3, (2, LARGE)).astype("float32")
    rows = ops.convert_to_tensor(np.array([[False], [True]]))
    made = ops.convert_to_numpy(filter_logits(ops.convert_to_tensor(x), tensors(OFF._replace(top_k=2)), rows=rows))
    assert (made[0] == x[0]).all() and (made[1] > samplers.FORBIDDEN / 2).sum() == 2


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the text is read as TensorFlow gives it")
@pytest.mark.parametrize("least", [1, 3])
def test_no_vocabulary_is_sorted(least):
    import tensorflow as tf

    def run(x, filters, least_tensor):
        return filter_logits(x, Filters(*filters), *([] if least == 1 else [least_tensor, LEAST]))

    arguments = tf.zeros((2, LARGE)), tuple(tensors(OFF)), tf.constant(least)
    text = tf.function(run, jit_compile=True).experimental_get_compiler_ir(*arguments)("optimized_hlo")
    assert 'custom_call_target="TopK"' in text and " sort(" not in text
