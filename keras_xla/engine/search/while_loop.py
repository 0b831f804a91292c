"""`keras.ops.while_loop` over one nested structure."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], initial: Any) -> Any:
    """What `body` makes of `initial`, again and again, while `condition` holds.

    Args:
        condition: From a structure like `initial` to a bool.
        body: From such a structure to the next one.
        initial: Nested tensors; their shapes and dtypes stay.
    """

    def packed(flat):
        return keras.tree.pack_sequence_as(initial, list(flat))

    return packed(
        ops.while_loop(
            lambda *flat: condition(packed(flat)),
            lambda *flat: tuple(keras.tree.flatten(body(packed(flat)))),
            tuple(keras.tree.flatten(initial)),
        )
    )


def run_if(condition: Any, body: Callable[[Any], Any], initial: Any) -> Any:
    """What `body` makes of `initial` if `condition` holds, else `initial`.

    A loop of one turn or none, not a condition: XLA changes in place what a loop carries.

    Args:
        condition: A bool.
        body: From a structure like `initial` to another one.
        initial: Nested tensors; their shapes and dtypes stay.
    """
    no = ops.zeros((), "bool")
    return while_loop(lambda now: now[0], lambda now: (no, body(now[1])), (condition, initial))[1]
