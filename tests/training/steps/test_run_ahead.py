"""Several steps in one call, and what Keras sees of it."""

import time

import keras
import pytest

from keras_xla.backend.execution import Execution
from keras_xla.training.compile import compile
from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session, watched
from keras_xla.training.steps.run_ahead import StepFunction
from tests.training.helpers import LOSS, X, Y, classifier


class Runner:
    """Runs batches of an iterator of numbers; each takes no time that a test could measure."""

    first_steps, frees_slowly = 1, True

    def __init__(self):
        self.counts = []

    def run(self, iterator, count):
        ran = [batch for _, batch in zip(range(count), iterator, strict=False)]
        if not ran:
            raise StopIteration
        self.counts.append(len(ran))
        return Execution({"loss": ran[-1]}, len(ran), "graph", settled=True)


def drive(session, batches, calls=None, steps=1, runner=None):
    """Call as Keras' loop does; how many batches each call of the runner was for, and what the loop saw."""
    runner = runner or Runner()
    function, iterator, seen = StepFunction(runner, "train", steps, lambda: session, Journal()), iter(batches), []
    try:
        for batch in range(calls or 1000):
            if session is not None:
                session.on_train_batch_begin(batch)
            seen.append(function(iterator)["loss"])
            if session is not None:
                session.on_train_batch_end(batch)
    except StopIteration:
        pass
    return runner.counts, seen


def test_the_first_call_runs_one_batch_and_the_later_ones_many():
    counts, seen = drive(Session("train", ahead=True), range(100))
    assert counts[0] == 1 and max(counts) > 1 and sum(counts) == 100
    assert len(seen) == 100  # Keras calls once a batch, whatever runs
    assert seen[-1] == 99


def test_slow_steps_run_several_at_once_too(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("keras_xla.training.steps.run_ahead.time.perf_counter", lambda: clock[0])

    class Slow(Runner):
        def run(self, iterator, count):
            made = super().run(iterator, count)
            clock[0] += 0.04 * made.batches
            return made

    counts, _ = drive(Session("train", ahead=True, steps=12), range(12), calls=12, runner=Slow())
    assert counts == [1, 2, 4, 4, 1]


def test_data_that_come_slower_than_before_hold_up_one_call_only(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("keras_xla.training.steps.run_ahead.time.perf_counter", lambda: clock[0])

    def batches():
        for number in range(400):
            clock[0] += 0.5 if 100 <= number < 200 else 1e-4
            yield number

    counts, _ = drive(Session("train", ahead=True), batches())
    assert counts[:7] == [1, 2, 4, 8, 16, 32, 64]  # the last one meets the first slow batches
    assert counts[7:81] == [1] * 74  # up to batch 200
    assert counts[81:86] == [2, 4, 8, 16, 32]


def two_calls(second):
    """How many batches the second call begins with, when the first one ran many at once."""
    sessions, runner = [Session("train", ahead=True)], Runner()
    function = StepFunction(runner, "train", 1, lambda: begun(sessions[-1]), Journal())
    data = iter(range(1000))
    for _ in range(100):
        function(data)
    assert runner.counts[-1] > 1
    sessions.append(second)
    function(iter(range(1000)))
    return runner.counts[-1]


def test_a_call_finds_its_pace_anew():
    """Its data may come slowly, and would keep the progress bar and Ctrl-C waiting."""
    assert two_calls(Session("train", ahead=True)) == 1


def test_arrays_in_memory_come_as_fast_as_in_the_call_before():
    session = Session("train", ahead=True)
    session.in_memory.add("train")
    assert two_calls(session) > 1


def test_no_step_runs_beyond_the_epoch():
    counts, seen = drive(Session("train", ahead=True, steps=10), range(1000), calls=10)
    assert sum(counts) == 10 == len(seen)


def test_one_at_a_time_if_somebody_looks():
    assert drive(Session("train", ahead=False), range(5))[0] == [1] * 5
    assert drive(None, range(5))[0] == [1] * 5


def test_steps_per_execution_is_the_callers():
    assert drive(Session("train", ahead=True), range(10), steps=4)[0] == [4, 4, 2]


def begun(session):
    session.on_train_batch_begin(0)
    return session


def test_an_epoch_that_was_left_early_leaves_nothing_behind():
    session, runner = Session("train", ahead=True), Runner()
    function = StepFunction(runner, "train", 1, lambda: begun(session), Journal())
    first = iter(range(100))
    function(first), function(first)
    session.begin_epoch()
    assert function(iter(range(500, 600)))["loss"] >= 500


def test_who_calls_between_the_batches_of_the_loop_gets_a_step_on_the_own_batch():
    session, runner = Session("train", ahead=True), Runner()
    function = StepFunction(runner, "train", 1, lambda: session, Journal())
    loop, own = iter(range(100)), iter(range(500, 600))
    for batch in range(2):
        session.on_train_batch_begin(batch)
        function(loop)
        session.on_train_batch_end(batch)
    assert runner.counts[1] > 1
    assert [function(own)["loss"] for _ in range(3)] == [500, 501, 502]
    assert runner.counts[2:] == [1, 1, 1]
    session.on_train_batch_begin(2)
    assert function(loop)["loss"] < 500 and len(runner.counts) == 5


class EveryBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callbacks", "answer"),
    [
        (None, False),
        ([], False),
        ([keras.callbacks.EarlyStopping(), keras.callbacks.CSVLogger("log.csv")], False),
        ([keras.callbacks.ModelCheckpoint("model.keras")], False),
        ([keras.callbacks.ModelCheckpoint("model.keras", save_freq=3)], True),
        ([keras.callbacks.TerminateOnNaN()], True),
        ([keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)], False),
        ([keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)], True),
        ([EveryBatch()], True),
        (EveryBatch(), True),
        ([Session("train")], False),
    ],
)
def test_which_callbacks_look_at_every_batch(callbacks, answer):
    assert watched(callbacks, "train") is answer


