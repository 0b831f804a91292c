"""Draws stay within what has weight; the greedy choice is argmax; uniforms are uniform."""

import numpy as np
import pytest
from keras import ops

from keras_xla import backend
from keras_xla.engine.search import samplers
from keras_xla.engine.search.random import uniform, uniform_each


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
