"""A model that keras_xla runs is still the model that it was: its methods, copies and errors are Keras' own."""

import contextlib
import copy
import functools
import inspect
import operator
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

pytestmark = pytest.mark.quick_on_jax("fit", "True")  # the methods are the same on both


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


def test_compiled_again_to_run_eagerly_it_does_not_say_what_is_not_so(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", LOSS, run_eagerly=True)
    with pytest.warns(UserWarning, match="compiled again"):
        model.compile("sgd", LOSS)


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
    """The error of a fit on rows that are too long, and the functions that its traceback shows."""
    keras.utils.clear_session()  # names are in the message
    model = classifier("net")
    make(model, **OPTIONS)
    with pytest.raises(Exception) as error:
        model.fit(np.zeros((64, 21)), Y[:64], verbose=0)
    return type(error.value), str(error.value), [frame.name for frame in traceback.extract_tb(error.tb)]


def test_a_wrong_shape_is_the_error_of_plain_keras():
    plain, ours = raised(keras.Model.compile), raised(compile)
    assert ours == plain
    assert plain[2][-1] == "assert_input_compatibility"


class Sees(keras.callbacks.Callback):
    """Takes down the session of a call as it begins."""

    def on_train_begin(self, logs=None):
        self.session = attachment_of(self.model)._sessions.current["train"]

    def on_test_begin(self, logs=None):
        self.session = attachment_of(self.model)._sessions.current["test"]


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_a_first_fit_with_the_callback_whether_it_ends_or_fails(error):
    model, switch, sees = classifier(), XLACompile(), Sees()
    model.compile(**OPTIONS)

    def end(epoch, logs):
        if error is not None:
            raise error

    with contextlib.nullcontext() if error is None else pytest.raises(error):
        ends = keras.callbacks.LambdaCallback(on_epoch_end=end)
        model.fit(X, Y, epochs=3, callbacks=[switch, ends], verbose=0)
    assert not attachment_of(model).busy
    model.evaluate(X, Y, callbacks=[sees], verbose=0)
    assert sees.session.epochs == 1  # it is no validation of that fit
    model.fit(X, Y, callbacks=[switch, sees], verbose=0)  # the callback does not follow this one
    assert sees.session.ahead and attachment_of(model)._sessions.pace("train") is None
    model.compile("sgd", LOSS, jit_compile=False)
    assert attachment_of(model) is None and not set(vars(model)) & {"fit", "evaluate", "predict", "compile"}


def test_a_first_fit_with_the_callback_knows_what_is_to_come():
    model, seen = classifier(), []
    model.compile(**OPTIONS)

    class Looks(Sees):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append(attachment_of(self.model)._sessions.pace("train").left())

        def on_train_begin(self, logs=None):
            pass

    looks = Looks()
    data = {"batch_size": 24, "epochs": 3, "validation_data": (X, Y)}
    model.fit(X, Y, callbacks=[XLACompile(), looks], verbose=0, **data)
    assert seen == [9, 6, 3] and looks.session.epochs == 3


class Own(keras.Sequential):
    """Has methods of its own, with callbacks where the caller gives none."""

    seen: list = []  # of the class: what is in a list of a model, Keras wraps

    def __init__(self):
        super().__init__([keras.Input((20,)), keras.layers.Dense(3)])

    def _callbacks(self, given):
        self.seen.append(given)
        return given or [keras.callbacks.Callback()]

    def fit(self, x, y, callbacks=None, **options):
        return super().fit(x, y, callbacks=self._callbacks(callbacks), **options)

    def evaluate(self, x, y, callbacks=None, **options):
        return super().evaluate(x, y, callbacks=self._callbacks(callbacks), **options)

    def predict(self, x, callbacks=None, **options):
        return super().predict(x, callbacks=self._callbacks(callbacks), **options)


CALLS = pytest.mark.parametrize(("name", "data"), [("fit", (X, Y)), ("evaluate", (X, Y)), ("predict", (X,))])


@CALLS
def test_methods_of_a_users_class_get_the_callbacks_that_the_caller_gave(name, data):
    model, one = compile(Own(), **OPTIONS), keras.callbacks.Callback()
    given = [None, [], [one], (one,), one]
    model.seen.clear()
    for callbacks in given:
        getattr(model, name)(*data, callbacks=callbacks, verbose=0)
    assert len(model.seen) == len(given) and all(map(operator.is_, model.seen, given))


def patched(monkeypatch, name, seen):
    """Keras' own method behind a wrapper on its class, as tools that log put it there."""
    plain = getattr(keras.Model, name)

    @functools.wraps(plain)
    def logged(self, x, *args, **kwargs):
        seen.append(x)
        return plain(self, x, *args, **kwargs)

    monkeypatch.setattr(keras.Model, name, logged)


@pytest.mark.parametrize("first", [True, False])
@CALLS
def test_a_patch_of_keras_own_method_is_called_with_the_data(name, data, first, monkeypatch):
    model, seen, expected = classifier(), [], classifier()
    expected.compile(**OPTIONS)
    keras.utils.set_random_seed(1)  # for the order of the rows
    expected = getattr(expected, name)(*data, verbose=0)
    if first:
        patched(monkeypatch, name, seen)
    compile(model, **OPTIONS)
    if not first:
        patched(monkeypatch, name, seen)
    keras.utils.set_random_seed(1)
    made = getattr(model, name)(*data, verbose=0)
    assert len(seen) == 1 and seen[0] is X
    made, expected = (each.history["loss"] if name == "fit" else each for each in (made, expected))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_a_patch_of_evaluate_gets_the_validation_data(model, monkeypatch):
    seen = []
    patched(monkeypatch, "evaluate", seen)
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert len(seen) == 1 and seen[0] is X


def test_methods_that_were_put_on_the_instance_are_called_and_given_back(capsys):
    model = classifier()
    quiet = {name: functools.partial(getattr(model, name), verbose=0) for name in ("fit", "evaluate", "predict")}
    quiet["compile"] = functools.partial(model.compile, loss=LOSS)
    for name, method in quiet.items():
        setattr(model, name, method)
    compile(model, "sgd")
    assert attachment_of(model) is not None
    assert model.fit(X, Y, validation_data=(X, Y)).history["val_loss"]
    assert model.evaluate(X, Y) > 0 and model.predict(X).shape == (len(X), 3)
    assert capsys.readouterr().out == ""
    compile(model, "sgd", jit_compile=False)
    assert attachment_of(model) is None and all(vars(model)[name] is method for name, method in quiet.items())


def test_a_method_that_was_put_around_ours_stays_and_sees_the_data(model):
    seen, fit, evaluate = [], model.fit, model.evaluate

    def own_fit(*args, **options):
        seen.append("fit")
        return fit(*args, **options)

    def own_evaluate(x=None, y=None, **options):
        seen.append(x)
        return evaluate(x, y, **options)

    model.fit, model.evaluate = own_fit, own_evaluate
    for switch in ("auto", False, "auto"):
        seen.clear()
        compile(model, **OPTIONS, jit_compile=switch)
        model.fit(X, Y, validation_data=(X, Y), verbose=0)
        assert len(seen) == 2 and seen[0] == "fit" and seen[1] is X
        assert (attachment_of(model) is None) == (switch is False)
    compile(model, **OPTIONS, jit_compile=False)
    assert model.fit is own_fit and model.evaluate is own_evaluate and "predict" not in vars(model)


def test_a_method_put_around_the_one_that_makes_functions_is_called(model):
    made, make = [], model.make_predict_function

    def own_make(force=False):
        made.append(force)
        return make(force)

    model.make_predict_function = own_make
    assert model.predict(X, verbose=0).shape == (len(X), 3) and made == [False]


def test_a_model_that_was_never_compiled_says_so():
    model = classifier()
    model.predict(X, callbacks=[XLACompile()], verbose=0)
    assert attachment_of(model) is not None
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"You must call `compile\(\)`"):
            method(X, Y, verbose=0)


