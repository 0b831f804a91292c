"""`fit` on arrays without a pipeline: batch by batch what plain Keras trains on, in the same order."""

import keras
import numpy as np
import pytest

from keras_xla.training import attach as steps
from keras_xla.training.attach import array_rows as feed
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from keras_xla.training.steps.array_rows import without_pipeline
from tests.training.helpers import LOSS, X, Y, classifier

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX Keras' own functions run, and they read Keras' pipeline", allow_module_level=True)

ARGUMENTS = {
    "x": X,
    "y": Y,
    "sample_weight": None,
    "batch_size": None,
    "class_weight": None,
    "shuffle": True,
    "steps_per_epoch": None,
    "validation_split": 0.0,
    "validation_data": None,
}
WEIGHTS = np.linspace(0, 2, len(X))


@pytest.fixture
def fed(monkeypatch):
    """The feeds that were made."""
    made = []

    class Noted(feed.Feed):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(steps, "Feed", Noted)
    return made


class Order(keras.layers.Layer):
    """Passes its inputs on, and remembers the first number of each of their rows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x, training=False):
        import tensorflow as tf

        tf.py_function(lambda rows: self.seen.append(rows.numpy().tolist()), [x[:, 0]], [])
        return x


def order(compile_, **options):
    """Which rows a fit trains on, batch by batch."""
    keras.utils.set_random_seed(3)
    spy = Order()
    model = keras.Sequential([keras.Input((2,)), spy, keras.layers.Dense(1)])
    compile_(model, "sgd", "mse")
    rows = np.arange(50, dtype="float32")
    model.fit(np.stack([rows, rows], 1), rows, epochs=3, verbose=0, **options)
    return spy.seen


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"batch_size": 10}, {"batch_size": 8, "shuffle": False}])
def test_the_rows_come_in_keras_order(options, fed):
    assert order(compile, **options) == order(keras.Model.compile, **options)
    assert len(fed) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 16, "epochs": 3},
        {"batch_size": 24},
        {"batch_size": 100},
        {"batch_size": 16, "sample_weight": WEIGHTS},
        {"batch_size": 16, "validation_split": 0.3},
        {"batch_size": 16, "validation_split": 0.3, "sample_weight": WEIGHTS},
        {"x": X.astype("float64"), "y": Y[:, None].astype("int64")},
    ],
    ids=lambda options: ", ".join(options),
)
def test_histories_and_weights_are_those_of_plain_keras(options, fed):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier(dropout=0.2)
        compile_(model, "adam", LOSS, metrics=["accuracy"])
        history = model.fit(**{"x": X, "y": Y, "verbose": 0, **options}).history
        results.append([history, model.get_weights()])
    keras.tree.map_structure(np.testing.assert_array_equal, *results)
    assert len(fed) == 1


@pytest.mark.parametrize("rows", [40, 30], ids=["as many in every batch", "fewer in the last batch"])
def test_bit_for_bit_where_the_graph_knows_how_many_rows_there_are(rows, fed, monkeypatch):
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 1e9)  # the plain graph it shall be
    images = np.random.default_rng(0).normal(size=(rows, 8, 8, 3)).astype("float32")
    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        lines = [keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.LayerNormalization()]
        model = keras.Sequential([keras.Input((8, 8, 3)), *lines, keras.layers.Dense(3)])
        compile_(model, "sgd", LOSS)
        data, held_back = (images, Y[:rows]), (images[:20], Y[:20])
        history = model.fit(*data, batch_size=20, epochs=4, validation_data=held_back, verbose=0).history
        results.append([history, model.get_weights()])
    keras.tree.map_structure(np.testing.assert_array_equal, *results)


def test_several_inputs_and_outputs(fed):
    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        a, b = keras.Input((20,), name="a"), keras.Input((1,), name="b")
        hidden = keras.layers.Dense(4, "relu")(keras.layers.Concatenate()([a, b]))
        model = keras.Model([a, b], {"c": keras.layers.Dense(3)(hidden), "d": keras.layers.Dense(1)(hidden)})
        compile_(model, "sgd", {"c": LOSS, "d": "mse"})
        history = model.fit([X, X[:, :1]], {"c": Y, "d": X[:, 0]}, batch_size=16, epochs=2, verbose=0).history
        results.append([history, model.get_weights()])
    keras.tree.map_structure(np.testing.assert_array_equal, *results)
    assert len(fed) == 1


def test_a_model_that_is_not_built_and_has_a_step_of_its_own(fed):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(20)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            return super().train_step((data, data))

    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = Net()
        compile_(model, "sgd", "mse")
        results.append([model.fit(X, batch_size=16, epochs=2, verbose=0).history, model.get_weights()])
    keras.tree.map_structure(np.testing.assert_array_equal, *results)
    assert len(fed) == 1


def test_a_second_fit_that_resumes_at_an_epoch(fed):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier()
        compile_(model, "sgd", LOSS)
        history = model.fit(X, Y, batch_size=16, epochs=4, verbose=0).history
        again = model.fit(X, Y, batch_size=16, initial_epoch=1, epochs=3, verbose=0).history
        results.append([history, again, model.get_weights()])
    keras.tree.map_structure(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": {0: 1.0}},
        {"shuffle": "batch"},
        {"steps_per_epoch": 2},
        {"x": X.tolist()},
        {"y": Y[:-1]},
        {"validation_split": 1.5},
        {"y": {"a": Y}, "sample_weight": WEIGHTS},
    ],
    ids=lambda options: ", ".join(options),
)
def test_what_is_left_to_keras(options):
    assert without_pipeline(ARGUMENTS)
    assert without_pipeline({**ARGUMENTS, **options}) is None


def test_callbacks_that_look_at_every_batch_keep_the_pipeline(fed):
    model = compile(classifier(), "sgd", LOSS)
    seen = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    model.fit(X, Y, batch_size=16, verbose=0, callbacks=[look])
    assert seen == [0, 1, 2, 3, 4] and not fed
