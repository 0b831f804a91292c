"""The losses that Keras keeps on a layer."""

import sys

import keras
import numpy as np

from keras_xla.private.keras import layer_losses
from keras_xla.private.keras.layer_losses import (
    clear_losses,
    kept_losses,
    losses_if_known,
    losses_wanted,
    mark_losses,
    put_back_losses,
    stored_losses,
    were_cleared,
)
from tests.private.helpers import names_of


def test_names():
    layer = keras.layers.Dense(2)
    for name in names_of(layer_losses):
        owner = layer if name.owner == "keras.Layer" else sys.modules[name.owner]
        assert name.of(owner) is not None


def test_they_are_those_of_a_layer_itself():
    layer = keras.layers.ActivityRegularization(l2=1.0)
    model = keras.Sequential([keras.Input((3,)), layer])
    model(np.ones((1, 3), "float32"))
    (loss,) = losses_if_known(layer)
    assert float(loss) == 3.0 and losses_if_known(model) == []
    kept = kept_losses(layer)
    clear_losses(model)
    assert model.losses == []
    put_back_losses(layer, kept)
    assert [each is loss for each in model.losses] == [True]
    put_back_losses(layer, None)
    assert model.losses == []


def test_a_call_takes_off_the_losses_of_a_layer_and_of_those_inside():
    inner, other = keras.layers.ActivityRegularization(l2=1.0), keras.layers.ActivityRegularization(l2=1.0)
    model = keras.Sequential([keras.Input((3,)), inner])
    for layer in (model, inner, other):
        mark_losses(layer)
        assert not were_cleared(layer)
    model(np.ones((1, 3), "float32"))
    assert were_cleared(model) and were_cleared(inner) and not were_cleared(other)
    assert len(model.losses) == 1


def test_a_scope_that_wants_none_gets_none():
    layer = keras.layers.ActivityRegularization(l2=1.0)
    with keras.StatelessScope() as scope:
        layer(np.ones((1, 3), "float32"))
        assert losses_if_known(layer) == []
        with losses_wanted():
            layer(np.ones((1, 3), "float32"))
            assert [float(loss) for loss in losses_if_known(layer)] == [3.0]
        assert scope.losses == [] and not scope.collect_losses
    assert not stored_losses(layer)
