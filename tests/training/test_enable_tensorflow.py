"""While keras_xla is enabled, what a script decorates with tf.function runs through XLA where that is faster."""

import collections
import functools
import inspect
import re
import types

import keras
import numpy as np
import pytest

from keras_xla.training.decide import functions as function_policy
from keras_xla.training.decide import policy
from keras_xla.training.decide.decisions import THIS_RUN, Decisions, Times, decisions
from keras_xla.training.enable import disable, enable, seen
from tests.training.helpers import Log

if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.function is TensorFlow's", allow_module_level=True)
import tensorflow as tf

PLAIN = tf.function
X = tf.constant(np.random.default_rng(0).normal(size=(8, 4)).astype("float32"))
GENERATOR = tf.random.Generator.from_seed(1)
DROPOUT = keras.layers.Dropout(0.5, seed=1)


@pytest.fixture(autouse=True)
def enabled(monkeypatch, empty_memory):
    """Enabled, with decisions after three calls, and in favour of XLA."""
    quickly = {"CALLS_BEFORE_A_LOOK": 2, "SECONDS_BEFORE_A_LOOK": 0, "estimated_compile": lambda facts: 0}
    for name, value in quickly.items():
        monkeypatch.setattr(function_policy, name, value)
    monkeypatch.setattr(policy, "MARGIN", float("inf"))
    enable()
    yield
    disable()


def record():
    """Of the function that was called last for the first time."""
    return seen()[1][-1]


def ways() -> dict[str, int]:
    """How many timed calls ran in which way."""
    return {way: tally.steps for (_, way), tally in record().journal.tallies.items()}


def reason() -> str:
    (decision,) = record().journal.decisions
    return f"{decision.way}: {decision.reason}"


def flat(structure) -> list:
    return [x for x in tf.nest.flatten(structure, expand_composites=True) if x is not None]


def call_often(function, *args, times=12, **kwargs):
    return [function(*args, **kwargs) for _ in range(times)]


def test_a_function_is_measured_in_both_ways_and_then_runs_in_the_faster_one():
    log, total = Log(), tf.Variable(0.0)

    @tf.function
    def add(x):
        total.assign_add(tf.reduce_sum(x))
        return total + 0.0

    sums = np.float32(call_often(add, X, times=20))
    np.testing.assert_allclose(sums, np.cumsum([np.sum(X)] * 20), rtol=1e-4)  # every call counted once
    assert ways() == {"graph": 2 + 3, "xla": 20 - 1 - 1 - 5}  # the first traced, one compiled
    assert reason() == "xla: measured"
    assert set(record().journal.decisions[0].measured) == {"graph", "xla"}
    (event,) = log.new()
    assert (event.kind, event.shapes, event.cause) == ("function", "x: (8, 4) float32", "first call")
    assert event.name.endswith("add")


def test_the_plain_graph_stays_where_xla_is_not_faster(monkeypatch):
    monkeypatch.setattr(policy, "MARGIN", 0.0)
    square = tf.function(lambda x: x * x)
    call_often(square, X, times=20)
    assert reason() == "graph: measured: XLA is not faster"
    assert ways() == {"graph": 5, "xla": 3}  # the others are not even timed


def test_what_was_measured_before_is_looked_up_once(monkeypatch):
    get, looked_up = Decisions.get, []
    monkeypatch.setattr(function_policy, "estimated_compile", lambda facts: float("inf"))  # it waits for ever
    monkeypatch.setattr(Decisions, "get", lambda self, key: looked_up.append(key) or get(self, key))
    call_often(tf.function(lambda x: x * x), X, times=30)
    assert len(looked_up) == 1


