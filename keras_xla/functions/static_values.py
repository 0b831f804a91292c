"""Keys of arguments that are no tensors: they are part of an executable, and values that only seem equal are not."""

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_xla.functions.arrays import holds_arrays, is_variable
from keras_xla.private.keras.layers import layers_if_known
from keras_xla.private.keras.structures import spec_of

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_MOST_STATES = 4  # of a layer, for which executables are kept
_MANY = 1000  # of a set with more, types are told apart: it is asked at each call


@dataclasses.dataclass(frozen=True, repr=False)
class Static:
    """A value that is a part of the executable: equal to those with an equal key. It keeps alive what the key names."""

    key: tuple
    value: Any = dataclasses.field(compare=False)

    def __repr__(self):
        return repr(self.value)


def parts(x: Any) -> tuple:
    """What tells apart values that are equal, at any depth: 1, 1.0 and True, or 0.0 and -0.0, also in a dataclass."""
    if isinstance(x, float | complex):
        return type(x), repr(x)
    if isinstance(x, tuple):
        return type(x), *map(parts, x)
    if isinstance(x, frozenset):
        return type(x), frozenset(map(parts if len(x) <= _MANY else type, x))
    if isinstance(x, range | slice):
        ends = x.start, x.stop, x.step
        return type(x), ends, parts(ends)  # ranges of the same numbers are equal
    if type(x).__hash__ is not object.__hash__ and (names := _compared(x)):
        return type(x), *(parts(getattr(x, name, None)) for name in names)
    return (type(x),)


def _compared(x: Any) -> list[str]:
    """The fields of a dataclass, or of a class of the package attrs, that count where values are compared."""
    if dataclasses.is_dataclass(x):
        return [field.name for field in dataclasses.fields(x) if field.compare]
    return [field.name for field in getattr(type(x), "__attrs_attrs__", ()) if field.eq]


def static_value(who: str, name: str, x: Any, checked: bool = True) -> Static:
    """The argument `name` of the compiled function `who`, which is no tensor, as a part of its executable.

    Raises:
        TypeError: It has no hash; or, if it is `checked`, it holds tensors, or gives something else each time.
    """
    kind = type(x).__name__
    if is_variable(x):  # variables compare by value, and their value is not part of the executable
        return Static(("itself", id(x)), x)
    if checked and isinstance(x, Iterator):
        raise TypeError(
            f"{who} received {name} of type {kind}, an iterator: what the first call takes from it would be a part of "
            "the executable. Pass next(it), or a list."
        )
    if checked and isinstance(x, _GENERATORS):
        raise TypeError(
            f"{who} received {name} of type {kind}, which draws numbers: those of the first call would be a part of "
            "the executable. Pass the numbers, or take a keras.random.SeedGenerator."
        )
    if checked and holds_arrays(x):
        raise TypeError(
            f"{who} received {name} of type {kind}, a dataclass that holds tensors: their values would be a part of "
            "the executable. Pass them in a tuple or a dict."
        )
    try:
        hash(parts(x) if isinstance(x, slice) else x)  # slices have a hash since Python 3.12
    except TypeError:
        unhashed = dataclasses.is_dataclass(x) and type(x).__hash__ is None
        hint = f" Give the dataclass frozen=True{'' if checked else ' or eq=False'}." if unhashed else ""
        raise TypeError(
            f"{who} received {name} of type {kind}, which is neither a tensor nor hashable; it expects tensors, numpy "
            f"arrays, nested structures of them, or hashable static values.{hint}"
        ) from None
    if isinstance(x, keras.layers.Layer):
        return Static((x, tuple(Static(("itself", id(each)), each) for each in x.weights), trainable(x)), x)
    known = parts(x)
    return Static(known if isinstance(x, float | complex | slice) else (x, known), x)  # NaN equals nothing


def trainable(layer: keras.layers.Layer) -> tuple[tuple, ...]:
    """The layer and those inside of it, by class and name, and whether each may be trained."""
    return tuple((type(each), each.name, each.trainable) for each in layers_if_known(layer))


def state_of(layer: Any) -> tuple:
    """What a trace depends on beside its arguments, of the layer whose method the function is; `()` for others."""
    return (tuple(map(id, layer.weights)), trainable(layer)) if isinstance(layer, keras.layers.Layer) else ()


def outdated(states: Sequence[tuple], new: tuple) -> set[tuple]:
    """Which states of a layer, in the order in which they came, are of no use once it has a `new` one.

    Those are states of the same layers with other weights, as before a `quantize`, and all but the newest few: parts of
    a model may be replaced, and come back.
    """

    def names(state: tuple) -> list:
        return [each[:2] for each in state[1]]

    others = [state for state in reversed(dict.fromkeys(states)) if state and new and state != new]
    lost = {state for state in others if state[0] != new[0] and names(state) == names(new)}
    return lost | set(others[_MOST_STATES - 1 :])


def structure_of(x: Any) -> tuple | None:
    """Types and order in structures, which leaves do not tell: of a tuple or a list, an empty dict, a dict's keys."""
    if isinstance(x, dict):
        return type(x), tuple(x), tuple(map(structure_of, x.values()))
    if isinstance(x, (list, tuple)):
        return type(x), tuple(map(structure_of, x))
    if keras.tree.is_nested(x):  # a deque, or a class that somebody has registered, with what it holds beside leaves
        return type(x), spec_of(x)
    return None
