"""keras_xla.enable: every model that a script compiles runs as keras_xla.compile would have it."""

import gc
import inspect
import warnings
import weakref

import keras
import numpy as np
import pytest

from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.enable import _STATE, disable, enable, seen
from keras_xla.training.reports import script_report as overview
from tests.training.helpers import OPTIONS, SIZE, Log, X, Y, classifier

PLAIN = keras.Model.compile
tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strings and tf.keras")


@pytest.fixture(autouse=True)
def enabled():
    enable()
    yield
    disable()
    assert keras.Model.compile is PLAIN


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


class Pair(Net):
    """Overrides compile with other arguments, as GANs do, and has models inside."""

    def __init__(self):
        super().__init__()
        self.inner = classifier()

    def compile(self, first, second):
        super().compile(optimizer=first, loss=OPTIONS["loss"])
        self.inner.compile(optimizer=second, loss=OPTIONS["loss"])


def functional():
    inputs = keras.Input((20,))
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


def jit_compile_of(model):
    observer = attachment_of(model)
    return observer and observer.jit_compile


@pytest.mark.parametrize("make", [classifier, functional, Net])
def test_every_kind_of_model_is_taken(make):
    model = make()
    model.compile(**OPTIONS)
    assert jit_compile_of(model) == "auto"
    history = model.fit(X, Y, batch_size=SIZE, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("switch", ["auto", True, False])
def test_models_are_compiled_with_the_switch(switch):
    enable(switch)
    log, model = Log(), classifier()
    model.compile("sgd", OPTIONS["loss"], None, ["accuracy"])
    assert jit_compile_of(model) == (switch or None)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    if keras.backend.backend() == "tensorflow":
        assert log.kinds() == (["train"] if switch is True else [])


@pytest.mark.parametrize("own", [{"jit_compile": True}, {"jit_compile": False}, {"run_eagerly": True}])
@pytest.mark.parametrize("switch", ["auto", True, False])
def test_what_the_script_asks_for_itself_is_left_to_keras(own, switch):
    enable(switch)
    model = classifier()
    model.compile(**OPTIONS, **own)
    assert attachment_of(model) is None
    assert {name: getattr(model, name) for name in own} == own
    name, value = next(iter(own.items()))
    assert seen()[0][-1].note == f"the script says {name}={value}, and plain Keras does it"


def test_jit_compile_by_position():
    positions = list(inspect.signature(PLAIN).parameters)
    model, values = classifier(), ["sgd", "mse", None, None, None, False, 1]
    assert positions.index("jit_compile") == len(values) + 1
    model.compile(*values, False)
    assert attachment_of(model) is None
    model.compile(*values, "auto")
    assert jit_compile_of(model) == "auto"


def test_compiling_again_starts_anew():
    model = classifier()
    for own in ({}, {"jit_compile": False}, {}, {}):
        model.compile(**OPTIONS, **own)
        assert (attachment_of(model) is None) == bool(own)
    model.fit(X, Y, batch_size=SIZE, verbose=0)


def test_a_class_with_a_compile_of_its_own():
    model = Pair()
    for _ in range(2):
        model.compile("sgd", second="adam")
        assert jit_compile_of(model) == jit_compile_of(model.inner) == "auto"
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    model.inner.fit(X, Y, batch_size=SIZE, verbose=0)


def test_keras_xla_compile_has_the_last_word():
    for switch in ("auto", True, False):
        model = compile(classifier(), **OPTIONS, jit_compile=switch)
        assert jit_compile_of(model) == (switch or None)
        (known,) = [known for known in seen()[0] if known.model() is model]
        assert known.jit_compile == switch and bool(known.note) == (switch is False)
        if switch is not False:
            assert known.journal is attachment_of(model).journal


@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("own", [{}, {"jit_compile": False}])
def test_loaded_models_are_taken_and_nothing_of_it_is_saved(tmp_path, suffix, own):
    model = classifier()
    model.compile(**OPTIONS, **own)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    with warnings.catch_warnings(action="ignore"):
        model.save(tmp_path / f"model.{suffix}")
    loaded = keras.saving.load_model(tmp_path / f"model.{suffix}")
    assert jit_compile_of(loaded) == "auto"
    assert int(loaded.optimizer.iterations.value) == 1
    disable()
    plain = keras.saving.load_model(tmp_path / f"model.{suffix}")
    assert attachment_of(plain) is None and plain.compiled
    enable()


@tensorflow_only
def test_true_names_a_layer_that_is_in_the_way_and_auto_takes_the_model():
    def texts():
        return keras.Sequential([keras.Input((1,), dtype="string"), keras.layers.Hashing(8, name="hashed")])

    texts().compile("sgd", "mse")
    enable(True)
    with pytest.raises(XLAUnsupportedError, match=r"hashed \(Hashing\)"):
        texts().compile("sgd", "mse")


@tensorflow_only
def test_tf_keras_names_the_same_classes():
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.Input((20,)), tf.keras.layers.Dense(3)])
    model.compile(**OPTIONS)
    assert jit_compile_of(model) == "auto"


