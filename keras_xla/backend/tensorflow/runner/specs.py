"""Structures of `tf.TypeSpec` of batches: which of them one trace can serve."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.signature import Leaf, Signature, batch_names
from keras_xla.backend.tensorflow.graphs.graph import leaves_of


def spec_of(x: Any) -> Any:
    """The spec of a tensor; Nones stay Nones."""
    return None if x is None else tf.type_spec_from_value(x)


def name_of(structure: Any, leaf: Callable[[Any], str] = repr) -> str:
    """Names a structure as `tf.function` tells structures apart: a mapping's class and order do not matter."""
    if isinstance(structure, Mapping):
        return f"{{{', '.join(f'{key!r}: {name_of(structure[key], leaf)}' for key in sorted(structure, key=repr))}}}"
    if isinstance(structure, (list, tuple)):
        return f"{type(structure).__name__}({', '.join(name_of(part, leaf) for part in structure)})"
    return leaf(structure)


def alike(a: Any, b: Any) -> bool:
    """Whether two structures of `tf.TypeSpec` are of dense tensors that differ in nothing but sizes of axes."""
    if name_of(a, _kind_of) != name_of(b, _kind_of):
        return False
    return all(isinstance(x, tf.TensorSpec) and x.shape.rank is not None for x in leaves_of(a))


def _kind_of(spec: Any) -> str:
    dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None
    return repr((spec.shape.rank, spec.dtype.name) if dense else spec)


def common(a: tf.TensorSpec, b: tf.TensorSpec) -> tf.TensorSpec:
    """What two specs have in common; open where they differ."""
    return tf.TensorSpec([n if n == m else None for n, m in zip(a.shape, b.shape, strict=True)], a.dtype)


def opened(spec: Any) -> Any:
    """A `tf.TypeSpec` but for the number of rows, if it is of a dense tensor that has any; Nones stay Nones."""
    dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if dense else spec


def leaves_with_names(batch: Any) -> Signature:
    """The tensors of a batch of tensors or specs, ragged and sparse ones taken apart."""

    def parts(x):
        inner = tf.nest.flatten(x, expand_composites=True)
        return x if len(inner) == 1 else inner

    batch = keras.tree.map_structure(parts, batch)
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    named = zip(batch_names(batch), leaves, strict=True)
    return tuple(Leaf(name, tuple(x.shape.as_list()), x.dtype.name) for name, x in named)