@pytest.mark.parametrize(
    ("xla", "run", "expected", "compilations"),
    [
        (0.1, "earlier", "xla: measured in an earlier run", 1),
        (2.0, "earlier", "graph: measured in an earlier run: XLA is not faster", 0),
        (0.1, THIS_RUN, "xla: measured before in this run", 1),
    ],
    ids=["XLA is faster", "XLA is slower", "measured in this run"],
)
def test_the_next_run_knows_what_this_one_measured(monkeypatch, xla, run, expected, compilations):
    call_often(tf.function(lambda x: x * x), X)
    (known,) = decisions().all()
    decisions().put(known.key, Times(1.0, "xla", xla, 3.0, run=run), known.name, known.chosen)
    monkeypatch.setattr(policy, "MARGIN", 0.97)
    log = Log()
    call_often(tf.function(lambda x: x * x), X)
    assert reason() == expected
    assert len(log.new()) == compilations


def test_nothing_is_measured_while_op_determinism_is_on():
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    try:
        call_often(tf.function(lambda x: x * x), X)
    finally:
        disable_op_determinism()
    assert reason().startswith("graph: TensorFlow's op determinism is on")


def test_functions_that_are_not_called_often_or_not_for_long_are_left_alone(monkeypatch):
    monkeypatch.undo()
    enable()
    log, quick = Log(), tf.function(lambda x: x + 1)
    call_often(quick, X, times=50)
    assert not log.new() and not record().journal.decisions
    assert ways() == {"graph": 49}


def test_the_python_function_is_traced_as_often_as_without():
    traces = []

    @tf.function
    def double(x):
        traces.append(x.shape)
        return x * 2

    call_often(double, X)
    call_often(double, X[:3])
    assert len(traces) == double.experimental_get_tracing_count() == 2


