"""`predict` on a `tf.data` dataset: what plain Keras returns, raises and calls, many batches at a time."""

import concurrent.futures

import keras
import numpy as np
import pytest

from keras_xla.training.compile import compile
from keras_xla.training.reports.model_report import model_report
from keras_xla.training.steps import in_order
from keras_xla.training.steps.in_order import next_count
from keras_xla.training.steps.run_ahead import AHEAD_SECONDS
from tests.training.helpers import LOSS, X, classifier

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX Keras' own functions run, and they read the dataset", allow_module_level=True)

import tensorflow as tf

from keras_xla.backend.tensorflow.runner.executable import Executable
from keras_xla.backend.tensorflow.runner.trace import Trace

LONG = np.random.default_rng(1).normal(size=(500, 20)).astype("float32")  # 62 batches of 8 and one of 4


@pytest.fixture
def groups(monkeypatch):
    """How many batches each loop in a graph was asked for, and ran."""
    seen, feed = [], Executable.feed

    def noted(self, source, iterator, count, pending, joined=False):
        outputs, ran, pending = feed(self, source, iterator, count, pending, joined)
        if count > 1:
            seen.append((count, ran))
        return outputs, ran, pending

    monkeypatch.setattr(Executable, "feed", noted)
    return seen


def both(make, *optimizer):
    """The same model, plain and ours."""
    made = []
    for compile_ in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = make()
        compile_(model, *optimizer)
        made.append(model)
    return made


def dataset(x=LONG, size=8):
    return tf.data.Dataset.from_tensor_slices(x).batch(size)


def assert_same(models, data, **options):
    expected, made = (model.predict(data, verbose=0, **options) for model in models)
    keras.tree.map_structure(np.testing.assert_array_equal, made, expected)
    assert keras.tree.map_structure(type, made) == keras.tree.map_structure(type, expected)
    return made


def test_how_many_batches_a_group_has():
    outputs, most = {"a": np.zeros((64, 10)), "b": None}, in_order.GROUP_BATCHES
    assert next_count(4, 1e-9, outputs) == most
    assert next_count(4, 1e9, outputs) == 1
    assert 1 < next_count(1, AHEAD_SECONDS / 5, outputs) < most
    assert next_count(4, 1e-9, {"a": np.zeros((4, in_order.LARGE_OUTPUTS + 1)), "b": None}) == 1


def test_most_batches_run_without_coming_back_to_python(groups):
    models = both(classifier, "sgd", LOSS)
    assert_same(models, dataset())
    assert sum(ran for _, ran in groups) >= 50 and len(groups) < 10
    ran = model_report(models[1]).to_dict()["predict"]["ran"]["graph"]["steps"]
    assert 61 <= ran <= 63  # those that were traced for are not counted


def test_large_outputs_are_not_copied_in_the_graph(groups, monkeypatch):
    monkeypatch.setattr(in_order, "LARGE_OUTPUTS", 8 * 3 - 1)  # numbers that a batch gives
    models = both(classifier, "sgd", LOSS)
    assert_same(models, dataset())
    assert not groups
    monkeypatch.setattr(in_order, "LARGE_OUTPUTS", 8 * 3)
    assert_same(models, dataset())
    assert max(count for count, _ in groups) > 1


def test_datasets_one_after_the_other(groups):
    models = both(classifier, "sgd", LOSS)
    for size in (8, 16, 8):
        assert_same(models, dataset(size=size))
        assert_same(models, dataset(size=size).map(lambda x: (x, 0)).prefetch(2))
    assert_same(models, LONG, batch_size=8)
    assert_same(models, dataset(size=500))
    assert groups


def test_batches_whose_size_the_dataset_knows(groups):
    models = both(classifier, "sgd", LOSS)
    known = tf.data.Dataset.from_tensor_slices(LONG).batch(8, drop_remainder=True)
    assert assert_same(models, known).shape == (496, 3) and groups
    other = tf.data.Dataset.from_tensor_slices(LONG).batch(16, drop_remainder=True)
    assert_same(models, other)


