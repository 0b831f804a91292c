"""Keras models whose data plain Keras refuses: known before a compiled step, and none of the others is suspected."""

from collections import Counter
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import layers

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX plain Keras is compiled by XLA, too, and checks nothing", allow_module_level=True)

import tensorflow as tf

import keras_xla
from keras_xla.backend.new_shapes import WayFailed
from keras_xla.backend.tensorflow.partial.split import HEAVY
from keras_xla.backend.tensorflow.runner.executable import Executable
from keras_xla.backend.tensorflow.runner.sources import shapes_of
from keras_xla.backend.tensorflow.runner.trace import Trace
from keras_xla.backend.tensorflow.runner.ways import make
from keras_xla.training.attach import attachment_of
from keras_xla.training.decide.policy import Policy

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(0, 100, (8, 12)).astype("int32")
SERIES = RANDOM.normal(size=(8, 12, 4)).astype("float32")
CLASSES = (np.arange(8) % 3).astype("int32")
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(autouse=True)
def usual_dtypes():
    """The usual dtype policy afterwards."""
    yield
    keras.config.set_dtype_policy("float32")


class Step:
    """A compiled model's training step, as `ways.loop` would run it through XLA, and plainly."""

    def __init__(self, model, *batch):
        self.model = model
        batch = tuple(map(tf.convert_to_tensor, batch))
        model._symbolic_build(data_batch=batch)
        spec = tuple(tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in batch)
        self.trace, shapes = Trace(model.train_step, spec), shapes_of(batch)
        self.ok = Executable(self.trace, "xla", shapes, print).early
        self.checks = self.trace.checks(shapes)
        self.late = [self.trace.concrete.graph.get_operation_by_name(name) for name in self.checks.late]
        self.predicate = tf.function(self.ok, autograph=False).get_concrete_function(batch) if self.ok else None
        self.run = tf.function(make(self.trace, "xla", shapes), autograph=False)

    def holds(self, *batch):
        return bool(tf.function(self.ok, autograph=False)(tuple(map(tf.convert_to_tensor, batch))))

    def plain_error(self, *batch):
        """What plain Keras raises."""
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            self.trace.function(tuple(map(tf.convert_to_tensor, batch)))
        return caught.value.message

    def state(self):
        """Everything that a step changes."""
        return [x.numpy() for x in self.trace.concrete.variables]


def changed(x, value):
    x = x.copy()
    x.flat[-1] = value
    return x


def compiled(model, loss=LOGITS, optimizer="adam", **options):
    model.compile(optimizer, loss, **options)
    return model


def text_model(rows=100, **options):
    lines = [keras.Input((12,)), layers.Embedding(rows, 8, mask_zero=True), layers.LSTM(4), layers.Dense(3)]
    return compiled(keras.Sequential(lines), **options)


def test_ids_and_labels_out_of_range():
    step = Step(text_model(), IDS, CLASSES)
    assert not step.late
    assert step.holds(IDS, CLASSES)
    assert step.holds(changed(IDS, -100), CLASSES)  # from the end, in Keras
    assert not step.holds(changed(IDS, 150), CLASSES)
    assert "Gather" in step.plain_error(changed(IDS, 150), CLASSES)
    assert not step.holds(IDS, changed(CLASSES, 10))
    assert "Received a label value of 10" in step.plain_error(IDS, changed(CLASSES, 10))


def test_the_predicate_is_a_few_operations_on_ids_and_labels():
    predicate = Step(text_model(), IDS, CLASSES).predicate
    kinds = Counter(op.type for op in predicate.graph.get_operations())
    assert kinds["Max"] == 2 and kinds.total() < 40
    assert not any(kind.startswith((*HEAVY, "Random", "StatelessRandom", "ReadVariable")) for kind in kinds)


