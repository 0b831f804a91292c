"""Observed train, test and predict functions on JAX: Keras' own, with jax counting what it compiles."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_xla.backend.data import is_dataset, runs_python
from keras_xla.backend.execution import ONE_STEP
from keras_xla.backend.jax.batches import leaves_of
from keras_xla.backend.jax.runner import Runner
from keras_xla.private.jax import listening
from keras_xla.private.keras.trainer import SCANNED_STEPS

DATA_ENDED = (StopIteration,)  # what Keras takes for the end of the data
predict_data = None  # Keras' own functions read the data


def _nothing(*_) -> None:
    """None: only TensorFlow has or needs that."""


def _never(*_) -> bool:
    """False: only on TensorFlow it may be so."""
    return False


make_state_runner = Runner
make_runner = require_private = _nothing  # Keras' own functions run, which compile every step, or that runner does
is_distributed = _never  # how JAX distributes is in the arrays, and the functions are the same
state_maker = _nothing  # Keras makes all state before it traces
runs_eagerly = _never  # not all functions
must_be_freed = _never  # which counts for iterators that are freed slowly
replace_functions = restore_functions = _nothing  # `jax.jit`, which scripts write themselves, is XLA


def end_of_data(iterator: Any, steps: int) -> Exception:
    """What Keras' own function, for so many steps at a time, raises where an iterator has no batch left."""
    return StopIteration()


def draws_by_row() -> bool:
    """Whether the random numbers of a row do not depend on how many rows there are behind it."""
    return jax.config.jax_default_prng_impl == "threefry2x32" and getattr(
        jax.config, "jax_threefry_partitionable", True
    )


class TakingRows:
    """Nothing is one: no arrays are kept, so there are no row numbers."""


def reads_ahead(x: Any) -> bool:
    """Whether batches may be read before the steps of earlier ones run, so that nobody who makes them can tell.

    Keras takes the batches of a generator or a `PyDataset` one by one here; and those of a `tf.data` dataset that calls
    Python.
    """
    if not is_dataset(x):
        return not runs_python(x)
    from keras_xla.private.tensorflow.datasets import calls_python  # late: who has such data has TensorFlow

    return not calls_python(x)


def watched_step(kind: str, keras_make: Callable, own: bool, saw: Callable) -> Callable:
    """Keras' function for `fit`, `evaluate` or `predict`, with the batches that compiled reported.

    `own` tells whether the model's class builds a function of its own; its compilations count whatever their name.
    `saw([(trace, leaves), ...], seconds, compiled=True)` is told of the batches that compiled.
    """
    function = keras_make()
    wanted = ("",) if own else (f"{kind}_step", SCANNED_STEPS)

    def run(state, iterator):
        start = time.perf_counter()
        batches = _Batches(iterator)
        with listening(lambda name: batches.compiled(name, wanted)):
            result = function(state, batches)
        if batches.compilers:
            seen = [(ONE_STEP, leaves_of(data)) for data in batches.compilers]
            saw(seen, time.perf_counter() - start, compiled=True)
        return result

    return run


class _Batches:
    """An iterator that knows which of its batches was the last one out when jax compiled."""

    def __init__(self, iterator: Iterator):
        self._iterator, self._current, self._reading = iter(iterator), None, False
        self.compilers: list = []

    def __iter__(self):
        return self

    def __next__(self):
        self._reading = True  # converting the data may compile small kernels, which are not steps
        try:
            self._current = next(self._iterator)
        finally:
            self._reading = False
        return self._current

    def compiled(self, name: str, wanted: tuple[str, ...]):
        if not self._reading and any(each in name for each in wanted):
            self.compilers.append(self._current)
