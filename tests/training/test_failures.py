"""XLA that fails to compile a step, although it has a kernel for every operation: no batch is lost by it."""

import keras
import numpy as np
import pytest

from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from keras_xla.training.decide.policy import Policy
from tests.training.helpers import FORCED, LOSS, OPTIONS, Log, X, Y

if keras.backend.backend() != "tensorflow":
    pytest.skip("what jax can trace, XLA can compile", allow_module_level=True)
import tensorflow as tf

from keras_xla.backend.new_shapes import WayFailed
from keras_xla.backend.tensorflow.runner.executable import failure


def count_of(x):
    """A number that only the values of a batch tell."""
    return 5 + tf.cast(tf.abs(x[0, 0]) * 3, tf.int32)


def reshape(x, scale):
    rows = count_of(x) * 0 + 1
    return tf.reshape(tf.reshape(x * scale, [rows, -1]), [-1, 20])


def counted(x, scale):
    """How large the counts are is left to XLA, which cannot know."""
    options = dict(weights=tf.constant([], tf.float32), binary_output=False)
    return x * scale + 1e-3 * tf.reduce_sum(tf.raw_ops.DenseBincount(input=[0, 1], size=count_of(x), **options))


def range_(x, scale):
    return x * scale + 1e-3 * tf.reduce_sum(tf.cast(tf.range(count_of(x)), tf.float32))


def sequence_mask(x, scale):
    lengths = tf.cast(tf.abs(x[:, 0]) * 5, tf.int32)
    return x * scale + 1e-3 * tf.reduce_sum(tf.cast(tf.sequence_mask(lengths), tf.float32))


def segments(x, scale):
    ids = tf.cast(tf.abs(x[:, 0]) * 3, tf.int32)
    return x * scale + 1e-3 * tf.reduce_sum(tf.math.unsorted_segment_sum(x, ids, tf.reduce_max(ids) + 1))


def loop(x, scale):
    return tf.while_loop(lambda i, x: i < count_of(x), lambda i, x: (i + 1, x * scale * 0.99), (0, x))[1]


def growing_loop(x, scale):
    shapes = tf.TensorShape([]), tf.TensorShape([None, 20])
    grow = lambda i, rows: (i + 1, tf.concat([rows, x[:1] * scale], 0))  # noqa: E731
    rows = tf.while_loop(lambda i, _: i < 3, grow, (0, tf.zeros((1, 20))), shape_invariants=shapes)[1]
    return x * scale + 1e-3 * tf.reduce_sum(rows)


FIVE = tf.data.experimental.assert_cardinality(5)  # without it Keras counts a step too many in each epoch
FAILING = [counted, reshape, range_, sequence_mask, segments, loop, growing_loop]


class Tricky(keras.layers.Layer):
    """Calls a function of a batch and a weight."""

    def __init__(self, function):
        super().__init__(name="tricky")
        self.function = function

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return tf.ensure_shape(self.function(x, self.scale), (None, 20))


def net(function, dropout=0.0):
    keras.utils.set_random_seed(0)
    inner = keras.Sequential([keras.Input((20,)), Tricky(function), keras.layers.Dropout(dropout)], name="inner")
    layers = [keras.layers.Dense(20), inner, keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((20,)), *layers], name="net")


def plain(model, **options):
    model.compile("adam", LOSS, metrics=["accuracy"], **options)
    return model


def auto(model, **options):
    return compile(model, "adam", LOSS, metrics=["accuracy"], **options)


def data(pulled=None):
    """72 rows in batches of 16, as a dataset that counts the batches taken from it."""

    def batches():
        for start in range(0, len(X), 16):
            if pulled is not None:
                pulled.append(start)
            yield X[start : start + 16], Y[start : start + 16]

    spec = (tf.TensorSpec((None, 20), tf.float32), tf.TensorSpec((None,), tf.int32))
    return tf.data.Dataset.from_generator(batches, output_signature=spec).apply(FIVE)


def state(model):
    """Everything that a step changes."""
    return [np.array(v.value) for v in (*model.variables, *model.optimizer.variables, *model.metrics_variables)]


