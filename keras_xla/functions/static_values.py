"""Keys of arguments that are no tensors: they are part of an executable, and values that only seem equal are not."""

import dataclasses
from typing import Any

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
    if dataclasses.is_dataclass(x) and type(x).__hash__ is not object.__hash__:
        return type(x), *(parts(getattr(x, field.name, None)) for field in dataclasses.fields(x) if field.compare)
    return (type(x),)


def structure_of(x: Any) -> tuple | None:
    """Types and order in structures, which leaves do not tell: of a tuple or a list, an empty dict, a dict's keys."""
    if isinstance(x, dict):
        return type(x), tuple(x), tuple(map(structure_of, x.values()))
    return (type(x), tuple(map(structure_of, x))) if isinstance(x, (list, tuple)) else None
