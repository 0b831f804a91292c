"""Runs of a step that leave no trace: timed, and with copies of the variables that it writes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_xla.backend.new_shapes import Timing, TrialImpossible
from keras_xla.backend.tensorflow.machine import free_memory, wait_for_devices

LARGEST_SHARE = 0.5  # of the free memory, that the copies of a trial may take


def timed_runs(run: Callable[[], int], repeats: int, limit: float) -> Timing:
    """Time the steps of `run`, which returns their number: one run, which traces and compiles, and `repeats` more.

    After `limit` seconds no further run starts. Raises `TrialImpossible` if a run has no step: then the batch has
    values that only the plain graph shall see.
    """
    seconds: list[float] = []
    for _ in range(1 + repeats):
        if len(seconds) > 1 and sum(seconds[1:]) > limit:
            break
        took, steps = clocked(run)
        if not steps:
            raise TrialImpossible("this batch has an id, a label or an assertion that only the plain graph checks")
        seconds.append(took / steps)
    return Timing(seconds[0], tuple(seconds[1:]))


def clocked(run: Callable[[], Any], wait: bool = True) -> tuple[float, Any]:
    """The seconds of a call, up to when its results are there unless told otherwise, and its outputs."""
    if wait:
        wait_for_devices()
    start = time.perf_counter()
    outputs = run()
    if wait:
        wait_for_devices()
    return time.perf_counter() - start, outputs


def copies_of(variables: Sequence[tf.Variable]) -> dict[int, tf.Variable]:
    """A copy of each variable, by the id of the handle that traced functions have captured of it.

    Raises `TrialImpossible` if there is no memory for them.
    """
    needed = sum(variable.dtype.size * (variable.shape.num_elements() or 0) for variable in variables)
    free = free_memory()
    told = f"a trial runs on a copy of what the step changes, {needed / 2**30:.1f} GiB"
    if free is not None and needed > LARGEST_SHARE * free:
        raise TrialImpossible(f"{told}, and {free / 2**30:.1f} GiB of memory are free")
    try:
        return {id(variable.handle): _copy(variable) for variable in variables}
    except tf.errors.ResourceExhaustedError as error:
        raise TrialImpossible(f"{told}, for which there is no memory") from error


def _copy(variable: tf.Variable) -> tf.Variable:
    with tf.device(variable.device):
        return tf.Variable(variable.read_value(), trainable=False, shape=variable.shape)