def assert_equal(made, expected):
    for a, b in zip(keras.tree.flatten(made), keras.tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def everything(model):
    history = model.fit(X, Y, batch_size=16, epochs=2, validation_data=(X, Y), verbose=0).history
    answers = model.evaluate(X, Y, batch_size=16, verbose=0), model.predict(X, batch_size=16, verbose=0)
    return [*history.values(), *answers, *state(model)]


@pytest.fixture
def tried(monkeypatch):
    """Trials take place, and XLA wins them where it works."""
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    monkeypatch.setattr(policy, "MARGIN", float("inf"))


@pytest.fixture
def remembered(monkeypatch):
    """An earlier run has measured that XLA is the faster way."""
    monkeypatch.setattr(Policy, "_auto", lambda self, new_shapes: ("xla", "measured in an earlier run", {}))


@pytest.mark.parametrize("function", FAILING)
@pytest.mark.quick("counted", "loop")
def test_auto_trains_on_as_plain_keras_does(tried, function):
    def run(make):
        model = make(net(function))
        return model, [model.fit(X, Y, batch_size=16, epochs=2, verbose=0).history, state(model)]

    log = Log()
    (model, made), (_, expected) = run(auto), run(plain)
    assert_equal(made, expected)
    first = attachment_of(model).journal.decisions[0]
    assert first.way == "graph" and "xla failed: " in first.reason and "/tricky_1/" in first.reason
    assert log.new() == []


def test_auto_evaluates_and_predicts_too(tried):
    assert_equal(everything(auto(net(counted, dropout=0.3))), everything(plain(net(counted, dropout=0.3))))


@pytest.mark.parametrize(("function", "dropout"), [*((f, 0.0) for f in FAILING), (counted, 0.3), (loop, 0.3)])
@pytest.mark.quick("counted", "loop")
def test_true_names_the_layer_before_anything_has_changed(function, dropout):
    model = compile(net(function, dropout), **FORCED)
    model.optimizer.build(model.trainable_variables)
    before = state(model)
    with pytest.raises(XLAUnsupportedError) as error:
        model.fit(X, Y, batch_size=16, verbose=0)
    assert str(error.value).startswith("XLA failed in the layer 'tricky' (Tricky) on the train step of 'net'")
    assert 'Fix: compile with jit_compile="auto", which falls back to the plain graph' in str(error.value)
    assert_equal(state(model), before)


def test_evaluate_and_predict_name_it_too():
    model = compile(net(counted), **FORCED)
    for kind, call in (("test", lambda: model.evaluate(X, Y, verbose=0)), ("predict", lambda: model.predict(X))):
        with pytest.raises(XLAUnsupportedError, match=rf"in the layer 'tricky' \(Tricky\) on the {kind} step"):
            call()


def test_a_loss_is_in_no_layer():
    def loss(y, p):
        return tf.reduce_mean(p**2) + tf.reduce_sum(counted(p, 0.0))

    model = compile(net(lambda x, scale: x * scale), "sgd", loss, jit_compile=True)
    with pytest.raises(XLAUnsupportedError, match=r"XLA failed on the train step of 'net'.*\n?.*DenseBincount"):
        model.fit(X, Y, batch_size=16, verbose=0)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("source", ["arrays", "dataset"])
def test_what_was_not_tried_falls_back_and_loses_no_batch(remembered, source, steps):
    def run(make):
        pulled = []
        model = make(net(counted, dropout=0.3), steps_per_execution=steps)
        given = {"x": X, "y": Y, "batch_size": 16} if source == "arrays" else {"x": data(pulled)}
        return model, [model.fit(**given, epochs=3, verbose=0).history, state(model), pulled]

    (model, made), (_, expected) = run(auto), run(plain)
    assert_equal(made, expected)
    _, failed, *_ = attachment_of(model).journal.decisions
    assert failed.way == "graph"
    assert failed.reason.startswith("XLA failed in the layer 'tricky' (Tricky): Input 1 to node")


def test_batches_by_hand(remembered):
    def run(make):
        model = make(net(counted))
        return [model.train_on_batch(X[:rows], Y[:rows]) for rows in (16, 16, 8)], state(model)

    assert_equal(run(auto), run(plain))


def eight_rows(x, scale):
    """Fails for batches of 8 rows, which the loop lets XLA know while it traces."""
    x = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x * scale), (0, x), maximum_iterations=2)[1]
    return counted(x, 1.0) - counted(x, 1.0) + x if x.shape[0] == 8 else x


