"""Step functions on TensorFlow: custom steps, what cannot be compiled, and a proof of the log from XLA itself."""

import contextlib
import inspect
import os
import subprocess
import sys
from collections import OrderedDict

import keras
import numpy as np
import pytest

from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy, rare_shapes
from tests.training.helpers import FORCED, LOSS, OPTIONS, SIZE, Log, X, Y, classifier

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow's step functions", allow_module_level=True)
import tensorflow as tf

from keras_xla.backend.tensorflow.runner import runner
from keras_xla.backend.tensorflow.runner.executable import STEPS_AT_ONCE, Executable


class Custom(keras.Model):
    """A model with all three steps of its own."""

    def __init__(self, break_it=lambda loss: loss):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.break_it = break_it

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.break_it(self.compute_loss(y=y, y_pred=self(x)))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"custom_loss": loss}

    def test_step(self, data):
        x, y = data
        return {"custom_loss": self.compute_loss(y=y, y_pred=self(x))}

    def predict_step(self, data):
        return {"logits": self(data[0] if isinstance(data, tuple) else data), "size": tf.shape(data[0])[0]}


@pytest.mark.parametrize("way", ["auto", True])
@pytest.mark.quick("auto")
def test_a_tape_may_record_around_all_methods(way):
    def run(make):
        keras.utils.set_random_seed(0)
        model, x = make(classifier()), tf.Variable(X[:36])
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(36)
        made = []
        for data in ({"x": X, "y": Y, "batch_size": 36}, {"x": batches}):
            with tf.GradientTape(persistent=True) as tape:
                made.append(model.fit(**data, epochs=2, shuffle=False, verbose=0).history["loss"])
                made.append(model.evaluate(**data, verbose=0))
                made.append(model.predict(data["x"], verbose=0))
                made.append(model.train_on_batch(X[:36], Y[:36]))
                one = model.make_predict_function()([(x.read_value(),)])
                other = model(x)
            made += [tape.gradient(one, x), tape.gradient(other, x), tape.gradient(one, model.trainable_variables[0])]
        return made

    def ours(model):
        return compile(model, "sgd", LOSS, jit_compile=way)

    def plain(model):
        model.compile("sgd", LOSS, jit_compile=False)
        return model

    for made, expected in zip(run(ours), run(plain), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def test_custom_steps():
    keras.utils.set_random_seed(0)
    log, model = Log(), compile(Custom(), **FORCED)
    history = model.fit(X, Y, batch_size=36, epochs=3, shuffle=False, verbose=0).history["custom_loss"]
    assert history[-1] < history[0]
    assert model.evaluate(X, Y, batch_size=36, verbose=0, return_dict=True)["custom_loss"] > 0
    outputs = model.predict(X, batch_size=36, verbose=0)
    assert outputs["logits"].shape == (SIZE, 3)
    assert log.kinds() == ["train", "test", "predict"]


def test_a_string_operation_in_a_layer_is_named_before_the_first_step():
    def spell(x):
        return tf.strings.to_number(tf.strings.as_string(x))

    line = inspect.getsourcelines(spell)[1] + 1
    inputs = keras.Input((20,))
    hidden = keras.layers.Lambda(spell, output_shape=(20,), name="spelling")(inputs)
    model = compile(keras.Model(inputs, keras.layers.Dense(3)(hidden)), **FORCED)
    log, before = Log(), model.get_weights()
    with pytest.raises(XLAUnsupportedError, match=r"spelling \(Lambda\): .*AsString") as error:
        model.fit(X, Y, verbose=0)
    assert f"{__file__}:{line}" in str(error.value)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert int(model.optimizer.iterations) == 0
    assert log.new() == []
    with pytest.raises(XLAUnsupportedError, match="AsString"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("where", ["loss", "metric", "train_step"])
def test_losses_metrics_and_custom_steps_are_checked_too(where):
    def python(x):
        return tf.reshape(tf.numpy_function(lambda v: v, [x], tf.float32), ())

    options = dict(OPTIONS)
    if where == "loss":
        options["loss"] = lambda y, p: python(tf.reduce_mean(p)) + tf.reduce_mean(p)
    if where == "metric":
        options["metrics"] = [lambda y, p: python(tf.reduce_mean(p))]
    model = Custom(lambda loss: loss + python(loss)) if where == "train_step" else classifier()
    compile(model, **options, jit_compile=True)
    with pytest.raises(XLAUnsupportedError, match=r"PyFunc.*test_steps_tensorflow\.py:\d+.*keras\.ops"):
        model.fit(X, Y, batch_size=SIZE, verbose=0)
    assert int(model.optimizer.iterations) == 0


@keras.saving.register_keras_serializable("test_steps_tensorflow")
class KnowsItsLength(keras.layers.Layer):
    """Can be traced only where the length of a row is known."""

    def call(self, x):
        if x.shape[1] is None:
            raise TypeError("this layer wants to know how long a row is")
        if x.shape[1] > 12:
            raise ValueError("this row is too long")
        return x[:, :3] * x.shape[1]

    def compute_output_shape(self, shape):
        return (shape[0], 3)


@pytest.mark.parametrize("way", ["auto", True])
def test_a_batch_that_cannot_be_traced_says_nothing_of_others(way):
    model = keras.Sequential([keras.Input((None,)), KnowsItsLength()])
    compile(model, "sgd", "mse", jit_compile=way)
    rows = {length: np.ones((8, length), "float32") for length in (10, 12, 14)}
    targets = np.ones((8, 3), "float32")
    for _ in range(2):
        with pytest.raises(ValueError, match="too long"):
            model.predict(rows[14], verbose=0)
        with pytest.raises(ValueError, match="too long"):
            model.evaluate(rows[14], targets, verbose=0)
    np.testing.assert_array_equal(model.predict(rows[10], verbose=0), 10 * targets)
    assert model.evaluate(rows[10], targets, verbose=0) == 81
    with pytest.raises(TypeError, match="how long a row is"):  # as in plain Keras, for which the length is open by now
        model.predict(rows[12], verbose=0)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_loop_of_the_users_own_ends_with_the_error_of_plain_keras(steps):
    data, ends = tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE // 4), []
    for ours in (False, True):
        model = classifier()
        given = dict(**OPTIONS, steps_per_execution=steps)
        compile(model, **given) if ours else model.compile(**given, jit_compile=False)
        for kind in ("train", "test"):
            getattr(model, f"make_{kind}_function")()
            step, iterator = getattr(model, f"{kind}_function"), iter(data)
            for _ in range(4 // steps):
                step(iterator)
            with pytest.raises((StopIteration, tf.errors.OutOfRangeError)) as error:
                step(iterator)
            ends.append(error.type)
    assert ends[:2] == ends[2:] == 2 * [tf.errors.OutOfRangeError if steps == 1 else StopIteration]


class StopsItself(keras.Sequential):
    """Its step tells Keras to stop, from the graph."""

    def train_step(self, data):
        logs = super().train_step(data)
        self._tell("stop_training", self.optimizer.iterations)
        return logs

    def test_step(self, data):
        logs = super().test_step(data)
        self._tell("stop_evaluating", self.seen.assign_add(1))
        return logs

    def predict_step(self, data):
        outputs = super().predict_step(data)
        self._tell("stop_predicting", self.seen.assign_add(1))
        return outputs

    def _tell(self, name, count):
        tf.py_function(lambda n: setattr(self, name, bool(n >= 5)), [count], [])


@pytest.mark.parametrize("data", ["arrays", "dataset"])
def test_a_step_that_tells_keras_to_stop_is_the_last_one(data):
    x, made = np.tile(X, (6, 1)), []
    y = np.tile(Y, 6)
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = StopsItself([keras.Input((20,)), keras.layers.Dense(3)])
        model.seen = tf.Variable(0, trainable=False)
        compile(model, **OPTIONS) if ours else model.compile(**OPTIONS, jit_compile=False)
        given = (x, y) if data == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)).batch(4),)
        size = dict(batch_size=4) if data == "arrays" else {}
        model.fit(*given, **size, shuffle=False, verbose=0)
        counts = [int(model.optimizer.iterations)]
        for method in (model.evaluate, model.predict):
            model.seen.assign(0)
            method(*(given[:1] if method == model.predict else given), **size, verbose=0)
            counts.append(int(model.seen))
        made.append(counts)
    assert made[1] == made[0] and made[0][:2] == [5, 5]


