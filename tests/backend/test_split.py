"""A step in parts: what XLA cannot compile, or is bad at, runs plainly, and the rest in executables."""

from collections import Counter

import keras
import numpy as np
import pytest
from keras import layers

from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from tests.training.helpers import LOSS, Log

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX Keras compiles every step itself", allow_module_level=True)

import tensorflow as tf

from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graphs.operations import operations
from keras_xla.backend.tensorflow.partial import split as tensorflow_split
from keras_xla.backend.tensorflow.partial.split import NotSplittable, split

IMAGES = np.random.default_rng(0).normal(size=(40, 8, 8, 3)).astype("float32")
CLASSES = (np.arange(40) % 3).astype("int32")


def ways(run, specs):
    """The operations that run plainly, and those of each executable, in the order in which they run."""
    plain, compiled = Counter(), []
    for op in tf.function(lambda *flat: run(list(flat))).get_concrete_function(*specs).graph.get_operations():
        plain[op.type] += 1
        if "_XlaMustCompile" in op.node_def.attr and op.get_attr("_XlaMustCompile"):
            body = op.graph._get_function(op.get_attr("f").name).graph
            compiled.append(Counter(inner.type for inner in operations(body)))
    return plain, compiled


def split_of(step, *arguments, towers=False):
    """The step in parts, as a function of its arguments, and what runs where."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in map(tf.convert_to_tensor, arguments)]
    opened = [tf.TensorSpec([None, *spec.shape[1:]] if spec.shape.rank else [], spec.dtype) for spec in specs]
    run = split(Checks(tf.function(step).get_concrete_function(*opened), specs), towers)
    return tf.function(lambda *flat: run(list(flat)), autograph=False), *ways(run, specs)


def kernel(*shape):
    return tf.Variable(np.random.default_rng(1).normal(size=shape).astype("float32"))


def test_without_anything_to_leave_out_there_is_one_executable():
    weights = kernel(3, 4)
    run, plain, compiled = split_of(lambda x: tf.nn.relu(x @ weights), IMAGES[0, 0])
    assert len(compiled) == 1 and compiled[0]["MatMul"] == 1 and not plain["MatMul"]
    np.testing.assert_allclose(run(IMAGES[0, 0]), tf.nn.relu(IMAGES[0, 0] @ weights), rtol=1e-5)


def test_a_tower_runs_plainly_and_the_head_and_the_update_in_executables(monkeypatch):
    monkeypatch.setattr(tensorflow_split, "PART_OPERATIONS", 1)
    first, second, head = kernel(3, 3, 3, 4), kernel(3, 3, 4, 4), kernel(4, 3)

    def step(images, classes):
        with tf.GradientTape() as tape:
            x = tf.nn.relu(tf.nn.conv2d(images, first, 1, "SAME"))
            x = tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(x, second, 1, "SAME")), (1, 2))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, x @ head))
        for variable, gradient in zip((first, second, head), tape.gradient(loss, [first, second, head]), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    kept = [tf.identity(x) for x in (first, second, head)]
    expected = float(step(IMAGES, CLASSES)), [x.numpy() for x in (first, second, head)]
    for variable, value in zip((first, second, head), kept, strict=True):
        variable.assign(value)
    run, plain, compiled = split_of(step, IMAGES, CLASSES, towers=True)
    assert plain["Conv2D"] == 2 and plain["Conv2DBackpropFilter"] == 2 and plain["Conv2DBackpropInput"] == 1
    assert not any(kind.startswith("Conv") for part in compiled for kind in part)
    assert not plain["MatMul"] and sum(part["MatMul"] for part in compiled) == 3
    assert not plain["AssignSubVariableOp"] and compiled[-1]["AssignSubVariableOp"] == 3
    assert float(run(IMAGES, CLASSES)) == pytest.approx(expected[0], rel=1e-5)
    for made, wanted in zip((first, second, head), expected[1], strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-6)


def test_what_xla_cannot_compile_may_be_in_the_middle():
    weights, back = kernel(3, 4), kernel(4, 3)

    def step(x):
        x = x @ weights
        lengths = tf.strings.length(tf.strings.as_string(x, precision=2))
        return (x + tf.cast(lengths, tf.float32)) @ back

    run, plain, compiled = split_of(step, IMAGES[0, 0])
    assert plain["StringLength"] == 1 and [part["MatMul"] for part in compiled] == [1, 1]
    np.testing.assert_allclose(run(IMAGES[0, 0]), step(IMAGES[0, 0]), rtol=1e-4)


def test_variables_are_read_and_changed_in_order():
    count = tf.Variable(1.0)

    def step(x):
        before = count.read_value()
        count.assign_add(1.0)
        words = tf.strings.as_string(x * count.read_value(), precision=1)  # plain, after the first change
        count.assign(count * 10.0)
        length = tf.cast(tf.strings.length(words), tf.float32)
        count.assign_add(tf.reduce_sum(length))
        return before, length, count.read_value()

    x = np.array([0.5, 12.5, 100.0], "float32")
    expected = [y.numpy() for y in tf.function(step)(x)]
    count.assign(1.0)
    run, plain, compiled = split_of(step, x)
    assert plain["AsString"] == 1 and len(compiled) >= 1
    for made, wanted in zip(run(x), expected, strict=True):
        np.testing.assert_array_equal(made, wanted)
    assert float(count) == 2.0 * 10 + 3 + 4 + 5


def test_random_numbers_of_the_shape_of_a_layers_output_do_not_wait_for_it():
    weights, back = kernel(3, 4), kernel(4, 3)

    def step(x):
        x = x @ weights
        return (x * tf.random.stateless_uniform(tf.shape(x), (1, 2))) @ back

    run, plain, compiled = split_of(step, IMAGES[0, 0])
    assert plain["StatelessRandomUniformV2"] == 1 and [part["MatMul"] for part in compiled] == [2]
    np.testing.assert_allclose(run(IMAGES[0, 0]), step(IMAGES[0, 0]), rtol=1e-4)


def test_constants_and_inputs_may_be_outputs():
    run, _, _ = split_of(lambda x: {"x": x, "one": tf.constant(1.0), "twice": 2 * x}, IMAGES[0, 0])
    made = run(IMAGES[0, 0])
    np.testing.assert_array_equal(made["x"], IMAGES[0, 0])
    np.testing.assert_array_equal(made["twice"], 2 * IMAGES[0, 0])
    assert float(made["one"]) == 1.0


def test_a_called_function_with_a_convolution_in_it_runs_plainly():
    weights, head = kernel(3, 3, 3, 4), kernel(4, 3)
    inner = tf.function(lambda x: tf.nn.conv2d(x, weights, 1, "SAME"))

    def step(x):
        x = tf.nn.softmax(tf.reduce_mean(tf.exp(tf.tanh(tf.nn.relu(inner(x)) * 2.0 + 1.0)), (1, 2)) @ head)
        return tf.sqrt(x) - tf.square(x)

    run, _, compiled = split_of(step, IMAGES, towers=True)
    assert len(compiled) == 1 and compiled[0]["MatMul"] == 1 and not compiled[0]["Conv2D"]
    np.testing.assert_allclose(run(IMAGES), step(IMAGES), rtol=1e-4, atol=1e-6)


def test_a_tower_alone_is_not_worth_an_executable():
    weights = kernel(3, 3, 3, 4)
    with pytest.raises(NotSplittable, match="hardly anything"):
        split_of(lambda x: tf.nn.relu(tf.nn.conv2d(x, weights, 1, "SAME")), IMAGES, towers=True)


def test_all_of_it_runs_plainly_where_values_alone_keep_it_from_xla():
    limits = kernel(3)

    def step(x):
        return tf.raw_ops.Bucketize(input=x + limits, boundaries=[-1.0, 0.0, 1.0])

    run, plain, compiled = split_of(step, IMAGES[0, 0])
    assert not compiled and plain["Bucketize"] == 1
    np.testing.assert_array_equal(run(IMAGES[0, 0]), step(IMAGES[0, 0]))


def test_what_is_of_varying_shape_cannot_enter_an_executable():
    def step(x):
        words = tf.strings.split(tf.strings.as_string(x), ".").flat_values
        return tf.reduce_sum(tf.strings.length(words) * 2)

    with pytest.raises(NotSplittable, match=r"int32 \(None,\)"):
        split_of(step, IMAGES[0, 0, 0])


def image_model(*middle, head=()):
    return keras.Sequential([keras.Input((8, 8, 3)), *middle, layers.Flatten(), *head, layers.Dense(3)])


def norms():
    block = [layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D(2)]
    return image_model(*block, layers.Conv2D(4, 3, activation="relu"), head=[layers.Dropout(0.4), layers.Dense(8)])


def separable():
    return image_model(layers.SeparableConv2D(4, 3), layers.AveragePooling2D(2), layers.Dropout(0.2))


def transposed():
    return image_model(layers.Conv2D(4, 3, strides=2), layers.Dense(6, "gelu"), layers.Conv2DTranspose(2, 3, strides=2))


def patches():
    """A vision transformer in small: one convolution, and much after it."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Reshape((4, 8))(layers.Conv2D(8, 4, strides=4)(inputs))
    normed = layers.LayerNormalization()(x)
    x = layers.add([x, layers.MultiHeadAttention(2, 4, dropout=0.1)(normed, normed)])
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))))


