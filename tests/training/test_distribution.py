"""Training over several devices: Keras' own steps under `tf.distribute`, XLA's division of the work on JAX."""

import os
import subprocess
import sys

import keras
import pytest

on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's")
on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="keras.distribution is JAX's")

MIRRORED = """
import keras, numpy as np, tensorflow as tf
from keras_xla import XLAUnsupportedError, compile, compile_log, model_report
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x, y = np.random.default_rng(0).normal(size=(72, 8)).astype("float32"), np.arange(72) % 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def built():
    keras.utils.set_random_seed(0)
    middle = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.Input((8,)), *middle, keras.layers.Dense(3)])

def run(make):
    with two.scope():
        model = built()
        make(model)
    options = {"validation_data": (x, y), "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    fit = model.fit(x, y, batch_size=16, epochs=2, verbose=0, **options)
    evaluated = model.evaluate(x, y, batch_size=16, verbose=0)
    return model, [*fit.history.values(), evaluated, model.predict(x, batch_size=16, verbose=0).tolist()]

_, expected = run(lambda model: model.compile("sgd", LOSS, metrics=["accuracy"]))
model, made = run(lambda model: compile(model, "sgd", LOSS, metrics=["accuracy"]))
for a, b in zip(keras.tree.flatten(made), keras.tree.flatten(expected), strict=True):
    assert a == b, (a, b)
assert not compile_log()
assert "tf.distribute runs the step" in str(model_report(model))
before = model.optimizer, model.loss, model.jit_compile, model.get_weights()
try:
    with two.scope():
        compile(model, "adam", "mae", jit_compile=True)
except XLAUnsupportedError as error:
    assert "2 replicas" in str(error) and "DataParallel" in str(error), error
else:
    raise AssertionError("not refused")
assert (model.optimizer, model.loss, model.jit_compile) == before[:3]  # nothing of it has changed
model.fit(x, y, batch_size=16, verbose=0)
assert any((a != b).any() for a, b in zip(model.get_weights(), before[3], strict=True))
"""

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


def run(program, folder, **environment):
    """The program in a process of its own, with a memory of its own."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "KERAS_XLA_CACHE": str(folder), "PYTHONPATH": root, **environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


@on_tensorflow
def test_under_a_mirrored_strategy_keras_own_steps_run(tmp_path):
    run(MIRRORED, tmp_path)


@on_jax
def test_data_parallel_trains_as_one_device_does(tmp_path):
    run(DATA_PARALLEL, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=2")