def test_data_that_tell_keras_to_stop_are_not_read_further():
    made = []
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)])
        compile(model, **OPTIONS) if ours else model.compile(**OPTIONS, jit_compile=False)

        def batches(model=model):
            for batch in range(100):
                model.stop_training = batch >= 40
                yield X[:4], Y[:4]

        spec = (tf.TensorSpec((4, 20)), tf.TensorSpec((4,), tf.int32))
        model.fit(tf.data.Dataset.from_generator(batches, output_signature=spec), verbose=0)
        made.append(int(model.optimizer.iterations))
    assert all(20 <= steps <= 43 for steps in made)  # TensorFlow itself reads batches ahead: more on a busy machine


def test_ragged_batches_without_end_are_forgotten(monkeypatch):
    """Each has another number of values, so that each has an answer of its own."""
    monkeypatch.setattr(runner, "MOST_ANSWERS", 20)
    monkeypatch.setattr(rare_shapes, "MOST_COUNTED", 30)
    model = compile(keras.Sequential([keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1))]), "sgd", "mse")
    for values in range(1, 60):
        x = tf.RaggedTensor.from_row_lengths(tf.ones((values,)), [values - 1, 1])
        assert model.test_on_batch(x, np.zeros(2, np.float32)) == pytest.approx(((values - 1) ** 2 + 1) / 2)
    made = model.test_function.runner
    assert len(made._chosen) <= 20 and len(made._policy._rare_shapes._runs) <= 30


