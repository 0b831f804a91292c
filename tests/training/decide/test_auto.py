"""`jit_compile="auto"` in fit, evaluate and predict: the results of plain Keras, whatever is chosen."""

import functools

import keras
import numpy as np
import pytest

from keras_xla.backend.new_shapes import Timing
from keras_xla.training.attach import attachment_of
from keras_xla.training.callbacks import XLACompile
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from keras_xla.training.decide.cost import gain_hoped
from keras_xla.training.reports.model_report import model_report
from tests.training.helpers import LOSS, Log, X, Y, classifier

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX Keras compiles every step itself", allow_module_level=True)

import tensorflow as tf

from keras_xla.backend.tensorflow.runner import executable as tensorflow_executable
from keras_xla.backend.tensorflow.runner import trial as tensorflow_trial


@pytest.fixture(params=["graph", "xla"])
def way(request, monkeypatch):
    """Trials take place, and what they measure does not matter."""
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    monkeypatch.setattr(policy, "MARGIN", float("inf") if request.param == "xla" else 0.0)
    return request.param


def plain(model, **options):
    model.compile("adam", LOSS, metrics=["accuracy"], **options)
    return model


def auto(model, **options):
    return compile(model, "adam", LOSS, metrics=["accuracy"], **options)


def assert_same(way, made, expected):
    """Bit for bit where the plain graph runs, to rounding where XLA does."""
    made, expected = keras.tree.flatten(made), keras.tree.flatten(expected)
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0 if way == "graph" else 2e-4, atol=0 if way == "graph" else 1e-5)


def everything(make, **fit):
    """Histories, weights and answers of a model with dropout, whose last batch is a small one."""
    model = make(classifier(dropout=0.3))
    history = model.fit(X, Y, batch_size=16, epochs=3, validation_data=(X, Y), verbose=0, **fit).history
    more = model.fit(X, Y, batch_size=16, epochs=1, verbose=0).history
    rest = model.evaluate(X, Y, batch_size=16, verbose=0), model.predict(X, batch_size=16, verbose=0)
    return [*history.values(), *more.values(), *rest, *model.get_weights()]


CLASS_WEIGHTS = {0: 1.0, 1: 0.5, 2: 2.0}


@functools.cache
def everything_plainly(weighted: bool = False, steps_per_execution: int = 1):
    fit = {"class_weight": CLASS_WEIGHTS} if weighted else {}
    return everything(lambda model: plain(model, steps_per_execution=steps_per_execution), **fit)


@pytest.mark.quick("xla")
def test_a_whole_run_gives_what_plain_keras_gives(way):
    log = Log()
    assert_same(way, everything(auto), everything_plainly())
    compiled = log.kinds()
    assert compiled == ["train", "test", "predict"]  # once each, trials included


@pytest.fixture
def deterministic():
    """TensorFlow's op determinism is on."""
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


@pytest.mark.quick("xla")
def test_nothing_is_tried_while_op_determinism_is_on(way, deterministic):
    log, model = Log(), auto(classifier())
    model.fit(X, Y, batch_size=24, epochs=2, shuffle=False, verbose=0)
    (decision,) = attachment_of(model).journal.decisions
    assert decision.way == "graph" and "op determinism is on" in decision.reason and not decision.measured
    assert not log.new()


@pytest.mark.slow
def test_class_weights_and_sample_weights(way):
    assert_same(way, everything(auto, class_weight=CLASS_WEIGHTS), everything_plainly(weighted=True))


@pytest.mark.slow
def test_the_callback_for_a_model_compiled_the_plain_way(way):
    made = everything(plain, callbacks=[XLACompile()])
    assert_same(way, made, everything_plainly())


@pytest.mark.quick("xla")
def test_steps_per_execution_of_the_callers(way):
    made = everything(lambda model: auto(model, steps_per_execution=3))
    assert_same(way, made, everything_plainly(steps_per_execution=3))


def test_a_callback_that_looks_at_every_batch_sees_every_batch(way):
    seen = {}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights = self.model.get_weights()[0].copy()
            seen.setdefault(self.model.name, []).append((batch, logs["loss"], weights))

    for make in (auto, plain):
        model = make(classifier(make.__name__, dropout=0.3))
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=[Watch()])
    assert_same(way, seen["auto"], seen["plain"])


def test_steps_per_epoch_and_datasets_without_an_end(way):
    def run(make):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
        model = make(classifier())
        return [*model.fit(data, steps_per_epoch=5, epochs=3, verbose=0).history.values(), *model.get_weights()]

    assert_same(way, run(auto), run(plain))


