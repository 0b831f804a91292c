"""Variables of Keras 3: names that it does not promise."""

import contextlib
import sys
from typing import Any

import keras

from keras_xla.private.names import KERAS_SEEN, Name, otherwise

UNMADE = Name(
    "keras.src.backend.common.global_state",
    "set_global_attribute",
    "holds the variables that are made at the end of a `StatelessScope`",
    "Keras cannot make variables any more in a thread where reading a checkpoint has failed",
    KERAS_SEEN,
)
AUTOCAST = Name(
    "keras.src.backend.common.variables",
    "AutocastScope",
    "within it, variables of floats are read in another dtype, or with None in their own",
    "a layer for generation whose model computes in mixed precision can be called either by itself or in a model",
    KERAS_SEEN,
)
SCOPE = Name(
    "keras.src.backend.common.stateless_scope",
    "get_stateless_scope",
    "the scope that has other values in the place of variables, and that losses go to in place of layers",
    "`layer.losses` is not what a call of a function of keras_xla.jit has added, and on JAX such a function cannot be "
    "called in steps that are not compiled, and with a seed, each batch of a `predict` draws alike",
    KERAS_SEEN,
)
INITIALIZE = Name(
    "keras.Variable",
    "_initialize",
    "takes a tf.Variable as it is, so that both stand on the same memory",
    "weights of a live TensorFlow model are copied rather than shared",
    KERAS_SEEN,
)
PATH = Name(
    "keras.Variable",
    "_path",
    "a variable's name with those of the layers around it",
    "models of keras_xla have no state tree, and cannot be saved as HDF5 files of Keras' older kind",
    KERAS_SEEN,
)


def stand_on(variable: keras.Variable, source: Any) -> None:
    """Let a variable stand on the memory of a `tf.Variable` of the same shape and dtype."""
    INITIALIZE.of(variable)(source)


@otherwise(None)
def set_path(variable: keras.Variable, path: str) -> None:
    """Let a variable have a path that says where it is in a model."""
    PATH.of(variable)
    variable._path = path


@otherwise(None)
def forget_unmade(variables: set[int]) -> None:
    """Take variables, by their ids, off the list of those that Keras makes at the end of a `StatelessScope`."""
    put = UNMADE.of_module()
    pending = sys.modules[UNMADE.owner].get_global_attribute("uninitialized_variables", [])
    put("uninitialized_variables", [v for v in pending if id(v) not in variables])


@otherwise(contextlib.nullcontext())
def as_stored() -> contextlib.AbstractContextManager:
    """Within it, variables give their values in their own dtype, whatever a layer around it computes in."""
    return AUTOCAST.of_module()(None)


@otherwise(None)
def stateless_scope() -> keras.StatelessScope | None:
    """The scope in this thread with other values in the place of variables, as in a model's steps on JAX; or None."""
    return SCOPE.of_module()()
