"""`tf.function` replaced by one that runs what a script decorates through XLA where that is faster.

What it makes is a `tf.function` like any other, and a subclass of it: the same traces, the same attributes, methods and
saved models. Only calls from outside of every graph are looked at, and most of those only by a clock.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.tensorflow.functions.function_tuner import FunctionTuner
from keras_xla.backend.tensorflow.graphs.operations import is_user_file
from keras_xla.backend.unwrap import without_partial
from keras_xla.private.names import otherwise
from keras_xla.private.tensorflow.graphs import Function, may_be_recorded
from keras_xla.tracebacks import hide_ours

_PLAIN: Callable = tf.function
_POLICY_OF: list[Callable] = []  # one while functions are replaced


class WatchedFunction(Function):
    """A `tf.function` without `jit_compile`, decorated while functions were replaced.

    TensorFlow makes one more of them for each instance of a class with a decorated method.
    """

    _tuner: FunctionTuner | None = None

    def __init__(self, python_function, *args, **kwargs):
        super().__init__(python_function, *args, **kwargs)
        self._tuner = _tuner_of(python_function)

    @functools.wraps(Function.__call__)  # for autograph, which converts what is not TensorFlow's
    def __call__(self, *args, **kwargs):
        tuner = self._tuner
        if tuner is None or tuner.settled or not _POLICY_OF or not _outermost():
            return super().__call__(*args, **kwargs)
        try:
            return tuner.call(self, args, kwargs)
        except Exception as error:
            hide_ours(error)
            raise

    def __getstate__(self):
        return super().__getstate__() | {"_tuner": None}


def replace_functions(policy_of: Callable) -> None:
    """Replace `tf.function`; a second time, only who decides is new.

    `policy_of(name)` gives a `FunctionPolicy`, once for every function that is called from outside.
    """
    _POLICY_OF[:] = [policy_of]
    tf.function = function


def restore_functions() -> None:
    """Put TensorFlow's own back. Functions decorated in between run plainly from now on."""
    _POLICY_OF.clear()
    if tf.function is function:
        tf.function = _PLAIN


@functools.wraps(_PLAIN)
def function(*args, **kwargs):
    """In place of `tf.function`."""
    made = _PLAIN(*args, **kwargs)
    # Keras, TensorFlow and libraries decorate at any time, also for the user's functions; those are their business.
    if not is_user_file(sys._getframe(1).f_code.co_filename) or not tf.executing_eagerly():
        return made
    given = inspect.signature(_PLAIN).bind(*args, **kwargs).arguments
    ours = ("func", "input_signature", "autograph", "reduce_retracing", "experimental_autograph_options", "jit_compile")
    if given.get("jit_compile") is not None or set(given) - set(ours):
        return made
    return _adopt(made) if given.get("func") is not None else lambda func: _adopt(made(func))


def _adopt(made: Any) -> Any:
    if type(made) is Function and _is_user_function(made.python_function):
        made.__class__ = WatchedFunction
        made._tuner = _tuner_of(made.python_function)
    return made


def _tuner_of(python_function: Callable) -> FunctionTuner:
    inner = inspect.unwrap(python_function)
    name = getattr(inner, "__qualname__", "") or getattr(inner, "name", type(inner).__name__)
    return FunctionTuner(lambda: _POLICY_OF[0](name.replace("<locals>.", "")))


@otherwise(False)
def _outermost() -> bool:
    """Whether a call from here runs a graph at once, with nobody who wants its gradient, on one device."""
    return (
        tf.executing_eagerly()
        and not may_be_recorded()
        and not tf.distribute.has_strategy()
        and not tf.config.functions_run_eagerly()
    )


def _is_user_function(function: Callable) -> bool:
    function = inspect.unwrap(without_partial(function))
    if isinstance(getattr(function, "__self__", function), keras.layers.Layer):
        return True  # a model: who decorates it has been looked at
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and is_user_file(code.co_filename)