@pytest.mark.parametrize(
    "data",
    [
        lambda: dataset().filter(lambda x: True),
        lambda: tf.data.Dataset.from_generator(
            lambda: iter(np.split(LONG, 50)), output_signature=tf.TensorSpec((None, 20))
        ),
        lambda: tf.data.Dataset.from_generator(lambda: iter(np.split(LONG, 50)), output_signature=tf.TensorSpec(None)),
    ],
    ids=["filter", "generator", "unknown rank"],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_unknown_length(data, capsys):
    models = both(classifier, "sgd", LOSS)
    for model in models:
        model.predict(dataset(X[:8]), verbose=0)
    assert assert_same(models, data()).shape == (500, 3)
    shown = []
    for model in models:
        model.predict(data(), verbose=2)
        shown.append(capsys.readouterr().out.split()[0])
    assert shown[0] == shown[1] != ""


@pytest.mark.parametrize("verbose", [1, 2])
def test_the_progress_bar_ends_with_the_number_of_batches(verbose, capsys):
    for model in both(classifier, "sgd", LOSS):
        model.predict(dataset(), verbose=verbose)
        assert "63/63" in capsys.readouterr().out
        model.predict(dataset().repeat(), steps=20, verbose=verbose)
        assert "20/20" in capsys.readouterr().out


def test_steps(groups):
    models = both(classifier, "sgd", LOSS)
    for steps in (1, 12, 30):
        assert assert_same(models, dataset().repeat(), steps=steps).shape == (8 * steps, 3)
    assert assert_same(models, dataset(), steps=40).shape == (320, 3)
    assert groups and not models[1].stop_predicting


def test_numbers_of_steps_may_be_numpy_s(groups):
    models = both(classifier, "sgd", LOSS)
    for steps in (np.int64(30), tf.constant(30, tf.int64)):
        assert assert_same(models, dataset().repeat(), steps=steps).shape == (240, 3)
    assert groups


class StopsAtOnce(keras.callbacks.Callback):
    """Behind the first batch, which it is not told of."""

    def on_predict_begin(self, logs=None):
        self.model.stop_predicting = True


@pytest.mark.parametrize(
    "options",
    [{}, {"steps": 63}, {"steps": 40}, {"steps": 70}, {"callbacks": [StopsAtOnce()]}],
    ids=["all", "exactly", "fewer", "more", "stopped"],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_dataset_that_shuffles_goes_on_to_the_order_that_it_would_have(options):
    """With each iterator that is made of it; Keras makes two for a call."""
    orders = []
    for model in both(classifier, "sgd", LOSS):
        numbers = tf.data.Dataset.range(500).shuffle(500, seed=1)
        data = numbers.map(lambda i: tf.gather(LONG, i)).batch(500 if "callbacks" in options else 8)
        for _ in range(2):
            model.predict(data, verbose=0, **options)
        orders.append([int(i) for i in numbers])
    assert orders[0] == orders[1]


def test_more_steps_than_there_are_is_keras_warning():
    for model in both(classifier, "sgd", LOSS):
        with pytest.warns(UserWarning, match="ran out of data"):
            assert model.predict(dataset(), steps=70, verbose=0).shape == (500, 3)
        with pytest.warns(UserWarning, match="ran out of data"):  # more than any memory has room for
            assert model.predict(dataset().filter(lambda x: True), steps=10**18, verbose=0).shape == (500, 3)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("known", [True, False])
def test_no_batch_at_all_is_keras_error(known):
    empty, raised = dataset().take(0) if known else dataset().filter(lambda x: False), []
    for model in both(classifier, "sgd", LOSS):
        callback = Begun()
        with pytest.raises(Exception) as error:
            model.predict(empty, callbacks=[callback], verbose=0)
        raised.append((error.type, str(error.value), callback.told))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("steps", [-1, 2.5, "3", [3]])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_strange_numbers_of_steps_do_what_keras_does(steps):
    done = []
    for model in both(classifier, "sgd", LOSS):
        callback = Begun()
        callback.told = []
        try:
            done.append(len(model.predict(dataset(), steps=steps, callbacks=[callback], verbose=0)))
        except Exception as error:
            done.append((type(error), str(error), callback.told))
    assert done[0] == done[1]


def test_an_error_of_the_dataset_is_raised():
    def checked(i):
        with tf.control_dependencies([tf.debugging.assert_less(i, tf.constant(300, tf.int64), "row 300 is bad")]):
            return tf.gather(tf.constant(LONG), i)

    data = tf.data.Dataset.range(500).map(checked).batch(8)
    for model in both(classifier, "sgd", LOSS):
        with pytest.raises(tf.errors.InvalidArgumentError, match="row 300 is bad"):
            model.predict(data, verbose=0)
        assert model.predict(data.take(30), verbose=0).shape == (240, 3)


def many_outputs():
    a, b = keras.Input((20,), name="a"), keras.Input((20,), name="b")
    hidden = keras.layers.Dense(4, "relu")(a + b)
    c, d = keras.layers.Dense(3)(hidden), keras.layers.Dense(1)(hidden)
    return keras.Model({"a": a, "b": b}, {"c": c, "more": [d, (c, hidden)]})


def test_nested_inputs_and_outputs(groups):
    made = assert_same(both(many_outputs), dataset({"a": LONG, "b": LONG[::-1], "not used": LONG[:, 0]}))
    assert made["more"][0].shape == (500, 1) and groups


def of_any_length():
    x = keras.Input((None, 20))
    return keras.Model(x, [keras.layers.Dense(3)(x), keras.layers.GlobalMaxPooling1D()(x)])


def lengths(runs):
    """Batches of some lengths, so many of each, one length after the other."""
    rows = [np.repeat(LONG[:4, None], n, axis=1) for n, times in runs for _ in range(times)]
    return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec((None, None, 20))).apply(
        tf.data.experimental.assert_cardinality(len(rows))
    )


def test_several_shapes(groups):
    models = both(of_any_length)
    expected, made = (
        model.predict(lengths([(5, 30), (7, 30), (5, 1), (7, 1), (5, 20)]), verbose=0) for model in models
    )
    assert isinstance(made[0], tf.RaggedTensor) and isinstance(expected[0], tf.RaggedTensor)
    assert made[0].shape == expected[0].shape
    np.testing.assert_allclose(made[0].to_tensor(), expected[0].to_tensor(), rtol=1e-6)
    np.testing.assert_array_equal(made[1], expected[1])
    assert not groups  # outputs of many lengths cannot be joined in a graph


class Scalar(keras.layers.Layer):
    def call(self, x):
        return keras.ops.sum(x)


class Gram(keras.layers.Layer):
    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(x))


