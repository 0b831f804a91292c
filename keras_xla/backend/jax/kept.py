"""JAX's own persistent cache of executables, in a folder of ours unless the user has named one."""

import functools
import hashlib
import pathlib
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

from keras_xla.backend.executable_cache import executable_cache


@functools.cache
def keep_executables() -> None:
    """From now on JAX keeps what takes it a second or more to compile.

    Its key for a CPU does not tell what the CPU can do, and a home folder may serve several machines: each kind has a
    folder of its own.
    """
    cache = executable_cache()
    if cache is None or jax.config.jax_compilation_cache_dir is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache.folder / f"jax-{_processor()}"))
    jax.config.update("jax_compilation_cache_max_size", cache.max_bytes)
    compilation_cache.reset_cache()  # it may have been looked for, and not found, before


def _processor() -> str:
    try:
        told = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        told = []
    features = [line for line in told if line.partition(":")[0].strip() in ("model name", "flags", "Features")]
    return hashlib.sha256(repr([platform.machine(), platform.processor(), *features[:2]]).encode()).hexdigest()[:12]
