"""What tells the executables of one function apart, and why a call needs another one."""

from typing import NamedTuple

from keras_xla.backend.compile_log import FIRST_CALL
from keras_xla.backend.signature import Signature, describe_change
from keras_xla.private.keras.call_context import CallContext


class CallKey(NamedTuple):
    """Of a call.

    Attributes:
        leaves: The arguments.
        structures: What `structure_of` tells of each.
        form: How they were given, see `Parameters.bind`.
        layer: What a trace depends on beside them, of a layer that is called or whose method the function is.
        context: What layers around the call have been told.
    """

    leaves: Signature
    structures: tuple
    form: tuple
    layer: tuple
    context: CallContext

    def cause(self, last: "CallKey | None") -> str:
        """Why this needs another executable than the `last` call."""
        if last is None:
            return FIRST_CALL
        if change := describe_change(last.leaves, self.leaves):
            return change
        if last.layer != self.layer:
            return "other weights, or others of them trainable"
        if last.context != self.context:
            return "layers around the call were told otherwise, such as training"
        if last.form != self.form:
            return "arguments given by position that were given by name, or the other way round, or left out"
        return "another structure of the arguments"
