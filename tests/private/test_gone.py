"""Training goes on without any of the private names, with one warning at most, and gives what plain Keras gives."""

import warnings

import keras
import numpy as np
import pytest

from keras_xla.private import names
from keras_xla.private.keras import compiled_model, graphs, layers, logits, masks, trainer, variables
from keras_xla.private.names import Name
from keras_xla.training.compile import compile
from tests.private.helpers import names_of

NAMES = names_of(compiled_model, graphs, layers, masks, trainer, variables)
CASES = [(name, True) for name in [*NAMES, logits.LOGITS]]  # filled batches need the most of them
if keras.backend.backend() == "tensorflow":
    from keras_xla.private.tensorflow import graphs as tensorflow_graphs

    CASES += [(name, "auto") for name in names_of(tensorflow_graphs)]
X = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(21, 2)).astype("float32")


@pytest.fixture
def without(monkeypatch):
    """Has a name be gone for keras_xla; Keras itself needs most of them."""
    of = Name.of
    monkeypatch.setattr(names, "_TOLD", set())

    def gone(name: Name) -> None:
        def of_others(self, x):
            if self == name:
                raise self.gone()
            return of(self, x)

        monkeypatch.setattr(Name, "of", of_others)

    return gone


def trained(switch):
    """What fit, evaluate and predict give; the last of three batches is a smaller one."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])
    given = {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", "metrics": ["mae"]}
    if switch is None:
        model.compile(**given, jit_compile=False)
    else:
        compile(model, **given, jit_compile=switch)
    history = model.fit(X, Y, batch_size=8, epochs=2, validation_data=(X, Y), shuffle=False, verbose=0).history
    return [history, model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0), *model.get_weights()]


@pytest.fixture(scope="module")
def plain():
    return trained(None)


@pytest.mark.parametrize(("name", "switch"), CASES, ids=str)
@pytest.mark.quick(
    "_symbolic_build",
    "_compile_loss",
    "make_train_function",
    "_keras_history",
    "FuncGraph.captures",
    "_get_function",
    "_user_loss",
    "inputs",
)
def test_training_without(name, switch, without, plain):
    without(name)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = trained(switch)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, plain)
    assert len([each for each in seen if str(each.message).startswith("keras_xla: ")]) <= 1


def test_one_warning_says_what_is_off(without):
    without(layers.FLATTEN)
    with pytest.warns(UserWarning, match="no keras.Layer._flatten_layers.*smaller batches are not filled up"):
        trained(True)