def recurrent():
    lines = [layers.Reshape((8, 24)), layers.Conv1D(6, 3), layers.LSTM(5), layers.Dense(8, "gelu")]
    return image_model(*lines, head=[layers.LayerNormalization()])


MODELS = [norms, separable, transposed, patches, recurrent]


@pytest.fixture
def chosen(monkeypatch):
    """Whatever was measured, it is in parts."""
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    monkeypatch.setattr(policy, "MARGIN", float("inf"))


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.slow
def test_models_with_convolutions_train_as_in_plain_keras(chosen, make):
    def run(compiled):
        keras.utils.set_random_seed(0)
        model = make()
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=1.0, use_ema=make is norms)
        compiled(model, optimizer, LOSS, metrics=["accuracy"])
        history = model.fit(IMAGES, CLASSES, batch_size=16, epochs=2, verbose=0, validation_data=(IMAGES, CLASSES))
        predicted = model.predict(IMAGES, batch_size=16, verbose=0)
        return model, [*history.history.values(), predicted, *model.get_weights()]

    log = Log()
    model, made = run(compile)
    assert {(d.kind, d.way) for d in attachment_of(model).journal.decisions} >= {("train", "partial")}
    kinds = log.kinds()
    assert len(kinds) == len(set(kinds))
    for ours, plain in zip(made, run(keras.Model.compile)[1], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.quick("auto")
def test_loops_and_random_numbers_together(chosen, jit_compile):
    def run(compiled, **options):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8, 6)), layers.LSTM(5), layers.Dropout(0.4), layers.Dense(3)])
        compiled(model, "sgd", LOSS, **options)
        return model, model.fit(IMAGES[:, :, 0].repeat(2, -1), CLASSES, batch_size=20, epochs=2, verbose=0).history

    model, made = run(compile, jit_compile=jit_compile)
    assert [(d.kind, d.way) for d in attachment_of(model).journal.decisions] == [("train", "xla")]
    np.testing.assert_allclose(made["loss"], run(keras.Model.compile)[1]["loss"], rtol=1e-4)


