"""What an executable is for: the shapes of its arguments, and what changed between two of them."""

from typing import Any, NamedTuple

import keras


class Leaf(NamedTuple):
    """One argument of an executable: a tensor (`shape` and `dtype`) or a static Python value (`shape` is None)."""

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str
    value: Any = None

    def __str__(self):
        return f"{self.name}={self.value!r}" if self.shape is None else f"{self.name}: {self.shape} {self.dtype}"


Signature = tuple[Leaf, ...]


def symbolic(x: Any) -> keras.KerasTensor:
    """A tensor's, or a spec's, shape and dtype."""
    return keras.KerasTensor(tuple(x.shape), keras.backend.standardize_dtype(x.dtype))


def describe(signature: Signature) -> str:
    """`"x: (32, 20) float32, y: (32,) int64"`."""
    return ", ".join(map(str, signature)) or "no arguments"


def describe_change(old: Signature, new: Signature) -> str:
    """Every argument that differs: `"argument x: (32, 20) -> (8, 20)"`; empty when nothing does."""
    before, after = {leaf.name: leaf for leaf in old}, {leaf.name: leaf for leaf in new}
    if before.keys() != after.keys():
        return f"arguments ({', '.join(before)}) -> ({', '.join(after)})"
    changes = [_leaf_change(before[name], leaf) for name, leaf in after.items() if before[name] != leaf]
    return f"argument {', '.join(changes)}" if changes else ""


def _leaf_change(old: Leaf, new: Leaf) -> str:
    if None not in (old.shape, new.shape) and old.dtype == new.dtype:
        return f"{new.name}: {old.shape} -> {new.shape}"
    before, after = _kind(old), _kind(new)
    # Such as a layer with other weights.
    return f"{new.name}: {before} -> {after}" if before != after else f"{new.name}: {after} has changed"


def _kind(leaf: Leaf) -> str:
    return repr(leaf.value) if leaf.shape is None else f"{leaf.shape} {leaf.dtype}"


def batch_names(data: Any) -> list[str]:
    """Names for the tensors of a batch as Keras trainers see it, in `keras.tree.flatten` order, without Nones.

    Args:
        data: `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`, each of any structure.

    Returns:
        Such as `["x", "y"]`, or `["x['ids']", "x['mask']", "y"]` for a dict.
    """
    parts = zip(("x", "y", "sample_weight"), parts_of(data), strict=False)
    return [name for part, value in parts for name in named_leaves(part, value)]


def with_names(data: Any) -> list[tuple[str, Any]]:
    """The leaves of a batch that are not None, with their `batch_names`."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    return list(zip(batch_names(data), leaves, strict=True))


def is_parts(data: Any) -> bool:
    """Whether it is `(x,)`, `(x, y)` or `(x, y, sample_weight)`, rather than `x`."""
    return isinstance(data, (tuple, list)) and 0 < len(data) <= 3


def parts_of(data: Any) -> tuple:
    """`(x,)`, `(x, y)` or `(x, y, sample_weight)`."""
    return tuple(data) if is_parts(data) else (data,)


def named_leaves(name: str, value: Any) -> list[str]:
    """The names of the leaves of `value` that are not None: `name`, `name['key']`, `name[0]`."""
    return [
        name + "".join(f"[{key!r}]" for key in path)
        for path, leaf in keras.tree.flatten_with_path(value)
        if leaf is not None
    ]
