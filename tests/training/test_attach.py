"""The compile log of fit, evaluate and predict is exactly what XLA did."""

import gc
import weakref

import keras
import numpy as np
import pytest

from keras_xla.private.keras.trainer import takes_single_batches
from keras_xla.training.compile import compile
from tests.training.helpers import CLASSES, FORCED, OPTIONS, SIZE, Log, X, Y, classifier, normalized


def test_one_event_for_fit_evaluate_and_predict_each():
    log, model = Log(), compile(classifier("digits"), **FORCED)
    model.fit(X, Y, batch_size=SIZE, epochs=2, verbose=0)
    model.evaluate(X, Y, batch_size=SIZE, verbose=0)
    model.predict(X, batch_size=SIZE, verbose=0)
    train, test, predict = log.new()
    assert (train.name, train.kind, train.cause) == ("digits.train_step", "train", "first call")
    assert train.shapes == f"x: ({SIZE}, 20) float32, y: ({SIZE},) int32"
    assert (test.name, test.kind) == ("digits.test_step", "test")
    assert (predict.name, predict.shapes) == ("digits.predict_step", f"x: ({SIZE}, 20) float32")
    assert all(event.seconds > 0 for event in (train, test, predict))


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_no_callback_outlives_its_call(jit_compile):
    model = compile(classifier(), **{**OPTIONS, "jit_compile": jit_compile})
    for method, data in ((model.fit, (X, Y)), (model.evaluate, (X, Y)), (model.predict, (X,))):
        callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
        seen = weakref.ref(callback)
        for _ in range(2):
            method(*data, callbacks=[callback], verbose=0)
        del callback
        gc.collect()
        assert seen() is None


def stacked(model):
    """Whether several steps take their batches in one array: on JAX since Keras 3.16."""
    return keras.backend.backend() == "jax" and not takes_single_batches(model)


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_a_partial_last_batch_compiles_once_more_and_never_again(steps_per_execution):
    log, model = Log(), compile(normalized(), **FORCED, steps_per_execution=steps_per_execution)
    model.fit(X, Y, batch_size=16, epochs=3, verbose=0)
    full, partial = log.new()
    assert full.cause == "first call"
    rows = (4, 16) if stacked(model) else (16,)
    assert partial.cause == f"argument x: {(*rows, 20)} -> (8, 20), y: {rows} -> (8,)"
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert log.new() == []
    assert int(model.optimizer.iterations.value) == 5 * 5


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_predict_with_a_partial_batch(steps_per_execution):
    log, model = Log(), compile(classifier(), **FORCED, steps_per_execution=steps_per_execution)
    outputs = model.predict(X, batch_size=16, verbose=0)
    several = ["x: (4, 16, 20) float32"] if stacked(model) else []
    assert [event.shapes for event in log.new()] == [*several, "x: (16, 20) float32"]  # filled up, and cut off again
    assert outputs.shape == (SIZE, 3)
    assert np.allclose(outputs, keras.ops.convert_to_numpy(model(X)), atol=1e-5)
    model.predict(X, batch_size=16, verbose=0)
    assert log.new() == []


@pytest.mark.slow
def test_several_steps_in_one_execution_change_no_result():
    def run(make, steps):
        model = classifier()
        make(model, **OPTIONS, steps_per_execution=steps, jit_compile=True)
        return model.fit(X, Y, batch_size=16, epochs=2, verbose=0).history

    assert run(compile, 3) == run(compile, 100)
    np.testing.assert_allclose(run(compile, 3)["loss"], run(keras.Model.compile, 3)["loss"], rtol=1e-5)


def test_batches_by_hand():
    log, model = Log(), compile(classifier(), **FORCED)
    for size in (16, 16, 8):
        model.train_on_batch(X[:size], Y[:size])
    assert log.kinds() == ["train", "train"]
    model.test_on_batch(X[:16], Y[:16])
    assert model.predict_on_batch(X[:16]).shape == (16, 3)
    assert log.kinds() == ["test", "predict"]


def test_validation_inside_fit():
    log, model = Log(), compile(classifier(), **FORCED)
    model.fit(X, Y, batch_size=36, epochs=2, validation_data=(X[:36], Y[:36]), verbose=0)
    assert log.kinds() == ["train", "test"]