def test_looking_at_training_is_not_looking_at_validation():
    assert not watched([EveryBatch()], "test")


def test_no_iterator_outlives_the_fit(monkeypatch):
    """One that does may take a minute to be freed, wherever that happens."""
    import gc
    import weakref

    if keras.backend.backend() != "tensorflow":
        pytest.skip("on JAX Keras' own functions run")
    from keras_xla.training.compile import compile
    from tests.training.helpers import OPTIONS, X, Y, classifier

    model, seen = compile(classifier(), **OPTIONS), []
    model.fit(X, Y, batch_size=8, verbose=0)
    call = StepFunction.__call__
    monkeypatch.setattr(StepFunction, "__call__", lambda self, data: seen.append(weakref.ref(data)) or call(self, data))
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    deadline = time.monotonic() + 100
    while any(ref() is not None for ref in seen) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert len(seen) == 18 and not any(ref() is not None for ref in seen)


def test_tensorboard_looks_at_every_batch_where_a_script_has_set_the_default_writer(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    callback = keras.callbacks.TensorBoard(tmp_path)
    assert not watched([callback], "train")
    with tensorflow.summary.create_file_writer(str(tmp_path)).as_default():
        assert watched([callback], "train")
    assert not watched([callback], "train")


def test_another_number_of_steps_that_is_set_later_counts_as_in_plain_keras():
    """Keras then calls the function that it has once for so many batches."""
    counted = []
    for make in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = classifier()
        make(model, "sgd", LOSS)
        model.fit(X[:24], Y[:24], batch_size=4, verbose=0)
        model.steps_per_execution = 3
        history = model.fit(X[:24], Y[:24], batch_size=4, epochs=2, verbose=0).history
        counted.append([int(model.optimizer.iterations.value), len(history["loss"])])
    assert counted[0] == counted[1]
