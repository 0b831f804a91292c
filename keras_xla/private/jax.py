"""Names of JAX that it does not promise."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_xla.private.names import Name, otherwise

COMPILED = Name(
    "jax.monitoring",
    "/jax/core/compile/backend_compile_duration",
    "the event of each compilation, with the name of the function as `fun_name`",
    "compile_log and the reports do not show what JAX compiles for fit, evaluate and predict",
    "JAX 0.7 to 0.10.2",
)
FILE_CACHE = Name(
    "jax._src.compilation_cache",
    "get_file_cache",
    "opens the folder in which JAX keeps executables",
    "of executables that are kept on disk, one that was cut off is never made again, and may end the keeping of others",
    "JAX 0.7 to 0.10.2",
)
_THREAD = threading.local()  # jax compiles in the thread that calls
_CACHES: dict[str, Any] = {}  # that JAX uses, by the folders that it opens


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Calls `listener(function name)` for everything that jax compiles in this thread."""
    _heard()
    before = getattr(_THREAD, "listener", None)
    _THREAD.listener = listener
    try:
        yield
    finally:
        _THREAD.listener = before


@otherwise(False)
def keep_in(folder: str, cache: Any) -> bool:
    """Let JAX use `cache`, which has `get(key)`, `put(key, bytes)` and `_path`, for `folder`; whether it does."""
    from jax._src import compilation_cache

    plain = FILE_CACHE.of(compilation_cache)
    if not _CACHES:

        @functools.wraps(plain)
        def get_file_cache(path: str) -> Any:
            return (_CACHES[path], path) if path in _CACHES else plain(path)

        setattr(compilation_cache, FILE_CACHE.name, get_file_cache)
    _CACHES[folder] = cache
    return True


def _on_event(event: str, _seconds: float, **details) -> None:
    listener = getattr(_THREAD, "listener", None)
    if event == COMPILED.name and listener is not None:
        listener(details.get("fun_name") or "")


@functools.cache
@otherwise(None)
def _heard() -> None:
    """Warn unless jax tells of a compilation, by its name."""
    names: list[str] = []
    before = getattr(_THREAD, "listener", None)
    _THREAD.listener = names.append
    try:
        jax.jit(_probe).lower().compile()
    finally:
        _THREAD.listener = before
    if not any("_probe" in name for name in names):
        raise COMPILED.gone()


def _probe() -> int:
    return 0


jax.monitoring.register_event_duration_secs_listener(_on_event)
