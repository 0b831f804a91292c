"""An answer is found again by the same model, in this run and in later ones, and by no other model."""

import os
import pathlib
import subprocess
import sys

import keras
import pytest

from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from keras_xla.training.decide.decisions import decisions
from tests.training.helpers import LOSS, X, Y

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX Keras compiles every step itself", allow_module_level=True)

ROOT = pathlib.Path(__file__).parents[3]


def reason(units):
    """Why the train step of a model runs as it does."""
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(units), keras.layers.Dense(3)], name="same_name")
    compile(model, "sgd", LOSS)
    model.fit(X, Y, batch_size=24, verbose=0)
    return attachment_of(model).journal.decisions[0].reason


def test_a_model_of_another_width_is_measured_on_its_own(monkeypatch):
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    for number, units in enumerate((32, 1024), 1):
        assert not reason(units).startswith("measured before")
        assert len(decisions().all()) == number


SCRIPT = """
from tests.training.decide.test_who_measured import policy, reason
policy.estimated_cost = lambda facts, graph: 0.0
for units in (32, 32, 64):
    print(reason(units).split(":")[0])
"""


@pytest.mark.slow
def test_the_next_process_knows_it():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    runs = [
        subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0].splitlines() == ["measured", "measured before in this run", "measured"]
    assert runs[1].splitlines() == ["measured in an earlier run"] * 3
