"""What TensorFlow does for XLA with a part of a function that is traced once: it looks into it once, too."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_xla import backend

ROOT = pathlib.Path(__file__).parents[2]

if keras.backend.backend() != "tensorflow":
    pytest.skip("of how TensorFlow makes XLA's programs: on JAX, jax.jit does", allow_module_level=True)

SCRIPT = """
import sys
import numpy as np
from keras_xla import backend

part = backend.trace_once(lambda x: x * 2 + 1)
def function(x):
    for _ in range(5):
        x = part(x)
    return x
compiled = backend.jit(function, [])
print("begins", file=sys.stderr)
assert compiled(np.float32(0)).numpy() == 31
"""


def test_xla_gets_a_part_that_is_called_five_times_once():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "xla_compiler=1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = done.stderr.partition("begins")[2]
    assert told.count("Executing graph symbolically") == 2, told  # the function, and the part


def test_a_part_may_use_tensors_from_around_it_and_gradients_reach_them():
    import tensorflow as tf

    def function(x, factor):
        part = backend.trace_once(lambda x: x * factor)
        return part(part(x))

    x, factor = tf.constant(3.0), tf.constant(2.0)
    assert backend.jit(function, [])(np.float32(3), np.float32(2)).numpy() == 12
    with tf.GradientTape() as tape:
        tape.watch(factor)
        made = tf.function(function, autograph=False)(x, factor)
    assert made.numpy() == 12 and tape.gradient(made, factor).numpy() == 12  # of x * factor ** 2
