"""Training steps and functions that one process compiled, read by another: real processes, which share a folder."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.backend.executable_cache.packing import pack, unpack

ROOT = pathlib.Path(__file__).parents[2]

if keras.backend.backend() != "tensorflow":
    pytest.skip("of TensorFlow's executables: JAX's own cache keeps training steps", allow_module_level=True)

BEFORE = """
import json, sys
import keras, numpy as np
import keras_xla
{cache}
{before}
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(40, 6, 4)).astype("float32")
y = x.mean((1, 2), keepdims=True)[:, 0]
"""
FIT = """
model = keras_xla.compile(
    keras.Sequential([keras.Input((6, 4)), *{layers}, keras.layers.Dense(1)]),
    optimizer="adam", loss="mse", metrics=["mae"], jit_compile={jit_compile!r})
history = model.fit(x, y, batch_size=8, epochs=3, validation_data=(x[:12], y[:12]), verbose=0).history
made = [history, model.predict(x[:9], batch_size=4, verbose=0).tolist(), [w.tolist() for w in model.get_weights()]]
"""
AFTER = """
from keras_xla.private.tensorflow import xla_folder
folder = xla_folder.folder_of_xla()
left = [path.name for path in folder.glob("*.pb") if b"kx_" in path.read_bytes()] if folder else []
print(json.dumps([made, left]))
"""
DENSE = "[keras.layers.Flatten(), keras.layers.Dense(8, activation='relu')]"
DROPOUT = "[keras.layers.Flatten(), keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(8)]"
LSTM = "[keras.layers.LSTM(5)]"


@pytest.fixture
def run(tmp_path):
    """What a process computes, and what it says; no executable of ours is left in the folder that TensorFlow uses."""

    def run(code, cache="keras_xla.compile_cache()", before="", **given):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_XLA_CACHE": str(tmp_path / "cache")}
        env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "always::UserWarning", "PYTHONHASHSEED": "random"}
        whole = BEFORE.format(cache=cache, before=before) + code.format(**given) + AFTER
        done = subprocess.run([sys.executable, "-c", whole], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        made, left = json.loads(done.stdout.splitlines()[-1])
        assert not left
        return made, done.stderr

    return run


@pytest.fixture
def kept(tmp_path):
    """The executables on disk and their inodes: one that is written anew has another."""
    return lambda: {path: path.stat().st_ino for path in (tmp_path / "cache" / "executables").glob("*.xla")}


@pytest.mark.parametrize("layers", [DROPOUT, DENSE, LSTM], ids=["dropout", "dense", "lstm"])
@pytest.mark.slow
def test_a_second_process_reads_the_steps_that_the_first_compiled(run, kept, layers):
    """In parts, whole, and traced anew for its loop."""
    expected, _ = run(FIT, cache="", layers=layers, jit_compile=True)
    assert not kept()
    first, _ = run(FIT, layers=layers, jit_compile=True)
    before = kept()
    assert first == expected and len(before) >= 3  # of training, evaluation and prediction
    more = "import tensorflow as tf; [tf.constant(i) for i in range(10)]; tf.function(lambda x: x + 1)(tf.ones(2))"
    second, _ = run(FIT, before=more, layers=layers, jit_compile=True)  # TensorFlow counts all that there is
    assert second == expected and kept() == before


@pytest.mark.slow
def test_tensorflow_does_not_warn_of_retracing(run):
    code = """
for _ in range(8):
    model = keras_xla.compile(
        keras.Sequential([keras.Input((6, 4)), keras.layers.Flatten(), keras.layers.Dense(1)]),
        optimizer="sgd", loss="mse", jit_compile=True)
    made = [model.train_on_batch(x[:8], y[:8]), float(model.predict(x[:8], verbose=0).sum())]
"""
    _, said = run(code)
    assert "retracing" not in said


@pytest.mark.slow
def test_trials_read_and_keep_them_too(run, kept):
    """The second process knows the decision, and needs no trial."""
    code = """
