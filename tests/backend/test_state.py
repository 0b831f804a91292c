"""The state that a train step needs is made before it is traced, so that it is traced once."""

import re

import keras
import numpy as np
import pytest

from keras_xla.training.compile import compile
from tests.training.helpers import LOSS, OPTIONS, SIZE, X, Y, classifier

if keras.backend.backend() != "tensorflow":
    pytest.skip("on the other backends Keras makes it so itself", allow_module_level=True)
import tensorflow as tf


@keras.saving.register_keras_serializable("test_state")
class Counted(keras.layers.Layer):
    """Counts how often it is traced for training."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.traced = 0

    def call(self, x, training=False):
        self.traced += bool(training)
        return x


def counting(*after) -> tuple[keras.Model, Counted]:
    layer = Counted()
    return keras.Sequential([keras.Input(X.shape[1:]), layer, keras.layers.Dense(3), *after]), layer


@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.parametrize("dataset", [False, True], ids=["arrays", "dataset"])
def test_the_step_of_a_built_model_is_traced_once(jit_compile, dataset):
    model, layer = counting()
    compile(model, **{**OPTIONS, "jit_compile": jit_compile, "metrics": ["accuracy"]})
    rows = len(X) // SIZE * SIZE
    if dataset:
        model.fit(tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(SIZE, drop_remainder=True), verbose=0)
    else:
        model.fit(X[:rows], Y[:rows], batch_size=SIZE, verbose=0)
    assert layer.traced == 1


def test_plain_keras_traces_it_twice():
    """The premise: without this, the file has no point."""
    model, layer = counting()
    model.compile(**{**OPTIONS, "jit_compile": False, "metrics": ["accuracy"]})
    model.fit(X[:SIZE], Y[:SIZE], batch_size=SIZE, verbose=0)
    assert layer.traced == 2


def test_a_model_that_builds_itself_in_its_first_step_still_does():
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
    keras.utils.set_random_seed(0)
    ours = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
    plain.compile(**{**OPTIONS, "jit_compile": False})
    compile(ours, **{**OPTIONS, "jit_compile": "auto"})
    losses = [model.fit(X, Y, batch_size=SIZE, shuffle=False, verbose=0).history["loss"] for model in (plain, ours)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_the_optimizers_state_has_the_variables_and_names_of_plain_keras():
    plain, ours = classifier(), classifier()
    plain.compile(**{**OPTIONS, "jit_compile": False})
    compile(ours, **{**OPTIONS, "jit_compile": "auto"})
    for model in (plain, ours):
        model.fit(X, Y, batch_size=SIZE, verbose=0)

    def told(model):
        return [(each.path.split("/", 1)[-1], tuple(each.shape)) for each in model.optimizer.variables]

    assert told(ours) == told(plain)


def test_a_step_set_on_the_model_itself_makes_what_it_makes():
    made = []
    for wrap in (keras.Model.compile, compile):
        model = classifier()
        wrap(model, optimizer="adam", loss=OPTIONS["loss"])
        model.train_step = lambda data, model=model: {"loss": keras.ops.mean(model(data[0], training=True))}
        model.fit(X, Y, batch_size=SIZE, verbose=0)
        made.append([model.optimizer.built, len(model.optimizer.variables), len(model.metrics_variables)])
    assert made[0] == made[1] and made[0][0] is False


class Classes(keras.Model):
    """Gives logits in training, and the numbers of classes out of it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x, training=False):
        logits = self.dense(x)
        return logits if training else keras.ops.argmax(logits, axis=-1)


class Heads(Classes):
    """Has a second head in training only."""

    def call(self, x, training=False):
        logits = self.dense(x)
        return {"main": logits, "aux": 2 * logits} if training else {"main": logits}


@pytest.mark.parametrize("heads", [False, True], ids=["another rank", "another head"])
@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_metrics_are_those_of_the_outputs_in_training(heads, jit_compile):
    histories = []
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = Heads() if heads else Classes()
        model(X[:1])
        given = {**OPTIONS, "metrics": ["accuracy"]}
        if heads:
            given |= {"loss": {"main": given["loss"], "aux": given["loss"]}, "metrics": {"main": ["accuracy"]}}
        if ours:
            compile(model, **{**given, "jit_compile": jit_compile})
        else:
            model.compile(**given, jit_compile=False)
        y = {"main": Y, "aux": Y} if heads else Y
        histories.append(model.fit(X, y, batch_size=SIZE, epochs=2, verbose=0).history)
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.parametrize("first", ["sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_labels_that_were_refused_decide_on_no_metric(jit_compile, first):
    """`"accuracy"` is another metric for whole numbers than for one-hot rows: Keras decides when it sees them."""
    numbers, rows = Y, np.eye(3, dtype="float32")[Y]
    wrong, right = (rows, numbers) if first.startswith("sparse") else (numbers, rows)
    made = []
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(3, "softmax")])
        given = dict(optimizer="sgd", loss=first, metrics=["accuracy"])
        if ours:
            compile(model, **given, jit_compile=jit_compile)
        else:
            model.compile(**given, jit_compile=False)
        with pytest.raises(ValueError):
            model.fit(X, wrong, batch_size=16, verbose=0)
        made.append(model.evaluate(X, right, batch_size=16, verbose=0))
    np.testing.assert_allclose(made[1], made[0], rtol=1e-4)
    assert made[0][1] > 0.1


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_the_losses_of_several_outputs_are_there_once_after_a_batch_that_was_refused(jit_compile):
    made = []
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        x = keras.Input(X.shape[1:])
        model = keras.Model(x, {"a": keras.layers.Dense(3)(x), "b": keras.layers.Dense(1)(x)})
        given = dict(optimizer="sgd", loss={"a": LOSS, "b": "mse"}, metrics={"a": ["accuracy"]})
        compile(model, **given, jit_compile=jit_compile) if ours else model.compile(**given, jit_compile=False)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            model.fit(X, {"a": np.zeros((len(X), 4), "float32"), "b": X[:, :1]}, batch_size=16, verbose=0)
        made.append(model.evaluate(X, {"a": Y, "b": X[:, :1]}, batch_size=16, verbose=0, return_dict=True))
    assert made[0].keys() == made[1].keys()
    for name, value in made[0].items():
        np.testing.assert_allclose(made[1][name], value, rtol=1e-4, err_msg=name)


def test_what_is_wrong_is_said_by_the_step_itself():
    errors = []
    for wrap in (lambda model, **options: model.compile(**options), compile):
        model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(5)])
        wrap(model, optimizer="sgd", loss="mse", jit_compile=False if wrap is not compile else "auto")
        with pytest.raises(ValueError) as raised:
            model.fit(X, np.zeros((len(X), 4), "float32"), batch_size=SIZE - 1, verbose=0)
        errors.append(re.sub(r"_\d+", "", str(raised.value)))  # numbers in names
    assert errors[0] == errors[1]


@pytest.mark.parametrize("built", [False, True])
def test_the_call_of_a_model_of_the_users_own_runs_as_often_as_in_plain_keras(built):
    class Tells(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.calls = keras.layers.Dense(3), []

        def call(self, x, training=False):
            self.calls.append(training)
            return self.dense(x)

    made = []
    for ours in (False, True):
        model = Tells()
        compile(model, **OPTIONS) if ours else model.compile(**OPTIONS)
        if built:
            model(X[:SIZE])
        model.fit(X[:SIZE], Y[:SIZE], batch_size=SIZE, verbose=0)
        made.append(list(model.calls))
    assert made[1] == made[0]
