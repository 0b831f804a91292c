"""A flag of XLA, which XLA reads once: before it makes its first program."""

import contextlib
import functools
import os
import threading

import tensorflow as tf

_FLAG = "--xla_cpu_enable_fast_min_max"  # of XLA in TensorFlow 2.20 and 2.21, which ends the process for unknown ones
_lock = threading.Lock()


def keep_nan() -> bool:
    """Let the maximum of numbers and a NaN be NaN on a CPU, as in plain TensorFlow and in JAX; whether it is.

    XLA's own choice for TensorFlow is to leave NaN out. The user's choice in `XLA_FLAGS` counts, and so does what XLA
    has read before. The environment is as it was afterwards.
    """
    with _lock:
        return _keep_nan()


@functools.cache
def _keep_nan() -> bool:
    flags = os.environ.get("XLA_FLAGS")
    free = flags is None or (flags.lstrip().startswith("-") and _FLAG not in flags)  # else it is the name of a file
    if free or not flags:
        os.environ["XLA_FLAGS"] = f"{flags or ''} {_FLAG}=false".strip()
    try:
        with tf.init_scope(), tf.device("CPU:0"), contextlib.suppress(Exception):  # of a process without XLA
            largest = tf.function(tf.reduce_max, jit_compile=True, autograph=False)
            return bool(tf.math.is_nan(largest(tf.constant([float("nan"), 1.0]))))
        return False
    finally:
        os.environ.pop("XLA_FLAGS", None) if flags is None else os.environ.update(XLA_FLAGS=flags)