def test_wrong_arguments_are_keras_errors():
    with pytest.raises(TypeError, match="optimiser"):
        classifier().compile(optimiser="sgd")
    with pytest.raises(ValueError, match=r"keras_xla\.enable received jit_compile='yes'; it expects"):
        enable("yes")


def test_results_are_those_of_plain_keras():
    def results():
        model = classifier(dropout=0.2)
        model.compile("adam", OPTIONS["loss"], metrics=["accuracy"])
        history = model.fit(X, Y, batch_size=32, epochs=2, validation_data=(X, Y), verbose=0).history
        return [*history.values(), model.predict(X, verbose=0)]

    ours = results()
    disable()
    for made, value in zip(ours, results(), strict=True):
        np.testing.assert_allclose(made, value, rtol=1e-4, atol=1e-6)


def test_enable_and_disable_can_be_called_in_any_order():
    disable()
    disable()
    enable()
    enable("auto")
    patched = keras.Model.compile
    assert inspect.signature(patched) == inspect.signature(PLAIN) and patched.__doc__ == PLAIN.__doc__
    model = classifier()
    model.compile(**OPTIONS)
    disable()
    assert keras.Model.compile is PLAIN
    assert jit_compile_of(model) == "auto"  # as long as nobody compiles it again
    model.compile(**OPTIONS)
    assert attachment_of(model) is None


def test_models_are_not_kept_alive_and_their_story_is(monkeypatch):
    monkeypatch.setattr(_STATE, "models", [])  # of those, the text lists few
    model = classifier("short_lived")
    model.compile(**OPTIONS)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    gone = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert gone() is None
    entry = overview.overview()["models"][-1]
    assert entry["model"] == "short_lived" and entry["jit_compile"] == "auto"
    if keras.backend.backend() == "tensorflow":
        assert entry["train"]["ran"] or entry["train"]["decisions"]
    assert "short_lived" in overview.overview_text()


@tensorflow_only
def test_a_model_that_plain_keras_ran_first_is_told_of_once_with_what_xla_did(monkeypatch):
    monkeypatch.setattr(_STATE, "models", [])
    model = classifier("compiled_twice")
    model.compile(**OPTIONS, run_eagerly=True)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    model.compile(**OPTIONS)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    first, second = overview.overview()["models"]
    assert first["note"] == "the script says run_eagerly=True, and plain Keras does it"
    assert second["jit_compile"] == "auto" and "note" not in second


def test_the_text_is_short_for_a_search_over_many_models():
    for _ in range(overview.LISTED + 5):
        classifier("one_of_many").compile(**OPTIONS)
    assert "more models; --report has them all" in overview.overview_text()
    assert len(overview.overview()["models"]) == len(seen()[0])


@pytest.mark.parametrize("switch", [False, True, "auto"])
def test_a_saved_model_knows_nothing_of_the_switch(tmp_path, switch):
    def saved():
        model = classifier("same")
        model.compile(**OPTIONS)
        model.save(tmp_path / "model.keras")
        return model, model.get_compile_config()["jit_compile"]

    disable()
    plain, expected = saved()
    enable(switch)
    model, config = saved()
    assert config == expected
    assert model.jit_compile == (plain.jit_compile if switch == "auto" else switch)
    disable()
    assert keras.saving.load_model(tmp_path / "model.keras").jit_compile == plain.jit_compile
    enable()
