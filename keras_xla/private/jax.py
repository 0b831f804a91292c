"""Names of JAX that it does not promise."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import serialize_executable

from keras_xla.private.names import Name, otherwise

COMPILED = Name(
    "jax.monitoring",
    "/jax/core/compile/backend_compile_duration",
    "the event of each compilation, with the name of the function as `fun_name`",
    "compile_log and the reports do not show what JAX compiles for fit, evaluate and predict",
    "JAX 0.7 to 0.10.2",
)
CACHE_HIT = Name(
    "jax.monitoring",
    "/jax/compilation_cache/cache_hits",
    "the event of each executable that JAX has read from its cache in place of a compilation",
    "executables that JAX has read from a cache of the user's are written down again, and then cannot run",
    "JAX 0.7 to 0.10.2",
)
FILE_CACHE = Name(
    "jax._src.compilation_cache",
    "get_file_cache",
    "opens the folder in which JAX keeps executables",
    "of executables that are kept on disk, one that was cut off is never made again, and may end the keeping of others",
    "JAX 0.7 to 0.10.2",
)
_NOT_KEPT = "a second process traces again, and save_compiled saves nothing"
SERIALIZE = Name(
    "jax.experimental.serialize_executable",
    "serialize",
    "an executable as bytes",
    _NOT_KEPT,
    "JAX 0.7 to 0.10.2",
)
DESERIALIZE = Name(
    "jax.experimental.serialize_executable",
    "deserialize_and_load",
    "the executable that bytes hold",
    _NOT_KEPT,
    "JAX 0.7 to 0.10.2",
    ("serialized", "in_tree", "out_tree", "backend", "execution_devices"),
)
TRACE = Name(
    "jax.core.Tracer",
    "_trace",
    "the trace that an array is of while JAX traces: that of a loop or a branch, or of the function around it",
    "a function of keras_xla.jit cannot call a layer that adds a loss in a loop or a branch",
    "JAX 0.7 to 0.10.2",
)
CLEAN = Name(
    "jax._src.core",
    "trace_state_clean",
    "whether this thread traces nothing",
    "a function of keras_xla.jit that takes no tensors, called while another is traced, keeps what is of that trace",
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


@otherwise(None)
def trace_of(x: Any) -> Any:
    """The trace that an array is of; None for one that has values."""
    return TRACE.of(x) if isinstance(x, jax.core.Tracer) else None


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """In this thread, JAX neither reads from a cache that `keep_in` has named nor writes into it."""
    before = compiles_anew()
    _THREAD.anew = True
    try:
        yield
    finally:
        _THREAD.anew = before


def compiles_anew() -> bool:
    """Whether this thread is inside of `compiling_anew`."""
    return getattr(_THREAD, "anew", False)


@contextlib.contextmanager
def reading() -> Iterator[list[str]]:
    """Yields a list that grows with each executable that JAX, in this thread, reads from its cache."""
    before, _THREAD.read = getattr(_THREAD, "read", None), []
    try:
        yield _THREAD.read
    finally:
        _THREAD.read = before


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


def executable_to_bytes(compiled: Any) -> tuple[bytes, Any, Any]:
    """A compiled function as bytes, and the trees of its arguments and of its results.

    Raises:
        ValueError: for one that cannot be written down.
    """
    try:
        return SERIALIZE.of(serialize_executable)(compiled)
    except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(f"JAX cannot write this executable down: {error}") from error


def executable_from_bytes(content: bytes, in_tree: Any, out_tree: Any, device: Any) -> Callable:
    """The compiled function that `executable_to_bytes` has written, for a device.

    Raises:
        ValueError: if JAX cannot read it.
        MemoryError: if there is no room for it.
    """
    read = DESERIALIZE.of(serialize_executable)
    try:
        return read(content, in_tree, out_tree, backend=device.client, execution_devices=[device])
    except Exception as error:  # whatever unpickling leads to
        if "RESOURCE_EXHAUSTED" in str(error):
            raise MemoryError from error
        raise ValueError(f"JAX cannot read this executable: {error}") from error


@otherwise(False)
def traces() -> bool:
    """Whether this thread traces a function."""
    return not CLEAN.of_module()()


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


def _on_hit(event: str, **_details) -> None:
    read = getattr(_THREAD, "read", None)
    if event == CACHE_HIT.name and read is not None:
        read.append(event)


jax.monitoring.register_event_duration_secs_listener(_on_event)
jax.monitoring.register_event_listener(_on_hit)
