"""What one process compiled, another reads: real processes, which share a folder and nothing else."""

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
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's executables")

on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX's cache")
ALL_OF_JAX = 'import jax; jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)'

SCRIPT = """
import json, os, sys
flags = os.environ.get("TF_XLA_FLAGS")
{first}
import keras_xla
import keras
{cache}
{before}
layer = keras_xla.XLAGenerationLayer.from_pretrained({folder!r}, max_new_tokens=5, eos_token_id=None, {options})
{warm}
out = layer.generate([[5, 6, 7]])
again = keras_xla.XLAGenerationLayer.from_pretrained({folder!r}, max_new_tokens=5, eos_token_id=None, {options})
assert again.generate([[5, 6, 7]])["sequences"].tolist() == out["sequences"].tolist()
assert os.environ.get("TF_XLA_FLAGS") == flags
from keras_xla.private.tensorflow import xla_folder
folder = xla_folder.folder_of_xla()
print(json.dumps([out["sequences"].tolist(), layer.trace_count, folder and str(folder.resolve())]))
"""


@pytest.fixture
def run(tmp_path, checkpoint):
    def run(variant="gpt2", first="", cache="keras_xla.compile_cache()", before="", options="", warm="", **env):
        more = dict(first=first, cache=cache, before=before, options=options, warm=warm)
        code = SCRIPT.format(folder=checkpoint(variant), **more)
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_XLA_CACHE": str(tmp_path / "cache"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONWARNINGS": "always::UserWarning",
            **env,
        }
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        *made, folder = json.loads(done.stdout.splitlines()[-1])
        assert folder is None or not pathlib.Path(folder).exists()  # nothing is left behind
        return made, done.stderr

    return run


@pytest.fixture
def kept(tmp_path):
    """The executables on disk and when they were written, which they are once; reading touches the access time too."""
    return lambda: {path: path.stat().st_ino for path in (tmp_path / "cache" / "executables").glob("*.xla")}


@pytest.fixture
def kept_on_jax(tmp_path):
    """The same of JAX's."""
    folder = tmp_path / "cache" / "executables"
    return lambda: {path: path.stat().st_ino for path in folder.glob("keras_xla-jax-*/*") if path.is_file()}


@on_tensorflow
@pytest.mark.slow
def test_a_second_process_reads_what_the_first_compiled_and_makes_the_same(run, kept):
    first, _ = run()
    before = kept()
    assert len(before) == 4 and first[1] == 2  # prefill and advance: a graph and an executable each
    second, _ = run()
    assert second == [first[0], 0] and kept() == before  # nothing was traced, or written anew


@pytest.mark.slow
@on_tensorflow
def test_what_is_compiled_side_by_side_is_kept_too(run, kept):
    at_once = "from keras_xla.engine import warmup; warmup.cores = lambda: 4; layer.warmup([1, 2], 5, verbose=0)"
    first, _ = run(warm=at_once)
    before = kept()
    assert first[1] == 4 and len(before) == 8
    second, _ = run(warm=at_once)
    assert second == [first[0], 0] and kept() == before


@pytest.mark.slow
@on_tensorflow
def test_other_models_options_and_dtypes_have_executables_of_their_own(run, kept):
    run()
    run("opt-125m")
    assert len(kept()) == 8
    run(options='quantization="int8"')
    assert len(kept()) == 12
    run(options="num_beams=2")
    assert len(kept()) >= 14


@pytest.mark.slow
@on_tensorflow
def test_code_of_ones_own_is_traced_anew_and_its_executables_are_found(run, kept):
    """A logits processor may be another in the next process."""
    own = "def same(tokens, logits, step):\n    return logits"
    first, _ = run(before=own, options="logits_processors=[same]")
    before = kept()
    assert len(before) == 2
    assert run(before=own, options="logits_processors=[same]")[0] == first and kept() == before
    other = own.replace("return logits", "return -logits")
    assert run(before=other, options="logits_processors=[same]")[0] != first