class Growing(keras.layers.Layer):
    def call(self, x):
        return tf.boolean_mask(x, x[:, 0] > 0)


class Ragged(keras.layers.Layer):
    def call(self, x):
        return tf.RaggedTensor.from_tensor(x, padding=0.0)


@pytest.mark.parametrize("kind", [Scalar, Gram, Growing, Ragged])
def test_outputs_that_are_not_one_row_each(kind):
    models = both(lambda: keras.Sequential([kind()]))
    expected, made = (model.predict(dataset(), verbose=0) for model in models)
    assert type(made) is type(expected) and made.shape == expected.shape
    if isinstance(expected, tf.RaggedTensor):
        made, expected = made.to_list(), expected.to_list()
        assert [len(row) for row in made] == [len(row) for row in expected]
        made, expected = (np.concatenate(x) for x in (made, expected))
    np.testing.assert_array_equal(made, expected)


def test_strings():
    words = [f"w{i % 7}" for i in range(200)]
    lookup = keras.layers.StringLookup(vocabulary=[f"w{i}" for i in range(5)])

    def make():
        return keras.Sequential([keras.Input((), dtype="string"), lookup, keras.layers.Embedding(6, 4)])

    assert_same(both(make), dataset(words))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_ragged_and_sparse_batches_go_one_by_one(groups):
    class Sums(keras.layers.Layer):
        def call(self, x):
            return tf.reduce_sum(x, axis=1)

    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0] * (i % 5) for i in range(200)])).batch(8)
    assert_same(both(lambda: keras.Sequential([Sums()])), ragged)
    assert not groups


class OfItsBatch(keras.layers.Layer):
    """Whose code looks at how many rows there are, which plain Keras' trace of `predict` knows."""

    def call(self, x):
        return x if x.shape[0] is None else x - keras.ops.mean(x, 0, keepdims=True)


def test_steps_are_traced_by_the_tensors_of_their_batches(groups):
    models = both(lambda: keras.Sequential([keras.Input((20,)), OfItsBatch(), keras.layers.Dense(3)]))
    mixed = dataset(LONG[:80]).concatenate(dataset(LONG[:20], 4)).concatenate(dataset(LONG[:40]))
    for data in (dataset(), LONG[:72], mixed, dataset(size=16), mixed, LONG[:70]):
        assert_same(models, data)
    assert sum(ran for _, ran in groups) > 60