def test_a_training_step_gives_the_same_numbers_with_dropout_and_an_optimizer_made_at_its_first_call():
    def train(function):
        keras.utils.set_random_seed(0)
        layers = keras.layers
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "gelu"), layers.Dropout(0.5), layers.Dense(1)])
        optimizer, mean = keras.optimizers.Adam(0.1), keras.metrics.Mean()

        @function
        def step(x, y, training=True):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.losses.mean_squared_error(y, model(x, training=training)))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            mean.update_state(loss)

        for i in range(20):
            assert step(X + i / 20, y=tf.reduce_sum(X, axis=1, keepdims=True)) is None
        return float(mean.result())

    ours = train(tf.function)
    assert reason() == "xla: measured" and ways()["xla"] > 10
    assert ours == pytest.approx(train(PLAIN), rel=1e-4)


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("body", "args", "kwargs"),
    [
        (lambda x: {"b": x + 1, "a": (x, None, [x * 2])}, (X,), {}),
        (lambda x: Pair(x, tf.shape(x)), (X,), {}),
        (lambda x, factor=2.0: x * factor, (X,), {}),
        (lambda x, factor=2.0: x * factor, (), {"factor": 3.0, "x": X.numpy()}),
        (lambda batch, *rest, flag: batch["x"] + rest[0] if flag else rest[1], ({"x": X}, X, X), {"flag": True}),
        (lambda ragged: ragged.with_values(ragged.values * 2), (tf.ragged.constant([[1.0], [2.0, 3.0]]),), {}),
        (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x), (X,), {}),
    ],
    ids=["nested", "namedtuple", "default", "numpy", "literals", "ragged", "cond"],
)
def test_arguments_and_results_of_any_structure(body, args, kwargs):
    expected = PLAIN(body)(*args, **kwargs)
    result = call_often(tf.function(body), *args, **kwargs)[-1]
    assert reason() == "xla: measured"
    tf.nest.assert_same_structure(result, expected, expand_composites=True)
    assert type(result) is type(expected)
    for got, wanted in zip(flat(result), flat(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_it_is_a_tf_function_in_every_other_respect(tmp_path):
    class Scaler(tf.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = tf.Variable(factor)

        @tf.function(input_signature=[tf.TensorSpec([None, 4])])
        def scale(self, x):
            """Scales."""
            return x * self.factor

    two, three = Scaler(2.0), Scaler(3.0)
    for scaler in (two, three):
        call_often(scaler.scale, X)
        np.testing.assert_allclose(scaler.scale(X), X * scaler.factor)
        decisions().clear()
        assert reason() == "xla: measured" and record().name.endswith("Scaler.scale")
    assert isinstance(two.scale, (tf.types.experimental.PolymorphicFunction, type(PLAIN(lambda: 0))))
    assert (Scaler.scale.__name__, Scaler.scale.__doc__) == ("scale", "Scales.")
    assert two.scale.get_concrete_function().structured_outputs.shape == (None, 4)
    tf.saved_model.save(two, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(loaded.scale(X), X * 2)


def test_tf_function_itself_looks_the_same():
    assert inspect.signature(tf.function) == inspect.signature(PLAIN)
    assert tf.function.__doc__ == PLAIN.__doc__


def test_inner_functions_are_part_of_the_outermost():
    @tf.function
    def inner(x):
        if tf.reduce_sum(x) > 1e9:  # autograph's business
            x = -x
        return x + 1

    @tf.function
    def outer(x):
        return inner(x) * tf.function(lambda y: y * 2)(x)

    before = len(seen()[1])
    np.testing.assert_allclose(call_often(outer, X)[-1], (X + 1) * X * 2, rtol=1e-6)
    assert reason() == "xla: measured"
    assert len(seen()[1]) == before + 1
    assert len(list(tf.data.Dataset.from_tensors(X).repeat(20).map(inner))) == 20
    assert len(seen()[1]) == before + 1


def test_other_shapes_are_measured_on_their_own_and_eight_compilations_are_enough():
    log, double = Log(), tf.function(lambda x: x * 2, reduce_retracing=True)
    for rows in range(1, 13):
        x = tf.ones((rows, 4))
        assert all(np.all(y.numpy() == 2) and y.shape == (rows, 4) for y in call_often(double, x))
    assert len(log.new()) == 8
    reasons = [decision.reason for decision in record().journal.decisions]
    assert reasons == ["measured"] * 8 + ["8 compilations for other arguments are enough"] * 4


def test_other_shapes_that_are_slower_do_not_stop_those_that_are_faster(monkeypatch):
    double = tf.function(lambda x: x * 2)
    call_often(double, X)
    monkeypatch.setattr(policy, "MARGIN", 0.0)
    call_often(double, X[:2])
    assert [decision.way for decision in record().journal.decisions] == ["xla", "graph"]
    before = ways()["xla"]
    call_often(double, X)
    call_often(double, X[:2])
    assert ways()["xla"] == before + 12


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda x: tf.nn.conv2d(x[None, :, :, None], tf.ones((2, 2, 1, 1)), 1, "SAME"), "convolutions, which XLA is"),
        (lambda x: tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * x), (0, x)), "1 loops, which XLA is"),
        (lambda x: tf.strings.as_string(x), r"XLA cannot compile AsString \(.*test_enable_tensorflow.py:\d+\)"),
        (lambda x: tf.py_function(lambda y: y, [x], tf.float32), "XLA cannot compile .*PyFunc"),
        (lambda x: [tf.debugging.assert_less(tf.matmul(x, x, transpose_b=True), 1e9), x][1], "checks values"),
        (lambda x: tf.debugging.check_numerics(tf.matmul(x, x, transpose_b=True), "bad"), "checks values"),
        (lambda x: tf.TensorArray(tf.float32, 1).write(0, x).stack(), "lists of tensors"),
        (lambda x: tf.TensorArray(tf.float32, 0, dynamic_size=True).write(0, x).stack(), "for a list that grows"),
        (lambda x: GENERATOR.normal([3]), "Generator"),
        (lambda x: tf.function(lambda y: DROPOUT(y, training=True))(x) + 1, "XLA would draw other random numbers"),
    ],
    ids=[
        "convolution",
        "loop",
        "strings",
        "python",
        "assert",
        "numerics",
        "lists",
        "growing lists",
        "generator",
        "draws",
    ],
)
def test_what_xla_must_not_run_runs_plainly_with_a_reason(body, why):
    log = Log()
    call_often(tf.function(body), X)
    decision = record().journal.decisions[0]
    assert decision.way == "graph"
    assert re.search(why, decision.reason), decision.reason
    assert not log.new()


