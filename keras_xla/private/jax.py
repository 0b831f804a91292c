"""Names of JAX that it does not promise."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import jax

from keras_xla.private.names import Name, otherwise

COMPILED = Name(
    "jax.monitoring",
    "/jax/core/compile/backend_compile_duration",
    "the event of each compilation, with the name of the function as `fun_name`",
    "compile_log and the reports do not show what JAX compiles for fit, evaluate and predict",
    "JAX 0.7 to 0.10.2",
)
_THREAD = threading.local()  # jax compiles in the thread that calls


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
