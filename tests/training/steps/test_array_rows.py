"""`fit`, `evaluate` and `predict` on arrays in memory: batch by batch what plain Keras runs on, in the same order."""

import itertools

import keras
import numpy as np
import pytest

from keras_xla.backend.row_numbers import MARK, MOST_OWNERS
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from keras_xla.training.reports.model_report import model_report
from keras_xla.training.steps import array_rows as module
from keras_xla.training.steps.array_rows import ArrayRows, array_rows, takes, with_validation_cut_off
from keras_xla.training.steps.run_ahead import PredictFunction, StepFunction
from tests.training.helpers import LOSS, X, Y, classifier

# On JAX, where nothing of ours stands between arrays and Keras, some of each.
pytestmark = pytest.mark.quick_on_jax("on_epoch_begin", "steps_per_epoch", "batch_size, epochs", "in the last")
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
on_tensorflow = pytest.mark.skipif(not ON_TENSORFLOW, reason="on JAX the batches are Keras' own, and XLA runs them")

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
def kept(monkeypatch):
    """Asserts how many data sets were kept in memory: none on JAX, where Keras reads arrays anew for every batch."""
    made, init = [], ArrayRows.__init__
    monkeypatch.setattr(ArrayRows, "__init__", lambda self, *args: made.append(self) or init(self, *args))

    def check(number):
        assert len(made) == (number if ON_TENSORFLOW else 0)

    return check


def same(made, expected):
    """What the plain graph makes is the same bit for bit, what XLA makes to rounding."""
    check = np.testing.assert_array_equal if ON_TENSORFLOW else close
    keras.tree.map_structure(check, made, expected)


def close(made, expected):
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


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


@on_tensorflow
@pytest.mark.parametrize("options", [{"batch_size": 8}, {"batch_size": 10}, {"batch_size": 8, "shuffle": False}])
def test_the_rows_come_in_keras_order(options, kept):
    assert order(compile, **options) == order(keras.Model.compile, **options)
    kept(1)


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
@pytest.mark.quick(
    "batch_size, sample_weight",
    "batch_size1",
    "batch_size, validation_split",
    "x, y",
    "batch_size, epochs",
    "batch_size0",
)
def test_histories_and_weights_are_those_of_plain_keras(options, kept):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier(dropout=0.2)
        compile_(model, "adam", LOSS, metrics=["accuracy"])
        history = model.fit(**{"x": X, "y": Y, "verbose": 0, **options}).history
        results.append([history, model.get_weights()])
    same(*results)
    kept(1 + ("validation_split" in options))


@on_tensorflow
@pytest.mark.parametrize("rows", [40, 30], ids=["as many in every batch", "fewer in the last batch"])
def test_bit_for_bit_where_the_graph_knows_how_many_rows_there_are(rows, kept, monkeypatch):
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
    same(*results)


def test_several_inputs_and_outputs(kept):
    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        a, b = keras.Input((20,), name="a"), keras.Input((1,), name="b")
        hidden = keras.layers.Dense(4, "relu")(keras.layers.Concatenate()([a, b]))
        model = keras.Model([a, b], {"c": keras.layers.Dense(3)(hidden), "d": keras.layers.Dense(1)(hidden)})
        compile_(model, "sgd", {"c": LOSS, "d": "mse"})
        history = model.fit([X, X[:, :1]], {"c": Y, "d": X[:, 0]}, batch_size=16, epochs=2, verbose=0).history
        results.append([history, model.get_weights()])
    same(*results)
    kept(1)


def test_a_model_that_is_not_built_and_has_a_step_of_its_own(kept):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(20)

        def call(self, x):
            return self.dense(x)

        def train_step(self, *arguments):  # the state, on JAX, and the batch
            *state, (x, y) = arguments
            return super().train_step(*state, (x, 2 * y))

    results = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = Net()
        compile_(model, "sgd", "mse")
        results.append([model.fit(X, X, batch_size=16, epochs=2, verbose=0).history, model.get_weights()])
    same(*results)
    kept(1)


def test_a_second_fit_that_resumes_at_an_epoch(kept):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier()
        compile_(model, "sgd", LOSS)
        history = model.fit(X, Y, batch_size=16, epochs=4, verbose=0).history
        again = model.fit(X, Y, batch_size=16, initial_epoch=1, epochs=3, verbose=0).history
        results.append([history, again, model.get_weights()])
    same(*results)


