"""What a step does beside computing: a trial is for steps that it can undo, and copies only what they write."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("a TensorFlow graph is looked at", allow_module_level=True)
import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.effects import Effects

layers = keras.layers
V, W = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
QUEUE = tf.queue.FIFOQueue(1, "float32")
GENERATOR = tf.random.Generator.from_seed(1)


def effects(function, *specs):
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    return Effects(traced.graph)


def changed(function, *specs):
    return [id(variable) for variable in effects(function, *specs).changed]


def summed_and(write):
    def run():
        write()
        return tf.reduce_sum(V)

    return run


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda: tf.print("once"), "PrintV2"),
        (lambda: tf.py_function(print, [1.0], []), "EagerPyFunc"),
        (lambda: tf.numpy_function(lambda: 1.0, [], tf.float32), "PyFunc"),
        (lambda: tf.numpy_function(lambda: 1.0, [], tf.float32, stateful=False), "PyFuncStateless"),
        (lambda: tf.random.uniform([2]), "RandomUniform"),
        (lambda: tf.random.shuffle([1, 2]), "RandomShuffle"),
        (lambda: GENERATOR.normal([2]), "StatelessRandomNormalV2|RngReadAndSkip"),
        (lambda: TABLE.insert([1], [2]), "LookupTableInsertV2"),
        (lambda: tf.io.write_file("never", "written"), "WriteFile"),
        (lambda: QUEUE.enqueue(1.0), "QueueEnqueueV2"),
        (lambda: tf.timestamp(), "Timestamp"),
        (lambda: tf.cond(V[0] > 0, lambda: tf.print("deep"), lambda: tf.no_op()), "PrintV2"),
        (lambda: tf.map_fn(lambda x: x + tf.random.normal([]), V), "RandomStandardNormal"),
    ],
)
def test_what_could_not_be_undone_is_named(write, kind):
    assert set(effects(summed_and(write)).lasting) & set(kind.split("|"))


@pytest.mark.parametrize(
    "write",
    [
        lambda: V.assign(W),
        lambda: V.assign_add(W),
        lambda: V[0].assign(2.0),
        lambda: V.scatter_nd_update([[0]], [1.0]),
        lambda: V.scatter_update(tf.IndexedSlices([1.0], [0])),
        lambda: tf.raw_ops.ResourceApplyGradientDescent(var=V.handle, alpha=0.1, delta=W),
        lambda: tf.cond(V[0] > 0, lambda: V.assign_add(W), lambda: V + 0.0),
        lambda: tf.while_loop(lambda i: i < 3, lambda i: (tf.group(V.assign_add(V)), i + 1)[1:], [0]),
        lambda: tf.function(lambda: V.assign(V * 2.0))(),
        lambda: tf.debugging.assert_positive(W),
        lambda: tf.random.stateless_uniform([2], [1, 2]),
        lambda: tf.debugging.check_numerics(W, "finite"),
        lambda: TABLE.lookup([1]),
    ],
)
def test_writes_to_variables_reads_and_checks_can_be_undone(write):
    assert effects(summed_and(write)).lasting == ()


def test_only_what_is_written_is_copied():
    assert changed(lambda: V + W) == []
    assert changed(lambda: V.assign(W)) == [id(V)]
    assert changed(lambda: tf.function(lambda: W.assign(V * 2.0))()) in ([id(W)], [id(V), id(W)], [id(W), id(V)])
    in_a_loop = changed(lambda: tf.while_loop(lambda i: i < 3, lambda i: (W.assign_add(W), i + 1)[1:], [0]))
    assert id(W) in in_a_loop
    after_a_loop = changed(lambda: (tf.while_loop(lambda i: i < 3, lambda i: (i + V.shape[0],), [0]), V.assign(W))[1])
    assert after_a_loop == [id(V)]


def test_a_handle_of_nobodys_variable_cannot_be_undone():
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="nobody")
    written = effects(summed_and(lambda: tf.raw_ops.AssignVariableOp(resource=handle, value=[1.0, 1.0])))
    assert written.lasting == ("AssignVariableOp of what is no tf.Variable",)


def test_a_function_of_an_imported_graph_may_do_anything():
    spec = tf.TensorSpec((2,), tf.float32)
    traced = tf.function(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x)).get_concrete_function(spec)
    assert Effects(traced.graph).lasting == ()
    definition, (x,), (y,) = traced.graph.as_graph_def(), traced.inputs, traced.outputs

    def imported(value):
        return tf.graph_util.import_graph_def(definition, {x.op.name: value}, [y.name])[0]

    wrapped = tf.compat.v1.wrap_function(imported, [spec])
    assert any("of a function without a graph" in kind for kind in Effects(wrapped.graph).lasting)


def test_a_frozen_model_costs_no_copy_of_its_weights():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(64, trainable=False), layers.Dense(1)])
    model.compile("adam", "mse")
    specs = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    model._symbolic_build(data_batch=specs)
    traced = tf.function(model.train_step).get_concrete_function(specs)
    copied = Effects(traced.graph).changed
    frozen = {id(weight.value) for weight in model.layers[0].weights}
    assert len(traced.graph.variables) > len(copied) and not frozen & {id(variable) for variable in copied}
    assert {id(weight.value) for weight in model.trainable_weights} <= {id(variable) for variable in copied}
    tested = tf.function(model.test_step).get_concrete_function(specs)
    assert all(
        "mean_metric" in variable.path or "loss" in variable.path or variable.shape.rank == 0
        for variable in model.metrics_variables
    )
    assert len(Effects(tested.graph).changed) == len(model.metrics_variables)


X = np.ones((4, 8, 4), "float32")
LAYERS = {
    "rnn": lambda: [layers.LSTM(2, dropout=0.1, recurrent_dropout=0.1)],
    "gru": lambda: [layers.Bidirectional(layers.GRU(2, return_sequences=True))],
    "simple": lambda: [layers.RNN(layers.SimpleRNNCell(2), stateful=False)],
    "attention": lambda: [layers.Dense(4), keras.layers.LayerNormalization(), layers.GaussianNoise(0.1)],
    "norms": lambda: [layers.BatchNormalization(), layers.GroupNormalization(2), layers.UnitNormalization()],
    "noise": lambda: [layers.AlphaDropout(0.1), layers.GaussianDropout(0.1), layers.SpatialDropout1D(0.1)],
    "conv": lambda: [layers.Conv1D(2, 3), layers.MaxPooling1D(), layers.GlobalAveragePooling1D()],
    "separable": lambda: [layers.SeparableConv1D(2, 3), layers.UpSampling1D(), layers.Conv1DTranspose(2, 3)],
    "image": lambda: [
        layers.Reshape((8, 4, 1)),
        layers.RandomFlip(),
        layers.RandomRotation(0.1),
        layers.RandomZoom(0.1),
    ],
    "image2": lambda: [
        layers.Reshape((8, 4, 1)),
        layers.RandomCrop(4, 4),
        layers.RandomContrast(0.1),
        layers.Resizing(2, 2),
    ],
    "spectral": lambda: [layers.SpectralNormalization(layers.Dense(2))],
    "time": lambda: [layers.TimeDistributed(layers.Dense(2))],
    "bins": lambda: [layers.Discretization([0.0, 1.0]), layers.Embedding(3, 2)],
    "strings": lambda: [
        layers.Lambda(lambda x: tf.strings.as_string(keras.ops.cast(x[:, 0], "int32"))),
        layers.StringLookup(vocabulary=["1", "2"]),
        layers.Embedding(4, 2),
    ],
}
OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "ftrl", "lion", "adafactor"]
METRICS = ["mae", keras.metrics.AUC, keras.metrics.R2Score, keras.metrics.RootMeanSquaredError]


def train_step(middle, optimizer="adam", metrics=(), **compiled):
    model = keras.Sequential([keras.Input(X.shape[1:]), *middle, layers.Flatten(), layers.Dense(1, "sigmoid")])
    model.compile(optimizer, "mse", metrics=list(metrics), **compiled)
    specs = tf.TensorSpec([4, *X.shape[1:]]), tf.TensorSpec([4, 1])
    model._symbolic_build(data_batch=specs)
    return effects(model.train_step, specs)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_keras_can_be_tried(name):
    assert train_step(LAYERS[name]()).lasting == ()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_of_keras_can_be_tried(name):
    assert train_step([layers.Dense(2)], name).lasting == ()


def test_metrics_and_what_optimizers_do_beside_can_be_tried():
    optimizer = keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2)
    metrics = [metric if isinstance(metric, str) else metric() for metric in METRICS]
    assert train_step([layers.Dense(2)], optimizer, metrics).lasting == ()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    assert train_step([layers.Dense(2)], scaled).lasting == ()
