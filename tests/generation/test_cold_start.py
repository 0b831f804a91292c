"""What one process compiled, another reads: real processes, which share a folder and nothing else."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

from keras_xla.backend.executable_cache import ExecutableCache

ROOT = pathlib.Path(__file__).parents[2]
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's executables")

SCRIPT = """
import json, os, sys
flags = os.environ.get("TF_XLA_FLAGS")
{first}
import keras_xla
import keras
{before}
layer = keras_xla.XLAGenerationLayer.from_pretrained({folder!r}, max_new_tokens=5, eos_token_id=None, {options})
out = layer.generate([[5, 6, 7]])
again = keras_xla.XLAGenerationLayer.from_pretrained({folder!r}, max_new_tokens=5, eos_token_id=None, {options})
assert again.generate([[5, 6, 7]])["sequences"].tolist() == out["sequences"].tolist()
assert os.environ.get("TF_XLA_FLAGS") == flags
from keras_xla.private import xla_folder
folder = xla_folder.folder_of_xla()
print(json.dumps([out["sequences"].tolist(), layer.trace_count, folder and str(folder.resolve())]))
"""


@pytest.fixture
def run(tmp_path, checkpoint):
    def run(variant="gpt2", first="", before="", options="", **env):
        code = SCRIPT.format(folder=checkpoint(variant), first=first, before=before, options=options)
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


@on_tensorflow
def test_a_second_process_reads_what_the_first_compiled_and_makes_the_same(run, kept):
    first, _ = run()
    before = kept()
    assert len(before) == 2 and first[1] == 2  # prefill and advance
    second, _ = run()
    assert second == first and kept() == before  # nothing was written anew


@pytest.mark.slow
@on_tensorflow
def test_other_models_options_and_dtypes_have_executables_of_their_own(run, kept):
    run()
    run("opt-125m")
    assert len(kept()) == 4
    run(options='quantization="int8"')
    assert len(kept()) == 6
    run(options="num_beams=2")
    assert len(kept()) >= 7


@on_tensorflow
@pytest.mark.quick("another")
@pytest.mark.parametrize("damage", ["cut", "nothing that TensorFlow knows", "another model's"])
def test_an_executable_that_cannot_be_used_is_made_again(run, kept, damage):
    first, _ = run()
    if damage == "another model's":
        run("opt-125m")
    paths = sorted(kept(), key=os.path.getmtime)
    cache, said = ExecutableCache(paths[0].parent, 2**30), ""
    for path in paths[:2]:
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:-100])
            said = "which is damaged"
        else:
            payload = cache.get(path.stem)
            name = payload[10 : 10 + payload[0]]
            wrong = b"nothing" if damage.startswith("nothing") else cache.get(paths[2].stem)[10 + len(name) :]
            cache.put(path.stem, payload[:2] + len(wrong).to_bytes(8, "little") + name + wrong)
    made, stderr = run()
    assert made == first and said in stderr
    assert run()[0] == first


@pytest.mark.slow
@on_tensorflow
def test_off_is_off(run, kept):
    run(before="keras_xla.compile_cache(enabled=False)")
    assert not kept()


@pytest.mark.slow
@on_tensorflow
def test_who_ran_tensorflow_before_or_has_a_cache_of_his_own_gets_the_same(run, kept, tmp_path):
    expected, _ = run()
    before = kept()
    early, _ = run(first="import tensorflow as tf; tf.constant(1) + 1", variant="opt-125m")
    assert early == run(variant="opt-125m")[0][:2] and len(kept()) == len(before) + 2
    before = kept()
    own = tmp_path / "own"
    assert run(TF_XLA_FLAGS=f"--tf_xla_persistent_cache_directory={own}")[0] == expected
    assert list(own.glob("*.pb")) and kept() == before


@pytest.mark.slow
@on_tensorflow
def test_no_room_for_temporary_files_turns_it_off(run, kept):
    run(first="import shutil; shutil.disk_usage = lambda path: type('usage', (), {'free': 0})")
    assert not kept()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX's cache")
def test_jax_keeps_its_executables_in_the_folder(run, tmp_path):
    slow = 'import jax; jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)'
    first, _ = run(before=slow)
    found = sorted(path.name for path in (tmp_path / "cache" / "executables").glob("jax-*/*-cache"))
    assert found
    second, _ = run(before=slow)
    again = sorted(path.name for path in (tmp_path / "cache" / "executables").glob("jax-*/*-cache"))
    assert second == first and again == found
    own = 'import jax; jax.config.update("jax_compilation_cache_dir", "/nowhere")'
    assert run(before=own)[0] == first


@on_tensorflow
@pytest.mark.quick("import keras")
@pytest.mark.parametrize("imports", ["import keras", "import tensorflow", "import tensorflow, keras", ""])
def test_it_matters_not_what_was_imported_first(run, kept, imports):
    run(first=imports)
    assert len(kept()) == 2


@on_tensorflow
def test_where_executables_cannot_be_written_the_folder_moves_to_another_disk(run, kept):
    """TensorFlow raises where it cannot write them: a file stands where the folder was."""
    broken = """
from keras_xla.private import xla_folder
import pathlib, tempfile, tensorflow as tf
tf.constant(1) + 1
link = xla_folder.folder_of_xla()
there = link.resolve()
there.rmdir(); there.write_text("")
"""
    expected, _ = run()
    made, _ = run(first="import keras, keras_xla", before=broken, options='name="other"', KERAS_XLA_CACHE="/proc/none")
    assert made == expected
