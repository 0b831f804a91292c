"""Lists of arrays that Keras does not look into.

The loop of Keras' trainer sets the state as an attribute of the model at every step, and Keras looks for layers and
variables in every list that becomes an attribute: tens of microseconds a step for small models, milliseconds for large.
"""

from collections import UserList
from typing import Any

import jax


class Untracked(UserList):
    """What a list has, without being one."""


jax.tree_util.register_pytree_node(Untracked, lambda x: (tuple(x.data), None), lambda _, arrays: Untracked(arrays))


def untracked(state: Any) -> Any:
    """A state of lists, with those that Keras does not look into in place of them."""
    if type(state) is not tuple:
        return state
    return tuple(Untracked(part) if type(part) is list else part for part in state)


def is_untracked(state: Any) -> bool:
    """Whether `untracked` made the state."""
    return type(state) is tuple and any(isinstance(part, Untracked) for part in state)


def as_lists(state: Any) -> Any:
    """The state as it was before `untracked`."""
    if type(state) is not tuple:
        return state
    return tuple(list(part) if isinstance(part, Untracked) else part for part in state)
