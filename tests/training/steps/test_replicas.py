"""Training over several devices: the losses of one device, with XLA on, whatever is asked for."""

import json
import os
import socket
import subprocess
import sys

import keras
import pytest

on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's")
on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="keras.distribution is JAX's")

COMMON = """
import glob, json, os, sys
import keras, numpy as np, tensorflow as tf
from keras_xla import XLAUnsupportedError, compile, compile_log, model_report
from keras_xla.training.decide import policy
from keras_xla.training.attach import attachment_of

layers = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = np.random.default_rng(0).normal(size=(72, 8)).astype("float32"), np.arange(72) % 3

def force(margin):
    policy.estimated_cost = lambda facts, graph: 0.0  # trials take place, and what they measure does not matter
    policy.MARGIN = margin

def plain(model, *args, **options):
    model.compile(*args, **options)

def same(made, expected):
    for a, b in zip(keras.tree.flatten(made), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)

def ways(model):
    return [(d.kind, d.way) for d in attachment_of(model).journal.decisions]

class New:
    # the kinds of the compilations since it was made; executables that XLA made since then must be as many
    def __init__(self):
        self.log, self.made = len(compile_log()), self.count()

    def count(self):
        return len(glob.glob(os.environ["XLA_DUMP"] + "/*one_step*before_optimizations.txt"))

    def kinds(self):
        kinds = [event.kind for event in compile_log()[self.log:]]
        assert self.count() - self.made == len(kinds), (self.count(), self.made, kinds)
        return kinds
"""

MIRRORED = (
    COMMON
    + """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
two, one = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), tf.distribute.get_strategy()

def run(strategy, make, build, rows=72, fit=None, **options):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = build()
        make(model, "sgd", LOSS, metrics=["accuracy"], **options)
    x, y = X[:rows], Y[:rows]
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_data=(x, y), **fit or {})
    evaluated = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    return model, [history.history, evaluated, model.predict(x, batch_size=16, verbose=0)]

def dense():
    return keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu", kernel_regularizer="l2"), layers.Dense(3)])

def drawn():
    middle = [layers.Dropout(0.5), layers.BatchNormalization(), layers.GaussianNoise(0.1)]
    return keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), *middle, layers.Dense(3)])
"""
)

AS_ONE_DEVICE = (
    MIRRORED
    + """
_, expected = run(one, plain, dense, rows=64)
force(float("inf"))
for options in ({}, {"jit_compile": True}):
    new = New()
    model, made = run(two, compile, dense, rows=64, **options)
    same(made, expected)
    assert ways(model) == [(kind, "xla") for kind in ("train", "test", "predict")], ways(model)
    kinds = new.kinds()
    assert kinds == ["train"] * 2 + ["test"] * 2 + ["predict"] * 2, kinds  # once in each replica, trials included
    assert attachment_of(model).journal.tallies["train", "xla"].steps == 7  # of 8, the first one with its trial
assert "argument replica: 0 -> 1" in str(model_report(model))

force(0.0)
os.environ["KERAS_XLA_CACHE"] += "-of-another-run"
new = New()
model, made = run(two, compile, dense, rows=64, steps_per_execution=3)
same(made, expected)
assert ways(model) == [(kind, "graph") for kind in ("train", "test", "predict")], ways(model)
assert new.kinds() == ["train"] * 2 + ["test"] * 2 + ["predict"] * 2  # trials
"""
)

AS_PLAIN_KERAS = (
    MIRRORED
    + """
weights = {"class_weight": {0: 1.0, 1: 0.5, 2: 2.0}}
_, expected = run(two, plain, drawn, fit=weights)
force(float("inf"))

new = New()
model, made = run(two, compile, drawn, fit=weights)
same(made, expected)
assert new.kinds() == ["train"] * 2 + ["test"] * 2 + ["predict"] * 2, new.kinds()
assert ways(model) == [(kind, way) for kind in ("train", "test", "predict") for way in ("xla", "graph")]

new = New()
model, made = run(two, compile, drawn, fit=weights, jit_compile=True)
same(made, expected)
assert new.kinds() == ["train"] * 4 + ["test"] * 4 + ["predict"] * 4, new.kinds()  # the last batch, too
assert ways(model) == [(kind, "xla") for kind in ("train", "test", "predict") for _ in range(2)]
"""
)