@on_tensorflow
@pytest.mark.quick("cut")
@pytest.mark.parametrize("damage", ["cut", "nothing that TensorFlow knows", "another model's"])
@pytest.mark.slow
def test_an_executable_that_cannot_be_used_is_made_again(run, kept, damage):
    first, _ = run()
    if damage == "another model's":
        run("opt-125m")
    paths, said = sorted(kept(), key=os.path.getmtime), ""
    cache = ExecutableCache(paths[0].parent, 2**30)
    parts = {path: unpack(cache.get(path.stem)) for path in paths}
    others = [each for each in list(parts.values())[4:] if "graph" not in each]
    for path in paths[:4]:
        mine = parts[path]
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-100])
            said = "which is damaged"
        elif damage.startswith("nothing"):
            part = "graph" if "graph" in mine else next(iter(mine))
            cache.put(path.stem, pack({**mine, part: b"nothing"}))
        elif "graph" not in mine:
            cache.put(path.stem, pack(dict(zip(mine, others[0].values(), strict=True))))
    made, stderr = run()
    assert made[0] == first[0] and said in stderr
    assert run()[0][0] == first[0]


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize("cache", ["", "keras_xla.compile_cache(enabled=False)"])
def test_off_is_off_and_the_default(run, kept, cache):
    run(cache=cache)
    assert not kept()


@pytest.mark.slow
@on_tensorflow
def test_too_late_is_an_error(run):
    code = """
import tensorflow as tf; tf.constant(1) + 1
try: keras_xla.compile_cache()
except RuntimeError as error: assert "right after the imports" in str(error)
else: raise AssertionError
"""
    run(cache=code)


@pytest.mark.slow
@on_tensorflow
def test_who_has_a_cache_of_his_own_keeps_it(run, kept, tmp_path):
    expected, _ = run()
    before, own = kept(), tmp_path / "own"
    assert run(TF_XLA_FLAGS=f"--tf_xla_persistent_cache_directory={own}")[0] == expected
    assert list(own.glob("*.pb")) and kept() == before


@pytest.mark.slow
@on_tensorflow
def test_no_room_for_temporary_files_is_an_error_and_so_are_flags_in_a_file(run, tmp_path):
    (tmp_path / "flags").write_text("--tf_xla_max_cluster_size=7")
    for first, said, env in (
        ("import shutil; shutil.disk_usage = lambda path: type('usage', (), {'free': 0})", "has room", {}),
        ("", "names a file", {"TF_XLA_FLAGS": str(tmp_path / "flags")}),
    ):
        code = f"try: keras_xla.compile_cache()\nexcept RuntimeError as error: assert {said!r} in str(error)"
        run(first=first, cache=code + "\nelse: raise AssertionError", **env)


@pytest.mark.slow
@on_tensorflow
def test_what_was_traced_before_changes_no_name(run, kept):
    """SiLU has a gradient of its own, whose name counts what was traced before."""
    first, _ = run("llama-tied-gqa")
    before = kept()
    work = "import tensorflow as tf; tf.function(lambda x: tf.nn.silu(x) + 1)(tf.ones(2)); keras.layers.Dense(3)"
    for path in before:  # that of the graphs, so that all is traced again
        if "graph" in unpack(ExecutableCache(path.parent, 2**30).get(path.stem)):
            path.unlink()
    assert run("llama-tied-gqa", before=work)[0] == first and kept().keys() == before.keys()


@on_tensorflow
@pytest.mark.slow
def test_an_error_of_the_computation_is_the_users_and_costs_no_executable(run, kept):
    """A function of the same kind, called with inputs that it cannot have."""
    code = """
import tensorflow as tf
from keras_xla.backend.tensorflow.stored import stored
traced = tf.function(lambda x, n: tf.reshape(x, n), jit_compile=True, autograph=False).get_concrete_function(
    tf.TensorSpec((4,)), tf.TensorSpec((2,), tf.int32))
call = stored(traced)
{good}
try: call([tf.ones(4), tf.constant([3, 3])])
except tf.errors.InvalidArgumentError as error: assert "_again" not in str(error) and error.__cause__ is None
else: raise AssertionError
"""
    run(before=code.format(good="call([tf.ones(4), tf.constant([2, 2])])"))
    before = kept()
    run(before=code.format(good=""))
    assert kept() == before


