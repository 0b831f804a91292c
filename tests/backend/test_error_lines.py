"""Errors of operations tell the user's line, as in plain Keras."""

import re
import traceback

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX no operation raises", allow_module_level=True)

import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.error_lines import with_lines
from keras_xla.training.compile import compile

IDS, Y = np.zeros((64, 3), "int32"), np.zeros((64, 1))
IDS[40] = 9  # of five


class Table(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(5, 4))

    def call(self, ids):
        return tf.gather(self.table.value, ids)  # the line


def made(compile_, **options):
    layers = [keras.Input((3,), dtype="int32"), Table(name="table"), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers, name="net")
    compile_(model, optimizer="sgd", loss="mse", **options)
    return model


CALLS = {
    "fit": lambda model: model.fit(IDS, Y, shuffle=False, verbose=0),
    "fit on a dataset": lambda model: model.fit(tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(32), verbose=0),
    "evaluate": lambda model: model.evaluate(IDS, Y, verbose=0),
    "predict": lambda model: model.predict(IDS, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(IDS, Y),
}


def said(model, call):
    """The message, without names that count what came before, and without the frames that lead to the layer."""
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        CALLS[call](model)
    text = str(caught.value).partition("\nCause and fix")[0]
    text = re.sub(r"(net|table)(_\d+)+", r"\1", re.sub(r"\[Op:[^\]]*\]", "", text))
    beginning, _, end = text.partition("most recent call last):\n")
    *_, line = [each for each in end.splitlines() if each.startswith("  File")]
    return beginning, line, end.splitlines()[-2:]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.quick("auto-fit", "True-predict", "auto-train_on_batch")
def test_messages_are_those_of_plain_keras(call, jit_compile):
    expected, ours = said(made(keras.Model.compile), call), said(made(compile, jit_compile=jit_compile), call)
    assert ours == expected
    assert "test_error_lines.py" in ours[1] and ours[1].endswith("in call") and "= 9 is not in [0, 5)" in ours[2][0]


def test_what_is_not_known_stays_as_it_is():
    graph = tf.Graph()
    for text in ("no node", "{{node unknown}}", "Detected at node x defined at (most recent call last):\n<stack"):
        error = tf.errors.InvalidArgumentError(None, None, text)
        assert with_lines(error, graph) is error
    with graph.as_default():
        tf.constant(1, name="known")
    error = with_lines(tf.errors.NotFoundError(None, None, "it is {{node known}}"), graph)
    assert type(error) is tf.errors.NotFoundError and traceback.extract_stack()[-1].name in error.message


def test_errors_of_the_data_are_not_told_of_the_step():
    """Names of operations are those of another graph there."""

    class Gathers(keras.Model):
        def call(self, ids):
            return tf.cast(tf.gather(tf.zeros((5, 1)), ids[:, 0]), "float32")

    data = tf.data.Dataset.from_tensor_slices((IDS, Y)).map(lambda x, y: (x, tf.gather(y, x[0]))).batch(32)
    texts = []
    for compile_ in (keras.Model.compile, compile):
        model = Gathers()
        compile_(model, optimizer="sgd", loss="mse")
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            model.evaluate(data, verbose=0)
        texts.append(re.sub(r"_\d+|\[Op:.*", "", str(caught.value)))
    assert "in call" not in texts[1] and "IteratorGetNext" in texts[0] and "IteratorGetNext" in texts[1]


def test_what_is_on_an_error_stays_on_it():
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(1, name="known")
    given = tf.errors.NotFoundError(None, None, "it is {{node known}}", {"key": b"value"})
    given.add_note("a note")
    error = with_lines(given, graph)
    assert error is not given and error.experimental_payloads == {"key": b"value"} and error.__notes__ == ["a note"]
