"""Structures of `tf.TypeSpec` of batches: which of them one trace can serve."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.signature import Leaf, Signature, with_names


def spec_of(x: Any) -> Any:
    """The spec of a tensor; Nones and specs stay what they are."""
    return x if x is None or isinstance(x, tf.TypeSpec) else tf.type_spec_from_value(x)


def name_of(structure: Any, leaf: Callable[[Any], str] = repr) -> str:
    """Names a structure as `tf.function` tells structures apart: a mapping's class and order do not matter."""
    if isinstance(structure, Mapping):
        return f"{{{', '.join(f'{key!r}: {name_of(structure[key], leaf)}' for key in sorted(structure, key=repr))}}}"
    if isinstance(structure, (list, tuple)):
        return f"{type(structure).__name__}({', '.join(name_of(part, leaf) for part in structure)})"
    return leaf(structure)


def alike(a: Any, b: Any) -> bool:
    """Whether two structures of `tf.TypeSpec` differ in nothing but sizes of axes."""
    if name_of(a, _kind_of) != name_of(b, _kind_of):
        return False
    pairs = zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True)
    return all(_is_dense(x) or x == y or _both(x, y) is not None for x, y in pairs)


def _kind_of(spec: Any) -> str:
    return repr((spec.shape.rank, spec.dtype.name) if _is_dense(spec) else type(spec))


def _both(x: Any, y: Any) -> Any:
    """What the specs of two ragged or sparse tensors have in common, None if nothing."""
    return x.most_specific_common_supertype([y]) if isinstance(x, tf.TypeSpec) else None


def _is_dense(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None


def serves(known: Any, spec: Any) -> bool:
    """Whether a trace for the structure `known`, one that is `alike`, takes what `spec` describes."""
    pairs = zip(tf.nest.flatten(known), tf.nest.flatten(spec), strict=True)
    return all(x.shape.is_subtype_of(y.shape) if _is_dense(x) else x == y or x.is_subtype_of(y) for y, x in pairs)


def common(a: Any, b: Any) -> Any:
    """What two structures that are `alike` have in common; open where they differ."""

    def both(x, y):
        if not _is_dense(x):
            return x if x == y else _both(x, y)
        return tf.TensorSpec([n if n == m else None for n, m in zip(x.shape, y.shape, strict=True)], x.dtype)

    return tf.nest.pack_sequence_as(a, list(map(both, tf.nest.flatten(a), tf.nest.flatten(b))))


def opened(spec: Any) -> Any:
    """A `tf.TypeSpec` but for the number of rows, if it is of a dense tensor that has any; Nones stay Nones."""
    rows = _is_dense(spec) and spec.shape.rank > 0
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if rows else spec


def leaves_with_names(batch: Any) -> Signature:
    """The tensors of a batch of tensors or specs, ragged and sparse ones taken apart."""

    def parts(x):
        inner = tf.nest.flatten(x, expand_composites=True)
        return x if len(inner) == 1 else inner

    batch = keras.tree.map_structure(parts, batch)
    return tuple(Leaf(name, tuple(x.shape.as_list()), x.dtype.name) for name, x in with_names(batch))