def test_batches_of_strings_are_refused():
    model = keras.Sequential([keras.layers.Lambda(lambda x: tf.ones((tf.shape(x)[0], 3)))])
    compile(model, **FORCED)
    with pytest.raises(XLAUnsupportedError, match="string input"):
        model.predict(tf.constant(["a", "b"]), verbose=0)


def test_datasets_of_several_shapes():
    batches = [(X[:8], Y[:8]), (X[:8], Y[:8]), (X[:4], Y[:4])]
    spec = (tf.TensorSpec((None, None), tf.float32), tf.TensorSpec((None,), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    model = keras.Sequential([keras.layers.Lambda(lambda x: tf.reduce_sum(x, -1, keepdims=True) * tf.ones((1, 3)))])
    model.add(keras.layers.Activation("linear"))
    log = Log()
    compile(model, **FORCED).evaluate(data, verbose=0)
    assert [event.shapes for event in log.new()] == [
        "x: (8, 20) float32, y: (8,) int32",
        "x: (4, 20) float32, y: (4,) int32",
    ]


def test_each_trace_of_such_batches_gets_an_answer_of_its_own(monkeypatch):
    """That of data which divide evenly, of which there were too few, is asked about again once XLA was worth it."""
    answers = iter(["graph"])
    monkeypatch.setattr(policy.Policy, "_auto", lambda self, question: (next(answers, "xla"), "wanted", {}))
    model, log = compile(classifier(), "sgd", LOSS), Log()
    made = []
    for rows in (64, 70, 64, 70):
        model.fit(X[:rows], Y[:rows], batch_size=16, epochs=2, verbose=0)
        made.append(sum(event.shapes.startswith("x: (16,") for event in log.new()))
    assert made == [0, 1, 1, 0]


@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.parametrize("number", [np.int64, tf.constant], ids=["numpy", "tensor"])
def test_numbers_of_steps_need_not_be_python_s(number, jit_compile):
    """As `np.ceil(...).astype(int)` and `dataset.cardinality()` are not; many steps run in one call."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
    made = []
    for compile_, how in ((compile, {"jit_compile": jit_compile}), (keras.Model.compile, {})):
        keras.utils.set_random_seed(0)
        model = classifier()
        compile_(model, "sgd", LOSS, **how)
        steps = dict(steps_per_epoch=number(37), validation_steps=number(11))
        losses = model.fit(data, validation_data=data, epochs=3, verbose=0, **steps).history
        made.append([*losses["loss"], *losses["val_loss"], model.evaluate(data, steps=number(23), verbose=0)])
    np.testing.assert_allclose(*made, rtol=1e-5)


def test_checks_that_would_say_something_are_left_out_by_xla():
    """The loss of `[B, T, classes]` checks shapes that it does not know yet, and random numbers are drawn in front."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(9, 4), keras.layers.Dropout(0.5), keras.layers.Dense(9)]
    model = compile(keras.Sequential([keras.Input((5,), dtype="int32"), *layers]), **FORCED)
    ids = np.arange(60, dtype="int32").reshape(12, 5) % 9
    log = Log()
    model.fit(tf.data.Dataset.from_tensor_slices((ids, ids)).batch(4), verbose=0)
    assert log.kinds() == ["train"]


def test_a_distribution_strategy_keeps_keras_own_function():
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = compile(classifier(), **FORCED)
    log = Log()
    model.fit(X, Y, batch_size=SIZE, epochs=2, verbose=0)
    assert log.kinds() == ["train"]


PROOF = """
import glob, os, sys
import keras
from keras_xla.backend.compile_log import compile_log
from keras_xla.training.compile import compile
from tests.training.helpers import FORCED, OPTIONS, X, Y, classifier
for steps in (1, 2):
    model = compile(classifier(), **FORCED, steps_per_execution=steps)
    for _ in range(2):
        model.fit(X, Y, batch_size=32, epochs=2, verbose=0)
        model.evaluate(X, Y, batch_size=16, verbose=0)
        model.predict(X, batch_size=32, verbose=0)
        model.train_on_batch(X[:32], Y[:32])
    dumped = glob.glob(os.path.join(sys.argv[1], "*one_step*before_optimizations.txt"))
    print("RESULT", len(dumped), len(compile_log()))
"""


@pytest.mark.slow
def test_xla_itself_says_how_often_it_compiled(tmp_path):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": root}
    command = [sys.executable, "-c", PROOF, str(tmp_path)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = [tuple(map(int, line.split()[1:])) for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert counts == [(4, 4), (8, 8)]  # modules that XLA dumped, events in the log


def two_inputs():
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    return keras.Model({"a": a, "b": b}, keras.layers.Subtract()([a, b]))


A = np.arange(40, dtype="float32").reshape(40, 1) / 40
MAPPINGS = {
    "dict": {"a": A + 5, "b": A},
    "ab": OrderedDict(a=A + 5, b=A),
    "ba": OrderedDict(b=A, a=A + 5),
}


@pytest.mark.parametrize("order", [("dict", "ba", "dict"), ("ab", "ba"), ("ba", "dict"), ("ba", "ab", "dict")])
def test_mappings_with_the_same_keys_are_one_kind_of_batch(order):
    """`tf.function` takes them for one, whatever their class and order: Keras goes on as with the first."""
    y, shown = np.full((40, 1), 5.0, "float32"), []
    for made in (keras.Model.compile, compile):
        model, log = two_inputs(), Log()
        made(model, "sgd", "mse")
        for name in order:
            x = MAPPINGS[name]
            logs = model.fit(x, y, verbose=0, shuffle=False).history["loss"]
            shown.append((name, logs, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)[:, 0].tolist()))
    assert shown[: len(order)] == shown[len(order) :] and log.new() == []


class Draws(keras.layers.Layer):
    """Adds random numbers that it draws somehow to some work."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.seed = draw, keras.random.SeedGenerator(7)
        self.dense = [keras.layers.Dense(4, "gelu") for _ in range(2)]

    def build(self, shape):
        for layer in self.dense:
            layer.build(shape)

    def call(self, x):
        for layer in self.dense:
            x = x + 0.01 * layer(x)
        return x + keras.ops.cast(self.draw(x, self.seed), "float32")


def categorical(x, seed):
    return keras.random.categorical(keras.ops.zeros((32, 4)), 4, seed=seed)


def categorical_of_outputs(x, seed):
    return keras.random.categorical(x @ keras.ops.ones((4, 4)), 4, seed=seed)


def in_a_function(x, seed):
    return tf.function(lambda: keras.random.normal((32, 4), seed=seed))()


def in_a_loop(x, seed):
    return keras.ops.fori_loop(0, 3, lambda i, y: y + keras.random.uniform((32, 4), seed=seed), 0 * x)


@pytest.mark.parametrize(
    ("draw", "way"),
    [(categorical, None), (categorical_of_outputs, None), (in_a_function, "graph"), (in_a_loop, "graph")],
)
def test_what_a_model_draws_does_not_depend_on_the_way_that_was_faster(draw, way, monkeypatch):
    monkeypatch.setattr("keras_xla.training.decide.policy.MARGIN", 1e6)  # whatever was measured
    monkeypatch.setattr("keras_xla.training.decide.policy.estimated_cost", lambda facts, graph: 0.0)
    x, y, shown = np.ones((32, 4), "float32"), np.ones((32, 1), "float32"), []
    for made in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), Draws(draw), keras.layers.Dense(1)])
        made(model, keras.optimizers.SGD(1e-4), "mse")
        shown.append(model.fit(x, y, epochs=4, verbose=0).history["loss"])
    np.testing.assert_allclose(*shown, rtol=1e-4)
    (decision,) = [each for each in attachment_of(model).journal.decisions if each.kind == "train"]
    if way == "graph":
        assert decision.way == "graph" and "XLA would draw other random numbers: Stateless" in decision.reason
    else:
        assert decision.way in ("xla", "partial")


def by_seeds_of_a_seed(x, seed):
    seeds = tf.random.experimental.stateless_split(keras.ops.cast(seed.next(), "int32"))
    return tf.random.stateless_normal((32, 4), seeds[1])


def shuffled(x, seed):
    return tf.random.shuffle(tf.reshape(tf.range(128.0), (32, 4)), seed=3)


def chosen(x, seed):
    return tf.random.categorical(keras.ops.zeros((32, 4)), 4, seed=3)


@pytest.mark.parametrize("draw", [categorical, by_seeds_of_a_seed, shuffled, chosen])
def test_xla_draws_what_the_plain_graph_draws(draw):
    """Each of them has a kernel in XLA, which draws other numbers."""
    x, y, shown = np.random.default_rng(0).normal(size=(32, 4)), np.ones((32, 1), "float32"), []
    for made in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), Draws(draw), keras.layers.Dense(1)])
        made(model, keras.optimizers.SGD(1e-6), "mse", jit_compile=made is compile)
        shown.append(model.fit(x, y, epochs=4, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*shown, rtol=1e-4)
    assert len(set(shown[0])) == 4  # each epoch draws anew


class Counts(keras.layers.Layer):
    """Adds how often it was called so far."""

    def build(self, _):
        self.calls = self.add_weight((), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x + self.calls


class Refuses(keras.layers.Layer):
    """Fails for rows with values from 100 on, and names the highest."""

    def call(self, x):
        highest = tf.reduce_max(x)
        with tf.control_dependencies([tf.debugging.Assert(highest < 100.0, ["too high:", highest])]):
            return tf.identity(x)


def predicting(*layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(X.shape[1:]), *layers, keras.layers.Dense(3)])
    compile(model, **OPTIONS)
    return model


def steps_at_once(model):
    """How many steps the loops of `predict` run at once."""
    return {
        at_once for executable in model.predict_function.runner._made.values() for _, at_once in executable._row_loops
    }


@pytest.mark.parametrize("way", ["graph", "xla"])
def test_steps_of_predict_run_at_once_where_none_sees_another(way, monkeypatch):
    monkeypatch.setattr(policy.Policy, "_auto", lambda self, new_shapes: (way, "", {}))
    for layers, at_once in ([], {STEPS_AT_ONCE}), ([Counts()], {1}), ([keras.layers.Dropout(0.5)], {STEPS_AT_ONCE}):
        model = predicting(*layers)
        made = model.predict(X[:-1], batch_size=4, verbose=0)  # an odd number of full batches, and a smaller one
        assert steps_at_once(model) == at_once
        plain = keras.models.clone_model(model)
        plain.set_weights(model.get_weights())
        for layer in plain.layers:
            if isinstance(layer, Counts):
                layer.calls.assign(0.0)
        plain.compile(**OPTIONS)
        np.testing.assert_allclose(made, plain.predict(X[:-1], batch_size=4, verbose=0), rtol=1e-5, atol=1e-6)


def test_of_two_bad_batches_that_run_at_once_the_first_is_the_error(monkeypatch):
    monkeypatch.setattr(policy.Policy, "_auto", lambda self, new_shapes: ("graph", "", {}))
    model = predicting(Refuses())
    x = X.copy()
    for batch in range(4, len(x) // 4):
        x[4 * batch] = 100.0 + batch
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"too high:.*104"):
        model.predict(x, batch_size=4, verbose=0)
    assert steps_at_once(model) == {STEPS_AT_ONCE, 1}


def test_without_memory_for_several_steps_at_once_they_run_one_by_one(monkeypatch):
    tried, rows = [], Executable._rows

    def scarce(self, *arguments):
        tried.append(arguments[-1])
        if arguments[-1] > 1:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return rows(self, *arguments)

    model = predicting()
    expected = model.predict(X, batch_size=4, verbose=0)
    monkeypatch.setattr(Executable, "_rows", scarce)
    for _ in range(2):
        np.testing.assert_array_equal(model.predict(X, batch_size=4, verbose=0), expected)
    assert tried[:2] == [STEPS_AT_ONCE, 1] and set(tried[2:]) == {1}


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_batches_of_any_number_of_rows_share_a_trace(kind):
    def rows(count):
        x = tf.ragged.constant([[1.0, 2.0, 3.0]] * count)
        return x if kind == "ragged" else x.to_sparse()

    model = keras.Sequential([keras.layers.Lambda(lambda x: tf.reshape(x.values, (-1, 3)))])
    compile(model, "sgd", "mse")
    for count in range(1, 12):
        np.testing.assert_array_equal(model.predict_on_batch(rows(count)), [[1.0, 2.0, 3.0]] * count)
    assert model.predict_function.runner._traces.made <= 2


def test_a_validation_takes_the_batches_that_a_pydataset_had_as_it_began():
    class Grows(keras.utils.PyDataset):
        batches = 10

        def __len__(self):
            return self.batches

        def __getitem__(self, index):
            return np.full((4, 20), index, "float32"), np.zeros(4, "int32")

        def on_epoch_end(self):
            self.batches += 1

    made = []
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)])
        compile(model, **OPTIONS) if ours else model.compile(**OPTIONS, jit_compile=False)
        made.append(model.fit(X, Y, validation_data=Grows(workers=1), epochs=3, verbose=0).history["val_loss"])
    np.testing.assert_allclose(made[1], made[0], rtol=1e-5)


class Scaled(keras.layers.Layer):
    """It reads numbers of Python's."""

    rate, first = 1.0, 0

    def call(self, x):
        return x[:, self.first : self.first + 4] * self.rate


def scaled_model():
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), Scaled(name="scaled"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((20,)), *layers])


@pytest.mark.parametrize("first, second", [(64, 70), (70, 64)])
@pytest.mark.parametrize("change", ["trainable", "rate", "first", "activation"])
@pytest.mark.quick("trainable-64-70", "rate-70-64", "first-64-70")
def test_data_with_another_number_of_rows_are_traced_anew_as_in_plain_keras(change, first, second):
    """What has changed since the first trace counts from then on, in full batches as in the smaller last one."""

    def weights(compile_, jit_compile):
        keras.utils.set_random_seed(0)
        model = scaled_model()
        compile_(model, keras.optimizers.SGD(0.1), LOSS, jit_compile=jit_compile)
        model.fit(X[:first], Y[:first], batch_size=16, shuffle=False, verbose=0)
        if change == "trainable":
            model.layers[0].trainable = False
        elif change == "activation":
            model.layers[0].activation = keras.activations.tanh
        else:
            setattr(model.get_layer("scaled"), change, {"rate": 0.5, "first": 4}[change])
        model.fit(X[:second], Y[:second], batch_size=16, shuffle=False, verbose=0)
        return model.get_weights()

    for made, expected in zip(weights(compile, True), weights(keras.Model.compile, False), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


class Recurrent(keras.Model):
    def __init__(self):
        super().__init__()
        self.rnn, self.out, self.scale = keras.layers.LSTM(4), keras.layers.Dense(3), 1.0

    def call(self, x):
        return self.out(self.rnn(x)) * self.scale


@pytest.mark.slow
def test_a_step_with_loops_keeps_the_values_of_python_that_it_was_traced_with(monkeypatch):
    """XLA has it traced again. What it would be then is not what plain Keras runs: so the plain graph runs."""
    x = np.random.default_rng(0).normal(size=(48, 5, 4)).astype("float32")

    def weights(compile_, change, jit_compile):
        keras.utils.set_random_seed(0)
        model = Recurrent()
        compile_(model, keras.optimizers.SGD(0.5), LOSS, jit_compile=jit_compile)
        spec = tf.TensorSpec((8, None, 4), tf.float32), tf.TensorSpec((8,), tf.int32)
        for length in (5, 3, 4):  # each is compiled, of one trace
            batches = [(x[i : i + 8, :length], Y[i : i + 8]) for i in range(0, 48, 8)]
            data = tf.data.Dataset.from_generator(lambda batches=batches: iter(batches), output_signature=spec)
            model.fit(data, verbose=0)
            model.scale = change
        return model.get_weights()

    for change in (1.0, 0.0):
        log = Log()
        with contextlib.nullcontext() if change else pytest.warns(UserWarning, match="run without XLA: the step reads"):
            made = weights(compile, change, True)
        assert len(log.kinds()) == (3 if change else 1)
        for one, other in zip(made, weights(keras.Model.compile, change, False), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_step_with_loops_that_takes_filled_batches_has_no_plain_graph_of_before():
    model = keras.Sequential(
        [keras.Input((None, 4)), keras.layers.LSTM(4), keras.layers.LeakyReLU(0.1), keras.layers.Dense(3)]
    )
    compile(model, **FORCED)
    x = np.random.default_rng(0).normal(size=(16, 5, 4)).astype("float32")
    spec = tf.TensorSpec((None, None, 4), tf.float32), tf.TensorSpec((None,), tf.int32)

    def data(length):
        return tf.data.Dataset.from_generator(lambda: iter([(x[:, :length], Y[:16])]), output_signature=spec)

    model.fit(data(5), verbose=0)
    model.layers[1].negative_slope = 0.5
    with pytest.raises(XLAUnsupportedError, match="the step reads other values of Python than when it was traced"):
        model.fit(data(3), verbose=0)
