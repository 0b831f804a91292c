"""Methods put on a model instance: to whoever asks, calls or reads a traceback, they are those that were there."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from keras_xla.backend.keras2 import model_class
from keras_xla.private.keras.layers import package_of
from keras_xla.private.keras.tracebacks import hide_frames
from keras_xla.tracebacks import FOLDER
from keras_xla.troubleshooting import explained


class Methods:
    """Methods of ours for a model instance, by name, and what is behind them: the user's own, or those of the class."""

    def __init__(self, model: Any, ours: dict[str, Callable]):
        self._model, self._given = model, {name: vars(model)[name] for name in ours if name in vars(model)}
        self._ours = {name: in_place_of(method, getattr(model, name), model) for name, method in ours.items()}

    def put_on(self) -> None:
        """Put ours on the instance."""
        hide_frames(FOLDER)
        for name, method in self._ours.items():
            setattr(self._model, name, method)

    def take_off(self) -> None:
        """Give the instance its own methods back; one that was put around ours stays, and calls those through ours."""
        for name in filter(self.is_outermost, self._ours):
            delattr(self._model, name)
            if name in self._given:
                setattr(self._model, name, self._given[name])

    def is_outermost(self, name: str) -> bool:
        """Whether the instance has ours, with nothing of the user's around it."""
        return vars(self._model).get(name) is self._ours[name]

    def behind(self, name: str) -> Callable:
        """What the model has without ours."""
        if name in self._given:
            return self._given[name]
        found = inspect.getattr_static(type(self._model), name)
        return found.__get__(self._model, type(self._model)) if hasattr(found, "__get__") else found

    def is_keras_own(self, name: str) -> bool:
        """Whether that is Keras' own: not the user's, on the instance or in the class, nor one that a tool put there.

        Whoever wraps a method copies its name and its module: what counts is where the code was written.
        """
        keras_model = model_class(self._model)
        method = getattr(type(self._model), name)
        if name in self._given or method is not getattr(keras_model, name):
            return False
        package, layers = package_of(keras_model), [method]
        while hasattr(layers[-1], "__wrapped__"):
            layers.append(layers[-1].__wrapped__)
        # What is no function may pretend to be one.
        return all(type(each) is types.FunctionType and package_of(each) == package for each in layers)


def in_place_of(ours: Callable, plain: Callable, model: Any) -> Callable:
    """A method of ours, bound to the model, with the signature and the help of the model's own.

    A copy is bound to the copy of the model, and one that was pickled to the model that comes of it, as Keras' are.
    """

    def call(self, *args, **kwargs):
        method = ours if self is model else getattr(self, plain.__name__)
        return method(*args, **kwargs)

    method: Any = functools.wraps(plain)(explained(call))
    signature = inspect.signature(plain)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    vars(method)["__signature__"] = signature.replace(parameters=[itself, *signature.parameters.values()])
    method.__doc__ = inspect.getdoc(plain)  # of a base class, often
    return types.MethodType(method, model)
