"""A fixed few dozen scenarios; `make differential` runs hundreds."""

import keras
import pytest

from tests.differential.actions import Compile, Evaluate, Fit, Predict
from tests.differential.data import Data
from tests.differential.models import KINDS
from tests.differential.run import compared, events
from tests.differential.scenario import Scenario, numbered
from tests.differential.ways import Side

if keras.backend.backend() != "tensorflow":
    pytest.skip("scenarios are led through the ways of the TensorFlow backend", allow_module_level=True)

# Of the first 400 those that have in them every kind, form, hook, action and option, most of them twice.
NUMBERS = (
    5,
    6,
    61,
    71,
    76,
    78,
    82,
    91,
    102,
    103,
    109,
    128,
    132,
    146,
    171,
    172,
    184,
    188,
    204,
    212,
    226,
    250,
    255,
    284,
    286,
    298,
    312,
    336,
    339,
    340,
    344,
    362,
    365,
    378,
)


@pytest.mark.parametrize("number", NUMBERS)
def test_all_that_can_be_seen_is_equal(number):
    scenario = numbered(number)
    found = compared(scenario)
    assert not found, "\n".join([*found, scenario.script()])


@pytest.mark.parametrize("kind", KINDS)
def test_plain_keras_runs_every_kind(kind):
    """Two sides that refuse a model are equal, too, and show nothing."""
    data = Data(form=(KINDS[kind].forms or ("arrays",))[0])
    script = (Compile(), Fit(data=data), Evaluate(data=data), Predict(data=data))
    made = events(Scenario(kind=kind, actions=script), Side())
    assert not [value for _, value in made if isinstance(value, dict) and "raised" in value]
