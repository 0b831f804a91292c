"""Losses that layers add while they are called: by `add_loss`, or as regularizers of activities."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_xla.backend.steps import is_of_trace
from keras_xla.private.keras.call_context import is_in_call
from keras_xla.private.keras.layer_losses import (
    clear_losses,
    kept_losses,
    losses_if_known,
    losses_wanted,
    mark_losses,
    put_back_losses,
    stored_losses,
    were_cleared,
)
from keras_xla.private.keras.layers import layers_if_known


class AddedLosses:
    """Those of compiled calls, which layers have afterwards as if nothing had been compiled. It keeps no layer alive.

    Args:
        called: The layer that is called itself; None for another function.
        known: Layers that may be called inside.
    """

    def __init__(self, called: keras.Layer | None, known: Sequence[keras.Layer]):
        self._called = None if called is None else weakref.ref(called)
        self._known = list(map(weakref.ref, known if called is None else [called, *known]))
        self._all: list[weakref.ref] = []  # the layers that there were in the last trace
        self._added: list[weakref.ref] = []  # those of them that added some
        self._cleared: list[weakref.ref] = []  # those whose losses Keras took off before, as they were called

    def collected(self, call: Callable, tensors: Sequence[Any]) -> tuple[Any, list[list[Any]]]:
        """What `call(tensors)` returns, and what each layer added; a trace leaves no loss of its own on a layer.

        What is added in a loop or a branch cannot leave it, and does not count.
        """
        marked = self._layers()
        before = {id(layer): kept_losses(layer) for layer in marked}
        for layer in marked:
            mark_losses(layer)
        try:
            with losses_wanted():
                there = {id(layer): losses_if_known(layer) for layer in self._layers()}
                outputs = call(tensors)
                layers = self._layers()
                new = [_new(layer, there.get(id(layer), ())) for layer in layers]
                mine = [[x for x in losses if is_of_trace(x, tensors)] for losses in new]
                cleared = [layer for layer in marked if were_cleared(layer)]
        finally:
            for layer in {id(each): each for each in (*marked, *self._layers())}.values():
                put_back_losses(layer, before.get(id(layer)))
        added = [(layer, losses) for layer, losses in zip(layers, mine, strict=True) if losses]
        self._all, self._added = list(map(weakref.ref, layers)), [weakref.ref(layer) for layer, _ in added]
        self._cleared = list(map(weakref.ref, cleared))
        return outputs, [losses for _, losses in added]

    def put(self, made: Sequence[Sequence[Any]]) -> None:
        """Give each layer what it added, in place of what it had, unless it is called inside of another one."""
        layers = [(reference(), losses) for reference, losses in zip(self._added, made, strict=True)]
        alive: list[tuple[Any, Sequence[Any]]] = [(layer, losses) for layer, losses in layers if layer is not None]
        called = None if self._called is None else self._called()
        if called is None:  # a layer that was not called keeps its losses
            old = [layer for layer, _ in alive] + [layer() for layer in filter(_has_some, self._cleared)]
        else:  # what is called takes off all losses first, of layers inside too
            old = [called] if alive or any(map(_has_some, self._all)) else []
        if old and not is_in_call():
            for layer in old:
                clear_losses(layer)
        for layer, losses in alive:
            layer.add_loss(list(losses))

    def _layers(self) -> list[keras.Layer]:
        known = [layer for reference in self._known if (layer := reference()) is not None]
        return list({id(each): each for layer in known for each in layers_if_known(layer)}.values())


def _has_some(reference: weakref.ref) -> bool:
    layer = reference()
    return layer is not None and bool(stored_losses(layer))


def _new(layer: keras.Layer, before: Sequence[Any]) -> list[Any]:
    return [x for x in losses_if_known(layer) if not any(x is other for other in before)]
