"""`evaluate` and `predict` on arrays in memory end a pass where plain Keras does, with the same words."""

import warnings

import keras
import pytest

from keras_xla.training.compile import compile
from tests.training.helpers import LOSS, X, Y, classifier

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="on JAX no pass over arrays runs here, and steps have no iterators"
)


class ReadsAlong(keras.Sequential):
    """For each batch its steps read an element of an iterator of their own, which has a few."""

    def __init__(self, layers, elements: int):
        super().__init__(layers)
        import tensorflow as tf

        self.along = iter(tf.data.Dataset.range(elements))

    def _behind(self, data):
        """The data, which are there once the element is."""
        import tensorflow as tf

        with tf.control_dependencies([self.along.get_next()]):
            return keras.tree.map_structure(tf.identity, data)

    def test_step(self, data):
        return super().test_step(self._behind(data))

    def predict_step(self, data):
        return super().predict_step(self._behind(data))


def pairs(elements: int):
    """A model in plain Keras, and one through keras_xla ("auto": XLA has no iterators)."""
    for compile_ in (keras.Model.compile, compile):
        model = ReadsAlong(classifier().layers, elements)
        compile_(model, "sgd", LOSS, metrics=["accuracy"])
        yield model


def outcome(call):
    """What a call returns, and the warnings that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, sorted({str(each.message) for each in caught if "ran out of data" in str(each.message)})


@pytest.mark.parametrize("elements", [4, 9, 20])
def test_evaluate_ends_where_a_step_finds_no_more(elements):
    expected, made = (
        outcome(lambda: model.evaluate(X, Y, batch_size=8, return_dict=True, verbose=0))  # noqa: B023 - called at once
        for model in pairs(elements)
    )
    assert made[0] == pytest.approx(expected[0]) and made[1] == expected[1]
    assert bool(made[1]) == (elements < 9)


@pytest.mark.parametrize("elements", [4, 9])
def test_predict_returns_what_there_is_by_then(elements):
    expected, made = (outcome(lambda: model.predict(X, batch_size=8, verbose=0)) for model in pairs(elements))  # noqa: B023
    assert made[0].shape == expected[0].shape == (8 * elements, 3)
    assert made[0] == pytest.approx(expected[0], abs=1e-6) and made[1] == expected[1]
    assert bool(made[1]) == (elements < 9)
