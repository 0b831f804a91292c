"""Executables on disk: JAX's own persistent cache in a folder of ours, and executables that need no tracing either.

JAX's own cache has what JAX compiles, and finds it again after tracing and lowering; its folder is the user's, if one
is named. JAX writes files in place, and never again: one that a killed process or a full disk cut off would stay as it
is, and where it lacks the time of its last use, JAX would keep no other. So JAX gets a cache of ours for that folder.
"""

import hashlib
import importlib.util
import os
import pathlib
import platform
from typing import Any

import jax
import jaxlib
import keras
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.backend.executable_cache.packing import pack, structure_from_json, structure_to_json, unpack
from keras_xla.backend.executable_cache.xla_flags import flags_file
from keras_xla.private.jax import (
    compiles_anew,
    compiling_anew,
    executable_from_bytes,
    executable_to_bytes,
    keep_in,
    reading,
)
from keras_xla.private.names import Gone, otherwise

_SETTINGS = (  # of JAX's that change what is traced or compiled
    *("jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable"),
    *("jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_debug_nans", "jax_debug_infs", "jax_disable_jit"),
)


class JaxCompilationCache:
    """An `ExecutableCache` as JAX's own cache, with JAX's keys."""

    def __init__(self, cache: ExecutableCache):
        self._cache, self._path = cache, cache.folder  # JAX tells of the path in its log

    def get(self, key: str) -> bytes | None:
        """What is kept under a key of JAX's; None if there is nothing."""
        return None if compiles_anew() else self._cache.get(_name(key))

    def put(self, key: str, value: bytes) -> None:
        """Keep it."""
        if not compiles_anew():
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
    ours = keep_in(str(folder), JaxCompilationCache(ExecutableCache(folder, cache.max_bytes)))
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if not ours and importlib.util.find_spec("filelock") is not None:  # without it JAX cannot count
        jax.config.update("jax_compilation_cache_max_size", cache.max_bytes)
    compilation_cache.reset_cache()  # it may have been looked for, and not found, before


def compiled_for() -> dict[str, str]:
    """What an executable holds for, beside the computation: by name, as people read it.

    Raises:
        OSError: if XLA_FLAGS names a file that cannot be read.
    """
    settings = {name: getattr(jax.config, name, None) for name in _SETTINGS}
    flags, device = os.environ.get("XLA_FLAGS", "").strip(), _device()
    versions = f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, {device.client.platform_version}"
    return {
        "versions": f"{versions}, keras {keras.__version__}, numpy {np.__version__}",
        "device": f"{len(jax.devices())} x {device.platform} {device.device_kind}, {os.cpu_count()} cores",
        "processor": _processor(),
        "settings": repr((settings, flags, flags_file())),
    }


def require_keeping() -> None:
    """Raise `RuntimeError` where executables cannot be kept, saying why."""
    if len(jax.devices()) > 1:
        raise RuntimeError(
            f"JAX has {len(jax.devices())} devices here, and executables are kept for one only. Let the process see "
            "one, for instance by CUDA_VISIBLE_DEVICES=0."
        )


def prepare_to_read() -> None:
    """Nothing: JAX reads executables at any time."""


@otherwise(False)
def put_executable(compiled: Any, specs: tuple, name: str, cache: ExecutableCache) -> bool:
    """Put a function of `jax.jit` that has run with arguments of these `specs` into a cache; whether it can be."""
    if len(jax.devices()) > 1:  # its arguments may stand on several
        return False
    try:
        with compiling_anew(), reading() as read:
            found = compiled.lower(*specs).compile()  # what has run, which JAX has in memory
        if read:
            return False
        payload, *trees = executable_to_bytes(found)
        written = [structure_to_json(jax.tree.unflatten(tree, range(tree.num_leaves))) for tree in trees]
    except (ValueError, TypeError, jax.errors.JaxRuntimeError):
        return False
    return cache.put(name, pack({"executable": payload, "arguments": written[0], "results": written[1]}))


def get_executable(name: str, cache: ExecutableCache) -> Any:
    """The function that was put into a cache; None if none is there that can be used."""
    payload = cache.get(name) if len(jax.devices()) == 1 else None
    if payload is None:
        return None
    parts = unpack(payload)
    try:
        arguments, results = (jax.tree.structure(structure_from_json(parts[x])) for x in ("arguments", "results"))
        return executable_from_bytes(parts["executable"], arguments, results, _device())
    except (Gone, MemoryError):
        return None
    except (KeyError, ValueError):
        cache.drop(name)
        return None


def _device() -> jax.Device:
    """The one on which this thread's arrays are made."""
    chosen = jax.config.jax_default_device
    return jax.devices(chosen)[0] if chosen is None or isinstance(chosen, str) else chosen


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