@pytest.mark.parametrize(
    "options",
    [{"class_weight": {0: 1.0}}, {"x": X.tolist()}, {"y": Y[:-1]}, {"y": {"a": Y}, "sample_weight": WEIGHTS}],
    ids=lambda options: ", ".join(options),
)
def test_what_is_left_to_keras(options):
    assert array_rows(ARGUMENTS)
    assert array_rows({**ARGUMENTS, **options}) is None


def test_what_is_taken():
    assert takes(X, Y) and takes({"a": X, "b": [X, Y]}, None)
    assert not takes(None) and not takes(X, Y[:-1]) and not takes(X[:0])
    assert not takes(X.tolist()) and not takes(np.array(["a"])) and not takes(np.float32(1)) and not takes(iter([X]))
    assert not takes(X, Y.astype("longdouble"))  # which Keras refuses


def test_where_validation_is_cut_off():
    cut = with_validation_cut_off({**ARGUMENTS, "validation_split": 0.3})
    assert len(cut["x"]) == 50 and len(cut["validation_data"][1]) == 22 and np.shares_memory(cut["x"], X)
    assert with_validation_cut_off({**ARGUMENTS, "validation_split": 1.5}) is None


def test_numbers_tell_whose_rows_they_are():
    first, second = ArrayRows(X, Y), ArrayRows(X)
    assert first.numbers()[MARK].shape == (len(X),) and not set(first.numbers()[MARK]) & set(second.numbers()[MARK])


@pytest.mark.parametrize("options", [{"shuffle": "batch"}, {"steps_per_epoch": 2}, {"steps_per_epoch": 7}], ids=repr)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_other_passes_over_the_data_are_keras_own(options, kept):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier(dropout=0.2)
        compile_(model, "adam", LOSS)
        results.append([model.fit(X, Y, batch_size=16, epochs=3, verbose=0, **options).history, model.get_weights()])
    same(*results)
    kept(1)


def test_callbacks_that_look_at_every_batch(kept):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model, seen = classifier(), []
        compile_(model, "sgd", LOSS)
        look = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, seen=seen: seen.append((batch, logs))
        )
        model.fit(X, Y, batch_size=16, verbose=0, callbacks=[look])
        results.append(seen)
    same(*results)
    kept(1)


