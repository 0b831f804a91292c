"""Trials: unseen, timed up to when the work is done, and never the reason for an error."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("only there keras_xla runs trials", allow_module_level=True)
import tensorflow as tf

from keras_xla.backend.new_shapes import TrialImpossible
from keras_xla.backend.tensorflow.machine import free_memory, machine
from keras_xla.backend.tensorflow.runner import trial
from keras_xla.backend.tensorflow.runner.executable import Executable
from keras_xla.backend.tensorflow.runner.sources import Batches
from keras_xla.backend.tensorflow.runner.trace import Trace
from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from tests.training.helpers import LOSS, Log, X, Y, classifier


def executable_of(way):
    """A step that doubles a weight and counts, in one way; with its two variables, and a batch for it."""
    weight, count, batch = tf.Variable([1.0, 2.0]), tf.Variable(0), tf.ones((3, 2))

    def step(x):
        weight.assign(2 * weight)
        count.assign_add(1)
        if way == "partial":
            tf.print("a batch", output_stream="file:///dev/null")
        return x * weight

    trace = Trace(step, tf.TensorSpec((3, 2)))
    return Executable(trace, way, ((3, 2),) if way != "graph" else None, lambda seconds: None), weight, count, batch


@pytest.mark.parametrize("way", ["graph", "xla", "partial"])
@pytest.mark.parametrize("feeds", ["run", "rows", "feed"])
def test_nobody_sees_a_trial_and_nothing_done_meanwhile_is_lost(way, feeds):
    executable, weight, count, batch = executable_of(way)
    seen, outputs = [], []

    def run():
        if feeds == "run":
            made = executable.run(batch)
        elif feeds == "rows":
            made = executable.rows([batch], 3, 0, 1, False)[0][0]
        else:
            iterator = iter(tf.data.Dataset.from_tensors(batch))
            pending = iterator.get_next_as_optional()
            made = executable.feed(Batches(iterator.element_spec), iterator, 1, pending)[0][0]
        outputs.append(made.numpy()[0].tolist())
        seen.append(weight.numpy().tolist())  # as another thread would
        if len(seen) == 2:
            weight.assign([5.0, 6.0])
        return 1

    assert len(executable.trial(run, 2, 10.0).steps) == 2
    assert outputs == [[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]]  # it goes on from what it found when it began
    assert seen == [[1.0, 2.0], [1.0, 2.0], [5.0, 6.0]] and weight.numpy().tolist() == [5.0, 6.0] and int(count) == 0
    run()
    assert outputs[-1] == [10.0, 12.0] and weight.numpy().tolist() == [10.0, 12.0] and int(count) == 1


def test_an_interrupted_trial_leaves_all_as_it_was():
    executable, weight, count, batch = executable_of("graph")

    def run():
        executable.run(batch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executable.trial(run, 1, 1.0)
    assert weight.numpy().tolist() == [1.0, 2.0] and int(count) == 0
    assert executable.run(batch)[0].numpy().tolist() == [2.0, 4.0] and int(count) == 1


def test_a_copy_that_would_not_fit_is_not_made(monkeypatch):
    held = [tf.Variable(tf.zeros((1024, 1024)))]
    monkeypatch.setattr(trial, "free_memory", lambda: 2**22)
    with pytest.raises(TrialImpossible, match=r"a copy of what the step changes, 0\.0 GiB"):
        trial.copies_of(held)
    monkeypatch.setattr(trial, "free_memory", lambda: None)  # nobody knows
    (copy,) = trial.copies_of(held).values()
    assert copy.shape == held[0].shape and copy.handle is not held[0].handle


def test_a_fit_whose_state_does_not_fit_twice_runs_plainly_and_says_so(monkeypatch):
    monkeypatch.setattr(trial, "free_memory", lambda: 1)
    log, model, plain = Log(), compile(classifier(), "sgd", LOSS), classifier()
    plain.compile("sgd", LOSS)
    histories = [each.fit(X, Y, epochs=20, batch_size=24, verbose=0).history["loss"] for each in (model, plain)]
    assert histories[0] == histories[1] and log.new() == []
    (decision,) = attachment_of(model).journal.decisions
    assert decision.reason.startswith("no trial: a trial runs on a copy of what the step changes")


def test_the_free_memory_of_this_machine_is_known():
    assert 2**20 < free_memory() < 2**50


def test_a_time_begins_and_ends_with_idle_devices(monkeypatch):
    seen = []
    monkeypatch.setattr(trial, "wait_for_devices", lambda: seen.append("wait"))
    timing = trial.timed_runs(lambda: len([seen.append("run")]), 2, 10.0)
    assert seen == ["wait", "run", "wait"] * 3 and len(timing.steps) == 2


def test_a_time_is_that_of_one_of_the_steps_that_run_together(monkeypatch):
    times = iter([0.0, 8.0, 10.0, 14.0])
    monkeypatch.setattr(trial.time, "perf_counter", lambda: next(times))
    timing = trial.timed_runs(lambda: 2, 1, 10.0)
    assert (timing.first, timing.steps) == (4.0, (2.0,))


def test_a_run_without_a_step_tells_no_time():
    with pytest.raises(trial.TrialImpossible, match="only the plain graph checks"):
        trial.timed_runs(lambda: 0, 1, 10.0)


def test_trials_of_predict_run_what_predict_runs(monkeypatch):
    """Two batches at once may suit the ways differently than one: as many are timed as run later."""
    timed, rows = [], Executable._rows
    monkeypatch.setattr(
        Executable,
        "_rows",
        lambda self, *args: timed.append((self._trial.copies is not None, args[3], args[5])) or rows(self, *args),
    )
    model = classifier()
    compile(model, "sgd", LOSS)
    model.predict(np.repeat(X, 40, axis=0), batch_size=4, verbose=0)
    assert {(count, at_once) for trial, count, at_once in timed if trial} == {(2, 2)}
    assert {at_once for trial, _, at_once in timed if not trial} == {2}


class RunsOnce(keras.layers.Layer):
    """Refuses to see more batches than it was made for; a trial shows it the same one again and again."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def build(self, shape):
        self.seen = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1)
        check = tf.debugging.assert_less_equal(self.seen, self.batches, "too many batches")
        with tf.control_dependencies([check]):
            return tf.identity(x)


def train(batches, ours, size=24):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((20,)), RunsOnce(batches), keras.layers.Dense(3)])
    model.compile("sgd", LOSS)
    if ours:
        compile(model, "sgd", LOSS)
    try:
        return model.fit(X, Y, batch_size=size, verbose=0).history["loss"], model
    except tf.errors.InvalidArgumentError as error:
        return type(error), model


def test_an_error_that_only_a_trial_would_meet_is_nobodys(monkeypatch):
    monkeypatch.setattr("keras_xla.training.decide.policy.estimated_cost", lambda facts, graph: 0.0)
    (plain, _), (ours, model) = train(1, False, size=72), train(1, True, size=72)
    assert ours == plain and len(plain) == 1
    (decision,) = attachment_of(model).journal.decisions
    assert decision.way == "graph" and decision.reason.startswith("no trial: the plain graph failed in a trial")


def test_an_error_of_the_step_itself_comes_with_the_weights_of_plain_keras():
    (plain, expected), (ours, model) = train(2, False), train(2, True)
    assert plain is ours is tf.errors.InvalidArgumentError
    for a, b in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_machine_is_told_by_its_real_names(monkeypatch):
    told = machine()
    assert "cores" in told["device"] and tf.__version__ in told["versions"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert machine() == {**told, "settings": machine()["settings"]} != told
