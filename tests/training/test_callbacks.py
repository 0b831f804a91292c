"""XLACompile: XLA for a model that was compiled the plain way."""

import copy

import keras
import numpy as np
import pytest

from keras_xla.callbacks import XLACompile
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from tests.training.helpers import OPTIONS, SIZE, Log, X, Y, classifier


def test_the_python_of_a_model_without_xla_runs_at_every_step():
    class Counts(keras.Sequential):
        calls = 0

        def train_step(self, *arguments):
            self.calls += 1
            return super().train_step(*arguments)

    for callbacks in ([], [XLACompile()]):
        model = Counts([keras.Input((20,)), keras.layers.Dense(3)])
        model.compile(**OPTIONS, jit_compile=False, run_eagerly=keras.backend.backend() != "jax")
        for _ in range(2):
            model.fit(X, Y, batch_size=8, callbacks=callbacks, verbose=0)
        assert model.calls == 2 * len(X) // 8


def plain_model(**options):
    model = classifier()
    model.compile(**OPTIONS, **options)
    return model


def test_fit_with_validation():
    log, model = Log(), plain_model()
    model.fit(X, Y, batch_size=SIZE, epochs=2, validation_data=(X, Y), callbacks=[XLACompile(True)], verbose=0)
    assert log.kinds() == ["train", "test"]
    assert model.jit_compile is True


def test_evaluate_and_predict():
    log, model = Log(), plain_model()
    model.evaluate(X, Y, batch_size=SIZE, callbacks=[XLACompile(True)], verbose=0)
    assert log.kinds() == ["test"]
    model.predict(X, batch_size=SIZE, callbacks=[XLACompile(True)], verbose=0)
    assert log.kinds() == ["predict"]


@pytest.mark.parametrize(("name", "kind", "data"), [("evaluate", "test", (X, Y)), ("predict", "predict", (X,))])
def test_a_model_that_runs_otherwise_is_switched_before_the_call_begins(name, kind, data):
    log, model = Log(), compile(classifier(), **OPTIONS)
    getattr(model, name)(*data, batch_size=SIZE, callbacks=[XLACompile(True)], verbose=0)
    assert log.kinds() == [kind] and attachment_of(model).jit_compile is True


@pytest.mark.quick_on_jax
def test_step_functions_that_exist_are_replaced_and_then_kept():
    log, model = Log(), plain_model(jit_compile=False)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert log.new() == []
    for expected in (["train"], []):
        model.fit(X, Y, batch_size=SIZE, callbacks=[XLACompile(True)], verbose=0)
        assert log.kinds() == expected


def test_the_model_stays_compiled_until_it_is_turned_off():
    log, model = Log(), plain_model()
    model.fit(X, Y, batch_size=SIZE, callbacks=[XLACompile(True)], verbose=0)
    model.evaluate(X, Y, batch_size=SIZE, verbose=0)
    assert log.kinds() == ["train", "test"]
    model.fit(X, Y, batch_size=SIZE, callbacks=[XLACompile(jit_compile=False)], verbose=0)
    model.predict(X, batch_size=36, verbose=0)
    assert model.jit_compile is False
    assert log.new() == []


def test_wrong_switches_and_eager_models_are_refused():
    with pytest.raises(ValueError, match="XLACompile received jit_compile='yes'; it expects"):
        XLACompile(jit_compile="yes")
    with pytest.raises(ValueError, match="run_eagerly=True"):
        plain_model(run_eagerly=True).fit(X, Y, callbacks=[XLACompile(True)], verbose=0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="RandomRotation blocks XLA on TensorFlow only")
def test_a_layer_that_cannot_be_compiled_is_named():
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.RandomRotation(0.1, name="turn")])
    model.compile("sgd", "mse")
    with pytest.raises(XLAUnsupportedError, match=r"turn \(RandomRotation\)"):
        model.predict(np.ones((1, 8, 8, 3), "float32"), callbacks=[XLACompile(True)], verbose=0)


@pytest.mark.parametrize("wanted", ["auto", True, False])
@pytest.mark.parametrize("attached", [True, False])
def test_a_nested_call_with_the_callback_leaves_the_fit_around_it_alone(wanted, attached):
    class Validate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(X, Y, callbacks=[XLACompile(wanted)], verbose=0)

    model = compile(classifier(), **OPTIONS) if attached else plain_model()
    model.fit(X, Y, batch_size=SIZE, epochs=3, callbacks=[Validate()], verbose=0)
    assert int(model.optimizer.iterations) == 3 * -(-len(X) // SIZE)


def test_the_callback_can_be_copied():
    callback = XLACompile()
    plain_model().fit(X, Y, callbacks=[copy.deepcopy(callback)], verbose=0)
    plain_model().fit(X, Y, callbacks=[callback], verbose=0)
    assert copy.deepcopy(callback).jit_compile == "auto"