class Trains(keras.callbacks.Callback):
    """Trains on other data when a hook is called."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, lambda *_, **__: self.model.train_on_batch(X[:16] * 3 + 2, Y[:16]))


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_batch_end"])
def test_a_callback_that_trains_on_other_data(hook):
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier()
        compile_(model, "sgd", LOSS)
        history = model.fit(X, Y, batch_size=8, epochs=4, callbacks=[Trains(hook)], verbose=0).history
        results.append([history, model.get_weights()])
    same(*results)


class ChangesArrays(keras.callbacks.Callback):
    """Changes arrays in place when a hook is called."""

    def __init__(self, hook, *arrays):
        super().__init__()
        setattr(self, hook, lambda *_, **__: [np.multiply(array, 2, out=array) for array in arrays])


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_test_begin"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.quick("False-on_epoch_begin", "True-on_train_begin")
def test_arrays_that_are_changed_in_place(hook, split):
    results = []
    for compile_ in (keras.Model.compile, compile):
        x, held_back = X.copy(), X[:20].copy()
        model = classifier()
        compile_(model, "sgd", LOSS)
        options = {"validation_split": 0.3} if split else {"validation_data": (held_back, Y[:20])}
        change = ChangesArrays(hook, x, held_back)
        history = model.fit(x, Y, batch_size=8, epochs=3, callbacks=[change], verbose=0, **options).history
        results.append([history, model.evaluate(x, Y, verbose=0), model.predict(held_back, verbose=0)])
        x *= 2
        results[-1].append(model.evaluate(x, Y, verbose=0))
    same(*results)


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
def test_doubles_that_are_split_off_are_read_as_a_fit_begins(hook):
    """Keras makes floats of them where it splits."""
    histories = []
    for compile_ in (keras.Model.compile, compile):
        x = X.astype("float64")
        model = classifier()
        compile_(model, "sgd", LOSS)
        change = ChangesArrays(hook, x)
        histories.append(model.fit(x, Y, validation_split=0.3, epochs=2, callbacks=[change], verbose=0).history)
    same(*histories)


@pytest.mark.parametrize("jit_compile", ["auto", False])
@pytest.mark.slow
def test_a_model_compiled_again_in_the_middle_of_a_fit(jit_compile):
    class Again(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.layers[0].trainable = False
            self.model.compile("sgd", LOSS, jit_compile=jit_compile)
            self.model.optimizer.build(self.model.trainable_variables)  # which Keras on JAX does as `fit` begins
            self.model.make_train_function()

    results = []
    for compile_ in (keras.Model.compile, compile):
        model = classifier()
        compile_(model, "sgd", LOSS)
        data = {"batch_size": 16, "epochs": 3, "validation_data": (X[:30], Y[:30])}
        history = model.fit(X, Y, callbacks=[Again()], verbose=0, **data).history
        results.append([history, model.get_weights(), model.evaluate(X, Y, verbose=0)])
    same(*results)


def test_nothing_outlives_a_call_however_it_ends():
    class Raises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    model = compile(classifier(), "sgd", LOSS)
    attachment = attachment_of(model)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, validation_data=(X, Y), callbacks=[Raises()], verbose=0)
    assert not attachment.busy
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert not attachment.busy


@pytest.fixture
def models():
    """The same model, plain and ours."""
    made = [classifier(), classifier()]
    made[0].compile("sgd", LOSS, metrics=["accuracy"], weighted_metrics=["accuracy"])
    compile(made[1], "sgd", LOSS, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return made


@pytest.mark.parametrize("options", [{}, {"batch_size": 16}, {"batch_size": 1000}, {"batch_size": 1}], ids=repr)
@pytest.mark.quick("{}", "{'batch_size': 16}", "{'batch_size': 1000}")
def test_evaluate(models, options, kept):
    weights = np.linspace(0, 2, len(X))
    for given in ({}, {"return_dict": True}, {"sample_weight": weights}):
        expected, made = (model.evaluate(X, Y, verbose=0, **options, **given) for model in models)
        same(made, expected)
        assert keras.tree.map_structure(type, made) == keras.tree.map_structure(type, expected)
    kept(3)


@pytest.mark.slow
def test_sizes_of_batches_one_after_the_other(models):
    for size in (8, 16, 32, 24, 8):
        expected, made = (model.evaluate(X, Y, batch_size=size, verbose=0) for model in models)
        same(made, expected)
        expected, made = (model.predict(X, batch_size=size, verbose=0) for model in models)
        same(made, expected)


LENGTHS = (5, 6, 7, 12, 6, 3)


@pytest.mark.parametrize("jit_compile", ["auto", True], ids=str)
@pytest.mark.parametrize("batch_size", [4, 5])
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.slow
def test_lengths_of_texts_one_after_the_other(pooled, batch_size, jit_compile):
    """Of three lengths, the plain graph of the first two has to run the third."""
    ids, exact = np.random.default_rng(0).integers(0, 50, (10, 12)), ON_TENSORFLOW and jit_compile == "auto"

    def make(compile_, **options):
        keras.utils.set_random_seed(0)
        pool = [keras.layers.GlobalAveragePooling1D()] if pooled else []
        layers = [keras.layers.Embedding(50, 8), *pool, keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((None,)), *layers])
        compile_(model, "sgd", "mse", **options)
        return model

    for call in ("predict", "evaluate", "fit"):
        pair = make(keras.Model.compile), make(compile, jit_compile=jit_compile)
        for length in LENGTHS:
            x, y = ids[:, :length], np.ones((10, 1) if pooled else (10, length, 1), "float32")
            data = (x,) if call == "predict" else (x, y)
            outcomes = []
            for model in pair:
                keras.utils.set_random_seed(1)  # both shuffle alike
                outcomes.append(getattr(model, call)(*data, batch_size=batch_size, verbose=0))
            expected, made = (each.history if call == "fit" else each for each in outcomes)
            keras.tree.map_structure(np.testing.assert_array_equal if exact else close, made, expected)


def test_evaluate_with_several_inputs_and_outputs():
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
    same(made, expected)


def test_validation_in_fit_makes_its_tensors_once(models, kept):
    histories = []
    for model in models:
        keras.utils.set_random_seed(1)
        histories.append(model.fit(X, Y, epochs=3, batch_size=16, validation_data=(X[:40], Y[:40]), verbose=0).history)
    expected, made = histories
    same(*({name: history[name] for name in ("val_loss", "val_accuracy")} for history in (made, expected)))
    kept(2)
    way = "graph" if ON_TENSORFLOW else "xla"
    assert model_report(models[1]).to_dict()["test"]["ran"][way]["steps"] > 0


class FromBeginToEnd(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.begun = True

    def on_test_end(self, logs=None):
        self.logs = logs


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


def test_who_looks_at_every_batch_of_evaluate(models):
    seen = []
    for model in models:
        callback = EveryBatch()
        model.evaluate(X, Y, batch_size=16, callbacks=[callback], verbose=0)
        seen.append(callback.seen)
    assert [batch for batch, _ in seen[0]] == [batch for batch, _ in seen[1]] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose([float(x) for _, x in seen[0]], [float(x) for _, x in seen[1]])


def test_wrong_arguments_are_keras_errors(models):
    for model in models:
        with pytest.raises(ValueError, match="not recognized"):
            model.evaluate(X, Y, nonsense=1)
        with pytest.raises(ValueError, match="cardinality"):
            model.evaluate(X, Y[:-1], verbose=0)


class StopsAtOnce(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        self.model.stop_evaluating = True

    def on_predict_begin(self, logs=None):
        self.model.stop_predicting = True


def test_who_stops_before_the_first_batch_gets_that_one(models):
    options = {"batch_size": 16, "verbose": 0, "callbacks": [StopsAtOnce()]}
    expected, made = (model.evaluate(X, Y, **options) for model in models)
    same(made, expected)
    expected, made = (model.predict(X, **options) for model in models)
    assert len(expected) == 16
    same(made, expected)


class TellsMore(keras.Sequential):
    def test_step(self, data):
        odd = {"one": keras.ops.ones((1,)), "two": keras.ops.ones((2,))}
        if ON_TENSORFLOW:
            import tensorflow as tf

            odd |= {"text": tf.constant("text"), "complex": tf.constant(1 + 2j)}
        return super().test_step(data) | odd


@on_tensorflow
def test_logs_of_evaluate_that_are_no_numbers():
    told = []
    for compile_ in (keras.Model.compile, compile):
        model = TellsMore(classifier().layers)
        compile_(model, "sgd", LOSS)
        told.append(model.evaluate(X, Y, verbose=0, return_dict=True))
    assert repr(told[1]) == repr(told[0])
    assert {name: type(x) for name, x in told[1].items()} == {name: type(x) for name, x in told[0].items()}


class WithCallbacks(EveryBatch):
    callbacks = ()


class OwnList(keras.callbacks.CallbackList):
    def on_test_batch_end(self, batch, logs=None):
        self.seen = [*getattr(self, "seen", []), (batch, logs["loss"])]


@pytest.mark.parametrize("kind", [WithCallbacks, OwnList])
def test_a_single_callback_or_a_list_that_looks_at_every_batch(models, kind):
    for model in models:
        callback = kind()
        model.evaluate(X, Y, batch_size=16, callbacks=callback, verbose=0)
        seen = [batch for batch, _ in callback.seen]
        # On JAX Keras calls a callback that is in no list from several threads, in no order.
        assert (seen if ON_TENSORFLOW else sorted(seen)) == [0, 1, 2, 3, 4]


def raised(call):
    with pytest.raises(Exception) as error:
        call()
    return error.type, str(error.value)


@pytest.mark.parametrize("callbacks", [[None], "callback"], ids=repr)
def test_what_is_no_callback_is_the_error_of_keras(models, callbacks):
    for method, data in (("fit", (X, Y)), ("evaluate", (X, Y)), ("predict", (X,))):
        expected, made = (
            raised(lambda: getattr(model, method)(*data, verbose=0, callbacks=callbacks))  # noqa: B023 - called at once
            for model in models
        )
        assert made == expected


@pytest.mark.parametrize("size", [np.int64(16), np.int32(16), 0, True], ids=repr)
def test_sizes_of_batches_that_are_no_int(models, size):
    same(*(model.evaluate(X, Y, batch_size=size, verbose=0) for model in models))
    same(*(model.predict(X, batch_size=size, verbose=0) for model in models))


@on_tensorflow
@pytest.mark.parametrize("size", [-1, 16.0, "16", np.uint8(16)], ids=repr)
def test_sizes_of_batches_that_keras_refuses(models, size):
    for method, data in (("evaluate", (X, Y)), ("predict", (X,))):
        expected, made = (
            raised(lambda: getattr(model, method)(*data, batch_size=size, verbose=0))  # noqa: B023 - called at once
            for model in models
        )
        assert made == expected


@pytest.mark.skipif(not hasattr(keras.config, "set_max_steps_per_epoch"), reason="an older Keras, without such a limit")
def test_validation_ends_after_the_steps_that_keras_is_limited_to(models):
    keras.config.set_max_steps_per_epoch(2)
    try:
        options = {"epochs": 3, "batch_size": 8, "validation_data": (X, Y), "shuffle": False, "verbose": 0}
        expected, made = (model.fit(X, Y, **options).history for model in models)
    finally:
        keras.config.set_max_steps_per_epoch(None)
    same(made, expected)


@pytest.mark.slow
def test_arrays_have_numbers_however_many_came_before(models, monkeypatch):
    monkeypatch.setattr(module, "_OWNERS", itertools.count(MOST_OWNERS + 1))
    expected, made = (model.fit(X, Y, epochs=2, shuffle=False, validation_data=(X, Y), verbose=0) for model in models)
    same(made.history, expected.history)


class Eager(keras.Sequential):
    def train_step(self, data):
        self.eager = ["train", hasattr(data[0], "numpy")]
        return super().train_step(data)

    def predict_step(self, data):
        self.eager = ["predict", hasattr(keras.tree.flatten(data)[0], "numpy")]
        return super().predict_step(data)


@on_tensorflow
def test_functions_that_run_eagerly_from_now_on():
    import tensorflow as tf

    model = compile(Eager(classifier().layers), "sgd", LOSS)
    model.fit(X, Y, verbose=0)
    model.predict(X, verbose=0)
    tf.config.run_functions_eagerly(True)
    try:
        model.fit(X, Y, verbose=0)
        assert model.eager == ["train", True]
        model.predict(X, verbose=0)
        assert model.eager == ["predict", True]
    finally:
        tf.config.run_functions_eagerly(False)
    model.fit(X, Y, verbose=0)
    model.predict(X, verbose=0)
    assert isinstance(model.train_function, StepFunction) and isinstance(model.predict_function, PredictFunction)


class StopsEpoch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.model.stop_training = True


def test_who_stops_as_an_epoch_begins_gets_its_first_batch_only(models):
    for model in models:
        model.fit(X, Y, batch_size=8, epochs=4, shuffle=False, callbacks=[StopsEpoch()], verbose=0)
        assert int(model.optimizer.iterations) == 2 * 9 + 1


@on_tensorflow
def test_ragged_rows_beside_dense_ones_of_other_sizes():
    import tensorflow as tf

    class Matches(keras.Model):
        def __init__(self):
            super().__init__()
            self.embed, self.score = keras.layers.Embedding(50, 4), keras.layers.Dense(1)

        def call(self, x):
            text, question = self.embed(x["text"].to_tensor(shape=[None, 4])), self.embed(x["question"])
            return self.score(tf.reduce_mean(text, 1) + tf.reduce_mean(question, 1))

    def batches():
        for length in (5, 7, 5, 9):
            text = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [length]], dtype=tf.int64)
            yield {"text": text, "question": np.full((4, length), length, "int32")}

    spec = {"text": tf.RaggedTensorSpec((None, None), tf.int64), "question": tf.TensorSpec((None, None), tf.int32)}
    outcomes = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = Matches()
        compile_(model, "sgd", "mse")
        losses = [model.train_on_batch(batch, np.ones((4, 1))) for batch in batches()]
        outcomes.append([losses, model.predict(tf.data.Dataset.from_generator(batches, output_signature=spec))])
    same(*outcomes)