@pytest.mark.parametrize(
    "other",
    [lambda x: {"b": x}, lambda x: {"a": x, "b": x}, lambda x: {"a": keras.ops.cast(x, "float16")}],
    ids=["key", "keys", "dtype"],
)
def test_batches_whose_outputs_are_of_other_kinds_raise_as_in_plain_keras(other):
    class Picks(keras.Model):
        def call(self, x):
            return other(x) if x.shape[0] == 8 else {"a": x}  # the last batch is smaller

    errors = []
    for model in both(Picks):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as caught:
            model.predict(dataset(), verbose=0)
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


def test_a_layer_may_know_the_size_of_its_batch_only():
    class Flat(keras.layers.Layer):
        def call(self, x):
            return x if x.shape[0] is None else tf.reshape(x, (x.shape[0] * 20 // 10, 10))

    def make():
        return keras.Sequential([keras.Input((20,)), Flat()])

    assert_same(both(make), dataset(LONG[:80]))


def test_random_numbers_continue_their_sequence():
    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(3)

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seed)

    assert_same(both(lambda: keras.Sequential([Noise()])), dataset())


class Begun(keras.callbacks.Callback):
    def on_predict_begin(self, logs=None):
        self.told = [self.params["steps"]]

    def on_predict_end(self, logs=None):
        self.told.append("end")


class Stopping(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_predict_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["outputs"].shape))
        self.model.stop_predicting = batch == 20


def test_callbacks(groups):
    told = []
    for model in both(classifier, "sgd", LOSS):
        callback = Begun()
        model.predict(dataset(), callbacks=[callback], verbose=0)
        told.append(callback.told)
    assert told[0] == told[1] == [63, "end"] and groups


def test_who_looks_at_every_batch_sees_every_batch_and_may_stop(groups):
    seen = []
    for model in both(classifier, "sgd", LOSS):
        callback = Stopping()
        assert model.predict(dataset(), callbacks=[callback], verbose=0).shape == (168, 3)
        seen.append(callback.seen)
        assert model.stop_predicting
    assert seen[0] == seen[1] and not groups


def test_in_xla(groups, monkeypatch):
    monkeypatch.setattr("keras_xla.training.decide.policy.Policy._auto", lambda self, question: ("xla", "wanted", {}))
    plain, ours = both(classifier, "sgd", LOSS)
    expected, made = (model.predict(dataset(), verbose=0) for model in (plain, ours))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert sum(ran for _, ran in groups) >= 50
    assert "xla" in model_report(ours).to_dict()["predict"]["ran"]


class Nested(keras.callbacks.Callback):
    """Predicts something else before and after."""

    def __init__(self):
        super().__init__()
        self.made = []

    def on_predict_begin(self, logs=None):
        self.made.append(self.model.predict(dataset(LONG[:200]), verbose=0))

    def on_predict_end(self, logs=None):
        self.made.append(self.model.predict(dataset(LONG[:100]).repeat(), steps=30, verbose=0))


@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_calls_within_a_call(groups, capsys):
    made = []
    for model in both(classifier, "sgd", LOSS):
        callback = Nested()
        made.append([model.predict(dataset(), callbacks=[callback], verbose=2), *callback.made])
        assert "63/63" in capsys.readouterr().out
    keras.tree.map_structure(np.testing.assert_array_equal, *made)
    assert [len(x) for x in made[0]] == [500, 200, 232] and groups


@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_several_threads(groups):
    model = both(classifier, "sgd", LOSS)[1]
    expected = model.predict(LONG, batch_size=8, verbose=0)
    given = [dataset(), LONG, dataset().repeat(3), dataset(), X]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        made = list(pool.map(lambda x: model.predict(x, verbose=0), given))
    for outputs in (made[0], made[1], made[2][:500], made[2][1000:], made[3]):
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    assert made[2].shape == (1500, 3) and made[4].shape == (72, 3) and groups