SPECIAL = (
    MIRRORED
    + """
force(float("inf"))

def fit(make, build, x, y, optimizer="sgd", **options):
    with two.scope():
        keras.utils.set_random_seed(0)
        model = build()
        make(model, optimizer if isinstance(optimizer, str) else optimizer(), LOSS, **options)
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return model, [history, model.get_weights()]

# Sparse gradients, masks, loops, weights without a gradient, an optimizer that scales the loss.
ids = np.random.default_rng(1).integers(1, 10, size=(48, 4))
ids[:, 3:] = 0

class Reader(keras.Model):
    def __init__(self):
        super().__init__()
        self.words, self.unused = layers.Embedding(10, 3, mask_zero=True), layers.Dense(2)
        self.read, self.last = layers.SimpleRNN(3, return_sequences=True), layers.Dense(3)

    def build(self, shape):
        self.words.build(shape)
        for layer in (self.unused, self.read, self.last):
            layer.build((*shape, 3))

    def call(self, x):
        return self.last(self.read(self.words(x)))

data = ids, ids % 3
scaled = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
options = {"optimizer": scaled, "weighted_metrics": ["accuracy"]}
_, expected = fit(plain, Reader, *data, **options)
model, made = fit(compile, Reader, *data, **options)
same(made, expected)
assert ("train", "xla") in ways(model), ways(model)

# Batches one by one; another size of batches is asked about anew in the next fit.
model, made = fit(compile, dense, X[:64], Y[:64])
other, expected = fit(plain, dense, X[:64], Y[:64])
new = New()
same(*([m.train_on_batch(X[:8], Y[:8]), m.test_on_batch(X, Y), m.predict_on_batch(X)] for m in (model, other)))
assert new.kinds() == ["train"] * 2 + ["test"] * 2 + ["predict"] * 2, new.kinds()
same(made, expected)
model.fit(X[:64], Y[:64], batch_size=32, epochs=2, verbose=0)
asked = [d.shapes.split(",")[0] for d in attachment_of(model).journal.decisions if (d.kind, d.way) == ("train", "xla")]
assert {"x: (8", "x: (16"} <= set(asked), attachment_of(model).journal.decisions
assert "(16, 8)" in compile_log()[-1].shapes

# What fails at run time fails in the trial, or before anything else has run.
class Varying(layers.Layer):
    def call(self, x):
        count = 5 + tf.cast(tf.abs(x[0, 0]) * 3, tf.int32)
        return x + 1e-3 * tf.reduce_sum(tf.cast(tf.range(count), tf.float32))

def varying():
    return keras.Sequential([keras.Input((8,)), layers.Dense(8), Varying(), layers.Dense(3)])

model, made = fit(compile, varying, X[:64], Y[:64])
same(made, fit(plain, varying, X[:64], Y[:64])[1])
first = attachment_of(model).journal.decisions[0]
assert first.way == "graph" and "failed" in first.reason, first
try:
    fit(compile, varying, X[:64], Y[:64], jit_compile=True)
except XLAUnsupportedError as error:
    assert str(error).startswith("XLA failed in the layer 'varying") and "the train step" in str(error), error
else:
    raise AssertionError("not refused")

# What cannot be divided runs as it is, or is refused.
class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)

class Hidden(keras.Sequential):
    def build(self, shape=None):
        super().build(shape)
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, x, training=None):
        self.calls.assign_add(1.0)
        return super().call(x, training=training)

for kind, told in ((Own, "train_step is the model's own"), (Hidden, "AssignAddVariableOp changes a variable")):
    def build():
        return kind([keras.Input((8,)), layers.Dense(3)])

    before = len(compile_log("train"))
    model, made = fit(compile, build, X[:64], Y[:64])
    same(made, fit(plain, build, X[:64], Y[:64])[1])
    first = attachment_of(model).journal.decisions[0]
    assert first.way == "graph" and told in first.reason, first
    assert len(compile_log("train")) == before
    try:
        fit(compile, build, X[:64], Y[:64], jit_compile=True)
    except XLAUnsupportedError as error:
        assert told in str(error) and "Fix:" in str(error), error
    else:
        raise AssertionError("not refused")
"""
)

