"""Training over several devices: the losses of one device, whatever is asked for."""

import os
import subprocess
import sys

import keras
import pytest

MIRRORED = """
import json
import keras, numpy as np, tensorflow as tf
from keras_xla import XLAUnsupportedError, compile, compile_log
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x, y = np.random.default_rng(0).normal(size=(64, 8)).astype("float32"), np.arange(64) % 3

def run(strategy, **options):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        compile(model, "sgd", loss, **options)
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return [*model.history.history["loss"], model.evaluate(x, y, verbose=0), *model.predict(x, verbose=0)[0].tolist()]

two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
np.testing.assert_allclose(run(two), run(tf.distribute.get_strategy()), rtol=1e-5)
assert not compile_log(), compile_log()
try:
    run(two, jit_compile=True)
except XLAUnsupportedError as error:
    assert "2 replicas" in str(error)
else:
    raise AssertionError("not refused")
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


def passes(program, **environment):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, **environment, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's")
def test_mirrored_replicas_train_as_one_device_does():
    passes(MIRRORED)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="keras.distribution is JAX's")
def test_data_parallel_trains_as_one_device_does():
    passes(DATA_PARALLEL, XLA_FLAGS="--xla_force_host_platform_device_count=2")
