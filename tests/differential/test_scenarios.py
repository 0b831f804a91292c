"""A fixed few dozen scenarios; `make differential` runs hundreds."""

import keras
import pytest

from tests.differential.actions import Compile, Fit, Predict
from tests.differential.data import Data
from tests.differential.models import KINDS
from tests.differential.run import compared, events
from tests.differential.scenario import Scenario, numbered
from tests.differential.ways import Side

if keras.backend.backend() != "tensorflow":
    pytest.skip("scenarios are led through the ways of the TensorFlow backend", allow_module_level=True)

# Of the first 400 as few as have in them every kind, way, form of data, hook, action and option; and some of the kinds
# that came later and are in no case. Those of `LONG` take more than ten seconds.
LONG = {6, 27, 35, 85, 146, 153, 362}
NUMBERS = (
    5,
    6,
    13,
    15,
    21,
    27,
    30,
    35,
    47,
    78,
    85,
    87,
    103,
    109,
    138,
    146,
    153,
    167,
    226,
    298,
    336,
    352,
    362,
    381,
    389,
    390,
    518,
    519,
    544,
    576,
)


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in NUMBERS])
def test_all_that_can_be_seen_is_equal(number):
    scenario = numbered(number)
    found = compared(scenario)
    assert not found, "\n".join([*found, scenario.script()])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plain_keras_runs_every_kind(kind):
    """Two sides that refuse a model are equal, too, and show nothing."""
    data = Data(form=(KINDS[kind].forms or ("arrays",))[0])
    script = (Compile(), Fit(data=data), Predict(data=data))
    made = events(Scenario(kind=kind, actions=script), Side())
    assert not [value for _, value in made if isinstance(value, dict) and "raised" in value]