WORKER = (
    COMMON
    + """
where = sys.argv[1]
strategy = tf.distribute.get_strategy() if where == "alone" else tf.distribute.MultiWorkerMirroredStrategy()

def run(rows, **options):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(3)])
        (plain if options.pop("plain", False) else compile)(model, "adam", LOSS, metrics=["accuracy"], **options)
    x, y = X[:rows], Y[:rows]
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)).history
    return model, [*history.values(), model.predict(x, batch_size=16, verbose=0).tolist()]

if where == "alone":
    results = [run(rows, plain=True)[1] for rows in (64, 64, 70)]
else:
    force(float("inf") if where == "0" else 0.0)  # each worker decides for itself
    model, first = run(64)
    assert ways(model) == [(kind, "xla" if where == "0" else "graph") for kind in ("train", "test", "predict")]
    before = len(compile_log())
    model, second = run(64, jit_compile=True)
    kinds = [event.kind for event in compile_log()[before:]]
    assert kinds == ["train", "test", "predict"], kinds
    results = [first, second, run(70)[1]]
print(json.dumps(results))
"""
)

DATA_PARALLEL = """
import keras, numpy as np
from keras_xla import compile, compile_log
x, y = np.random.default_rng(0).normal(size=(64, 8)).astype("float32"), np.arange(64) % 3

def run():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
    compile(model, "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return [*model.history.history["loss"], model.evaluate(x, y, verbose=0), *model.predict(x, verbose=0)[0].tolist()]

alone = run()
assert len(keras.distribution.list_devices()) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel())
np.testing.assert_allclose(run(), alone, rtol=1e-5)
kinds = [event.kind for event in compile_log()]
assert kinds == ["train", "test", "predict"] * 2, kinds
"""


def start(program, folder, *arguments, **environment):
    """The program in a process of its own, with a memory of its own."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    memory = str(folder / f"cache-{'-'.join(arguments)}")
    environment = {**os.environ, "KERAS_XLA_CACHE": memory, "PYTHONPATH": root, **environment}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment, **pipe)


def dumping(folder):
    """The environment in which XLA writes down whatever it compiles."""
    return {"XLA_FLAGS": f"--xla_dump_to={folder / 'dump'} --xla_dump_hlo_as_text", "XLA_DUMP": str(folder / "dump")}


def output_of(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-4000:]
    return out


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@on_tensorflow
@pytest.mark.slow
def test_mirrored_replicas_train_as_one_device_does(tmp_path):
    output_of(start(AS_ONE_DEVICE, tmp_path, **dumping(tmp_path)))


@on_tensorflow
@pytest.mark.slow
def test_dropout_moving_statistics_class_weights_and_a_smaller_last_batch(tmp_path):
    """Replicas draw the same masks and have statistics of their own, in plain Keras too: so compare to that."""
    output_of(start(AS_PLAIN_KERAS, tmp_path, **dumping(tmp_path)))


@on_tensorflow
@pytest.mark.slow
def test_what_else_models_do(tmp_path):
    output_of(start(SPECIAL, tmp_path, **dumping(tmp_path)))


@on_tensorflow
@pytest.mark.slow
def test_two_workers_train_as_one_process_does(tmp_path):
    ports = free_ports(2)
    config = {"cluster": {"worker": [f"localhost:{port}" for port in ports]}}
    tasks = [json.dumps({**config, "task": {"type": "worker", "index": index}}) for index in range(2)]
    workers = [start(WORKER, tmp_path, str(index), TF_CONFIG=task) for index, task in enumerate(tasks)]
    expected = json.loads(output_of(start(WORKER, tmp_path, "alone")))
    for worker in workers:
        made = json.loads(output_of(worker))
        for a, b in zip(keras.tree.flatten(made), keras.tree.flatten(expected), strict=True):
            assert a == pytest.approx(b, rel=2e-4, abs=2e-5)


@on_jax
def test_data_parallel_trains_as_one_device_does(tmp_path):
    output_of(start(DATA_PARALLEL, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=2"))
