"""A model that keras_xla runs is still the model that it was: its methods, copies and errors are Keras' own."""

import copy
import inspect
import pickle
import traceback
import warnings

import keras
import numpy as np
import pytest

from keras_xla.callbacks import XLACompile
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.enable import disable, enable
from tests.training.helpers import LOSS, OPTIONS, X, Y, classifier


@pytest.fixture
def model():
    return compile(classifier(), **OPTIONS)


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict", "compile", "make_train_function"])
def test_methods_keep_their_signature_and_their_help(model, name):
    plain = getattr(classifier(), name)
    ours = getattr(model, name)
    assert inspect.signature(ours) == inspect.signature(plain)
    assert ours.__name__ == name and inspect.getdoc(ours) == inspect.getdoc(plain)


@pytest.mark.parametrize("duplicate", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, copy.copy])
def test_copies_are_plain_models_with_the_same_weights(model, duplicate):
    model.fit(X, Y, verbose=0)
    other = duplicate(model)
    assert attachment_of(other) is None and attachment_of(model) is not None
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    other.fit(X, Y, verbose=0)
    np.testing.assert_allclose(other.predict(X, verbose=0).shape, (len(X), 3))


def test_a_clone_is_a_plain_model(model):
    assert attachment_of(keras.models.clone_model(model)) is None


def fine_tune(model):
    """The recipe of the guides: train, freeze, compile again, train."""
    keras.utils.set_random_seed(1)  # for the order of the rows
    model.fit(X, Y, batch_size=24, epochs=2, verbose=0)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.1), LOSS)
    history = model.fit(X, Y, batch_size=24, epochs=2, verbose=0).history
    return [history, model.get_weights()]


def test_compiled_again_it_still_runs_through_keras_xla_and_says_so_once(model):
    plain = classifier()
    plain.compile(**OPTIONS)
    with pytest.warns(UserWarning, match="compiled again by its own compile method") as said:
        made = fine_tune(model)
        model.compile("sgd", LOSS)
    assert sum("compiled again" in str(each.message) for each in said) == 1
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), made, fine_tune(plain))
    assert attachment_of(model).jit_compile == "auto"


@pytest.mark.parametrize("asked", [True, False])
def test_compiled_again_with_a_word_on_xla_that_word_counts(model, asked):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", LOSS, jit_compile=asked)
    assert attachment_of(model) is None and model.jit_compile is asked


def test_a_switch_of_true_stays_true():
    model = compile(classifier(), **OPTIONS, jit_compile=True)
    with pytest.warns(UserWarning, match="jit_compile=True as before"):
        model.compile("sgd", LOSS)
    assert attachment_of(model).jit_compile is True and model.jit_compile is True


def test_the_callback_counts_as_well():
    model = classifier()
    model.compile(**OPTIONS)
    model.fit(X, Y, callbacks=[XLACompile()], verbose=0)
    with pytest.warns(UserWarning, match="compiled again"):
        model.compile("sgd", LOSS)
    assert attachment_of(model) is not None


def test_enable_needs_no_word():
    enable()
    try:
        model = classifier()
        model.compile(**OPTIONS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.compile("sgd", LOSS)
        assert attachment_of(model) is not None
    finally:
        disable()


def raised(make):
    """The error of a fit on rows that are too long, and the files that its traceback shows."""
    keras.utils.clear_session()  # names are in the message
    model = classifier("net")
    make(model, **OPTIONS)
    with pytest.raises(Exception) as error:
        model.fit(np.zeros((64, 21)), Y[:64], verbose=0)
    return type(error.value), str(error.value), [frame.filename for frame in traceback.extract_tb(error.tb)]


def test_a_wrong_shape_is_the_error_of_plain_keras():
    (plain, told, _), (ours, told_ours, files) = raised(keras.Model.compile), raised(compile)
    assert ours is plain and told_ours == told
    assert sum("/keras_xla/training" in file or "/keras_xla/backend" in file for file in files) <= 1


def test_the_progress_of_a_fit_is_let_go_of_whether_it_ends_or_fails():
    model, seen = classifier(), []
    model.compile(**OPTIONS)

    class Notes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(attachment_of(self.model).busy)

    model.fit(X, Y, callbacks=[XLACompile(), Notes()], verbose=0)
    assert seen == [True] and not attachment_of(model).busy
