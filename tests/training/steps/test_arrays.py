"""`predict` and `evaluate` on arrays: the results of plain Keras, without its input pipeline."""

import keras
import numpy as np
import pytest

from keras_xla.training.attach import arrays
from keras_xla.training.compile import compile
from keras_xla.training.reports.model_report import model_report
from keras_xla.training.steps.arrays import takes
from tests.training.helpers import LOSS, X, Y, classifier

on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="on JAX Keras' own functions run, and they read Keras' pipeline"
)


@pytest.fixture
def models():
    """The same model, plain and ours."""
    made = [classifier(), classifier()]
    made[0].compile("sgd", LOSS, metrics=["accuracy"], weighted_metrics=["accuracy"])
    compile(made[1], "sgd", LOSS, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return made


def count(monkeypatch):
    """The calls of `evaluate_arrays`."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return arrays.evaluate_arrays(*args, **kwargs)

    monkeypatch.setattr("keras_xla.training.attach.evaluate_arrays", counted)
    return calls


def test_what_is_taken():
    assert takes(X, Y) and takes({"a": X, "b": [X, Y]}, None)
    assert not takes(None) and not takes(X, Y[:-1]) and not takes(X[:0]) and not takes(X, steps=3)
    assert not takes(X.tolist()) and not takes(np.array(["a"])) and not takes(np.float32(1)) and not takes(iter([X]))


def test_how_many_batches_a_call_is_for():
    outputs = {"a": np.zeros((64, 10)), "b": None}
    assert arrays.next_count(4, 1e-9, outputs) == arrays.MOST
    assert arrays.next_count(4, 1e9, outputs) == 1
    assert 1 < arrays.next_count(1, arrays.EXECUTION / 5, outputs) < arrays.MOST
    assert arrays.next_count(4, 1e-9, {"a": np.zeros((4, arrays.LARGE + 1)), "b": None}) == 1


@on_tensorflow
@pytest.mark.parametrize("options", [{}, {"batch_size": 16}, {"batch_size": 1000}, {"batch_size": 1}], ids=repr)
def test_evaluate(models, options, monkeypatch):
    calls = count(monkeypatch)
    weights = np.linspace(0, 2, len(X))
    for given in ({}, {"return_dict": True}, {"sample_weight": weights}):
        expected, made = (model.evaluate(X, Y, verbose=0, **options, **given) for model in models)
        assert made == expected
        assert keras.tree.map_structure(type, made) == keras.tree.map_structure(type, expected)
    assert len(calls) == 3


@on_tensorflow
def test_sizes_of_batches_one_after_the_other(models):
    for size in (8, 16, 32, 24, 8):
        expected, made = (model.evaluate(X, Y, batch_size=size, verbose=0) for model in models)
        assert made == expected
        expected, made = (model.predict(X, batch_size=size, verbose=0) for model in models)
        np.testing.assert_array_equal(made, expected)


@on_tensorflow
def test_several_inputs_and_outputs():
    def make(compile_):
        keras.utils.set_random_seed(0)
        a, b = keras.Input((20,), name="a"), keras.Input((1,), name="b")
        hidden = keras.layers.Dense(4, "relu")(keras.layers.Concatenate()([a, b]))
        outputs = {"c": keras.layers.Dense(3, name="c")(hidden), "d": keras.layers.Dense(1, name="d")(hidden)}
        model = keras.Model({"a": a, "b": b}, outputs)
        compile_(model, "sgd", {"c": LOSS, "d": "mse"}, metrics={"c": ["accuracy"], "d": ["mae"]})
        return model

    x, y = {"a": X, "b": X[:, :1]}, {"c": Y, "d": X[:, 0]}
    expected, made = (
        make(each).evaluate(x, y, batch_size=16, verbose=0, return_dict=True) for each in (keras.Model.compile, compile)
    )
    assert made == expected


@on_tensorflow
def test_validation_in_fit_makes_its_tensors_once(models, monkeypatch):
    calls = count(monkeypatch)
    expected, made = (
        model.fit(X, Y, epochs=3, batch_size=16, validation_data=(X[:40], Y[:40]), verbose=0).history
        for model in models
    )
    assert {name: made[name] for name in ("val_loss", "val_accuracy")} == {
        name: expected[name] for name in ("val_loss", "val_accuracy")
    }
    assert len(calls) == 3 and len({id(args[3]) for args in calls}) == 1
    assert model_report(models[1]).to_dict()["test"]["ran"]["graph"]["steps"] > 0


class FromBeginToEnd(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.begun = True

    def on_test_end(self, logs=None):
        self.logs = logs


@on_tensorflow
def test_callbacks_and_the_progress_bar(models, capsys):
    told = []
    for model in models:
        callback = FromBeginToEnd()
        model.evaluate(X, Y, batch_size=16, callbacks=[callback], verbose=2)
        assert callback.begun
        told.append((callback.logs, capsys.readouterr().out.split("step - ")[1]))
    assert told[0] == told[1]


class EveryBatch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"]))


@on_tensorflow
def test_who_looks_at_every_batch_sees_every_batch(models, monkeypatch):
    calls = count(monkeypatch)
    seen = []
    for model in models:
        callback = EveryBatch()
        model.evaluate(X, Y, batch_size=16, callbacks=[callback], verbose=0)
        seen.append(callback.seen)
    assert [batch for batch, _ in seen[0]] == [batch for batch, _ in seen[1]] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose([float(x) for _, x in seen[0]], [float(x) for _, x in seen[1]])
    assert not calls


@on_tensorflow
def test_wrong_arguments_are_keras_errors(models):
    for model in models:
        with pytest.raises(ValueError, match="not recognized"):
            model.evaluate(X, Y, nonsense=1)
        with pytest.raises(ValueError, match="cardinality"):
            model.evaluate(X, Y[:-1], verbose=0)