def test_dictionaries_and_sample_weights_are_named():
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((2,), name="b")}
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.concatenate(list(inputs.values()))))
    log, model = Log(), compile(model, "sgd", "mse", jit_compile=True)
    data = {"a": np.ones((8, 4), "float32"), "b": np.ones((8, 2), "float32")}
    model.fit(data, np.ones((8, 1), "float32"), sample_weight=np.ones(8, "float32"), batch_size=8, verbose=0)
    (event,) = log.new()
    assert event.shapes == (
        "x['a']: (8, 4) float32, x['b']: (8, 2) float32, y: (8, 1) float32, sample_weight: (8,) float32"
    )


def test_a_python_generator_as_data():
    def batches():
        for size in (16, 16, 8):
            yield X[:size], Y[:size]

    log, model = Log(), compile(normalized(), **FORCED)
    model.fit(batches(), verbose=0)
    assert log.kinds() == ["train", "train"]


def test_nan_passes_through():
    model = compile(classifier(), **FORCED)
    x = X.copy()
    x[0, 0] = np.nan
    outputs = model.predict(x, batch_size=SIZE, verbose=0)
    assert np.isnan(outputs[0]).all()
    assert np.isfinite(outputs[1:]).all()


def test_a_class_with_its_own_train_function_keeps_it():
    class Own(keras.Sequential):
        made = 0

        def make_train_function(self, force=False):
            self.made += 1
            return super().make_train_function(force)

    model = compile(Own([keras.Input((20,)), keras.layers.Dense(3)]), **FORCED)
    log = Log()
    model.fit(X, Y, batch_size=SIZE, epochs=2, verbose=0)
    assert model.made == 1
    assert log.kinds() == ["train"]

    compile(model, **OPTIONS)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert model.made == 2
    assert log.kinds() == ["train"] * model.jit_compile  # on TensorFlow Keras compiles nothing here


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Keras on JAX refuses a layer that was frozen since"
)
def test_a_class_may_make_its_train_function_anew_for_each_fit():
    """Of the model as it is then: here with a layer that has been frozen."""

    class Anew(keras.Sequential):
        tests = 0

        def make_train_function(self, force=False):
            return super().make_train_function(force=True)

        def make_test_function(self, force=False):
            self.tests += 1
            return super().make_test_function(force)

    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = Anew([keras.Input((20,)), keras.layers.Dense(8), keras.layers.Dense(CLASSES)])
        compile_(model, **FORCED)
        model.fit(X, Y, batch_size=SIZE, verbose=0)
        model.layers[0].trainable = False
        frozen = [np.array(weight) for weight in model.layers[0].get_weights()]
        model.fit(X, Y, batch_size=SIZE, verbose=0)
        for before, after in zip(frozen, model.layers[0].get_weights(), strict=True):
            np.testing.assert_array_equal(before, after)
        assert not model.tests  # there is no validation
        results.append(model.get_weights())
    for plain, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="on JAX such a function takes the state, too")
def test_a_function_of_a_class_of_its_own_takes_one_batch_of_an_iterator_at_a_time():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            return super().make_train_function(force)

    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = Own([keras.Input((20,)), keras.layers.Dense(CLASSES)])
        compile_(model, **FORCED)
        model.make_train_function()
        batches = iter([(X[:8], Y[:8]), (X[8:16], Y[8:16]), (X[16:24], Y[16:24])])
        for left in (2, 1, 0):
            model.train_function(batches)
            assert batches.__length_hint__() == left
        results.append(model.get_weights())
    for plain, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


def test_predict_leaves_batches_alone_whose_rows_may_depend_on_each_other():
    class Center(keras.layers.Layer):
        def call(self, x):
            return x - keras.ops.mean(x, axis=0)

    log, model = Log(), compile(keras.Sequential([keras.Input((20,)), Center()]), **FORCED)
    outputs = model.predict(X, batch_size=64, verbose=0)
    assert np.allclose(outputs[64:], X[64:] - X[64:].mean(axis=0), atol=1e-5)
    assert len(log.new()) == 2
