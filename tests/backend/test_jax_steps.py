"""Several steps in one executable on JAX: what runs is what Keras' own function runs one by one."""

import functools

import keras
import numpy as np
import pytest

from keras_xla.backend.data import runs_python
from keras_xla.backend.steps import reads_ahead
from keras_xla.training.compile import compile
from keras_xla.training.reports.journal import Journal
from keras_xla.training.reports.model_report import model_report
from keras_xla.training.session import Session
from keras_xla.training.steps.run_ahead import StepFunction
from tests.training.helpers import LOSS, Log, X, Y, classifier, normalized

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own steps", allow_module_level=True)

import jax

from keras_xla.backend.jax.batches import leaves_of
from keras_xla.backend.jax.runner import Runner
from keras_xla.backend.jax.step_loop import CannotLoop, StepLoop

PLAIN = keras.Model.compile


@pytest.fixture
def groups(monkeypatch):
    """How many batches each call of a loop was for."""
    made, call = [], StepLoop.__call__
    monkeypatch.setattr(
        StepLoop, "__call__", lambda self, state, batches: made.append(len(batches)) or call(self, state, batches)
    )
    return made


def same(results, expected):
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), results, expected)


def fitted(compile_, make=classifier, x=X, y=Y, **options):
    """The history and all variables after a fit."""
    model = make()
    compile_(model, "adam", LOSS, metrics=["accuracy"])
    history = model.fit(x, y, **{"batch_size": 8, "epochs": 3, "verbose": 0, **options}).history
    return [history, [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]]


def add(state, batch):
    """A step that adds a batch's numbers to the state."""
    return {"sum": batch.sum()}, [state[0] + batch.sum()]


def ones(count):
    return [np.ones(2, "float32") * (number + 1) for number in range(count)]


def test_a_loop_is_traced_once_for_all_counts():
    loop, state = StepLoop(add, 5), [jax.numpy.zeros((), "float32")]
    for count in (2, 5, 1, 3):
        logs, state = loop(state, ones(count))
        assert float(logs["sum"]) == 2 * count
    assert float(state[0]) == 2 * (3 + 15 + 1 + 6) and loop.traces == 1


def test_the_state_is_used_up_where_it_was_given():
    before = [jax.numpy.zeros((), "float32")]
    StepLoop(add, 5)(before, ones(2))
    assert before[0].is_deleted()


@pytest.mark.parametrize(
    "step",
    [
        lambda state, batch: ({}, [state[0].astype("float16")]),
        lambda state, batch: ({}, [state[0][None]]),
        lambda state, batch: ({}, [*state, *state]),
        lambda state, batch: (jax.debug.callback(lambda: None), state),
        lambda state, batch: ({}, [jax.lax.conv(batch[None, None], batch[None, None], (1,), "SAME").sum()]),
    ],
    ids=["another dtype", "another shape", "another structure", "effects", "convolutions"],
)
def test_what_does_not_fit_into_a_loop_runs_nothing(step):
    state = [jax.numpy.zeros((), "float32")]
    with pytest.raises(CannotLoop):
        StepLoop(step, 5)(state, ones(2))
    assert not state[0].is_deleted()


def with_everything():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    random = [layers.GaussianNoise(0.1), layers.Dropout(0.3)]
    lines = [layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), *random, layers.Dense(3)]
    return keras.Sequential([keras.Input((20,)), *lines])


@pytest.mark.parametrize("make", [classifier, normalized, with_everything], ids=lambda make: make.__name__)
@pytest.mark.parametrize("size", [8, 16, 24, 72, 100])
@pytest.mark.quick("16-", "72-with", "100-with", "8-normalized")
@pytest.mark.quick_on_jax("16-normalized", "72-with_everything", "100-with_everything", "16-classifier", "8-normalized")
def test_histories_and_all_variables_are_those_of_plain_keras(make, size, groups):
    options = {"batch_size": size, "validation_data": (X[:40], Y[:40])}
    expected = fitted(PLAIN, make, **options)
    assert not groups
    same(fitted(compile, make, **options), expected)
    assert (max(groups, default=0) > 1) is (size < 72)


def test_a_fit_compiles_once_and_its_validation_once():
    log, model = Log(), classifier()
    compile(model, "adam", LOSS, metrics=["accuracy"])
    for _ in range(2):
        model.fit(X, Y, batch_size=16, epochs=3, validation_data=(X[:40], Y[:40]), verbose=0)
    assert [(event.kind, event.cause) for event in log.new()] == [("train", "first call"), ("test", "first call")]


