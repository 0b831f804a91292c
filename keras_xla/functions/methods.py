"""A decorated function in a class: each instance has a function of its own, which goes with the instance."""

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from keras_xla.functions.parameters import own_signature


class WeakMethod:
    """A method of an instance that it does not keep alive; who calls it does.

    Attributes:
        own_signature: See `parameters.own_signature`.
    """

    def __init__(self, fn: Callable, instance: Any):
        self._fn, self._instance = fn, weakref.ref(instance)
        method = types.MethodType(fn, instance)
        self.__signature__, self.own_signature = inspect.signature(method), own_signature(method)

    @property
    def __self__(self) -> Any:
        return self._instance()

    @property
    def __func__(self) -> Callable:
        return self._fn

    def __call__(self, *args, **kwargs):
        return self._fn(self.__self__, *args, **kwargs)


class OfInstances:
    """The compiled functions of the instances that are alive.

    Args:
        fn: The function in the class.
        compiled: Makes a compiled function of a `WeakMethod`.
    """

    def __init__(self, fn: Callable, compiled: Callable[[WeakMethod], Any]):
        self._fn, self._compiled, self._lock = fn, compiled, threading.RLock()
        self._functions: dict[int, tuple[weakref.ref, Any]] = {}  # by the id of an instance
        self._gone = 0

    @property
    def trace_count(self) -> int:
        """Executables that were compiled, those of instances that are gone too."""
        with self._lock:
            # What is collected meanwhile, in this thread too, goes out of the dict and is counted as gone.
            each, gone = list(self._functions.values()), self._gone
            return gone + sum(function.trace_count for _, function in each)

    def of(self, instance: Any) -> Any:
        """The function of an instance; None if its class says which instances are equal, or forbids weak references."""
        if type(instance).__hash__ is not object.__hash__:
            return None
        with self._lock:
            if id(instance) not in self._functions:
                try:
                    reference = weakref.ref(instance, functools.partial(self._let_go, id(instance)))
                except TypeError:
                    return None
                self._functions[id(instance)] = reference, self._compiled(WeakMethod(self._fn, instance))
            return self._functions[id(instance)][1]

    def _let_go(self, number: int, _: weakref.ref) -> None:
        with self._lock:
            _, function = self._functions.pop(number)
            self._gone += function.trace_count
