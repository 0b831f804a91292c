"""Scripts in the manner of the Keras gallery print the same through `python -m keras_xla`, and compile as predicted.

All ten run in one process each way, once in a run of the tests: plainly, with "auto", and with XLA forced.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parent.parent
SCRIPTS = sorted(path.stem for path in (ROOT / "tests" / "scripts").glob("*.py"))
WITH_STRINGS = {"structured_data", "text_from_strings"}  # which XLA cannot compile
RUN_ALL = """
import contextlib, io, json, pathlib, runpy, sys
import keras

results = {}
for path in map(pathlib.Path, sys.argv[2:]):
    keras.backend.clear_session()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(path), run_name="__main__")
    results[path.stem] = json.loads(out.getvalue().splitlines()[-1])
pathlib.Path(sys.argv[1]).write_text(json.dumps(results))
"""
FORCED = {  # one executable for each size of batch, where a smaller one is not filled up
    "convnet.train_step": 1,
    "convnet.test_step": 2,  # in fit and in evaluate, whose batches are smaller
    "mlp.train_step": 2,
    "mlp.predict_step": 1,  # predict fills the last batch up
    "regression.train_step": 2,  # the model, and its copy from a file
    "regression.test_step": 2,
    "forecast.train_step": 1,
    "forecast.test_step": 1,
    "forecast.predict_step": 1,
    "pretraining.train_step": 2,
    "transfer.train_step": 1 + 2,  # frozen, and compiled again
    "transfer.test_step": 2,
    "transformer.train_step": 2,
    "transformer.test_step": 2,
    "vae.train_step": 2,
    "train_step": 2,  # the loop of its own
    "test_step": 2,
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="half of the scripts import TensorFlow"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(options, scripts)`: what the scripts print, the report where there are options, and the summary."""
    folder = tmp_path_factory.mktemp("scripts")
    runner = folder / "run_all.py"
    runner.write_text(RUN_ALL)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_XLA_CACHE": str(folder)}

    def run(options=None, scripts=SCRIPTS):
        ours = ["-m", "keras_xla", *options, "--report", str(folder / "report.json")] if options is not None else []
        paths = [str(ROOT / "tests" / "scripts" / f"{script}.py") for script in scripts]
        command = [sys.executable, *ours, str(runner), str(folder / "results.json"), *paths]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        results = json.loads((folder / "results.json").read_text())
        return results, json.loads((folder / "report.json").read_text()) if ours else None, done.stderr

    return run


@pytest.fixture(scope="module")
def plain(run, once):
    return once("scripts-plain", run)[0]


@pytest.fixture(scope="module")
def auto(run, once):
    return once("scripts-auto", lambda: run([]))


@pytest.fixture(scope="module")
def forced(run, once):
    scripts = [script for script in SCRIPTS if script not in WITH_STRINGS]
    return once("scripts-forced", lambda: run(["--jit-compile", "on"], scripts))


def assert_same(made, expected, tolerance=1e-4):
    assert keras.tree.flatten(made) == pytest.approx(keras.tree.flatten(expected), rel=tolerance, abs=1e-5)


def test_there_are_ten_scripts():
    assert len(SCRIPTS) == 10


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_what_it_prints_plainly(script, auto, plain):
    assert_same(auto[0][script], plain[script])


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script not in WITH_STRINGS])
def test_and_with_xla_forced_too(script, forced, plain):
    # The VAE's noise has the shape of its input, and there XLA may draw numbers of its own.
    tolerance = 0.1 if script == "vae_train_step" else 1e-4
    assert_same(forced[0][script], plain[script], tolerance)


def test_every_model_and_function_of_the_scripts_is_in_the_report(auto):
    names = collections.Counter(model["model"] for model in auto[1]["models"])
    assert names == {
        "convnet": 1,
        "mlp": 1,
        "patients": 1,
        "classifier_of_ids": 1,
        "classifier_of_strings": 1,
        "regression": 2,  # and loaded from the checkpoint
        "forecast": 1,
        "pretraining": 1,
        "transfer": 2,  # compiled again after the layers were thawed
        "transformer": 1,
        "vae": 1,
    }
    assert [function["function"] for function in auto[1]["functions"]] == ["train_step", "test_step"]
    assert all(name in auto[2] for name in names)


def test_short_runs_and_convolutions_compile_nothing(auto):
    compiled = {event["name"] for event in auto[1]["compilations"]}
    assert not compiled & {"train_step", "test_step"}
    assert not compiled & {"convnet.train_step", "convnet.test_step"}  # on a CPU


def test_every_trial_and_every_choice_of_an_earlier_run_compiles_once_and_nothing_else_does(auto):
    predicted = 0
    for model in auto[1]["models"]:
        for kind in ("train", "test", "predict"):
            for decision in model[kind]["decisions"]:
                tried = {"xla", "partial"} & decision["measured_ms_per_step"].keys()
                known = "earlier run" in decision["reason"]
                predicted += bool(tried) and (not known or decision["way"] != "graph")
    assert len(auto[1]["compilations"]) == predicted


def test_forced_every_shape_compiles_once(forced):
    assert collections.Counter(event["name"] for event in forced[1]["compilations"]) == FORCED


def test_forced_the_layer_that_is_in_the_way_is_named(run):
    path = str(ROOT / "tests" / "scripts" / "structured_data.py")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "keras_xla", "--jit-compile", "on", path]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 1
    traceback = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert traceback[1].startswith(f'  File "{path}"')
    assert any("XLAUnsupportedError" in line for line in traceback)
    assert "string_lookup (StringLookup)" in done.stderr