@pytest.mark.quick("xla")
def test_a_generator_of_unknown_length(way):
    def batches():
        for start in range(0, 72, 16):
            yield X[start : start + 16], Y[start : start + 16]

    def run(make):
        model = make(classifier())
        return [model.fit(batches(), verbose=0).history["loss"], *model.get_weights()]

    with pytest.warns(UserWarning, match="ran out of data"):
        made = run(auto)
    with pytest.warns(UserWarning, match="ran out of data"):
        assert_same(way, made, run(plain))


@pytest.mark.slow
def test_early_stopping_and_resuming(way, tmp_path):
    def run(make):
        model = make(classifier(dropout=0.3))
        stop = keras.callbacks.EarlyStopping(monitor="loss", baseline=0.0, patience=2)
        history = model.fit(X, Y, batch_size=16, epochs=9, callbacks=[stop], verbose=0).history["loss"]
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        return history, make(model).fit(X, Y, batch_size=16, epochs=2, verbose=0).history["loss"]

    made = run(auto)
    assert_same(way, made, run(plain))
    assert len(made[0]) == 2


def test_custom_steps_losses_and_several_outputs(way):
    class Custom(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return {"mine": loss, "pair": tf.stack([loss, 2 * loss])}

    def run(make):
        keras.utils.set_random_seed(0)
        inputs = {"a": keras.Input((20,), name="a"), "b": keras.Input((20,), name="b")}
        hidden = keras.layers.Dense(8, activity_regularizer="l2")(keras.layers.Dropout(0.3)(inputs["a"]))
        outputs = {"one": keras.layers.Dense(3)(hidden + keras.layers.Dense(8)(inputs["b"])), "two": hidden}
        model = make(Custom(inputs, outputs))
        data = {"a": X, "b": X[::-1].copy()}, {"one": np.eye(3)[Y], "two": X[:, :8]}
        return [*model.fit(*data, batch_size=16, epochs=2, verbose=0).history.values()], model.predict(
            data[0], verbose=0
        )

    def with_losses(compiler):
        return lambda model: compiler(
            model, "sgd", {"one": "mse", "two": lambda y, p: keras.ops.mean((y - p) ** 4, -1)}
        )

    ours = with_losses(lambda model, *args: compile(model, *args))
    theirs = with_losses(lambda model, *args: model.compile(*args) or model)
    assert_same(way, run(ours), run(theirs))


@pytest.mark.parametrize("mode", ["mixed precision", "accumulation", "ema", "clipping", "batch norm"])
@pytest.mark.quick("xla-batch norm")
def test_what_optimizers_and_layers_do(way, mode):
    def run(make):
        keras.utils.set_random_seed(0)
        policy_name = "mixed_bfloat16" if mode == "mixed precision" else "float32"
        middle = [keras.layers.BatchNormalization()] if mode == "batch norm" else []
        layers = [keras.layers.Dense(8, dtype=policy_name), *middle, keras.layers.Dense(3, dtype=policy_name)]
        model = keras.Sequential([keras.Input((20,)), *layers])
        options = {
            "accumulation": {"gradient_accumulation_steps": 2},
            "ema": {"use_ema": True},
            "clipping": {"clipnorm": 1},
        }
        # Adam would blow up the rounding of a bias that the normalization takes out again.
        kind = keras.optimizers.SGD if mode == "batch norm" else keras.optimizers.Adam
        optimizer = kind(0.01, **options.get(mode, {}))
        make(model, optimizer, LOSS)
        history = model.fit(X, Y, batch_size=16, epochs=3, validation_data=(X, Y), verbose=0).history
        return [*history.values()], model.predict(X, verbose=0)

    made, expected = run(compile), run(lambda model, *args: model.compile(*args))
    if mode == "mixed precision" and way == "xla":  # bfloat16 keeps 3 digits
        np.testing.assert_allclose(made[0][0], expected[0][0], rtol=0.02)
    else:
        assert_same(way, made, expected)


def test_a_fit_of_the_users_own(way):
    class Twice(keras.Sequential):
        def fit(self, *args, **kwargs):
            super().fit(*args, **kwargs)
            return super().fit(*args, **kwargs)

    def run(make):
        keras.utils.set_random_seed(0)
        model = make(Twice([keras.Input((20,)), keras.layers.Dense(3)]))
        return model.fit(X, Y, batch_size=16, epochs=2, verbose=0).history["loss"]

    assert_same(way, run(auto), run(plain))


def test_what_runs_eagerly_runs_eagerly():
    log, model = Log(), auto(classifier(), run_eagerly=True)
    model.fit(X, Y, verbose=0)
    assert log.new() == [] and attachment_of(model).journal.decisions == []


def test_ctrl_c_in_a_trial_leaves_the_model_as_it_was(way, monkeypatch):
    model = auto(classifier(dropout=0.3))
    model.fit(X[:1], Y[:1], batch_size=1, verbose=0)
    before, clock = model.get_weights(), tensorflow_trial.time.perf_counter
    calls = iter(range(100))

    class Interrupted:
        @staticmethod
        def perf_counter():
            if next(calls) == 4:
                raise KeyboardInterrupt
            return clock()

    monkeypatch.setattr(tensorflow_trial, "time", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=24, verbose=0)
    assert all(map(np.array_equal, model.get_weights(), before))
    monkeypatch.undo()
    model.fit(X, Y, batch_size=24, verbose=0)


@pytest.mark.parametrize("data", ["arrays", "dataset", "generator"])
@pytest.mark.slow
def test_xla_whose_first_trial_was_disturbed_runs_after_the_second(data, monkeypatch):
    trial, seen = tensorflow_executable.Executable.trial, []

    def disturbed(self, run, repeats, limit):
        timing = trial(self, run, repeats, limit)
        seen.append(self.way)
        slow = {"graph": 1e-2, "xla": 2e-2 if len(seen) < 6 else 1e-3}[self.way]
        return Timing(timing.first, (slow,))

    monkeypatch.setattr(tensorflow_executable.Executable, "trial", disturbed)
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    x, y = X[:64], Y[:64]

    def feed():
        if data == "dataset":
            return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(2)}
        if data == "generator":
            return {"x": ((x[i : i + 2], y[i : i + 2]) for _ in range(100) for i in range(0, 64, 2))}
        return {"x": x, "y": y, "batch_size": 2, "shuffle": False}

    log, ours, theirs = Log(), auto(classifier(dropout=0.3)), plain(classifier(dropout=0.3))
    options = {"epochs": 40, "verbose": 0, "steps_per_epoch": 32 if data == "generator" else None}
    made, expected = (model.fit(**feed(), **options).history for model in (ours, theirs))
    decisions = attachment_of(ours).journal.decisions
    assert [decision.way for decision in decisions] == ["graph", "xla"]
    assert decisions[1].reason.startswith("measured again") and decisions[1].measured == {"graph": 10.0, "xla": 1.0}
    assert log.kinds() == ["train"]  # compiled once, for both trials and the steps after them
    tallies = attachment_of(ours).journal.tallies
    assert 100 < tallies["train", "graph"].steps < 300 and tallies["train", "xla"].steps > 900
    assert_same("xla", made["loss"][:8], expected["loss"][:8])
    assert "for a trial" not in str(model_report(ours))


