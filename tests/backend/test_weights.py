"""Weights that were read stay the same until somebody assigns, in whatever way."""

import keras
import numpy as np
import pytest

from keras_xla.backend import read_weights, same_weights


@pytest.fixture
def variables():
    return [keras.Variable(np.arange(6, dtype="float32").reshape(2, 3)), keras.Variable(1, dtype="int32")]


def test_they_are_the_same_while_nothing_is_assigned(variables):
    weights = read_weights(variables)
    keras.ops.convert_to_numpy(variables[0] + 1)
    assert same_weights(variables, weights) and same_weights(variables, weights)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("change", ["assign", "assign_add", "equal values"])
def test_any_assignment_ends_it(variables, which, change):
    weights = read_weights(variables)
    variable = variables[which]
    if change == "assign_add":
        variable.assign_add(keras.ops.ones_like(variable.value))
    else:
        value = keras.ops.convert_to_numpy(variable)
        variable.assign(value if change == "equal values" else value + 1)
    assert not same_weights(variables, weights)


@pytest.mark.parametrize("jit_compile", [True, False])
def test_training_ends_it(jit_compile):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(8, 4), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=jit_compile)
    x, y = np.ones((4, 3), "int32"), np.zeros((4, 3, 1), "float32")
    model.fit(x, y, verbose=0)
    weights = read_weights(model.variables)
    assert same_weights(model.variables, weights)
    model.fit(x, y, verbose=0)
    assert not same_weights(model.variables, weights)
    weights = read_weights(model.trainable_variables)
    model.set_weights(model.get_weights())
    assert not same_weights(model.trainable_variables, weights)
