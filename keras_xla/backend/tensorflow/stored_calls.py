"""Compiled functions that graphs call, such as a training step, with executables that are kept on disk."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_xla.backend.tensorflow.stored import Stored, keeps_executables, stored_computation
from keras_xla.private.names import Gone
from keras_xla.private.tensorflow.graphs import call_as
from keras_xla.private.tensorflow.xla_flags import keep_nan
from keras_xla.private.tensorflow.xla_folder import folder_of_xla, move_folder


def xla_function(step: Callable, calls: "StoredCalls | None") -> Callable:
    """`step(tensors)` compiled by XLA, to be called in graphs; `calls` keep its executables, None keeps none."""
    keep_nan()
    function = tf.function(step, jit_compile=True, autograph=False)
    # No lambda: TensorFlow takes all that have the same code for one function, and warns of its retracing.
    return function if calls is None else functools.partial(_call, calls, function)


def _call(calls: "StoredCalls", function: Any, inputs: Any) -> Any:
    return calls.call(function.get_concrete_function(inputs), inputs)


class StoredCalls:
    """Calls of compiled functions in the graphs of one step.

    TensorFlow compiles these functions when such a graph runs for the first time. Before that, `call` hands over to
    TensorFlow what is kept. After it, `take_over` keeps what TensorFlow has made. Graphs that are traced later call the
    same functions.

    Args:
        folder: That TensorFlow keeps executables in.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._functions: dict[str, Stored] = {}
        self._handed: dict[str, bool] = {}  # by digest, until one of the methods below is called
        self._settled = False

    def call(self, function: Any, inputs: Any) -> Any:
        """Call a concrete function in the graph under construction."""
        try:
            stored = self._stored(function)
            return function(inputs) if stored is None else call_as(stored.name, function, inputs)
        except Gone:
            return function(inputs)

    def take_over(self) -> None:
        """To be called once all of them have run."""
        self._settled = True
        while self._handed:
            self._functions[self._handed.popitem()[0]].take_over(self._folder)

    def take_back(self) -> list[Stored]:
        """To be called where one of them could not be run; those that TensorFlow had from disk."""
        self._settled = True
        from_disk = [self._functions[digest] for digest, had in self._handed.items() if had]
        while self._handed:
            self._functions[self._handed.popitem()[0]].take_back()
        return from_disk

    def _stored(self, function: Any) -> Stored | None:
        try:
            stored = stored_computation(function, named=True)
        except (KeyError, OSError):
            return None
        if stored.digest not in self._functions:
            if self._settled:  # nobody would take over what is made of it
                return None
            self._functions[stored.digest] = stored
            self._handed[stored.digest] = stored.hand_over(self._folder)
        return stored


def in_another_folder(error: tf.errors.OpError) -> bool:
    """Whether TensorFlow could not use its folder of executables, which may be full, and has another one now."""
    folder = folder_of_xla()
    return folder is not None and str(folder) in error.message and move_folder(folder)


def stored_calls() -> StoredCalls | None:
    """For a new step; None where no executables are kept."""
    folder = folder_of_xla()
    return StoredCalls(folder) if folder is not None and keeps_executables() else None
