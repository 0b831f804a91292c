"""The logger `keras_xla` is quiet, unless its level or the environment asks for what was decided and compiled."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla import logger as module

SCRIPT = """
import keras_xla
import numpy as np
keras_xla.jit(lambda x: x * 2, name="double")(np.ones((2, 3), "float32"))
"""


def said_by(script, level):
    env = os.environ | {module.VARIABLE: level}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("keras_xla", "ValueError"))]
    return done.returncode, lines, done.stdout


@pytest.fixture
def fitted():
    """Fits a model with one line added."""
    x = np.zeros((64, 3), "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="little")
    keras_xla.compile(model, optimizer="sgd", loss="mse")
    return lambda: model.fit(x, x[:, :1], verbose=0)


def test_decisions_and_compilations_are_logged_at_info(caplog, fitted):
    with caplog.at_level("INFO", "keras_xla"):
        fitted()
        keras_xla.jit(lambda x: x * 2, name="double")(np.ones((2, 3), "float32"))
    said = [record.getMessage() for record in caplog.records if record.name == "keras_xla"]
    assert any(line.startswith("decided little.train_step runs as ") for line in said)
    assert any(line.startswith("compiled double in ") and line.endswith("first call") for line in said)


def test_it_is_quiet_by_default(caplog, fitted):
    fitted()
    assert not [record for record in caplog.records if record.name == "keras_xla"]


def test_the_environment_asks_for_it_once_a_line():
    status, lines, printed = said_by(SCRIPT, "info")
    assert status == 0 and not printed
    assert len(lines) == 1 and lines[0].startswith("keras_xla: compiled double in ")


def test_a_script_that_logs_at_info_has_not_asked_for_it():
    script = "import logging; logging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')\n" + SCRIPT
    assert said_by(script, "")[:2] == (0, [])


@pytest.mark.slow
def test_a_level_above_info_leaves_it_quiet():
    assert said_by(SCRIPT, "WARNING")[:2] == (0, [])


def test_a_level_that_does_not_exist_is_an_error_of_the_import():
    status, lines, _ = said_by("import keras_xla", "loud")
    assert status == 1
    assert lines == [
        "ValueError: Received KERAS_XLA_LOG_LEVEL='loud' from the environment; expected one of DEBUG, INFO, WARNING, "
        "ERROR, CRITICAL."
    ]
