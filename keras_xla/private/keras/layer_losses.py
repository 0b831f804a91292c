"""The losses that Keras keeps on a layer from one call to the next."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_xla.private.keras.variables import stateless_scope
from keras_xla.private.names import KERAS_SEEN, Name, otherwise

_OFF = "`layer.losses` is not what a call of a function of keras_xla.jit has added"
ADDED = Name("keras.Layer", "_losses", "the losses that the last call of a layer has added", _OFF, KERAS_SEEN)
IDS = Name("keras.Layer", "_loss_ids", "which losses of a scope are a layer's", _OFF, KERAS_SEEN)
OWN = Name(
    "keras.Layer", "_get_own_losses", "these without those of layers inside, also while JAX traces", _OFF, KERAS_SEEN
)
_MARK = "marked"  # no id of a loss
CLEAR = Name("keras.Layer", "_clear_losses", "what a layer does first when it is called", _OFF, KERAS_SEEN)


@contextlib.contextmanager
def losses_wanted() -> Iterator[None]:
    """Within it, losses that layers add can be found on them, whatever scope there is; it keeps none of them."""
    scope: Any = stateless_scope()
    if scope is None:
        yield
        return
    wanted, before = scope.collect_losses, list(scope.losses)
    scope.collect_losses = True
    try:
        yield
    finally:
        scope.collect_losses, scope.losses[:] = wanted, before


@otherwise(())
def losses_if_known(layer: keras.Layer) -> list[Any]:
    """What a layer itself has added, in this call or the last one."""
    return list(OWN.of(layer)())


@otherwise(())
def stored_losses(layer: keras.Layer) -> Sequence[Any]:
    """What stands on a layer itself, while a scope may have what it adds now."""
    return ADDED.of(layer)


@otherwise(None)
def mark_losses(layer: keras.Layer) -> None:
    """Note on a layer that its losses have not been taken off since."""
    IDS.of(layer).add(_MARK)


@otherwise(False)
def were_cleared(layer: keras.Layer) -> bool:
    """Whether the losses of a layer have been taken off since `mark_losses`."""
    return _MARK not in IDS.of(layer)


@otherwise(None)
def kept_losses(layer: keras.Layer) -> Any:
    """What `put_back_losses` takes."""
    return list(ADDED.of(layer)), set(IDS.of(layer))


@otherwise(None)
def put_back_losses(layer: keras.Layer, kept: Any) -> None:
    """Give a layer the losses that it had when `kept_losses` was called; none with None."""
    losses, ids = ([], set()) if kept is None else kept
    ADDED.of(layer)[:] = losses
    IDS.of(layer).clear()
    IDS.of(layer).update(ids)


@otherwise(None)
def clear_losses(layer: keras.Layer) -> None:
    """Take off all losses that a layer, and the layers inside of it, have added."""
    CLEAR.of(layer)()