@pytest.mark.parametrize("outputs", ["logits", "probabilities", "ignored class"])
def test_labels_of_sparse_losses(outputs):
    ignored = {"ignore_class": 255} if outputs == "ignored class" else {}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=outputs != "probabilities", **ignored)
    last = "softmax" if outputs == "probabilities" else None
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(3, last)])
    step = Step(compiled(model, loss), SERIES, CLASSES)
    assert not step.late and step.holds(SERIES, CLASSES)
    assert not step.holds(SERIES, changed(CLASSES, 3)) and not step.holds(SERIES, changed(CLASSES, -1))
    step.plain_error(SERIES, changed(CLASSES, 3))
    assert step.holds(SERIES, changed(CLASSES, 255)) == (outputs == "ignored class")


def transformer():
    inputs = keras.Input((12,))
    positions = keras.ops.arange(0, 12)
    x = layers.Embedding(100, 16)(inputs) + layers.Embedding(12, 16)(positions)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def recurrent():
    lines = [layers.Bidirectional(layers.GRU(4, return_sequences=True)), layers.SimpleRNN(3), layers.Dense(3)]
    return keras.Sequential([keras.Input((12, 4)), layers.Masking(), *lines])


def image():
    lines = [layers.Reshape((12, 4, 1)), layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization()]
    return keras.Sequential([keras.Input((12, 4)), *lines, layers.MaxPooling2D(), layers.Flatten(), layers.Dense(3)])


METRICS = [
    keras.metrics.SparseCategoricalAccuracy,
    lambda: keras.metrics.SparseTopKCategoricalAccuracy(2),
    lambda: keras.metrics.MeanIoU(3, sparse_y_pred=False),
]


@pytest.mark.parametrize("make", [transformer, recurrent, image])
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.quick("float32")
def test_models_in_which_nothing_runs_plainly_for_its_checks(make, dtype):
    keras.config.set_dtype_policy(dtype)
    x = IDS if make is transformer else SERIES
    model = compiled(make(), metrics=[metric() for metric in METRICS] if dtype == "float32" else ["accuracy"])
    step = Step(model, x, CLASSES, np.ones(8, "float32"))
    assert not step.late
    assert step.holds(x, CLASSES, np.ones(8, "float32"))


@pytest.mark.parametrize(
    ("middle", "plainly"),
    [
        (lambda: [layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.GlobalMaxPooling1D()], 0),
        (lambda: [layers.Conv1D(4, 3, activation="relu"), layers.Dropout(0.1), layers.GlobalMaxPooling1D()], 0),
        (lambda: [layers.Reshape((12, 4, 1)), layers.Conv2D(4, 3), layers.ReLU(), layers.MaxPooling2D()], 0),
        (lambda: [layers.Dense(4), layers.LayerNormalization(), layers.GlobalMaxPooling1D()], 1),
        (lambda: [layers.Conv1D(4, 3, activation="gelu"), layers.GlobalMaxPooling1D()], 1),
    ],
)
def test_maxima_run_plainly_only_where_xla_may_compute_them_in_two_ways(middle, plainly):
    model = keras.Sequential([keras.Input((12, 4)), *middle(), layers.Flatten(), layers.Dense(3)])
    step = Step(compiled(model), SERIES, CLASSES)
    assert len(step.checks.beside) == plainly and not step.late


def test_models_without_anything_to_look_at():
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(3, "sigmoid")])
    metrics = [keras.metrics.AUC(), keras.metrics.F1Score(), keras.metrics.Precision(), "accuracy"]
    labels = keras.utils.to_categorical(CLASSES, 3)
    step = Step(compiled(model, "binary_crossentropy", metrics=metrics), SERIES, labels)
    assert step.ok is None and not step.late


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "ftrl"])
@pytest.mark.quick("adam", "sgd")
def test_sparse_gradients_of_ids_that_were_looked_at(optimizer):
    step = Step(text_model(optimizer=optimizer), IDS, CLASSES)
    assert not step.late and not step.holds(changed(IDS, 100), CLASSES)