@pytest.mark.parametrize("steps", [None, 5])
def test_with_steps_per_execution_every_batch_counts(steps):
    dataset = tf.data.Dataset.from_tensor_slices(LONG).batch(8)
    dataset = dataset if steps is None else dataset.repeat()
    model = classifier()
    model.compile("sgd", LOSS, steps_per_execution=4)
    expected = model.predict(dataset, steps=steps, verbose=0)
    compile(model, "sgd", LOSS, steps_per_execution=4)
    for _ in range(2):
        np.testing.assert_allclose(model.predict(dataset, steps=steps, verbose=0), expected, rtol=1e-4, atol=1e-5)


class Rows(keras.Model):
    """Needs to know how many rows there are."""

    def call(self, x):
        return tf.stack(tf.unstack(x)[::-1])


def test_a_model_that_needs_to_know_its_batch_size(groups, monkeypatch):
    plain, ours = both(Rows, "sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices(LONG[:64]).batch(8)
    for _ in range(2):
        np.testing.assert_array_equal(ours.predict(data, verbose=0), plain.predict(data, verbose=0))
    assert groups
    made, trace = [], Trace.__init__
    monkeypatch.setattr(Trace, "__init__", lambda self, *given: made.append(given) or trace(self, *given))
    ours.predict(tf.data.Dataset.from_tensor_slices(LONG[:64]).batch(8), verbose=0)
    ours.predict(tf.data.Dataset.from_tensor_slices(LONG[:64]).batch(8, drop_remainder=True), verbose=0)
    assert made == []
    for model in (plain, ours):  # whose last batch is smaller
        with pytest.raises(ValueError, match="Cannot infer argument"):
            model.predict(tf.data.Dataset.from_tensor_slices(LONG[:20]).batch(8), verbose=0)


def test_a_model_that_is_built_by_its_first_batch():
    """By open sizes it cannot be built."""
    plain, ours = both(lambda: keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)]), "sgd", "mse")
    lines = tf.constant([",".join(map(str, row)) for row in range(16) for row in [[row, 0.5, 1.0]]])

    def numbers(line):
        return tf.strings.to_number(tf.strings.split(line, ","))

    data = tf.data.Dataset.from_tensor_slices(lines).map(numbers).batch(8)
    assert data.element_spec.shape.as_list() == [None, None]
    plain.predict(data, verbose=0)
    ours.predict(data, verbose=0)
    ours.set_weights(plain.get_weights())
    np.testing.assert_allclose(ours.predict(data, verbose=0), plain.predict(data, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("stops", [False, True])
def test_the_end_of_the_loop_is_no_stop_to_the_callbacks(stops):
    class Ends(keras.callbacks.Callback):
        def on_predict_end(self, logs=None):
            flags.append(self.model.stop_predicting)
            self.model.stop_predicting = stops

    flags = []
    for model in both(classifier, "sgd", LOSS):
        model.predict(tf.data.Dataset.from_tensor_slices(LONG).batch(8), callbacks=[Ends()], verbose=0)
        flags.append(model.stop_predicting)
    assert flags == [False, stops] * 2


def test_the_warning_comes_from_where_keras_warns():
    places = []
    for model in both(classifier, "sgd", LOSS):
        with pytest.warns(UserWarning, match="ran out of data") as caught:
            model.predict(dataset().filter(lambda x: True), verbose=0)
            model.predict(dataset(), steps=70, verbose=0)
        places.append({(each.filename, str(each.message)) for each in caught if "ran out" in str(each.message)})
    assert places[0] == places[1]


@pytest.mark.parametrize("method", ["predict", "evaluate"])
@pytest.mark.parametrize("data", ["arrays", "dataset"])
def test_an_error_has_one_traceback_as_in_keras(method, data):
    class Raises(keras.callbacks.Callback):
        def on_predict_end(self, logs=None):
            raise ValueError("mine") from KeyError("inner")

        on_test_end = on_predict_end

    given = (X[:16], np.zeros(16)) if method == "evaluate" else (X[:16],)
    given = given if data == "arrays" else (tf.data.Dataset.from_tensor_slices(given).batch(8),)
    seen = []
    for model in both(classifier, "sgd", LOSS):
        with pytest.raises(ValueError, match="mine") as caught:
            getattr(model, method)(*given, callbacks=[Raises()], verbose=0)
        seen.append((caught.value.__cause__, caught.value.__suppress_context__))
    assert seen[0] == seen[1] == (None, True)