def test_a_smaller_last_batch_that_cannot_be_filled_up_compiles_once_more():
    log = Log()
    fitted(compile, normalized, batch_size=16)
    causes = log.causes()
    assert causes == ["first call", "argument x: (16, 20) -> (8, 20), y: (16,) -> (8,)"]


def test_a_step_is_traced_as_often_as_in_plain_keras():
    def traces(compile_):
        seen = []

        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(3)

            def call(self, x):
                seen.append(1)
                return self.dense(x)

        model = Net()
        compile_(model, "sgd", LOSS)
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
        return len(seen)

    assert traces(compile) == traces(PLAIN)


def test_convolutions_on_cpu_run_one_by_one(groups):
    def make():
        keras.utils.set_random_seed(0)
        lines = [keras.layers.Reshape((20, 1)), keras.layers.Conv1D(4, 3), keras.layers.Flatten()]
        return keras.Sequential([keras.Input((20,)), *lines, keras.layers.Dense(3)])

    same(fitted(compile, make), fitted(PLAIN, make))
    assert bool(groups) is (jax.default_backend() != "cpu")


class Looks(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"], np.abs(self.weights()).sum()))

    def weights(self):
        self.model.jax_state_sync()
        return self.model.layers[0].kernel.numpy()


def test_who_looks_at_every_batch_sees_every_batch(groups):
    made, expected = Looks(), Looks()
    same(fitted(compile, callbacks=[made]), fitted(PLAIN, callbacks=[expected]))
    same(made.seen, expected.seen)
    assert not groups


@pytest.mark.parametrize("forced", ["auto", True])
def test_one_step_at_a_time_through_the_executable_that_is_there(forced, groups):
    log = Log()
    model = compile(classifier(), "adam", LOSS, jit_compile=forced)
    model.fit(X, Y, batch_size=8, verbose=0)
    groups.clear()
    model.fit(X, Y, batch_size=8, callbacks=[Looks()], verbose=0)
    assert groups == [1] * 9 and log.kinds() == ["train"]


def test_several_steps_after_single_ones_say_why_they_compile():
    log, model = Log(), compile(classifier(), "adam", LOSS)
    model.fit(X, Y, batch_size=8, callbacks=[Looks()], verbose=0)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert log.causes() == ["first call", "shapes as before, for several steps at a time"]


@pytest.mark.parametrize("steps", [2, 5, 100])
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.quick("16-5", "8-100", "16-2")
def test_steps_per_execution(steps, size, groups):
    def with_steps(compile_):
        return lambda model, *args, **options: compile_(model, *args, steps_per_execution=steps, **options)

    made, expected = Looks(), Looks()
    same(
        fitted(with_steps(compile), batch_size=size, callbacks=[made]),
        fitted(with_steps(PLAIN), batch_size=size, callbacks=[expected]),
    )
    same(made.seen, expected.seen)
    assert max(groups) == min(steps, 72 // size + (size == 16))


class Reuses(keras.utils.PyDataset):
    """Its batches are in the same memory, one after the other."""

    def __init__(self):
        super().__init__()
        # At an address that JAX copies from: memory that it could share would be plain Keras' problem, too.
        self.x = np.empty(8 * X.shape[1] * 4 + 4, "uint8")[4:].view("float32").reshape(8, -1)

    def __len__(self):
        return 9

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        self.x[:] = X[rows]
        return self.x, Y[rows]


def test_batches_of_several_steps_may_be_in_the_same_memory(groups):
    def results(compile_):
        model = classifier()
        compile_(model, "adam", LOSS, metrics=["accuracy"], steps_per_execution=4)
        history = model.fit(Reuses(), epochs=2, shuffle=False, verbose=0).history
        return [*history.values(), model.evaluate(Reuses(), verbose=0), *model.get_weights()]

    made, expected = results(compile), results(PLAIN)
    assert max(groups) == 4
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_datasets_of_tensorflow_run_ahead(groups):
    import tensorflow as tf

    def data():
        return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)

    same(fitted(compile, x=data(), y=None, batch_size=None), fitted(PLAIN, x=data(), y=None, batch_size=None))
    assert max(groups) > 1


def test_generators_are_asked_for_one_batch_at_a_time(groups):
    def fit(compile_):
        model, order = classifier(), []

        def batches():
            for start in range(0, 72, 8):
                order.append("batch")
                yield X[start : start + 8], Y[start : start + 8]

        compile_(model, "sgd", LOSS)
        tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: order.append("epoch"))
        history = model.fit(batches(), steps_per_epoch=3, epochs=3, callbacks=[tell], verbose=0).history
        return history, order

    made, expected = fit(compile), fit(PLAIN)
    same(made[0], expected[0])
    assert made[1] == expected[1] and not groups