class Turning(layers.Layer):
    """A loop of which nobody knows beforehand how often it turns, nor how much its gradient needs."""

    def call(self, x):
        turns = 2 + tf.cast(tf.abs(x[0, 0]) > 1e6, tf.int32)
        return tf.while_loop(lambda i, _: i < turns, lambda i, x: (i + 1, tf.tanh(x)), (0, x))[1]


@pytest.mark.parametrize("middle, way", [("nothing", "xla"), ("dropout", "xla"), ("convolution", "partial")])
@pytest.mark.slow
def test_loops_without_a_known_end(chosen, middle, way):
    def run(compiled):
        keras.utils.set_random_seed(0)
        before = {"dropout": [layers.Dropout(0.4)], "convolution": [layers.Conv2D(4, 3)]}.get(middle, [])
        lines = [*before, layers.Flatten(), Turning(), layers.LayerNormalization(), layers.Dense(3)]
        model = keras.Sequential([keras.Input((8, 8, 3)), *lines])
        compiled(model, "sgd", LOSS)
        return model, model.fit(IMAGES, CLASSES, batch_size=20, epochs=2, verbose=0).history["loss"]

    model, made = run(compile)
    (decision,) = attachment_of(model).journal.decisions
    assert decision.way == way, decision
    np.testing.assert_allclose(made, run(keras.Model.compile)[1], rtol=1e-5)


def test_strings_and_convolutions_together(chosen):
    def run(compiled):
        keras.utils.set_random_seed(0)
        images, words = keras.Input((8, 8, 3)), keras.Input((1,), dtype="string")
        x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(images))
        known = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words)
        outputs = layers.Dense(3)(layers.LayerNormalization()(layers.concatenate([x, known])))
        model = keras.Model([images, words], outputs)
        compiled(model, "adam", LOSS)
        texts = tf.constant([["a"], ["b"], ["?"], ["b"]] * 10)
        data = tf.data.Dataset.from_tensor_slices(((IMAGES, texts), CLASSES)).batch(20)
        return model, [*model.fit(data, epochs=2, verbose=0).history["loss"], *model.get_weights()]

    model, made = run(compile)
    assert ("train", "partial") in {(d.kind, d.way) for d in attachment_of(model).journal.decisions}
    for ours, plain in zip(made, run(keras.Model.compile)[1], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-4, atol=1e-5)
