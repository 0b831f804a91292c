"""The logits that Keras puts on probabilities: on TensorFlow only."""

import keras
import numpy as np
import pytest

from keras_xla.private.keras.logits import LOGITS, logits_of, put_logits, with_logits

TENSORFLOW = keras.backend.backend() == "tensorflow"


@pytest.mark.skipif(not TENSORFLOW, reason="of TensorFlow's trainer")
def test_name():
    assert LOGITS.of(keras.activations.softmax(keras.ops.ones((1, 2)))) is not None


def test_they_stay_with_what_was_made_of_them():
    x = keras.ops.convert_to_tensor(np.array([[1.0, 2.0]], "float32"))
    made = with_logits(keras.activations.softmax(x), lambda x: x + 1)
    if TENSORFLOW:
        assert np.asarray(logits_of(made)).tolist() == [[2.0, 3.0]]
    assert logits_of(with_logits(x, lambda x: x + 1)) is None
    assert with_logits(None, lambda x: x) is None


def test_none_are_put_on_nothing():
    assert put_logits(None, None) is None and put_logits("text", None) == "text"