class Fails(Exception):
    pass


@pytest.mark.parametrize("good", [0, 1, 2, 5])
def test_an_error_in_the_middle_of_data_comes_after_the_steps_before_it(good):
    def batches():
        yield from ones(good)
        raise Fails

    def one(state, iterator):
        return add(state, next(iterator))

    runner = Runner(add, one, fill=lambda: None, compiled=lambda *_: None, least=1, layers=list)
    session, state, iterator = Session("train", ahead=True), [jax.numpy.zeros((), "float32")], batches()
    function = StepFunction(runner, "train", 1, lambda: session, Journal())
    for step in range(good):
        session.on_train_batch_begin(step)
        _, state = function(state, iterator)
    session.on_train_batch_begin(good)
    with pytest.raises(Fails):
        function(state, iterator)
    assert float(state[0]) == good * (good + 1)


def test_an_error_of_the_step_is_that_of_plain_keras():
    def error(compile_):
        model = classifier()
        compile_(model, "sgd", LOSS)
        with pytest.raises(ValueError) as caught:
            model.fit(X, Y[:, None] + np.zeros((1, 2), "int32"), batch_size=8, verbose=0)
        result = str(caught.value), model.get_weights()
        model.fit(X, Y, batch_size=8, verbose=0)
        return result, model.get_weights()

    made, expected = error(compile), error(PLAIN)
    assert made[0][0] == expected[0][0]
    same([made[0][1], made[1]], [expected[0][1], expected[1]])


def test_an_interrupted_fit_leaves_a_model_that_works():
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def interrupted(compile_):
        model = classifier()
        compile_(model, "adam", LOSS)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, batch_size=8, epochs=3, callbacks=[Interrupts()], verbose=0)
        return [model.get_weights(), model.evaluate(X, Y, verbose=0), model.fit(X, Y, verbose=0).history]

    same(interrupted(compile), interrupted(PLAIN))


def test_a_step_that_changes_the_types_of_its_state_runs_as_keras_runs_it(groups):
    def make():
        class Net(keras.Sequential):
            def train_step(self, state, data):
                logs, state = super().train_step(state, data)
                jax.debug.callback(lambda: told.append(1))
                return logs, state

        keras.utils.set_random_seed(0)
        return Net([keras.Input((20,)), keras.layers.Dense(3)])

    told = []
    expected = fitted(PLAIN, make)
    jax.effects_barrier()
    before = len(told)
    same(fitted(compile, make), expected)
    jax.effects_barrier()
    assert len(told) == 2 * before == 54


