"""What Keras knows in a thread while layers are called there."""

import contextlib
from typing import Any, NamedTuple

from keras_xla.private.names import Name, otherwise

_SEEN = "Keras 3.12 to 3.15.1"
_PLAIN = (bool, int, float, str)
GLOBAL = Name(
    "keras.src.backend.common.global_state",
    "get_global_attribute",
    "holds what the layers that are being called have been told",
    "a function of keras_xla.jit that is called inside of layers computes as those were told in its first call",
    _SEEN,
)


class CallContext(NamedTuple):
    """What layers that are being called around a call have been told.

    Attributes:
        told: Pairs of a name and a value, such as `("training", True)`.
        dtype: That in which they read variables of floats; None for that of each variable.
    """

    told: tuple = ()
    dtype: str | None = None


@otherwise(CallContext())
def call_context() -> CallContext:
    """That of now, in this thread."""
    of = GLOBAL.of_module()
    told = getattr(of("current_call_ctx"), "__dict__", {})
    values = ((name, _plain(value)) for name, value in told.items())
    known = sorted((name, value) for name, value in values if value is not None)
    return CallContext(tuple(known), getattr(of("autocast_scope"), "dtype", None))


@otherwise(False)
def is_in_call() -> bool:
    """Whether a layer is being called in this thread."""
    return GLOBAL.of_module()("current_call_ctx") is not None


def _plain(value: Any) -> Any:
    """A setting as Python has it; None for what is none, or has no value yet."""
    if isinstance(value, _PLAIN):
        return value
    if getattr(value, "shape", None) == ():  # Keras makes tensors of NumPy's
        with contextlib.suppress(Exception):  # of a tensor that is being traced
            return bool(value)
    return None
