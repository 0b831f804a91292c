"""Structures of classes that somebody has registered with Keras: names that it does not promise."""

from typing import Any

from keras_xla.private.names import KERAS_SEEN, Name, otherwise

OPTREE = Name(
    "keras.src.tree.optree_impl",
    "optree",
    "the package with which Keras takes structures apart",
    "a function of keras_xla.jit does not tell structures of a registered class apart by what is no tensor in them",
    KERAS_SEEN,
)


@otherwise(None)
def spec_of(structure: Any) -> Any:
    """What a structure is apart from its leaves: equal for equal ones, and hashable."""
    return OPTREE.of_module().tree_structure(structure, none_is_leaf=True, namespace="keras")
