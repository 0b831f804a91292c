"""Step functions that are made before Keras asks for them: what they are made of may change until then.

A `fit` has to know before its callbacks are given the model how its batches shall come, and those of its validation.
"""

from collections.abc import Callable
from typing import Any

import keras

from keras_xla.backend import keras2


class EarlyFunctions:
    """Those of one model that Keras has not asked for yet, and what each was made of."""

    def __init__(self, model: keras.Model):
        self._model = model
        self._made: dict[str, tuple[Callable, tuple]] = {}

    def made(self, kind: str, make: Callable[..., Callable]) -> Callable:
        """The function of a kind, from `make(kind, force=whether that has to be made anew)`."""
        before = self._there(kind)
        function = make(kind, force=self._outdated(kind))
        if function is not before:
            self._made[kind] = function, self._made_of(kind)
        return function

    def asked(self, kind: str) -> bool:
        """Keras asks for the function of a kind, which stays from now on; whether that has to be made anew."""
        outdated = self._outdated(kind)
        self._made.pop(kind, None)
        return outdated

    def _outdated(self, kind: str) -> bool:
        function, made_of = self._made.get(kind, (None, None))
        return function is not None and function is self._there(kind) and made_of != self._made_of(kind)

    def _there(self, kind: str) -> Any:
        return getattr(self._model, f"{kind}_function", None)

    def _made_of(self, kind: str) -> tuple:
        model = self._model
        settings = model.run_eagerly, model.jit_compile, keras2.steps_per_execution(model)
        return getattr(model, f"{kind}_step"), *settings
