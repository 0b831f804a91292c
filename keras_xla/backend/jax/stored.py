"""JAX's own persistent cache of executables, in a folder of ours unless the user has named one."""

import hashlib
import importlib.util
import pathlib
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

from keras_xla.backend.executable_cache import ExecutableCache


def keep_executables(cache: ExecutableCache) -> None:
    """From now on JAX keeps what takes it a second or more to compile.

    Its key for a CPU does not tell what the CPU can do, and a home folder may serve several machines: each kind has a
    folder of its own.
    """
    now = jax.config.jax_compilation_cache_dir
    if now is not None and "keras_xla-jax-" not in now:  # the user's
        return
    jax.config.update("jax_compilation_cache_dir", str(cache.folder / f"keras_xla-jax-{_processor()}"))
    if importlib.util.find_spec("filelock") is not None:  # without it JAX cannot count
        jax.config.update("jax_compilation_cache_max_size", cache.max_bytes)
    compilation_cache.reset_cache()  # it may have been looked for, and not found, before


def _processor() -> str:
    try:
        told = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        told = []
    features = [line for line in told if line.partition(":")[0].strip() in ("model name", "flags", "Features")]
    return hashlib.sha256(repr([platform.machine(), platform.processor(), *features[:2]]).encode()).hexdigest()[:12]