def test_accumulated_gradients_and_averaged_weights():
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2)
    step = Step(text_model(optimizer=optimizer), IDS, CLASSES)
    assert not step.late and not step.holds(changed(IDS, 100), CLASSES)


class Bounded(layers.Layer):
    """Refuses large activations."""

    def call(self, x):
        tf.debugging.assert_less(x, 1e3, name="bounded")
        return x


def test_an_assertion_on_activations_is_made_in_the_middle_of_the_step():
    lines = [layers.Flatten(), layers.Dense(8, "relu"), layers.BatchNormalization(), Bounded(), layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((12, 4)), *lines, layers.Dense(3)])
    step = Step(compiled(model, metrics=["accuracy"]), SERIES, CLASSES)
    assert len(step.late) == 1
    batch = tuple(map(tf.convert_to_tensor, (SERIES, CLASSES)))
    step.run(batch)
    step.model.layers[2].gamma.assign(step.model.layers[2].gamma * 1e6)
    before = step.state()
    names = [v.name for v in step.trace.concrete.variables]
    with pytest.raises(tf.errors.InvalidArgumentError, match="bounded/Assert"):
        step.run(batch)
    for name, old, new in zip(names, before, step.state(), strict=True):
        np.testing.assert_array_equal(old, new, err_msg=name)
    assert "bounded/Assert" in step.plain_error(*batch)


