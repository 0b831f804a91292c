"""Shapes beside the usual ones: few that come often are asked about, the rest run plainly."""

import warnings

import keras
import numpy as np
import pytest

from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from keras_xla.training.decide.rare_shapes import BATCHES_BEFORE_A_LOOK, MOST_RARE_SHAPES, RareShapes
from keras_xla.training.reports.journal import MOST_LISTED
from keras_xla.training.reports.model_report import model_report
from tests.training.helpers import Log

A, B = ((8, 4),), ((8, 6),)


def known(gain=0.01, compiling=1.0, shapes=(A,)):
    others = RareShapes()
    others.gains(gain, compiling)
    for each in shapes:
        others.wait(each)
        assert others.came(each) == 0
    return others


def batches(others, shapes, count, more):
    """After how many batches the question comes; None if it does not."""
    return next((i for i in range(1, count + 1) if others.ripe(shapes, more)), None)


def test_a_shape_is_asked_about_when_those_to_come_repay_a_compilation():
    assert batches(known(gain=0.01, compiling=1.0), A, 200, more=5.0) == 20  # 20 x 5 x 0.01 s
    assert batches(known(gain=1.0, compiling=1.0), A, 200, more=5.0) == BATCHES_BEFORE_A_LOOK
    assert batches(known(gain=0.01, compiling=1.0), A, 200, more=0.1) is None


def test_the_question_comes_once_and_knows_how_often_the_shape_came():
    others = known(gain=1.0)
    assert batches(others, A, 10, more=5.0) == BATCHES_BEFORE_A_LOOK
    assert others.came(A) == BATCHES_BEFORE_A_LOOK and others.was_asked(A)
    assert batches(others, A, 100, more=5.0) is None


def test_nobody_knows_a_gain_before_the_usual_shapes_have_one():
    others = RareShapes()
    others.wait(A)
    assert batches(others, A, 100, more=1000.0) is None


def test_the_usual_shapes_are_not_counted():
    assert batches(known(gain=1.0), B, 100, more=1000.0) is None


def test_no_more_than_so_many_shapes_are_asked_about():
    shapes = [((8, n),) for n in range(3 * MOST_RARE_SHAPES)]
    others = known(gain=1.0, shapes=shapes)
    assert sum(batches(others, each, 10, more=5.0) is not None for each in shapes) == MOST_RARE_SHAPES


def text_model():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = [keras.Input((None,), dtype="int32"), layers.Embedding(20, 8), layers.GlobalAveragePooling1D()]
    return keras.Sequential([*model, layers.Dense(1)], name="of_any_length")


class Lengths(keras.utils.PyDataset):
    """Batches of these lengths, in turn."""

    def __init__(self, lengths):
        super().__init__()
        self._lengths = lengths

    def __len__(self):
        return len(self._lengths)

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        return rng.integers(0, 20, (8, self._lengths[i])), rng.normal(size=(8, 1))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="on JAX Keras compiles every shape")
def test_data_of_three_lengths_come_to_run_in_three_executables(monkeypatch):
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    monkeypatch.setattr(policy, "MARGIN", float("inf"))
    monkeypatch.setattr(RareShapes, "gains", lambda self, gain, compiling: vars(self).update(_gain=1.0, _compile=1.0))
    data, log = Lengths([5, 7, 9] * 10), Log()
    model, other = text_model(), text_model()
    other.compile("sgd", "mse")
    compile(model, "sgd", "mse")
    losses = [each.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"] for each in (model, other)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert log.kinds() == ["train"] * 3
    train = model_report(model).to_dict()["train"]
    assert train["different_batches"] == 3  # of which two were decided about twice
    assert train["ran"]["xla"]["steps"] > 60


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="on JAX Keras compiles every shape")
def test_data_of_many_lengths_are_reported():
    model = compile(text_model(), "sgd", "mse")
    model.predict(Lengths(range(1, 2 * MOST_LISTED)), verbose=0)
    report = model_report(model)
    assert len(report.history.decisions) == MOST_LISTED
    assert report.to_dict()["predict"]["different_batches"] == 2 * MOST_LISTED - 1
    assert "bucket_lengths" in " ".join(str(report).split())


@pytest.mark.slow
def test_many_compilations_are_warned_of_once():
    model = compile(text_model(), "sgd", "mse", jit_compile=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(Lengths(range(1, MOST_LISTED + 4)), shuffle=False, verbose=0)
    (told,) = [str(each.message) for each in caught if "bucket_lengths" in str(each.message)]
    assert f"of_any_length.train_step has been compiled {MOST_LISTED + 1} times" in told
    assert "(8, 12)" in told and "(8, 13)" in told
