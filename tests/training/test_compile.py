"""keras_xla.compile: model.compile with XLA on for certain."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from tests.training.helpers import FORCED, LOSS, OPTIONS, SIZE, Log, X, Y, classifier

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="strings and Keras' XLA switch exist on TensorFlow only"
)


def lookup_model():
    inputs = keras.Input((2,), dtype="string")
    ids = keras.layers.StringLookup(vocabulary=["a", "b"], name="words")(inputs)
    return keras.Model(inputs, keras.layers.Embedding(4, 3)(ids), name="texts")


def test_returns_the_model_and_passes_every_argument_on():
    model = classifier()
    assert compile(model, "sgd", "mse", steps_per_execution=2, metrics=["mae"]) is model
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert (model.loss, model.steps_per_execution) == ("mse", 2)


def test_jit_compile_false_is_plain_keras():
    log, model = Log(), compile(classifier(), **OPTIONS, jit_compile=False)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert model.jit_compile is False
    assert log.new() == []


@pytest.mark.parametrize("value", ["auto", False, True])
def test_the_switch_may_be_given_by_its_position(value):
    model, plain = classifier(), classifier()
    compile(model, "sgd", "mse", None, None, None, False, 1, value, False)
    plain.compile("sgd", "mse", jit_compile=value)
    assert model.jit_compile == plain.jit_compile
    assert (attachment_of(model) is None) == (value is False)


def test_a_compile_of_the_users_own_gets_no_argument_that_nobody_passed():
    class Sets(keras.Sequential):
        def compile(self, **kwargs):
            super().compile(jit_compile=False, **kwargs)

    class Collects(keras.Sequential):
        def compile(self, optimizer, **losses):
            super().compile(optimizer)
            self.losses_given = losses

    layers = [keras.Input((20,)), keras.layers.Dense(3)]
    assert attachment_of(compile(Sets(layers), **OPTIONS)).jit_compile == "auto"
    assert compile(Collects(layers), "sgd", a="mse").losses_given == {"a": "mse"}


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_other_switches_are_refused(value):
    with pytest.raises(ValueError, match=r'received jit_compile=.* expects "auto" .*, True .* or False'):
        compile(classifier(), **OPTIONS, jit_compile=value)


def test_eager_steps_cannot_be_compiled():
    with pytest.raises(ValueError, match="run_eagerly=True together with jit_compile=True"):
        compile(classifier(), **FORCED, run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly=True together with jit_compile=True"):
        compile(classifier(), "sgd", LOSS, None, None, None, True, jit_compile=True)  # by position
    assert compile(classifier(), **OPTIONS, run_eagerly=True, jit_compile=False).run_eagerly


def test_only_models_are_accepted():
    with pytest.raises(TypeError, match=r"received Dense; it expects a keras\.Model"):
        compile(keras.layers.Dense(1))


@tensorflow_only
def test_a_layer_that_cannot_be_compiled_is_named_before_anything_changes():
    model = lookup_model()
    model.compile("sgd", "mse")
    before = model.optimizer
    with pytest.raises(XLAUnsupportedError, match=r"words \(StringLookup\).*strings.*tf\.data") as error:
        compile(model, "adam", "mse", jit_compile=True)
    assert "'texts'" in str(error.value)
    assert model.optimizer is before


@tensorflow_only
def test_every_blocking_layer_is_named_however_deep():
    inputs = keras.Input((2,), dtype="string")
    outer = keras.Model(inputs, keras.layers.Dense(1, name="head")(lookup_model()(inputs)), name="outer")
    inner_rotation = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.RandomRotation(0.1, name="turn")])
    with pytest.raises(XLAUnsupportedError, match=r"words \(StringLookup\)"):
        compile(outer, "adam", "mse", jit_compile=True)
    with pytest.raises(XLAUnsupportedError, match=r"turn \(RandomRotation\)"):
        compile(keras.Sequential([inner_rotation]), "adam", "mse", jit_compile=True)


def results(make, dropout, size=32):
    model, how = make(classifier(dropout=dropout)), {"batch_size": size, "verbose": 0}
    history = model.fit(X, Y, epochs=2, validation_data=(X, Y), **how).history
    return [*history.values(), model.evaluate(X, Y, **how), model.predict(X, **how), *model.get_weights()]


def plainly(**options):
    options = {"optimizer": "adam", "loss": LOSS, "metrics": ["accuracy"], **options}
    return lambda model: model.compile(**options) or model


def ours(**options):
    return lambda model: compile(model, "adam", LOSS, metrics=["accuracy"], **options)


def test_results_of_full_batches_are_bit_equal_to_keras_own_xla():
    expected = results(plainly(jit_compile=True), dropout=0, size=SIZE // 2)
    assert all(map(np.array_equal, results(ours(jit_compile=True), dropout=0, size=SIZE // 2), expected))


@pytest.mark.slow
def test_results_with_a_smaller_last_batch_are_those_of_keras_own_xla():
    expected = results(plainly(jit_compile=True), dropout=0)
    for made, value in zip(results(ours(jit_compile=True), dropout=0), expected, strict=True):
        np.testing.assert_allclose(made, value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_random_numbers_are_those_of_plain_keras():
    """Keras' own XLA draws others on TensorFlow."""
    expected = results(plainly(), dropout=0.2)
    for made, value in zip(results(ours(jit_compile=True), dropout=0.2), expected, strict=True):
        np.testing.assert_allclose(made, value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_saved_model_is_plain_keras(tmp_path):
    model = compile(classifier(), "adam", LOSS, jit_compile=True)
    model.fit(X, Y, batch_size=SIZE, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "expected.npy", model.predict(X, verbose=0))
    program = f"""
import sys, keras, numpy as np
model = keras.saving.load_model({str(tmp_path / "model.keras")!r})
assert "keras_xla" not in sys.modules
assert model.compiled and model.jit_compile is True
assert int(model.optimizer.iterations.value) == 3
x = np.random.default_rng(0).normal(size=(72, 20)).astype("float32")
expected = np.load({str(tmp_path / "expected.npy")!r})
np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)
model.fit(x, np.zeros(72), batch_size=72, verbose=0)
assert int(model.optimizer.iterations.value) == 4
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compiling_again_replaces_the_step_functions_once():
    log, model = Log(), compile(classifier(), **FORCED)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    maker = model.make_train_function
    compile(model, **FORCED)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert model.make_train_function == maker
    assert log.causes() == ["first call", "model recompiled"]


def test_plain_compile_afterwards_makes_the_model_plain_keras():
    log, model = Log(), compile(classifier(), **FORCED)
    model.compile(**OPTIONS, jit_compile=False)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert log.new() == []
    assert not {"fit", "compile", "make_train_function"} & vars(model).keys()


def test_unbuilt_subclassed_models_work():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    log, model = Log(), compile(Net(), **FORCED)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert np.isfinite(model.predict(X, batch_size=SIZE, verbose=0)).all()
    assert log.kinds() == ["train", "predict"]
