"""TensorFlow's own persistent cache of executables, in a folder of this process; see `stored`."""

from keras_xla.backend.executable_cache import ExecutableCache
from keras_xla.backend.tensorflow.machine import cpu_features
from keras_xla.private.xla_folder import ask_for_it


def keep_executables(cache: ExecutableCache) -> None:
    """Let TensorFlow keep executables, which `stored` takes from it.

    Raises:
        RuntimeError: if it is too late, or cannot be.
    """
    if not cpu_features():
        raise RuntimeError("Executables cannot be kept here: nothing tells what the processor can do.")
    ask_for_it()
