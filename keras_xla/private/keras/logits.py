"""The logits that Keras puts on probabilities."""

from collections.abc import Callable
from typing import Any

import keras

from keras_xla.private.names import KERAS_SEEN, Name

LOGITS = Name(
    "keras.KerasTensor",
    "_keras_logits",
    "what a softmax or a sigmoid was made of, from which Keras computes crossentropies on TensorFlow",
    "losses of batches that are filled up are less exact; the tests find that, nothing else can",
    KERAS_SEEN,
)


def logits_of(x: Any) -> Any:
    """Those on a tensor, as Keras was given them: tensors, arrays or lists. None without.

    On JAX there are none: Keras puts them there, too, and never reads them.
    """
    return getattr(x, LOGITS.name, None) if keras.backend.backend() == "tensorflow" else None


def put_logits(x: Any, logits: Any) -> Any:
    """The tensor itself, with those on it; None for none."""
    if logits is not None:
        setattr(x, LOGITS.name, logits)
    return x


def with_logits(x: Any, change: Callable) -> Any:
    """`change(x)`, with `change` of its logits in place of those that Keras has put on `x`."""
    logits = logits_of(x)
    return put_logits(change(x), None if logits is None else change(logits))
