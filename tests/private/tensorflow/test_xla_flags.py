"""A flag of XLA that is set while XLA reads its flags: in processes of their own, as it reads them once."""

import os
import subprocess
import sys

import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("JAX sets the flag itself", allow_module_level=True)

SCRIPT = """
import os
import keras
import numpy as np
import tensorflow as tf
import keras_xla

before = os.environ.get("XLA_FLAGS")
{first}
x = np.array([[[1.0], [np.nan], [2.0]]], "float32")
print(float(keras_xla.jit(keras.layers.GlobalMaxPooling1D())(x)[0, 0]))
x = np.repeat(np.repeat(x, 64, axis=0), 4, axis=2)
model = keras.Sequential([keras.Input((3, 4)), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)])
keras_xla.compile(model, optimizer="sgd", loss="mse", jit_compile=True)
history = model.fit(x, x[:, 0, :1], epochs=3, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0).history
print(len(history["loss"]), os.environ.get("XLA_FLAGS") == before)
"""


def run(first="", flags=None):
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    env |= {} if flags is None else {"XLA_FLAGS": flags}
    code = SCRIPT.format(first=first)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()  # TerminateOnNaN says something in between
    return [words[0], *words[-2:]]


def test_a_nan_stays_one_as_in_plain_keras():
    assert run() == ["nan", "1", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "flags"),
    [
        ("", "--xla_cpu_enable_fast_min_max=true"),
        ("tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1.0))", None),
    ],
    ids=["wanted", "too late"],
)
def test_what_the_user_wants_and_what_xla_has_read_counts(first, flags):
    assert run(first, flags) == ["2.0", "3", "True"]


@pytest.mark.slow
def test_other_flags_stay():
    assert run(flags="--xla_backend_optimization_level=0") == ["nan", "1", "True"]


DRAWS = """
import keras
import tensorflow as tf

keras.utils.set_random_seed(0)
{first}
print(tf.random.normal(()).numpy())
"""


def test_the_random_numbers_of_tensorflow_go_on_as_they_would():
    first = "from keras_xla.private.tensorflow.xla_flags import keep_nan; assert keep_nan()"
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    commands = [[sys.executable, "-c", DRAWS.format(first=each)] for each in ("", first)]
    plain, ours = (subprocess.run(each, capture_output=True, text=True, env=env, check=True) for each in commands)
    assert plain.stdout == ours.stdout != ""
