"""What a script puts on a model or a callback while a call goes on, and data that grow: as in plain Keras."""

import functools
import time

import keras
import numpy as np
import pytest

import keras_xla

on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="on JAX Keras' loop holds the state, which no callback can change"
)
X, Y = np.ones((8, 1), "float32"), np.zeros((8, 1), "float32")


def trained(ours, callback, batch_size=1, jit_compile="auto", steps=1, **how):
    """The weight of a model whose loss is its output, after an epoch in plain Keras or in ours; and what is left."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    given = {
        "optimizer": keras.optimizers.SGD(1.0),
        "loss": lambda y, p: keras.ops.mean(p),
        "steps_per_execution": steps,
    }
    if ours:
        keras_xla.compile(model, **given, jit_compile=jit_compile)
    else:
        model.compile(**given)
    data = {"x": X, "y": Y, "batch_size": batch_size, **how}
    model.fit(**data, shuffle=False, verbose=0, callbacks=[callback])
    model.evaluate(X, Y, batch_size=batch_size or 1, verbose=0, callbacks=[callback])
    return float(np.asarray(model.weights[0])[0, 0]), callback.seen, model


class Acts(keras.callbacks.Callback):
    """Has an `act`, which is called once it is told of one thing: `when` is the name of that method."""

    def __init__(self, when):
        super().__init__()
        self.when, self.seen = when, []

    def _told(self, of):
        if of == self.when:
            self.act()

    def set_model(self, model):
        super().set_model(model)
        self._told("set_model")

    def on_train_begin(self, logs=None):
        self._told("on_train_begin")

    def on_test_begin(self, logs=None):
        self._told("on_test_begin")

    def on_predict_begin(self, logs=None):
        self._told("on_predict_begin")


class Wraps(Acts):
    """Puts a function of its own in front of the step function, which halves the learning rate behind each step."""

    def __init__(self, kind="train", looks=False):
        super().__init__(f"on_{kind}_begin")
        self.kind, self.looks, self.wrapper = kind, looks, None

    def act(self):
        attribute, lr, looks, seen = f"{self.kind}_function", self.model.optimizer.learning_rate, self.looks, self.seen
        inner = getattr(self.model, attribute)

        def function(*arguments):
            if looks:
                batch = next(arguments[-1])
                seen.append([np.asarray(leaf).tolist() for leaf in keras.tree.flatten(batch)])
                arguments = (*arguments[:-1], iter([batch]))
            outputs = inner(*arguments)
            lr.assign(lr / 2)
            seen.append("step")
            return outputs

        self.wrapper = function
        setattr(self.model, attribute, function)


@on_tensorflow
@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("looks", [False, True], ids=["calls", "looks"])
@pytest.mark.parametrize("kind", ["train", "test"])
def test_a_function_around_the_step_function_is_called_for_each_batch(kind, looks, batch_size, jit_compile):
    plain, seen, _ = trained(False, Wraps(kind, looks), batch_size)
    callback = Wraps(kind, looks)
    ours, seen_ours, model = trained(True, callback, batch_size, jit_compile)
    assert ours == pytest.approx(plain) and seen_ours == seen and "step" in seen
    assert getattr(model, f"{kind}_function") is callback.wrapper  # where it was put


class WrapsWhole(Wraps):
    """As a decorator does that makes the wrapper look like what is in it, and takes it off itself."""

    def act(self):
        inner = getattr(self.model, f"{self.kind}_function")
        super().act()
        functools.update_wrapper(self.wrapper, inner)
        self.inner = inner

    def on_train_end(self, logs=None):
        if self.kind == "train":
            self.seen.append(self.model.train_function is self.wrapper)
            self.model.train_function = self.inner


@on_tensorflow
@pytest.mark.parametrize("kind", ["train", "test"])
def test_a_function_that_looks_like_the_step_function_is_called_for_each_batch(kind):
    (plain, seen, _), (ours, seen_ours, model) = (trained(each, WrapsWhole(kind)) for each in (False, True))
    assert ours == pytest.approx(plain) and seen_ours == seen and "step" in seen
    assert (True in seen) == (kind == "train")
    assert model.train_function is not None and not hasattr(model.train_function, "__wrapped__")


@on_tensorflow
def test_a_function_around_one_for_several_steps_gets_as_many():
    def steps_of_two(ours):
        return trained(ours, Wraps(), steps=2)[:2]

    assert steps_of_two(True) == steps_of_two(False) == (-3.75, ["step"] * 4)


class Hooks(Acts):
    """Looks at batches from when it is told of something on."""

    def act(self):
        def end(batch, logs=None):
            self.seen.append((batch, {name: np.asarray(value).tolist() for name, value in (logs or {}).items()}))
            if self.when != "on_predict_begin":  # where plain Keras calls hooks in other threads
                self.model.optimizer.learning_rate = 0.5 ** (batch + 1)

        self.on_train_batch_end = self.on_test_batch_end = self.on_predict_batch_end = end


@on_tensorflow
@pytest.mark.parametrize("when", ["set_model", "on_train_begin", "on_test_begin"])
def test_hooks_that_a_callback_gets_while_a_call_begins_are_called_for_each_batch(when):
    (plain, seen, _), (ours, seen_ours, _) = trained(False, Hooks(when)), trained(True, Hooks(when))
    assert ours == pytest.approx(plain) and [batch for batch, _ in seen_ours] == [batch for batch, _ in seen]
    for (_, logs), (_, expected) in zip(seen_ours, seen, strict=True):
        assert logs == pytest.approx(expected)


def test_so_is_a_hook_on_a_callback_of_keras_that_looks_at_epochs_only(tmp_path):
    seen = []
    for ours in (False, True):
        callback = keras.callbacks.ModelCheckpoint(tmp_path / "model.weights.h5", save_weights_only=True)
        callback.seen = []
        callback.on_train_batch_end = lambda batch, logs, seen=callback.seen: seen.append((batch, float(logs["loss"])))
        trained(ours, callback)
        seen.append(callback.seen)
    assert len(seen[0]) == len(X) and seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_so_are_those_of_predict(kind):
    seen = []
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        (keras_xla.compile if ours else keras.Model.compile)(model, "sgd", "mse")
        callback, data = Hooks("on_predict_begin"), X
        if kind == "dataset":
            tf = pytest.importorskip("tensorflow")
            data = tf.data.Dataset.from_tensor_slices(X).batch(1)
        outputs = model.predict(data, batch_size=1 if kind == "arrays" else None, verbose=0, callbacks=[callback])
        told = sorted(callback.seen, key=lambda each: each[0])  # plain Keras calls them in several threads
        seen.append((outputs.tolist(), told))
    assert seen[0] == seen[1] and len(seen[0][1]) == 8


@pytest.mark.parametrize("lengths", [(40, 200, 300), (40, 10, 200), (3, 4, 5)])
def test_data_of_a_length_that_nobody_knows_may_grow(lengths):
    """Keras asks for one batch more than there were in the first epoch."""
    tf = pytest.importorskip("tensorflow")

    def weight(ours):
        epochs = iter(lengths)

        def batches():
            for _ in range(next(epochs, 0)):
                yield np.ones((1, 1), "float32"), np.zeros((1, 1), "float32")

        kinds = (tf.TensorSpec((1, 1)), tf.TensorSpec((1, 1)))
        data = tf.data.Dataset.from_generator(batches, output_signature=kinds)
        callback = keras.callbacks.Callback()
        callback.seen = []
        return trained(ours, callback, x=data, y=None, batch_size=None, epochs=3)[0]

    assert weight(True) == weight(False) < 0


@on_tensorflow
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_a_predict_within_a_fit_on_arrays_still_runs_in_groups(kind):
    """Only the batches of `fit` and `evaluate` may be row numbers, which a function that is not ours must not see."""
    import tensorflow as tf

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    keras_xla.compile(model, "sgd", "mse")
    data = X if kind == "arrays" else tf.data.Dataset.from_tensor_slices(X).batch(1)
    own = []
    sees = keras.callbacks.LambdaCallback()
    sees.on_predict_end = lambda logs=None: own.append(type(model.predict_function).__name__)

    def predict(epoch, logs):
        model.predict(data, batch_size=1 if kind == "arrays" else None, verbose=0, callbacks=[sees])

    model.fit(X, Y, epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=predict)])
    assert own == ["PredictFunction"] * 2


class Steps(keras.Model):
    """Tells how its loss was computed: 1 in a graph, 2 where each step runs in Python; `factor` times that."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 0 * keras.ops.sum(y_pred) + (2.0 if hasattr(y_pred, "numpy") else 1.0)