@pytest.mark.parametrize("check", ["ids", "assertion"])
def test_arguments_that_plain_tensorflow_refuses_are_refused_through_xla_too(check):
    def looked_up(x, ids):
        if check == "assertion":
            tf.debugging.assert_less(ids, 8, name="known")
            return tf.matmul(x, x, transpose_b=True)
        return tf.matmul(tf.gather(x, ids), x, transpose_b=True)

    function = tf.function(looked_up)
    ids = tf.range(8)
    call_often(lambda x: function(x, ids), X)
    assert record().journal.decisions[0].way == "xla"
    before = ways()["xla"]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function(X, ids + 1)
    with pytest.raises(tf.errors.InvalidArgumentError) as expected:
        PLAIN(looked_up)(X, ids + 1)
    named = "known" if check == "assertion" else "is not in [0, 8)"
    assert named in caught.value.message and named in expected.value.message
    function(X, ids)
    assert ways()["xla"] == before + 1


def test_seeded_random_numbers_go_on_where_they_were():
    def drawn(function):
        tf.random.set_seed(7)
        return call_often(function(lambda: tf.random.normal([2])))

    np.testing.assert_array_equal(drawn(tf.function), drawn(PLAIN))
    assert reason() == "graph: it draws seeded random numbers (tf.random.set_seed), which would begin again"


def test_variables_and_datasets_as_arguments_run_plainly():
    v = tf.Variable(1.0)
    assert float(call_often(tf.function(lambda v: v.assign_add(1.0)), v)[-1]) == 13
    assert "not only tensors" in reason()
    call_often(tf.function(lambda data: data.reduce(0, lambda n, _: n + 1)), tf.data.Dataset.range(3))
    assert "XLA cannot compile" in reason()


def counted(x, room):
    """The sum of `x`, by way of so many counts, how many XLA has to know."""
    places = tf.range(tf.shape(x)[0])
    return tf.reduce_sum(tf.raw_ops.DenseBincount(input=places, size=room + 64, weights=x, binary_output=False))


def test_sizes_that_arguments_say_are_not_compiled():
    zeros = tf.function(lambda n: tf.zeros([n, n]) + 1)
    assert [len(call_often(zeros, tf.constant(n))[-1]) for n in range(4, 8)] == [4, 5, 6, 7]
    assert "is no tensor of a shape that is known" in reason()


def test_what_fails_under_xla_runs_plainly_and_is_not_tried_again():
    counter = tf.Variable(0)

    @tf.function
    def count(x, rows):
        counter.assign_add(1)
        return x + counted(x[0], rows + tf.cast(tf.reduce_sum(tf.matmul(x, x, transpose_b=True)) * 0, tf.int32))

    log = Log()
    assert np.allclose(call_often(count, X, tf.constant(9))[-1], X + tf.reduce_sum(X[0]), atol=1e-6)
    assert int(counter) == 12  # no call was lost or counted twice
    assert reason().startswith("graph: xla failed: ") and "must be a compile-time constant" in reason()
    call_often(tf.function(count.python_function), X, tf.constant(9))
    assert reason().startswith("graph: xla failed: ")
    assert not log.new()


def test_what_fails_under_xla_behind_a_part_that_runs_plainly_changes_nothing_twice():
    counter = tf.Variable(0)

    @tf.function
    def drawn(x, rows):
        counter.assign_add(1)
        noise = tf.random.stateless_normal([8, 4], tf.stack([7, counter]))
        return x + noise + counted(x[0], rows + tf.cast(tf.reduce_sum(tf.matmul(x, x, transpose_b=True)) * 0, tf.int32))

    plain = tf.random.stateless_normal([8, 4], (7, 12)) + X + tf.reduce_sum(X[0])
    assert np.allclose(call_often(drawn, X, tf.constant(9))[-1], plain, atol=1e-6)
    assert int(counter) == 12 and reason().startswith("graph: xla failed: ")


