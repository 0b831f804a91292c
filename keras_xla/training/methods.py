"""Methods put on a model instance: to whoever asks, calls or reads a traceback, they are Keras' own."""

import functools
import inspect
import pathlib
import types
from collections.abc import Callable
from typing import Any

import keras

import keras_xla

_FOLDER = str(pathlib.Path(keras_xla.__file__).parent)


def in_place_of(attachment: Any, ours: Callable, plain: Callable) -> Callable:
    """A method of what is attached to a model, with the signature and the help of the model's own."""

    @functools.wraps(plain)
    def call(*args, **kwargs):
        try:
            return ours(*args, **kwargs)
        except Exception as error:
            if keras.config.is_traceback_filtering_enabled():
                error = error.with_traceback(_without_ours(error.__traceback__))
            raise error

    call.__signature__, call.__doc__ = inspect.signature(plain), inspect.getdoc(plain)  # of a base class, often
    call.attachment = attachment
    return call


def _without_ours(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of this package, as Keras leaves out its own."""
    kept = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_FOLDER):
            kept.append(traceback)
        traceback = traceback.tb_next
    made = None
    for each in reversed(kept):
        made = types.TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made
