"""Models with a compiled function in it: saved, loaded and cloned, as with the function itself."""

import json

import keras
import numpy as np
import pytest

from keras_xla import jit

ONES = np.ones((4, 3), "float32")


@jit(buckets={"x": {0: range(4, 65, 4)}})
def doubled(x):
    return x * 2


@keras.saving.register_keras_serializable("tests")
@jit
def tripled(x):
    return x * 3


OWN = {"doubled": doubled}


@pytest.mark.parametrize("registered", [True, False], ids=["registered", "passed"])
@pytest.mark.parametrize("where", ["lambda", "activation", "loss"])
def test_models_are_saved_loaded_and_cloned(where, registered, tmp_path):
    function = tripled if registered else doubled
    inner = {"lambda": keras.layers.Lambda(function), "activation": keras.layers.Dense(2, activation=function)}
    model = keras.Sequential([keras.Input((3,)), inner.get(where, keras.layers.Dense(2))])
    if where == "loss":
        model.compile("sgd", loss=jit(keras.losses.mean_squared_error, name="mine"))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", custom_objects=None if registered else OWN)
    np.testing.assert_array_equal(again.predict(ONES, verbose=0), model.predict(ONES, verbose=0))
    if where == "loss":
        assert isinstance(again.loss, type(doubled)) and again.loss.__name__ == "mine"
        assert again.evaluate(ONES, ONES[:, :2], verbose=0) == model.evaluate(ONES, ONES[:, :2], verbose=0)
    with keras.saving.custom_object_scope({} if registered else OWN):
        assert keras.models.clone_model(model)(ONES).shape == model(ONES).shape


def test_a_registered_lambda_is_found_by_the_name_it_was_registered_with():
    halved = keras.saving.register_keras_serializable("tests", "halved")(jit(lambda x: x / 2))
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(halved)))
    assert keras.saving.deserialize_keras_object(saved) is halved


def test_its_config_has_all_options():
    options = dict(buckets={"x": {0: range(4, 9, 4), 1: "pow2"}}, pad_value=1.5, name="mine", on_recompile="raise")
    config = json.loads(json.dumps(jit(keras.activations.relu, **options).get_config()))
    again = type(doubled).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config and again.__name__ == "mine"
