"""What layers that are being called have been told."""

import sys

import keras
import numpy as np
import pytest

from keras_xla.private.keras.call_context import GLOBAL, CallContext, call_context


class Told(keras.layers.Layer):
    def call(self, x, training=None):
        self.told = call_context()
        return x


def told(training, **options):
    layer = Told(**options)
    layer(np.ones((1, 1), "float32"), training=training)
    return layer.told


def test_name():
    assert GLOBAL.of(sys.modules[GLOBAL.owner])("no such thing") is None


def test_outside_of_layers_there_is_nothing():
    assert call_context() == CallContext(told=(), dtype=None)


@pytest.mark.filterwarnings("ignore:keras_xla")
def test_where_keras_has_no_such_place_nothing_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, GLOBAL.owner)
    assert call_context() == CallContext()


def test_training_and_the_dtype_of_variables_tell_calls_apart():
    assert told(True) != told(False) and told(True) == told(True)
    assert told(True, dtype="mixed_float16") != told(True, dtype="float32")
