"""Weights that are made at the end, each from values that are read then."""

import random
import threading

import keras
import numpy as np
import pytest

from keras_xla import backend
from keras_xla.models.build import make_from
from keras_xla.models.layers.matrices import Int8Matrix
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.weights import WeightedLayer, unmade_weights


def weight(**kwargs):
    return WeightedLayer().add_weight((4, 4), name="kernel", **kwargs)


def test_values_are_read_when_the_variables_are_made_in_their_order():
    read = []

    def values(number):
        read.append(number)
        return np.full((4, 4), number, "float32")

    with unmade_weights() as unmade:
        variables = [weight(dtype=dtype) for dtype in ("float32", "bfloat16")]
        for number, variable in enumerate(variables):
            make_from(lambda number=number: values(number), variable, unmade)
        assert not read
    assert read == [0, 1]
    for number, variable in enumerate(variables):
        assert (keras.ops.convert_to_numpy(variable).astype("float32") == number).all()
    assert [v.dtype for v in variables] == ["float32", "bfloat16"]


def test_a_matrix_is_read_once_for_all_its_variables():
    read, values = [], np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    with unmade_weights() as unmade:
        matrix = Int8Matrix(3, 5)
        make_from(lambda: read.append(1) or values, matrix, unmade)
    expected = Int8Matrix(3, 5)
    expected.assign(values)
    assert len(read) == 1
    np.testing.assert_array_equal(matrix.numpy(), expected.numpy())


@pytest.mark.parametrize("family", ["gpt2", "llama-tied-gqa"])
def test_a_gpu_transposes_what_is_loaded_to_the_same_values(family, checkpoint, monkeypatch):
    """In GPT-2's checkpoints matrices are stored the other way round than in Llama's."""
    source = open_checkpoint(checkpoint(family))
    monkeypatch.setattr(backend, "on_cpu", lambda: True)
    here = load_model(source)
    monkeypatch.setattr(backend, "on_cpu", lambda: False)
    there = load_model(source)
    for one, two in zip(here.variables, there.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two))


def fail():
    raise KeyboardInterrupt


def test_after_an_error_nothing_is_made_and_keras_works():
    made = []
    for where in ("in the body", "while reading"):
        with pytest.raises(KeyboardInterrupt), unmade_weights() as unmade:
            variables = [weight() for _ in range(3)]
            make_from(lambda: np.zeros((4, 4)), variables[0], unmade)
            make_from(fail, variables[1], unmade)
            make_from(lambda: made.append(1), variables[2], unmade)
            if where == "in the body":
                fail()
        with keras.StatelessScope():
            pass
        assert np.array(weight()).any() and not made


def test_inside_of_another_scope_it_is_an_error():
    inside = pytest.raises(RuntimeError, match="inside a keras")
    with keras.StatelessScope(), inside, unmade_weights() as unmade:
        make_from(lambda: np.zeros((4, 4)), weight(), unmade)
    with keras.StatelessScope():
        pass


def test_other_threads_do_not_see_it():
    found = []
    with unmade_weights():
        thread = threading.Thread(target=lambda: found.append(np.array(weight())))
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