def test_values_that_become_shapes_are_seen_by_the_time_they_take(monkeypatch):
    three = tf.function(lambda n: counted(tf.ones(3), n))
    call_often(three, tf.constant(4))
    assert reason() == "xla: measured"
    monkeypatch.setattr(function_policy, "SECONDS_TO_COMPILE", 0.005)  # it compiles in no time
    assert [float(three(tf.constant(n))) for n in range(5, 25)] == [3.0] * 20
    assert record().journal.decisions[-1].reason == "it compiled again and again, for arguments of the same shapes"


def test_an_error_of_the_script_stays_its_error():
    wrong = tf.function(lambda x, i: tf.gather(x, i))
    for _ in range(12):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
            wrong(X, tf.constant(9))
    with pytest.raises(ValueError, match=r"Shapes must be equal rank|Dimensions must be equal"):
        tf.function(lambda x: tf.matmul(x, x))(X)


def test_calls_whose_gradient_is_wanted_run_plainly():
    w = tf.Variable(2.0)
    forward = tf.function(lambda x: tf.reduce_sum(x * w))
    for _ in range(12):
        with tf.GradientTape() as tape:
            loss = forward(X)
        assert float(tape.gradient(loss, w)) == pytest.approx(float(tf.reduce_sum(X)), rel=1e-5)
    assert forward._tuner._policy is None


def test_under_a_strategy_functions_run_plainly():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        double = tf.function(lambda x: strategy.run(lambda y: y * 2, (x,)))
        np.testing.assert_allclose(call_often(double, X)[-1], X * 2)
    assert double._tuner._policy is None


def test_eager_functions_stay_eager():
    values = []
    tf.config.run_functions_eagerly(True)
    try:
        call_often(tf.function(lambda x: values.append(float(x))), tf.constant(3.0))
    finally:
        tf.config.run_functions_eagerly(False)
    assert values == [3.0] * 12


def test_what_the_script_decides_and_what_is_not_the_scripts_is_left_alone(tmp_path):
    plain = type(PLAIN(lambda: 0))
    assert type(tf.function(lambda x: x, jit_compile=True)) is plain
    assert type(tf.function(jit_compile=False)(lambda x: x)) is plain
    assert type(tf.function(tf.nn.relu)) is plain  # TensorFlow's function
    assert type(tf.function(keras.layers.Dense(1))) is not plain  # a layer of Keras, but the script wants it
    library = types.ModuleType("library")
    source = "import tensorflow as tf\ndef decorate(f): return tf.function(f)\nuser = lambda x: x"
    exec(compile(source, str(tmp_path / "site-packages" / "library.py"), "exec"), library.__dict__)
    assert type(library.decorate(lambda x: x)) is plain
    assert type(tf.function(functools.partial(library.user, 1))) is plain


def test_true_compiles_at_the_second_call_whatever_can_be_compiled():
    enable(True)
    log, double, text = Log(), tf.function(lambda x: x * 2), tf.function(lambda x: tf.strings.as_string(x))
    call_often(double, X, times=3)
    call_often(double, X[:2], times=3)
    assert log.causes() == ["first call", "argument x: (8, 4) -> (2, 4)"]
    assert call_often(text, tf.constant(1), times=3)[-1] == b"1"
    assert reason().startswith("graph: XLA cannot compile AsString")


def test_disable_restores_it_and_functions_run_plainly_again():
    double = tf.function(lambda x: x * 2)
    call_often(double, X)
    before = ways()
    disable()
    assert tf.function is PLAIN
    assert np.all(double(X) == X * 2)
    assert ways() == before
    enable()
    enable()
    disable()
    assert tf.function is PLAIN
