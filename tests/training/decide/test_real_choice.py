"""The real policy, with nothing patched: XLA for a model that it clearly suits, the plain graph where it does not."""

import keras
import numpy as np
import pytest

from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX XLA compiles everything", allow_module_level=True)

layers = keras.layers
EPOCHS = 1_000_000  # are announced, so that every trial pays off, and one is run
RNG = np.random.default_rng(0)


class OneEpoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


class Smallest(layers.Layer):
    """Sorts long rows, which XLA on CPU does with one thread and one comparison at a time."""

    def call(self, x):
        return keras.ops.sort(x, axis=-1)[:, :10]


def chosen(model, x, epochs):
    """The way of the train step, and why."""
    compile(model, "sgd", "mse")
    model.fit(x, np.zeros((len(x), 1)), batch_size=32, epochs=epochs, verbose=0, callbacks=[OneEpoch()])
    (decision,) = attachment_of(model).journal.decisions
    return decision.way, decision.reason, decision


def recurrent():
    """Many small operations in a loop: the plain graph's time is that of starting them."""
    return keras.Sequential([keras.Input((100, 4)), layers.LSTM(8), layers.Dense(1)])


def test_xla_for_many_small_operations_and_many_steps():
    way, reason, decision = chosen(recurrent(), RNG.normal(size=(96, 100, 4)), EPOCHS)
    assert (way, reason) == ("xla", "measured")
    assert decision.measured["xla"] < decision.measured["graph"] and decision.spent > 0


def test_the_plain_graph_for_the_same_model_and_few_steps():
    way, reason, decision = chosen(recurrent(), RNG.normal(size=(96, 100, 4)), 1)
    assert way == "graph" and reason.startswith("3 steps to come cannot repay a trial")
    assert "xla" not in decision.measured


def test_the_plain_graph_where_xla_is_slower():
    model = keras.Sequential([keras.Input((20_000,)), Smallest(), layers.Dense(1)])
    way, reason, decision = chosen(model, RNG.normal(size=(96, 20_000)), EPOCHS)
    assert (way, reason) == ("graph", "measured: XLA is not faster")
    assert decision.measured["xla"] > decision.measured["graph"]


def test_the_plain_graph_for_a_short_fit_of_a_convnet():
    convolutions = [layers.Conv2D(16, 3, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((16, 16, 3)), *convolutions, layers.Flatten(), layers.Dense(1)])
    way, reason, _ = chosen(model, RNG.normal(size=(96, 16, 16, 3)), 2)
    assert way == "graph" and "cannot repay a trial" in reason
