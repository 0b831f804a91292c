"""JAX's own persistent cache of executables, in a folder of ours unless the user has named one.

JAX writes its files in place, and never again: one that a killed process or a full disk cut off would stay as it is,
and where it lacks the time of its last use, JAX would keep no other. So JAX gets a cache of ours for that folder.
"""

import hashlib
import importlib.util
import pathlib
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

from keras_xla.backend.executable_cache import ExecutableCache
from keras_xla.private.jax import keep_in


class Kept:
    """An `ExecutableCache` as JAX's own cache, with JAX's keys."""

    def __init__(self, cache: ExecutableCache):
        self._cache, self._path = cache, cache.folder  # JAX tells of the path in its log

    def get(self, key: str) -> bytes | None:
        """What is kept under a key of JAX's; None if there is nothing."""
        return self._cache.get(_name(key))

    def put(self, key: str, value: bytes) -> None:
        """Keep it."""
        self._cache.put(_name(key), value)


def keep_executables(cache: ExecutableCache) -> None:
    """From now on JAX keeps what takes it a second or more to compile.

    Its key for a CPU does not tell what the CPU can do, and a home folder may serve several machines: each kind has a
    folder of its own.
    """
    now = jax.config.jax_compilation_cache_dir
    if now is not None and "keras_xla-jax-" not in now:  # the user's
        return
    folder = cache.folder / f"keras_xla-jax-{_processor()}"
    ours = keep_in(str(folder), Kept(ExecutableCache(folder, cache.max_bytes)))
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if not ours and importlib.util.find_spec("filelock") is not None:  # without it JAX cannot count
        jax.config.update("jax_compilation_cache_max_size", cache.max_bytes)
    compilation_cache.reset_cache()  # it may have been looked for, and not found, before


def _name(key: str) -> str:
    """JAX's keys begin with the name of a function, which may be longer than a file's."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _processor() -> str:
    try:
        told = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        told = []
    features = [line for line in told if line.partition(":")[0].strip() in ("model name", "flags", "Features")]
    return hashlib.sha256(repr([platform.machine(), platform.processor(), *features[:2]]).encode()).hexdigest()[:12]