@pytest.mark.parametrize("steps", [1, 3])
def test_true_stops_at_a_later_batch_with_all_that_went_before_done(steps):
    model = compile(net(eight_rows), **FORCED, steps_per_execution=steps)
    with pytest.raises(XLAUnsupportedError, match=r"in the layer 'tricky' \(Tricky\).*nothing of that step has run"):
        model.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
    expected = net(eight_rows)
    expected.compile(**OPTIONS)
    expected.fit(X[:64], Y[:64], batch_size=16, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 4
    for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("source", ["arrays", "dataset"])
@pytest.mark.slow
def test_auto_with_shapes_that_fail_later(tried, source):
    def run(make):
        model = make(net(eight_rows))
        losses = []
        for size in (16, 8, 16):
            x, y = X[:64], Y[:64]
            pairs = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
            given = {"x": pairs} if source == "dataset" else {"x": x, "y": y, "batch_size": size, "shuffle": False}
            losses += model.fit(**given, epochs=2, verbose=0).history["loss"]
        return model, losses

    (model, made), (_, expected) = run(auto), run(plain)
    np.testing.assert_allclose(made, expected, rtol=2e-4, atol=1e-5)
    assert int(model.optimizer.iterations) == 2 * (4 + 8 + 4)
    decisions = {decision.way: decision for decision in attachment_of(model).journal.decisions if decision.measured}
    assert "(16, 20)" in decisions["xla"].shapes
    assert "(8, 20)" in decisions["graph"].shapes and "/tricky_1/" in decisions["graph"].reason


@pytest.mark.parametrize("make", [plain, auto, lambda model, **options: auto(model, jit_compile=True, **options)])
def test_data_that_fail_are_no_failure_of_xla(remembered, make):
    def checked(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(tf.abs(x), 100.0, "a broken row")]):
            return tf.identity(x), y

    x = X.copy()
    x[40] = 1e3  # in the third batch
    batches = tf.data.Dataset.from_tensor_slices((x, Y)).batch(16).map(checked)
    model = make(net(lambda x, scale: x * scale), steps_per_execution=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a broken row"):
        model.fit(batches, verbose=0)
    assert int(model.optimizer.iterations) == 2


def wide(way):
    """A model whose steps take milliseconds; for "partial" with a convolution, which runs plainly then."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    tower = [layers.Reshape((20, 1)), layers.Conv1D(4, 3, activation="relu"), layers.Flatten()]
    middle = tower if way == "partial" else [layers.Dense(64, "relu")]
    rest = [layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(3)]
    return keras.Sequential([keras.Input((20,)), *middle, *rest])


@pytest.mark.parametrize("way", ["graph", "xla", "partial"])
def test_a_step_has_ended_before_data_are_asked_for_that_fail(way, monkeypatch):
    monkeypatch.setattr(Policy, "_auto", lambda self, new_shapes: (way, "wanted", {}))
    spec = (tf.TensorSpec((None, 20), tf.float32), tf.TensorSpec((None,), tf.int32))
    weights = []
    for compile_ in (keras.Model.compile, compile):
        model = wide(way)
        compile_(model, keras.optimizers.SGD(0.05), LOSS)

        def batches():
            for first in range(40):
                yield X[first : first + 16], Y[first : first + 16]
            raise RuntimeError("a broken file")

        with pytest.raises(tf.errors.UnknownError, match="a broken file"):
            model.fit(tf.data.Dataset.from_generator(batches, output_signature=spec), verbose=0)
        weights.append(model.get_weights())
    for made, expected in zip(weights[1], weights[0], strict=True):
        np.testing.assert_allclose(made, expected, rtol=0, atol=0 if way == "graph" else 1e-5)


def where(x, scale):
    rows = tf.where(x[:, 0] > 0)[:, 0]
    return x * scale + 0.1 * tf.reduce_sum(tf.gather(x, rows), 0)


def unique(x, scale):
    values, places = tf.unique(tf.cast(x[:, 0] * 3, tf.int32))
    return x * scale + 0.1 * tf.cast(tf.gather(values, places), tf.float32)[:, None]


def boolean_mask(x, scale):
    return x * scale + tf.reduce_mean(tf.boolean_mask(x * scale, x[:, 0] > 0), 0)


@pytest.mark.parametrize("function", [where, unique, boolean_mask])
@pytest.mark.quick("boolean_mask")
def test_shapes_that_depend_on_values_are_not_compiled(function, tried):
    """XLA does some of it rightly, and counts what is no part of the result in other places."""
    with pytest.raises(XLAUnsupportedError, match="whose shape depends on values"):
        everything(auto(net(function), jit_compile=True))
    for made, expected in zip(everything(auto(net(function))), everything(plain(net(function))), strict=True):
        np.testing.assert_allclose(made, expected, rtol=2e-4, atol=1e-5)


def cut(x, scale):
    """XLA would take 20 entries for those that a weight leaves."""
    few = x[:, : tf.cast(scale * 5.9, tf.int32)]
    return x * scale + 0.1 * few[:, -1:] + 0.1 * tf.reduce_sum(tf.ones_like(few), 1, keepdims=True)


def cut_by_the_batch(x, scale):
    """XLA would compile for each number."""
    return x * scale + tf.reduce_mean(x[:, : tf.reduce_max(tf.cast(x * 4, tf.int32))] * scale, 1, keepdims=True)


@pytest.mark.parametrize("function", [cut, cut_by_the_batch])
def test_sizes_that_depend_on_values_are_not_compiled(function, tried):
    with pytest.raises(XLAUnsupportedError, match="is no tensor of a shape that is known"):
        everything(auto(net(function), jit_compile=True))
    log = Log()
    for made, expected in zip(everything(auto(net(function))), everything(plain(net(function))), strict=True):
        np.testing.assert_allclose(made, expected, rtol=2e-4, atol=1e-5)
    assert not log.new()


STEEP = {
    "norm": lambda x: x / tf.maximum(tf.norm(x, axis=-1, keepdims=True), 1e-6),
    "chosen root": lambda x: tf.where(x > 0, tf.sqrt(tf.maximum(x, 0)), 0),
    "inverse root": lambda x: tf.minimum(tf.math.rsqrt(tf.square(x)), 3.0),
    "inverse": lambda x: tf.minimum(tf.math.reciprocal(tf.abs(x)), 3.0),
    "selu": tf.nn.selu,
}


@pytest.mark.parametrize("switch", ["auto", True])
@pytest.mark.parametrize("name", STEEP)
@pytest.mark.quick("norm-True", "inverse root-auto", "selu-auto")
def test_gradients_at_zero_are_those_of_plain_keras(name, switch, tried):
    """XLA multiplies 0 by infinity where TensorFlow's kernels leave 0; of selu it takes the other slope."""
    x = X.copy()
    x[::3] = 0

    def run(make, **options):
        model = make(net(lambda x, scale: STEEP[name](x * scale)), **options)
        return model.fit(x, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]

    np.testing.assert_allclose(run(auto, jit_compile=switch), run(plain), rtol=2e-4)


@pytest.mark.parametrize(
    ("message", "node"),
    [
        ('Detected at node net_1/a/Range defined at (most recent call last):\n  File "x.py"\nno\n', "net_1/a/Range"),
        ("Input 1 to node `b/Reshape` with op Reshape must be a compile-time constant.", "b/Reshape"),
        ("fixed size [[{{node c/while}}]]\n\t [[StatefulPartitionedCall]]", "c/while"),
        ("Out of memory while trying to allocate 8 bytes.", ""),
    ],
)
def test_the_operation_in_an_error(message, node):
    error = failure(tf.errors.InvalidArgumentError(None, None, message))
    assert isinstance(error, WayFailed) and error.node == node
    assert node in str(error) and "Detected" not in str(error)


def test_xla_without_enough_memory_falls_back(remembered, monkeypatch):
    from keras_xla.backend.tensorflow.runner import executable as tensorflow_executable

    made = tensorflow_executable.make

    def short_of_memory(trace, way, shapes, calls):
        def step(batch):
            raise tf.errors.ResourceExhaustedError(None, None, "Out of memory while trying to allocate 8 bytes.")

        return made(trace, way, shapes) if way == "graph" else step

    monkeypatch.setattr(tensorflow_executable, "make", short_of_memory)
    model = auto(net(where))
    assert_equal(everything(model), everything(plain(net(where))))
    assert attachment_of(model).journal.decisions[1].reason.startswith("XLA failed: Out of memory")
