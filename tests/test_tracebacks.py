"""Tracebacks show the user's frames, Keras' own, and the one that raised; nothing of keras_xla in between."""

import traceback

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla.tracebacks import FOLDER


def users(*args):
    raise KeyError("the user's own")


def processor(tokens, logits, step):
    raise KeyError("the user's own")


def a_layer():
    layers = [keras.layers.Embedding(50, 4), keras.layers.GRU(4, return_sequences=True), keras.layers.Dense(50)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    return keras_xla.XLAGenerationLayer(model, logits_processors=[processor])


def a_fit():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    keras_xla.compile(model, "sgd", "mse")
    ends = keras.callbacks.LambdaCallback(on_epoch_end=users)
    model.fit(np.zeros((4, 2)), np.zeros((4, 1)), callbacks=[ends], verbose=0)


def frames(call) -> list[traceback.FrameSummary]:
    with pytest.raises(Exception) as error:
        call()
    return traceback.extract_tb(error.tb)


def of_ours(shown) -> list[str]:
    return [frame.name for frame in shown if frame.filename.startswith(FOLDER)]


@pytest.mark.parametrize(
    ("call", "last"),
    [
        (a_fit, "users"),
        (lambda: a_layer().generate([[1]]), "processor"),
        (lambda: next(a_layer().stream([[1]])), "processor"),
        (lambda: keras_xla.jit(users)(np.zeros(3)), "users"),
    ],
    ids=["fit", "generate", "stream", "jit"],
)
def test_an_error_of_the_users_code_shows_no_frame_of_ours(call, last):
    shown = frames(call)
    assert of_ours(shown) == []
    assert shown[-1].name == last and shown[1].filename == __file__
    assert len(shown) < 10


def test_an_error_of_ours_shows_where_it_was_raised():
    shown = frames(lambda: a_layer().generate([[]]))
    assert of_ours(shown) == [shown[-1].name]
    assert len(shown) == 3  # of this test, its lambda and ours


def test_arguments_that_do_not_fit_end_in_the_users_line():
    shown = frames(lambda: a_layer().generate([[1]], 2))
    assert [frame.filename for frame in shown] == [__file__] * 2


def test_keras_can_be_asked_for_all():
    keras.config.disable_traceback_filtering()
    try:
        assert len(of_ours(frames(lambda: a_layer().generate([[]])))) > 3
    finally:
        keras.config.enable_traceback_filtering()