def tells(ours, jit_compile="auto"):
    model = Steps()
    model(X)
    if ours:
        keras_xla.compile(model, "sgd", "mse", jit_compile=jit_compile)
    else:
        model.compile("sgd", "mse", jit_compile=False)
    return model


def answers(value):
    """A test step."""
    return lambda data: {"told": keras.ops.convert_to_tensor(value)}


@on_tensorflow
@pytest.mark.parametrize("size", [2, 3], ids=["alike", "a smaller last batch"])
@pytest.mark.parametrize("ours", [False, True], ids=["Keras", "keras_xla"])
def test_what_is_set_between_fit_and_the_first_evaluate_counts_for_that(ours, size):
    for change, expected in (
        (lambda model: setattr(model, "run_eagerly", True), {"loss": 2.0}),
        (lambda model: setattr(model, "test_step", answers(10.0)), {"told": 10.0}),
    ):
        model = tells(ours)
        model.fit(X, Y, batch_size=size, verbose=0)
        change(model)
        assert model.evaluate(X, Y, batch_size=size, verbose=0, return_dict=True) == expected
    model.test_step = answers(99.0)  # by now the function is made, and traced
    assert model.evaluate(X, Y, batch_size=size, verbose=0, return_dict=True) == expected


@on_tensorflow
@pytest.mark.parametrize("validated", [False, True], ids=["", "validated"])
@pytest.mark.parametrize("ours", [False, True], ids=["Keras", "keras_xla"])
def test_so_does_what_a_callback_sets_when_it_is_given_the_model(ours, validated):
    class Eager(keras.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            model.run_eagerly = True

    model, how = tells(ours), {"validation_data": (X, Y)} if validated else {}
    history = model.fit(X, Y, batch_size=2, verbose=0, callbacks=[Eager()], **how).history
    assert set(map(tuple, history.values())) == {(2.0,)}
    model = tells(ours)
    assert model.evaluate(X, Y, batch_size=2, verbose=0, callbacks=[Eager()]) == 2.0


@on_tensorflow
@pytest.mark.parametrize("dataset", [False, True], ids=["itself", "in a dataset"])
def test_one_generator_serves_call_after_call(dataset):
    """The next call begins with it: no thread of the one before may still be inside of it."""

    def batches():
        while True:
            time.sleep(0.05)  # longer than a step, so that a thread is inside of it most of the time
            yield X[:4], Y[:4]

    model, stream = tells(True), batches()
    data = of_stream(stream) if dataset else stream
    for _ in range(3):
        model.fit(data, steps_per_epoch=3, verbose=0)
        model.evaluate(data, steps=3, verbose=0)
    next(stream)


@on_tensorflow
def test_a_cache_on_disk_serves_call_after_call(tmp_path):
    """A cache that was not filled is locked for as long as an iterator of it lives."""
    import tensorflow as tf

    x = np.ones((4000, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(8).cache(str(tmp_path / "cache"))
    model = tells(True)
    for _ in range(15):
        model.fit(data, steps_per_epoch=3, verbose=0)
        model.evaluate(data, steps=2, verbose=0)


def of_stream(stream):
    import tensorflow as tf

    spec = tf.TensorSpec((4, 1), "float32")
    data = tf.data.Dataset.from_generator(lambda: stream, output_signature=(spec, spec))
    return data.map(lambda x, y: (x + 0, y)).prefetch(2)


@on_tensorflow
def test_a_validation_takes_no_more_batches_than_its_dataset_has():
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).repeat()
    data = data.apply(tf.data.experimental.assert_cardinality(10))  # which raises where an eleventh is asked for
    model = tells(True)
    history = model.fit(X, Y, validation_data=data, epochs=3, verbose=0).history
    assert history["val_loss"] == [1.0] * 3
