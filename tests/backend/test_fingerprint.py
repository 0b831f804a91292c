"""The fingerprint of a traced step: equal for what costs the same, in every process, and another one for all else."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("a TensorFlow graph is looked at", allow_module_level=True)
import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.fingerprint import fingerprint

layers = keras.layers
X, Y = np.ones((8, 6), "float32"), np.ones((8, 3), "float32")


def step(*middle, optimizer="adam", dtype="float32", shape=X.shape[1:], **options):
    """The fingerprint of the train step of a model."""
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *middle, layers.Dense(3)])
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    x = tf.TensorSpec([None, *shape], dtype)
    model._symbolic_build(data_batch=(x, tf.TensorSpec([None, 3])))
    traced = tf.function(model.train_step).get_concrete_function((x, tf.TensorSpec([None, 3])))
    return fingerprint(traced)


def images(**options):
    return step(layers.Conv2D(2, 3, **options), layers.GlobalAveragePooling2D(), shape=(9, 9, 1))


SAME = {
    "the same model, made second": (lambda: step(layers.Dense(32)), lambda: step(layers.Dense(32))),
    "names": (lambda: step(layers.Dense(32)), lambda: step(layers.Dense(32, name="another"))),
    "how much is dropped": (lambda: step(layers.Dropout(0.1)), lambda: step(layers.Dropout(0.3))),
    "seeds": (lambda: step(layers.Dropout(0.3, seed=1)), lambda: step(layers.Dropout(0.3, seed=2))),
    "initial values": (lambda: step(layers.Dense(4)), lambda: step(layers.Dense(4, kernel_initializer="zeros"))),
    "the learning rate": (lambda: step(), lambda: step(optimizer=keras.optimizers.Adam(0.5))),
}
OTHER = {
    "units": (lambda: step(layers.Dense(32)), lambda: step(layers.Dense(1024))),
    "strides": (lambda: images(strides=1, padding="same"), lambda: images(strides=2, padding="same")),
    "dilation": (lambda: images(padding="same"), lambda: images(padding="same", dilation_rate=2)),
    "padding": (lambda: images(padding="same"), lambda: images(padding="valid")),
    "the axis of a sum": (
        lambda: step(layers.Reshape((2, 3)), layers.Lambda(lambda x: keras.ops.sum(x, 1))),
        lambda: step(layers.Reshape((2, 3)), layers.Lambda(lambda x: keras.ops.sum(x, 2))),
    ),
    "the vocabulary": (
        lambda: step(layers.Embedding(10, 4), layers.Flatten(), dtype="int32"),
        lambda: step(layers.Embedding(90, 4), layers.Flatten(), dtype="int32"),
    ),
    "mixed precision": (
        lambda: step(layers.Dense(4)),
        lambda: step(layers.Dense(4, dtype="mixed_bfloat16")),
    ),
    "which tensor goes where": (
        lambda: step(layers.Lambda(lambda x: x[:, :3] - x[:, 3:])),
        lambda: step(layers.Lambda(lambda x: x[:, 3:] - x[:, :3])),
    ),
    "frozen weights": (lambda: step(layers.Dense(8)), lambda: step(layers.Dense(8, trainable=False))),
    "the optimizer": (lambda: step(), lambda: step(optimizer="sgd")),
    "a number that costs less": (
        lambda: step(layers.Lambda(lambda x: x**2.0)),
        lambda: step(layers.Lambda(lambda x: x**2.3)),
    ),
    "what a loop does": (lambda: loop(tf.exp), lambda: loop(tf.tanh)),
    "how often a loop turns": (lambda: loop(tf.exp, 3), lambda: loop(tf.exp, 300)),
    "a variable in a loop": (lambda: loop(tf.exp, size=8), lambda: loop(tf.exp, size=800)),
    "the batch's shape": (lambda: step(), lambda: step(shape=(7,))),
}


def loop(change, turns=3, size=8):
    held = tf.Variable(tf.zeros(size))

    @tf.function(autograph=False)
    def run(x):
        return tf.while_loop(lambda i, x: i < turns, lambda i, x: (i + 1, change(x) + tf.reduce_sum(held)), (0, x))

    return fingerprint(run.get_concrete_function(tf.TensorSpec([4])))


@pytest.mark.parametrize("name", SAME)
def test_what_costs_the_same_is_the_same(name):
    one, other = (make() for make in SAME[name])
    assert one == other


@pytest.mark.parametrize("name", OTHER)
def test_what_may_cost_something_else_is_another(name):
    one, other = (make() for make in OTHER[name])
    assert one != other


IN_A_NEW_PROCESS = """
import os
from tests.backend.test_fingerprint import *
for middle in ([layers.Dense(4), layers.Dropout(0.2)], [layers.Reshape((2, 3)), layers.LSTM(2)]):
    print(step(*middle))
"""


@pytest.mark.slow
def test_a_new_process_gives_the_same(capfd):
    here = [step(layers.Dense(4), layers.Dropout(0.2)), step(layers.Reshape((2, 3)), layers.LSTM(2))]
    for seed in ("1", "2"):  # of the order of sets of strings
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", IN_A_NEW_PROCESS], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == here
