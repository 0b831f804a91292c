"""Which datasets call Python for their elements, or lock files."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("of the TensorFlow backend", allow_module_level=True)
import tensorflow as tf

from keras_xla.private.tensorflow import datasets
from tests.private.helpers import names_of

PLAIN = tf.data.Dataset.from_tensor_slices(np.arange(6.0)).map(lambda x: x + 1).shuffle(3).batch(2).prefetch(1)


@pytest.mark.parametrize("name", names_of(datasets), ids=str)
def test_name(name):
    assert name.of(PLAIN.cache("file")) is not None


def generated():
    return tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec((), "float32"))


@pytest.mark.parametrize(
    "data",
    [
        generated(),
        generated().map(lambda x: x + 1).batch(2).prefetch(1),
        tf.data.Dataset.zip((PLAIN, generated())),
        PLAIN.interleave(lambda x: generated(), cycle_length=2),
        PLAIN.map(lambda x: tf.py_function(np.sin, [x], "float64")),
        PLAIN.map(lambda x: tf.numpy_function(np.sin, [x], "float64")),
        PLAIN.map(tf.function(lambda x: tf.py_function(np.sin, [x], "float64"))),
        PLAIN.cache("file").prefetch(1),
        PLAIN.snapshot("folder"),
        PLAIN.interleave(lambda x: PLAIN.cache("file")),
        PLAIN.map(lambda x: tf.cond(x[0] > 1, lambda: tf.numpy_function(np.sin, [x], "float64"), lambda: x)),
    ],
    ids=[
        "generator",
        "behind others",
        "beside another",
        "inside of another",
        "py_function",
        "numpy_function",
        "in a function",
        "a cache",
        "a snapshot",
        "a cache inside of another",
        "in a branch",
    ],
)
def test_what_an_iterator_holds_is_found(data):
    assert datasets.must_be_freed(data)


def test_what_calls_python_is_found():
    generator = tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec(()))
    assert datasets.calls_python(generator.prefetch(1).map(lambda x: tf.py_function(lambda x: x, [x], tf.float32)))
    assert datasets.calls_python(generator.map(lambda x: x + 1).batch(2))
    others = generator.batch(2).prefetch(1), PLAIN, PLAIN.cache("a file"), np.ones(3), None
    assert not any(map(datasets.calls_python, others))


def test_others_hold_nothing():
    many = PLAIN
    for _ in range(30):
        many = many.concatenate(many)  # a billion times
    others = many, PLAIN.cache(), PLAIN.map(tf.function(lambda x: x + 1)), np.ones(3), None
    assert not any(map(datasets.must_be_freed, others))
