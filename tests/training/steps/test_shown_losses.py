"""The losses of several outputs are shown as in plain Keras, also by steps that XLA knows the number of rows of."""

import warnings

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla.training.steps.shown_losses import counted_by_batches

on_tensorflow = keras.backend.backend() == "tensorflow"
X = np.random.default_rng(0).normal(size=(20, 5, 3)).astype("float32")
Y = {"a": np.linspace(0, 9, 20)[:, None], "b": np.ones((20, 1))}


def recurrent(norm):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5, 3))
    hidden = keras.layers.LSTM(4)(inputs)
    hidden = keras.layers.BatchNormalization()(hidden) if norm else hidden  # with which no batch is filled up
    return keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(hidden) for name in Y})


@pytest.fixture
def no_cost(monkeypatch):
    """Short fits measure XLA, too, and take it whatever was measured."""
    monkeypatch.setattr("keras_xla.training.decide.policy.MARGIN", 1e6)
    monkeypatch.setattr("keras_xla.training.decide.policy.estimated_cost", lambda facts, graph: 0.0)


@pytest.mark.quick("not filled-True", "not filled-auto")
@pytest.mark.quick_on_jax("not filled-True")
@pytest.mark.usefixtures("no_cost")
@pytest.mark.parametrize("jit_compile", [True, "auto"])
@pytest.mark.parametrize("norm", [False, True], ids=["filled", "not filled"])
def test_losses_of_recurrent_models_with_two_outputs(norm, jit_compile, new_events):
    options = dict(optimizer="sgd", loss=dict.fromkeys(Y, "mse"))
    shown = []
    for way in (False, jit_compile):
        model = recurrent(norm)
        if way is False:
            model.compile(**options, jit_compile=False)
        else:
            keras_xla.compile(model, **options, jit_compile=way)
        history = model.fit(X, Y, batch_size=8, shuffle=False, epochs=2, validation_data=(X, Y), verbose=0).history
        shown.append(history | model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True))
    expected, made = shown
    assert new_events("train")
    assert {"a_loss", "val_a_loss", "b_loss"} <= set(made)
    for name, values in expected.items():
        np.testing.assert_allclose(made[name], values, rtol=1e-4, err_msg=name)


def test_a_number_of_rows_counts_as_no_weight_and_trackers_are_themselves_again():
    model = recurrent(False)
    model.compile("sgd", loss=dict.fromkeys(Y, "mse"))
    model.evaluate(X, Y, verbose=0)
    tracker = next(metric for metric in model.metrics if metric.name == "a_loss")
    tracker.reset_state()
    with counted_by_batches(model):
        tracker.update_state(4.0, sample_weight=8)
        tracker.update_state(1.0, sample_weight=4)
        tracker.update_state(1.0, sample_weight=keras.ops.convert_to_tensor(2.0))
    assert float(tracker.result()) == 1.75 and "update_state" not in vars(tracker)


@pytest.mark.quick("None")
@pytest.mark.parametrize("length", [5, None])
def test_steps_of_usual_recurrent_models_are_compiled(length, new_events):
    kinds = keras.layers
    hidden = inputs = keras.Input((length, 3))
    hidden = kinds.Masking()(hidden)
    hidden = kinds.Bidirectional(kinds.GRU(3, dropout=0.1, recurrent_dropout=0.1, return_sequences=True))(hidden)
    hidden = kinds.RNN([kinds.LSTMCell(3), kinds.LSTMCell(3)])(kinds.Dropout(0.2)(hidden))
    hidden = kinds.BatchNormalization()(hidden)
    model = keras.Model(inputs, kinds.Dense(1, activation="sigmoid")(hidden))
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2, use_ema=True)
    keras_xla.compile(model, optimizer, "mse", metrics=["auc"], jit_compile=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*run without XLA")
        model.fit(X[:16], Y["b"][:16], batch_size=8, verbose=0)
    assert len(new_events("train")) == 1


@pytest.mark.skipif(not on_tensorflow, reason="JAX traces every step with the sizes that its batch has")
@pytest.mark.usefixtures("no_cost")
@pytest.mark.filterwarnings("ignore:.*run without XLA")
@pytest.mark.parametrize("jit_compile", [True, "auto"])
def test_a_step_that_draws_more_often_for_a_known_length_runs_as_plain_keras_traces_it(jit_compile):
    import tensorflow as tf

    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def call(self, x):
            for _ in range(x.shape[1] or 1):
                x = x + keras.random.normal((1,), seed=self.seed)
            return x

    data = tf.data.Dataset.from_tensor_slices((X, Y["a"])).padded_batch(4, ((None, 3), (1,)))
    found = []
    for way in (False, jit_compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((None, 3)), Noise(), keras.layers.LSTM(4), keras.layers.Dense(1)])
        options = dict(optimizer="sgd", loss="mse", jit_compile=way)
        model.compile(**options) if way is False else keras_xla.compile(model, **options)
        found.append((model.fit(data, epochs=2, verbose=0).history["loss"], model.layers[0].seed.state.numpy()))
    (expected, seeds), (made, our_seeds) = found
    np.testing.assert_allclose(made, expected, rtol=1e-4)
    np.testing.assert_array_equal(our_seeds, seeds)
