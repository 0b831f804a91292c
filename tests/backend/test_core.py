"""What TensorFlow does for XLA with a part of a function that is traced once: it looks into it once, too."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_xla import backend
from keras_xla.private import names
from keras_xla.private.names import Name
from keras_xla.private.tensorflow import graphs

ROOT = pathlib.Path(__file__).parents[2]

if keras.backend.backend() != "tensorflow":
    pytest.skip("of how TensorFlow makes XLA's programs: on JAX, jax.jit does", allow_module_level=True)

SCRIPT = """
import sys
import numpy as np
from keras_xla import backend

def function(x):
    part = backend.trace_once(lambda x: x * 2 + 1)
    for _ in range(5):
        x = part(x)
    return x
compiled = backend.jit(function, [])
backend.machine()  # by then XLA has read its flags, for which it makes a program
print("begins", file=sys.stderr)
assert compiled(np.float32(0)).numpy() == 31
"""


def test_xla_gets_a_part_that_is_called_five_times_once():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "xla_compiler=1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = done.stderr.partition("begins")[2]
    assert told.count("Executing graph symbolically") == 2, told  # the function, and the part


def test_a_loop_may_take_a_shape_from_around_it():
    import tensorflow as tf

    def function(x):
        shape = tf.stack([tf.shape(x)[0], 1])  # known as soon as XLA looks into it

        def body(i, y):
            return i + 1, tf.reshape(tf.reshape(y, shape) + 1, (4,))

        return tf.while_loop(lambda i, y: i < 3, body, (0, x))[1]

    np.testing.assert_array_equal(backend.jit(function, [])(np.zeros((4,), "float32")), [3, 3, 3, 3])


@pytest.mark.parametrize("name", [graphs.ATTRIBUTE, graphs.XLA_CONTEXT], ids=str)
def test_without_a_private_name_it_compiles_all_the_same_and_one_warning_says_what_is_off(name, monkeypatch):
    of = Name.of
    monkeypatch.setattr(names, "_TOLD", set())

    def of_others(self, x):
        if self == name:
            raise self.gone()
        return of(self, x)

    monkeypatch.setattr(Name, "of", of_others)
    with pytest.warns(UserWarning, match="the first call takes longer") as told:
        compiled = backend.jit(lambda x: backend.trace_once(lambda x: x * 2 + 1)(x), [])
        assert compiled(np.float32(3)).numpy() == compiled(np.float32(3)).numpy() == 7
    assert len(told) == 1


def test_a_part_may_use_tensors_from_around_it_and_gradients_reach_them():
    import tensorflow as tf

    def function(x, factor):
        part = backend.trace_once(lambda x: x * factor)
        return part(part(x))

    x, factor = tf.constant(3.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(factor)
        made = backend.jit(function, [])(x, factor)
    assert made.numpy() == 12 and tape.gradient(made, factor).numpy() == 12  # of x * factor ** 2
