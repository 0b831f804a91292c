"""The masks that Keras 3 puts on tensors."""

from typing import Any

from keras_xla.private.names import KERAS_SEEN, Name, otherwise

MASK = Name(
    "keras.src.backend.common.masking",
    "get_keras_mask",
    "the mask that a layer has put on its output, for the layers, losses and metrics behind it",
    "masks are lost in functions of jit, and move_to_pipeline does not work",
    KERAS_SEEN,
)
PUT_MASK = Name(
    "keras.src.backend.common.masking",
    "set_keras_mask",
    "puts a mask on a tensor",
    "masks are lost in functions of jit",
    KERAS_SEEN,
)


def mask_of(x: Any) -> Any:
    """The mask on a tensor; None without."""
    return MASK.of_module()(x)


mask_if_known = otherwise(None)(mask_of)


def put_mask(x: Any, mask: Any) -> Any:
    """The tensor itself, with that mask on it; None for none."""
    if mask is not None:
        _put_mask(x, mask)
    return x


@otherwise(None)
def _put_mask(x: Any, mask: Any) -> None:
    PUT_MASK.of_module()(x, mask)
