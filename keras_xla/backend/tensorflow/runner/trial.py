"""Runs of a step that leave no trace: timed, and what they did to variables undone."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_xla.backend.new_shapes import Timing, TrialImpossible
from keras_xla.backend.tensorflow.machine import free_memory, on_gpu, wait_for_devices

LARGEST_SHARE = 0.5  # of the free memory, that the copies of a trial may take


def timed_runs(run: Callable[[], Any], repeats: int, limit: float) -> Timing:
    """Time `run`, up to when its results are there: one run, which traces and compiles, and `repeats` more.

    After `limit` seconds no further run starts.
    """
    seconds: list[float] = []
    for _ in range(1 + repeats):
        if len(seconds) > 1 and sum(seconds[1:]) > limit:
            break
        seconds.append(clocked(run)[0])
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


@contextlib.contextmanager
def undone(variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Give variables back the values that they have now.

    The values of a GPU wait in the computer's memory, since the GPU's is the scarce one. Raises `TrialImpossible` if
    there is no memory for a copy of them.
    """
    needed = sum(variable.dtype.size * (variable.shape.num_elements() or 0) for variable in variables)
    free = free_memory()
    if free is not None and needed > LARGEST_SHARE * free:
        raise TrialImpossible(
            f"a trial keeps a copy of what the step changes, {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of "
            "memory are free"
        )
    with tf.device("CPU") if on_gpu() else contextlib.nullcontext():
        kept = [tf.identity(variable.read_value()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory was used up; XLA says so in words."""
    told = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")
    return isinstance(error, (tf.errors.ResourceExhaustedError, MemoryError)) or any(x in str(error) for x in told)