def bounded(scale):
    """A model whose first layer makes activations so many times as large as usual."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(8), Bounded(), layers.Dense(3)])
    model.layers[1].kernel.assign(model.layers[1].kernel * scale)
    return model


CALLS = {
    "fit": lambda model: model.fit(SERIES, CLASSES, batch_size=3, shuffle=False, verbose=0),
    "evaluate": lambda model: model.evaluate(SERIES, CLASSES, batch_size=3, verbose=0),
    "predict": lambda model: model.predict(SERIES, batch_size=3, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(SERIES, CLASSES),
}


@pytest.mark.parametrize("switch", ["auto", "an earlier run", True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.quick("fit-True", "fit-an", "predict-True")
def test_an_assertion_that_fails_in_the_first_batch_is_no_failure_of_xla(call, switch, monkeypatch):
    if switch == "an earlier run":
        monkeypatch.setattr(Policy, "_auto", lambda self, new_shapes: ("xla", switch, {}))
    model = bounded(1e6)
    keras_xla.compile(model, optimizer="sgd", loss=LOGITS, jit_compile=True if switch is True else "auto")
    before = model.get_weights()
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bounded/Assert"):
            CALLS[call](model)
    reasons = [decision.reason for decision in attachment_of(model).journal.decisions]
    assert reasons and not any(reason.startswith(("XLA failed", "xla failed")) for reason in reasons)
    if switch != "auto":  # in the plain graph what runs beside the assertion is left to chance
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


def test_steps_with_an_assertion_run_many_in_one_call_and_end_at_the_one_that_fails(monkeypatch):
    """One call for a step would cost small models more than XLA gains them: `wide_and_deep` of the fit suite."""
    asked, feed = [], Executable._feed
    monkeypatch.setattr(Executable, "_feed", lambda self, *args: asked.append(args[2]) or feed(self, *args))
    x = np.repeat(SERIES, 6, axis=0)  # 16 batches of 3
    x[13 * 3] *= 1e6
    trained = []
    for compiled in (keras.Model.compile, keras_xla.compile):
        model, rows = bounded(1.0), 48 if compiled is keras_xla.compile else 39
        compiled(model, "sgd", LOGITS, steps_per_execution=8, jit_compile=compiled is keras_xla.compile)
        data = tf.data.Dataset.from_tensor_slices((x[:rows], np.repeat(CLASSES, 6)[:rows])).batch(3)
        with pytest.raises(tf.errors.InvalidArgumentError, match="bounded/Assert") if rows == 48 else nullcontext():
            model.fit(data, verbose=0)
        trained.append(model)
    assert [int(model.optimizer.iterations) for model in trained] == [13, 13]
    for a, b in zip(*(model.get_weights() for model in trained), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert asked == [1, 7, 8]  # the first step compiles


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.quick("evaluate")
def test_an_assertion_that_holds_with_a_smaller_last_batch(call):
    results = []
    for compiled in (keras.Model.compile, keras_xla.compile):
        model = bounded(1.0)
        compiled(model, optimizer="sgd", loss=LOGITS, jit_compile=compiled is keras_xla.compile)
        made = CALLS[call](model)
        results.append([getattr(made, "history", made), model.get_weights()])
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)


class Nearest(layers.Layer):
    """A codebook that is looked up by ids computed from activations."""

    def build(self, shape):
        self.book = self.add_weight((5, shape[-1]))

    def call(self, x):
        ids = keras.ops.cast(keras.ops.round(keras.ops.sum(keras.ops.square(x), -1)), "int32")
        return x + tf.gather(self.book, ids)


def test_ids_that_are_computed_are_checked_in_the_middle_of_the_step():
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(3), Nearest()])
    step = Step(compiled(model), SERIES, CLASSES)
    assert [op.type for op in step.late] in (["ResourceGather"], ["GatherV2"])
    step.model.layers[1].kernel.assign(step.model.layers[1].kernel * 0.0)
    step.run(tuple(map(tf.convert_to_tensor, (SERIES, CLASSES))))
    step.model.layers[1].bias.assign([9.0, 9.0, 9.0])
    before = step.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 5\)") as caught:
        step.run(tuple(map(tf.convert_to_tensor, (SERIES, CLASSES))))
    assert "nearest" in caught.value.message
    for old, new in zip(before, step.state(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("first", [1, 50])
def test_ids_computed_from_a_constant_outside_of_the_step_are_checked(first):
    """Their values are not at hand while the step is traced."""
    book, ids = tf.random.normal((200, 3)), tf.range(180)
    looked_up = layers.Lambda(lambda x: x + tf.reduce_mean(tf.gather(book, ids + first)))
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(3), looked_up])
    step = Step(compiled(model), SERIES, CLASSES)
    right = first == 1
    with nullcontext() if right else pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 200\)"):
        step.run(tuple(map(tf.convert_to_tensor, (SERIES, CLASSES))))
    assert right or step.plain_error(SERIES, CLASSES)


def test_ids_from_a_vocabulary_are_checked_where_they_are_looked_up():
    words = np.array([["a", "b"], ["c", "d"], ["a", "a"], ["b", "?"]] * 2)
    lookup = layers.StringLookup(vocabulary=["a", "b", "c", "d"])
    inputs = keras.Input((2,), dtype="string")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(3, 8)(lookup(inputs)))
    model = compiled(keras.Model(inputs, layers.Dense(3)(layers.Dense(8, "gelu")(x))))
    step = Step(model, tf.constant(words), CLASSES)
    assert [op.type for op in step.late] == ["GatherV2"]
    before = step.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 3\)"):
        step.run((tf.constant(words), tf.constant(CLASSES)))
    for old, new in zip(before, step.state(), strict=True):
        np.testing.assert_array_equal(old, new)
    step.run((tf.constant(np.full((8, 2), "a")), tf.constant(CLASSES)))


@pytest.mark.slow
def test_a_step_with_loops_is_not_traced_again_where_it_would_change_other_variables_by_now():
    step = Step(text_model(), IDS, CLASSES)
    shapes = shapes_of((tf.constant(IDS), tf.constant(CLASSES)))
    make(step.trace, "xla", shapes)
    step.model.layers[1].trainable = False  # of the LSTM; without `compile`, nothing of it counts
    with pytest.raises(WayFailed, match="changes other variables than before") as caught:
        make(step.trace, "xla", shapes)
    assert not caught.value.lasting


def test_labels_that_a_metric_leaves_out_are_not_suspected():
    """In Keras 3.12 they are an error of the metric."""
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(3, "softmax")])
    losses = {"loss": "mse", "metrics": [keras.metrics.MeanIoU(3, sparse_y_pred=False)]}
    step = Step(compiled(model, **losses), SERIES, CLASSES[:, None].astype("float32"))
    labels = changed(CLASSES[:, None].astype("float32"), 7)
    model.compile("sgd", **losses)
    try:
        model.evaluate(SERIES, labels, verbose=0)
    except tf.errors.InvalidArgumentError:
        assert not step.holds(SERIES, labels)
    else:
        assert step.ok is None or step.holds(SERIES, labels)


@pytest.mark.parametrize("layer", ["ContrastLimitedAdaptiveHistogramEqualization", "Equalization"])
def test_what_only_xla_has_a_kernel_for_or_a_shape_of_runs_through_it_as_in_plain_keras(layer):
    """One divides whole numbers that no other kernel divides, the other counts into as many bins as it then finds."""
    if not hasattr(keras.layers, layer):
        pytest.skip(f"Keras {keras.__version__} has no {layer}")
    layer = getattr(keras.layers, layer)
    losses = []
    for compiled in (keras.Model.compile, keras_xla.compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((4, 4, 3)), layer((0, 255)), keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        compiled(model, optimizer="sgd", loss="mse", jit_compile=True)
        images = np.random.default_rng(0).uniform(0, 255, (2, 4, 4, 3)).astype("float32")
        losses += model.fit(images, np.ones((2, 1)), batch_size=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


class Classes(keras.losses.Loss):
    """Takes the numbers of classes as floats; a NaN has no class in plain TensorFlow."""

    def call(self, y, p):
        kept = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32"), 3)
        return -keras.ops.sum(kept * keras.ops.log_softmax(p), -1)


class Shifted(layers.Layer):
    def call(self, x):
        whole = keras.ops.cast(x * 10, "int32")
        return keras.ops.cast(tf.bitwise.left_shift(whole, whole), "float32") / 1e6


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e9, -3e9])
def test_numbers_of_the_data_that_no_integer_holds(value):
    model = keras.Sequential([keras.Input((12, 4)), layers.Flatten(), layers.Dense(3)])
    labels = CLASSES.astype("float32")
    step = Step(compiled(model, Classes()), SERIES, labels)
    assert step.holds(SERIES, labels) and step.holds(SERIES, changed(labels, -0.5))
    assert not step.holds(SERIES, changed(labels, value))


@pytest.mark.parametrize("switch", [True, "auto"])
@pytest.mark.parametrize("kind", ["cast", "shift"])
def test_what_xla_makes_other_integers_of_runs_plainly(kind, switch):
    y = np.where(np.arange(len(SERIES)) % 3, CLASSES, np.nan if kind == "cast" else 0).astype("float32")
    losses = []
    for call in (keras.Model.compile, keras_xla.compile):
        keras.utils.set_random_seed(0)
        first = [Shifted()] if kind == "shift" else []
        model = keras.Sequential([keras.Input((12, 4)), *first, layers.Flatten(), layers.Dense(3)])
        call(model, "sgd", Classes() if kind == "cast" else LOGITS, **({} if not losses else {"jit_compile": switch}))
        losses.append(model.fit(SERIES, y, batch_size=4, epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("name", ["Adagrad", "Adadelta", "Adafactor", "RMSprop", "Adam", "SGD", "Lion", "Ftrl"])
def test_gradients_of_ids_go_through_xla_with_any_optimizer(name):
    """Those of Keras' sparse gradients have operations whose shape depends on values, which XLA computes rightly."""
    losses = []
    for call in (keras.Model.compile, keras_xla.compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((12,)), layers.Embedding(100, 8), layers.Flatten(), layers.Dense(3)])
        call(model, getattr(keras.optimizers, name)(0.01), LOGITS, **({} if not losses else {"jit_compile": True}))
        losses.append(model.fit(IDS, CLASSES, batch_size=4, epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)