@on_jax
def test_jax_keeps_its_executables_in_the_folder(run, kept_on_jax):
    first, _ = run(before=ALL_OF_JAX)
    found = kept_on_jax()
    assert found
    second, _ = run(before=ALL_OF_JAX)
    assert second == [first[0], 0] and kept_on_jax() == found  # nothing was traced, or written anew
    own = 'import jax; jax.config.update("jax_compilation_cache_dir", "/nowhere")'
    assert run(first=own)[0] == [first[0], 0]  # what needs no trace is ours all the same


@pytest.mark.slow
@on_jax
def test_what_jax_has_read_from_a_cache_is_not_written_down_again(run, kept, tmp_path):
    """Such a copy cannot run: "Function ... not found"."""
    users = f'{ALL_OF_JAX}; jax.config.update("jax_compilation_cache_dir", {str(tmp_path / "users")!r})'
    first, _ = run(first=users, cache="")
    second, _ = run(first=users)
    assert second == first and not kept()  # all was traced, and read
    assert run(first=users)[0] == first


@pytest.mark.slow
@on_jax
def test_what_is_kept_under_a_name_is_neither_read_from_jaxs_cache_nor_written_into_it(run, kept, kept_on_jax):
    """Or another version of keras_xla would read there what it could not write down again under its own name."""
    first, _ = run(before=ALL_OF_JAX)
    named, found = kept(), kept_on_jax()
    own = "def same(tokens, logits, step):\n    return logits"
    run(before=f"{ALL_OF_JAX}\n{own}", options="logits_processors=[same]")
    assert len(kept_on_jax()) >= len(found) + 2  # prefill and advance, which have no name
    for path in named:
        path.unlink()
    assert run(before=ALL_OF_JAX)[0] == first and kept().keys() == named.keys()
    assert run(before=ALL_OF_JAX)[0] == [first[0], 0]


@pytest.mark.slow
@on_jax
def test_on_jax_an_executable_that_cannot_run_is_made_again(run, kept):
    """What another executable's name leads to. JAX says so when its results are asked for."""
    first, _ = run()
    one, other = sorted(kept(), key=lambda path: path.stat().st_size)
    one.write_bytes(other.read_bytes())
    code = "try: layer.generate([[5, 6, 7]])\nexcept Exception as error: print(type(error), error)"
    made, _ = run(warm=code)
    assert made[0] == first[0] and run()[0] == [first[0], 0]


@pytest.mark.slow
@on_jax
def test_on_jax_what_was_cut_off_is_made_again_and_others_are_kept(run, kept, kept_on_jax):
    """As a process leaves it that is killed while it writes, or that finds the disk full."""
    first, _ = run(before=ALL_OF_JAX)
    whole = kept_on_jax()
    for path in whole:
        path.write_bytes(path.read_bytes()[:-100])
    for path in kept():  # what is found without JAX's own cache
        path.unlink()
    made, stderr = run(before=ALL_OF_JAX)
    again = kept_on_jax()
    assert made == first and "which is damaged" in stderr and again.keys() == whole.keys()
    _, stderr = run(before=ALL_OF_JAX)
    assert "damaged" not in stderr and kept_on_jax() == again


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import keras", "import tensorflow", "import tensorflow, keras", ""])
def test_it_matters_not_what_was_imported_first(run, kept, imports):
    run(first=imports)
    assert len(kept()) == 4


@on_tensorflow
@pytest.mark.slow
def test_where_executables_cannot_be_written_the_folder_moves_to_another_disk(run, kept):
    """TensorFlow raises where it cannot write them: a file stands where the folder was."""
    broken = """
from keras_xla.private.tensorflow import xla_folder
import pathlib, shutil, tempfile, tensorflow as tf
tf.constant(1) + 1
link = xla_folder.folder_of_xla()
there = link.resolve()
shutil.rmtree(there); there.write_text("")
"""
    expected, _ = run()
    made, _ = run(before=broken, options='name="other"', KERAS_XLA_CACHE="/proc/none")
    assert made == expected
