"""Keras leaves frames out of tracebacks; ours, too."""

import os
import sys
import traceback

import keras
import numpy as np
import pytest

from keras_xla.private.keras.tracebacks import HIDDEN, hide_frames


def test_frames_of_a_folder_are_left_out_of_tracebacks(monkeypatch):
    module, folder = sys.modules[HIDDEN.owner], os.path.dirname(__file__)
    monkeypatch.setattr(module, HIDDEN.name, HIDDEN.of(module))
    for _ in range(2):
        hide_frames(folder)
    assert HIDDEN.of(module).count(folder) == 1

    class Outer(keras.layers.Layer):
        def call(self, x):
            return keras.layers.Dense(1)(keras.ops.ones(()))  # in a file that is hidden, and fails in Keras

    with pytest.raises(ValueError) as error:
        Outer()(np.ones(2))
    assert [frame.name for frame in traceback.extract_tb(error.tb)][-1] == "assert_input_compatibility"


@pytest.mark.filterwarnings("ignore:keras_xla")
def test_tracebacks_stay_as_they_are_where_keras_has_no_such_list(monkeypatch):
    monkeypatch.delattr(sys.modules[HIDDEN.owner], HIDDEN.name)
    hide_frames(os.path.dirname(__file__))
    assert not hasattr(sys.modules[HIDDEN.owner], HIDDEN.name)
