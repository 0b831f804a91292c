"""Bundles of executables: real processes, which share a folder and nothing else, on either backend."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla.generation.compiled import MANIFEST
from tests.pages import listings, script

ROOT = pathlib.Path(__file__).parents[2]
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's executables")

SAVE = """
import keras_xla
keras_xla.compile_cache()
layer = keras_xla.XLAGenerationLayer.from_pretrained({model!r}, max_new_tokens=5, eos_token_id=None, {options})
made = layer.generate({inputs})
print(json.dumps([made["sequences"].tolist(), layer.save_compiled("bundle")]))
"""
REFUSED = """
import os, keras_xla
keras_xla.compile_cache("executables")
layer = keras_xla.XLAGenerationLayer.from_pretrained({model!r}, max_new_tokens=5, eos_token_id=None, {options})
layer.generate({inputs})
before = os.listdir("executables")
try:
    layer.save_compiled("executables")
except FileExistsError as error:
    print(json.dumps([str(error), before == os.listdir("executables") != []]))
"""
LOAD = """
import keras_xla
layer = keras_xla.XLAGenerationLayer.from_pretrained(
    {model!r}, max_new_tokens=5, eos_token_id=None, {options} compiled="bundle", on_recompile="raise")
made = layer.generate({inputs})
print(json.dumps([made["sequences"].tolist(), layer.trace_count, len(list(keras_xla.compile_log()))]))
"""
IDS = "[[5, 6, 7]]"


@pytest.fixture
def run(tmp_path):
    """`run(code, **env)`: what a process prints last, and what it says on stderr."""

    def run(code, **env):
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_XLA_CACHE": str(tmp_path / "cache"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONWARNINGS": "always::UserWarning",
            **env,
        }
        command = [sys.executable, "-c", "import json\n" + code]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines and lines[-1].startswith("[") else done.stdout, done.stderr

    return run


def code(text, checkpoint, variant="gpt2", inputs=IDS, options=""):
    return text.format(model=checkpoint(variant), inputs=inputs, options=options)


def files(tmp_path):
    return {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()}


@pytest.mark.parametrize(
    ("variant", "inputs", "options"),
    [
        ("gpt2", IDS, ""),
        pytest.param("t5", IDS, "num_beams=2,", marks=pytest.mark.slow),
        pytest.param(
            "llama-tied-gqa", "[[5, 6, 7], [8]]", 'do_sample=True, seed=3, quantization="int8",', marks=pytest.mark.slow
        ),
        pytest.param("gpt2", IDS, 'prompt_lookup_num_tokens=3, dtype="bfloat16",', marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_another_process_makes_the_same_without_tracing_or_compiling(run, checkpoint, variant, inputs, options):
    (made, count), _ = run(code(SAVE, checkpoint, variant, inputs, options))
    assert count >= 2
    # Without the cache of this machine: the bundle alone serves.
    (again, traces, compiled), stderr = run(code(LOAD, checkpoint, variant, inputs, options), KERAS_XLA_CACHE="nowhere")
    assert again == made and traces == 0 and compiled == 0
    assert "compiles again" not in stderr


@pytest.mark.slow
def test_the_guides_listings_run(run, checkpoint, tmp_path):
    save, load = [each for each in listings(ROOT / "docs" / "generation.md", "py") if "compiled" in each.code]
    run(script([save], tmp_path))
    printed, stderr = run(script([load], tmp_path))
    assert printed.splitlines()[-1] == "0 traces" and "UserWarning" not in stderr


@pytest.mark.slow
def test_whisper_answers_from_a_bundle(run, tmp_path):
    from tests import speech_reference

    model = speech_reference.torch_model()
    model.save_pretrained(tmp_path / "whisper")
    clip = 'numpy.random.default_rng(0).normal(size=16_000).astype("float32")'
    options = 'language="en", tokenizer=Numbers(),'
    numbers = "\n".join(
        [
            "import numpy",
            "class Numbers:",
            "    def decode(self, ids, **_): return ' '.join(map(str, ids))",
            "    def save_pretrained(self, path): pass",
        ]
    )
    made = {}
    for name, text in (("save", SAVE), ("load", LOAD)):
        text = text.replace("eos_token_id=None, ", "").replace('made["sequences"].tolist()', "str(made[0])")
        text = text.format(model=str(tmp_path / "whisper"), inputs=f"{clip}, sampling_rate=16_000", options=options)
        (made[name], *counts), _ = run(numbers + text)
    assert made["save"] == made["load"] and counts == [0, 0]


@pytest.mark.slow
def test_a_bundle_does_not_go_where_other_models_executables_are(run, checkpoint):
    (said, same), _ = run(code(REFUSED, checkpoint))
    assert "holds other files than a bundle" in said and same


@pytest.mark.slow
def test_a_bundle_that_was_never_finished_is_none_and_is_made_again(run, checkpoint, tmp_path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / MANIFEST).write_text('{"format": null}')  # as a process leaves it that is killed
    (tmp_path / "bundle" / f"{'0a' * 32}.xla").write_bytes(b"half")
    with pytest.raises(ValueError, match=f"{MANIFEST} cannot be read.*format is None"):
        keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), compiled=tmp_path / "bundle")
    (made, _), _ = run(code(SAVE, checkpoint))
    assert f"{'0a' * 32}.xla" not in files(tmp_path)
    (again, traces, _), _ = run(code(LOAD, checkpoint))
    assert again == made and traces == 0


@pytest.mark.slow
def test_a_bundle_is_replaced_whole_and_a_layer_that_was_read_can_be_saved(run, checkpoint, tmp_path):
    run(code(SAVE, checkpoint))
    first = files(tmp_path)
    again = code(LOAD, checkpoint).replace("print(", 'layer.save_compiled("bundle")\nprint(')
    run(again, KERAS_XLA_CACHE="nowhere")
    assert files(tmp_path).keys() == first.keys()
    run(code(SAVE, checkpoint, "opt-125m"))
    assert not files(tmp_path).keys() & first.keys() - {MANIFEST}
    assert os.stat(tmp_path / "bundle").st_mode & 0o777 == 0o777 & ~umask()  # other users may read it


@pytest.mark.slow
def test_a_bundle_keeps_what_the_layer_that_has_loaded_it_did_not_need(run, checkpoint, tmp_path):
    _, count = run(code(SAVE, checkpoint))[0]
    first = files(tmp_path)
    # Beams need another loop over new tokens, and not the one that is there.
    beams = code(LOAD, checkpoint, options="num_beams=2,").replace(', on_recompile="raise"', "")
    beams = beams.replace("print(", 'print(layer.save_compiled("bundle"))\nprint(')
    run(f"import keras_xla\nkeras_xla.compile_cache()\n{beams}")
    assert first.items() - {MANIFEST: first[MANIFEST]}.items() < files(tmp_path).items()
    assert len(json.loads(files(tmp_path)[MANIFEST])["executables"]) > count
    for options in ("", "num_beams=2,"):
        (_, traces, _), _ = run(code(LOAD, checkpoint, options=options), KERAS_XLA_CACHE="nowhere")
        assert traces == 0


def umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_what_is_no_bundle_is_an_error_before_weights_are_read(checkpoint, tmp_path):
    def load(**kwargs):
        return keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), compiled=tmp_path, **kwargs)

    with pytest.raises(FileNotFoundError, match=f"holds no {MANIFEST}"):
        load()
    for wrong in ("{", "[]", '{"format": 0}', '{"format": 1, "computed_with": 3, "computes": ""}'):
        (tmp_path / MANIFEST).write_text(wrong)
        with pytest.raises(ValueError, match="cannot be read"):
            load()


@pytest.mark.quick_on_jax
def test_nothing_compiled_and_code_of_ones_own_cannot_be_saved(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_xla.backend.require_keeping", lambda: None)
    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=2)
    with pytest.raises(ValueError, match="has compiled nothing"):
        layer.save_compiled(tmp_path / "bundle")

    def same(tokens, logits, step):
        return logits

    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=2, logits_processors=[same])
    layer.generate([[5, 6]])
    with pytest.raises(ValueError, match="code of your own"):
        layer.save_compiled(tmp_path / "bundle")
    (tmp_path / "other").mkdir()
    manifest(layer, tmp_path / "other")
    with pytest.raises(ValueError, match="code of your own"):
        layer.load_compiled(tmp_path / "other")
    (tmp_path / "mine.txt").write_text("")
    (tmp_path / MANIFEST).write_text("")
    with pytest.raises(FileExistsError, match=r"holds other files .* mine\.txt"):
        layer.save_compiled(tmp_path)
    assert not (tmp_path / "bundle").exists() and (tmp_path / "mine.txt").exists()


@on_tensorflow
def test_without_the_cache_tensorflow_has_nothing_to_save(checkpoint, tmp_path):
    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=2)
    with pytest.raises(RuntimeError, match=r"Call keras_xla\.compile_cache"):
        layer.save_compiled(tmp_path / "bundle")


def manifest(layer, folder, **changes):
    """A bundle without executables, as the layer would write it, with changes."""
    from keras_xla.engine.kept import computed_with
    from keras_xla.generation import compiled

    content = {"format": 1, "computes": compiled._computes(layer._executables()), "computed_with": computed_with()}
    (folder / MANIFEST).write_text(json.dumps({**content, **changes}))
    return content


@pytest.mark.slow
def test_another_models_bundle_is_an_error_and_another_machines_a_warning(checkpoint, tmp_path, recwarn):
    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=2)
    content = manifest(layer, tmp_path, computes="another")
    with pytest.raises(ValueError, match="saved for another model"):
        layer.load_compiled(tmp_path)
    there = {**content["computed_with"], "device": "1 x abacus", "keras_xla": "older"}
    manifest(layer, tmp_path, computed_with=there, computes="as an older version describes it")
    with pytest.warns(UserWarning, match="another keras_xla") as told:
        layer.load_compiled(tmp_path)
    assert "abacus there and" in str(told[0].message) and told[0].filename == __file__
    expected = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=2).generate([[5, 6]])
    made = layer.generate([[5, 6]])
    np.testing.assert_array_equal(made["sequences"], expected["sequences"])
    assert layer.trace_count == 2


@pytest.mark.slow
def test_an_executable_that_is_damaged_or_not_there_is_compiled(run, checkpoint, tmp_path):
    (made, _), _ = run(code(SAVE, checkpoint))
    paths = sorted((tmp_path / "bundle").glob("*.xla"), key=os.path.getmtime)
    paths[0].unlink()
    paths[-1].write_bytes(paths[-1].read_bytes()[:-50])
    (again, *_), stderr = run(code(LOAD, checkpoint), KERAS_XLA_CACHE="nowhere")
    assert again == made and "which is damaged" in stderr
    assert paths[-1].exists()  # a bundle is nobody's to change