layers = [keras.layers.Dense(64, activation="gelu") for _ in range(12)]
model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
keras_xla.compile(model, optimizer="adam", loss="mse", jit_compile="auto")
x = np.random.default_rng(0).normal(size=(40_000, 16)).astype("float32")
history = model.fit(x, x[:, :1], batch_size=32, epochs=4, shuffle=False, verbose=0).history
made = [history, str(keras_xla.explain(model))]
"""
    first, _ = run(code)
    before = kept()
    assert before
    second, _ = run(code)
    assert kept() == before
    assert second[0]["loss"] == pytest.approx(first[0]["loss"], rel=1e-4)


JIT = """
w = keras.Variable(np.full((4, 4), 0.5, "float32"))
@keras_xla.jit
def call(x, factor):
    return {{"y": keras.ops.tanh(keras.ops.matmul(x, w)) * factor}}
factor = np.float32(2)
made = [call(x[0], factor)["y"].numpy().tolist()]
w.assign(w + 1)
made.append(call(x[0], factor)["y"].numpy().tolist())
import tensorflow as tf
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(call(x[0], factor)["y"])
made.append(tape.gradient(loss, w.value).numpy().tolist())
made.append(tf.function(lambda x: call(x, factor)["y"] + 1)(tf.constant(x[0])).numpy().tolist())
made.append(call.trace_count)
"""


def test_a_function_reads_its_executable_and_has_its_variables_and_gradients(run, kept):
    expected, _ = run(JIT, cache="")
    first, _ = run(JIT)
    before = kept()
    assert first == expected and len(before) == 1
    assert run(JIT)[0] == expected and kept() == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "nothing that TensorFlow knows", "another step's"])
def test_a_step_that_cannot_be_read_is_compiled_again(run, kept, damage):
    expected, _ = run(FIT, layers=DENSE, jit_compile=True)
    cache = ExecutableCache(next(iter(kept())).parent, 2**30)
    parts = {path: unpack(cache.get(path.stem)) for path in kept()}
    others = [parts[path] for path in [*list(parts)[1:], next(iter(parts))]]
    for (path, mine), other in zip(parts.items(), others, strict=True):
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-100])
        elif damage.startswith("nothing"):
            cache.put(path.stem, pack(dict.fromkeys(mine, b"nothing")))
        else:
            cache.put(path.stem, pack(dict(zip(mine, other.values(), strict=True))))
    made, said = run(FIT, layers=DENSE, jit_compile=True)
    assert made == expected and ("which is damaged" in said) == (damage == "cut")
    assert run(FIT, layers=DENSE, jit_compile=True)[0] == expected


@pytest.mark.slow
def test_of_a_step_in_parts_the_next_process_compiles_what_cannot_be_read(run, kept):
    """Some of it may have run before: it says what is wrong, and does not run again."""
    expected, _ = run(FIT, layers=DROPOUT, jit_compile=True)
    for path in kept():
        cache = ExecutableCache(path.parent, 2**30)
        cache.put(path.stem, pack(dict.fromkeys(unpack(cache.get(path.stem)), b"nothing")))
    code = "try:\n" + "".join(f"    {line}\n" for line in FIT.strip().splitlines())
    made, _ = run(code + "except Exception as error: made = type(error).__name__", layers=DROPOUT, jit_compile=True)
    assert made == "XLAUnsupportedError"
    assert run(FIT, layers=DROPOUT, jit_compile=True)[0] == expected


@pytest.mark.slow
def test_what_xla_cannot_compile_says_the_same(run):
    """A shape that depends on values, in the middle of a step."""
    code = """
class Distinct(keras.layers.Layer):
    def call(self, x):
        import tensorflow as tf
        return x + tf.cast(tf.shape(tf.unique(tf.reshape(tf.round(x), [-1]))[0])[0], "float32")
model = keras_xla.compile(
    keras.Sequential([keras.Input((6, 4)), Distinct(name="distinct"), keras.layers.Flatten(), keras.layers.Dense(1)]),
    optimizer="sgd", loss="mse", jit_compile=True)
try: model.fit(x, y, verbose=0)
except Exception as error: made = [type(error).__name__, str(error)]
else: made = "fine"
"""
    expected, _ = run(code, cache="")
    assert run(code)[0] == expected