def test_layers_without_xla_run_in_python_at_every_step(groups):
    def fit(compile_):
        class Grows(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.supports_jit, self.calls = False, 0

            def call(self, x):
                self.calls += 1
                return x * self.calls

        keras.utils.set_random_seed(0)
        grows = Grows()
        model = keras.Sequential([keras.Input((20,)), grows, keras.layers.Dense(3)])
        compile_(model, "sgd", LOSS)
        return model.fit(X, Y, batch_size=24, epochs=2, verbose=0).history, grows.calls

    (history, calls), (expected, expected_calls) = fit(compile), fit(PLAIN)
    same(history, expected)
    assert calls == expected_calls and not groups


def test_keras_does_not_look_into_the_state_of_its_loop(monkeypatch):
    seen, setattr_ = [], keras.Model.__setattr__
    monkeypatch.setattr(
        keras.Model, "__setattr__", lambda self, name, value: seen.append((name, value)) or setattr_(self, name, value)
    )
    fitted(compile)
    states = [value["trainable_variables"] for name, value in seen if name == "_jax_state" and value]
    assert len(states) == 27 and not any(isinstance(state, list) for state in states)
    assert all(isinstance(x, jax.Array) for x in states[-1]) and len(states[-1]) == 4 and states[-1]


def test_the_report_tells_of_the_steps():
    model = compile(classifier(), "adam", LOSS)
    model.fit(X, Y, batch_size=8, epochs=4, verbose=0)
    assert model_report(model).to_dict()["train"]["ran"]["xla"]["steps"] > 20


def test_batches_on_a_device_are_stacked_there(monkeypatch):
    monkeypatch.setattr("keras_xla.backend.jax.step_loop._platform", lambda x: "gpu")
    loop, state = StepLoop(add, 5), [jax.numpy.zeros((), "float32")]
    for count in (2, 5):
        _, state = loop(state, [jax.numpy.asarray(batch) for batch in ones(count)])
    assert float(state[0]) == 2 * (3 + 15) and loop.traces == 1


def test_several_batches_that_come_at_once_are_told_by_the_first():
    """Keras' development version hands what is left of `steps_per_execution` batches over as a list of its own."""

    class Batches(list):
        pass

    batches = Batches((np.zeros((rows, 3), "float32"), np.zeros((rows,), "int32")) for rows in (4, 2))
    assert leaves_of(batches) == leaves_of(batches[0])


def test_data_that_tell_keras_to_stop_are_not_read_further():
    import tensorflow as tf

    made = []
    for compile_ in (PLAIN, compile):
        model = classifier()
        compile_(model, "adam", LOSS)

        def batches(model=model):
            for batch in range(100):
                model.stop_training = batch >= 40
                yield X[:4], Y[:4]

        spec = tuple(tf.TensorSpec(x[:4].shape, x.dtype) for x in (X, Y))
        model.fit(tf.data.Dataset.from_generator(batches, output_signature=spec), verbose=0)
        made.append(int(model.optimizer.iterations))
    assert all(20 <= steps <= 43 for steps in made)  # TensorFlow's threads read batches ahead, in plain Keras, too


def test_a_pydataset_with_a_shape_of_its_own_is_no_array():
    class Pictures(keras.utils.PyDataset):
        shape = (20,)

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[:4], Y[:4]

    assert runs_python(Pictures()) and not reads_ahead(Pictures()) and reads_ahead(X)


def test_a_wrapper_of_the_users_own_around_a_step_stays():
    calls, model = [], classifier()
    compile(model, "adam", LOSS)
    model.fit(X, Y, batch_size=8, verbose=0)
    inner = model.train_step

    @functools.wraps(inner)
    def step(state, data):
        calls.append(1)
        return inner(state, data)

    model.train_step = step
    compile(model, "adam", LOSS)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert calls and model.train_step is step
    compile(model, "adam", LOSS, jit_compile=False)
    assert model.train_step is step


def test_weak_types_that_stay_are_tried_twice(groups):
    class Scaled(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.beta = keras.Variable(1.0, trainable=False)

        def call(self, x):
            return x * self.beta

    layer = Scaled()
    model = keras.Sequential([keras.Input(X.shape[1:]), layer, keras.layers.Dense(3)])
    compile(model, "sgd", LOSS)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert len(groups) == 2  # in each pass over the data
    layer.beta.assign(0.5)  # which is of no weak type
    groups.clear()
    model.fit(X, Y, batch_size=4, verbose=0)
    assert sum(groups) >= len(X) // 4


def test_a_single_step_keeps_nothing_of_the_state(groups):
    model, weights = classifier(), np.ones(len(X), "float32")
    compile(model, "adam", LOSS)
    model.fit(X, Y, sample_weight=weights, batch_size=8, verbose=0)
    groups.clear()
    model.train_on_batch(X[:8], Y[:8], sample_weight=weights[:8])
    assert groups == [1]  # a loop ran it
    assert model.train_function._running is None


def test_a_loop_has_room_for_what_steps_per_execution_asks_for():
    model = classifier()
    compile(model, "adam", LOSS, steps_per_execution=2)
    model.fit(X, Y, batch_size=4, verbose=0)
    loops = [loop for loop in model.train_function.runner._loops.values() if loop is not None]
    assert [loop.capacity for loop in loops] == [2]


@pytest.mark.parametrize("steps", [4, 100])
def test_all_steps_but_those_that_compile_are_timed(steps):
    model = compile(classifier(), "adam", LOSS, steps_per_execution=steps)
    for _ in range(2):
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    ran, first = model_report(model).to_dict()["train"]["ran"]["xla"]["steps"], min(steps, 9)
    assert ran == 4 * 9 - first


def test_a_loop_of_the_users_own_gets_lists_whatever_steps_per_execution_asks_for():
    states = []
    for compile_ in (PLAIN, compile):
        model = classifier()
        compile_(model, "adam", LOSS, steps_per_execution=3)
        model._symbolic_build(data_batch=(X[:8], Y[:8]))
        model.make_train_function()
        state = model._get_jax_state(
            trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
        )
        _, state = model.train_function(state, iter([(X[i : i + 8], Y[i : i + 8]) for i in range(0, 72, 8)]))
        states.append(state)
    assert list(map(type, states[1])) == list(map(type, states[0]))