class Outer(keras.Model):
    """Asks a model inside of it for what it has not."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)

    def __getattr__(self, name):
        if name == "inner" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def test_a_model_around_an_attached_one_is_its_own(model):
    outer = compile(Outer(model), **OPTIONS)
    assert attachment_of(outer) not in (None, attachment_of(model))
    outer.fit(X, Y, verbose=0)
    compile(outer, jit_compile=False, **OPTIONS)
    assert attachment_of(outer) is None and attachment_of(model) is not None


def test_a_users_own_compile_with_other_names_may_switch_xla_off():
    class Named(keras.Sequential):
        def compile(self, optimizer, **options):
            super().compile(optimizer, **options)

    model = compile(Named(classifier().layers), "sgd", loss=LOSS)
    model.compile("sgd", loss=LOSS, jit_compile=False)
    assert attachment_of(model) is None


def test_a_loss_on_the_instance_is_the_models():
    x, weights = np.ones((8 * 3 + 5, 20), "float32"), []
    for make in (keras.Model.compile, compile):
        model = classifier()
        make(model, "sgd", LOSS, jit_compile=True)
        model.compute_loss = lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: 0 * y_pred[0, 0]
        before, own = model.get_weights(), model.compute_loss
        model.fit(x, np.zeros((len(x),), int), batch_size=8, verbose=0)
        assert model.compute_loss is own
        weights.append([np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)])
    assert max(weights[0]) == max(weights[1]) == 0


class Box:
    """Holds a model, and a method of it."""

    def __init__(self, model):
        self.model, self.predict = model, model.predict


@pytest.mark.parametrize("duplicate", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
def test_a_method_goes_with_the_copy_of_its_model(model, duplicate):
    model.fit(X, Y, verbose=0)
    assert inspect.ismethod(model.predict) and model.predict.__self__ is model
    box = duplicate(Box(model))
    assert box.predict.__self__ is box.model is not model
    box.model.set_weights([weight * 0 + 1 for weight in model.get_weights()])
    made = box.predict(X, verbose=0)
    np.testing.assert_array_equal(made, box.model.predict(X, verbose=0))
    assert not np.allclose(made, model.predict(X, verbose=0))
    np.testing.assert_array_equal(duplicate(model.predict)(X, verbose=0), model.predict(X, verbose=0))