def test_predict_that_is_called_again_and_again_comes_to_be_compiled(monkeypatch):
    monkeypatch.setattr(policy, "MARGIN", float("inf"))
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 40 * gain_hoped(facts) * graph)  # forty steps
    log, model = Log(), auto(classifier())
    expected = plain(classifier()).predict(X, batch_size=24, verbose=0)
    for _ in range(500):
        assert np.allclose(model.predict(X, batch_size=24, verbose=0), expected, atol=1e-5)
        if log.kinds():
            break
    ways = [decision.way for decision in attachment_of(model).journal.decisions]
    assert ways[0] == "graph" and ways[-1] == "xla"
    assert len(ways) < 10  # it does not ask at every call


def test_functions_that_run_eagerly_are_left_to_keras():
    class Looks(keras.Sequential):
        def train_step(self, data):
            return {"loss": float(np.asarray(super().train_step(data)["loss"]))}  # fails in a graph

    model = auto(Looks([keras.Input((20,)), keras.layers.Dense(3)]))
    tf.config.run_functions_eagerly(True)
    try:
        assert model.fit(X, Y, verbose=0).history["loss"]
    finally:
        tf.config.run_functions_eagerly(False)


def test_models_that_need_to_know_their_batch_size():
    class Rows(keras.Model):
        def call(self, x):
            return tf.stack(tf.unstack(x)[::-1])

    assert_same("graph", *(make(Rows()).predict(X, batch_size=8, verbose=0) for make in (auto, plain)))


def test_a_compile_of_the_users_own():
    class Pair(keras.Sequential):
        def compile(self, optimizer, extra):
            super().compile(optimizer, "mse")
            self.extra = extra

    model = compile(Pair([keras.Input((20,)), keras.layers.Dense(3)]), "sgd", extra=3)
    model.fit(X, X[:, :3], verbose=0)
    assert model.extra == 3 and attachment_of(model).journal.decisions


@pytest.mark.quick("graph")
def test_noise_of_the_batchs_shape_is_that_of_plain_keras(way):
    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def call(self, x):
            return x + keras.random.normal((keras.ops.shape(x)[0], 3), seed=self.seed)

    def run(make):
        keras.utils.set_random_seed(0)
        model = make(keras.Sequential([keras.Input((20,)), keras.layers.Dense(3), Noise()]))
        return [*model.fit(X, Y, batch_size=16, epochs=2, verbose=0).history.values()]

    assert_same(way, run(auto), run(plain))
