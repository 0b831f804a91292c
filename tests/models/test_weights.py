"""Models that are about to be filled begin with zeros, and only those."""

import random
import threading

import numpy as np
import pytest

from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.weights import WeightedLayer, empty_weights


def weight() -> np.ndarray:
    return np.array(WeightedLayer().add_weight((4, 4), name="kernel"))


def test_within_it_weights_are_zero_whatever_their_initializer():
    with empty_weights():
        assert not weight().any()
        assert not np.array(WeightedLayer().add_weight((4,), initializer="ones")).any()
    assert weight().any()


def test_it_ends_with_an_error():
    with pytest.raises(KeyError), empty_weights():
        raise KeyError
    assert weight().any()


def test_other_threads_do_not_see_it():
    found = []
    with empty_weights():
        thread = threading.Thread(target=lambda: found.append(weight()))
        thread.start()
        thread.join()
    assert found[0].any()


def test_loading_a_checkpoint_draws_nothing(checkpoint):
    opened = open_checkpoint(checkpoint("gpt2"))
    random.seed(0)
    expected = random.random()
    random.seed(0)
    load_model(opened)
    assert random.random() == expected
