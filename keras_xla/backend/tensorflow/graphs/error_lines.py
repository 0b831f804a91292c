"""The lines of code in errors of operations.

TensorFlow looks for the operation that has failed in the graph of the function that was called. Here that calls a step,
which has a graph of its own, so that TensorFlow finds nothing there.
"""

import os
import re
import traceback
from typing import Any

import tensorflow as tf

from keras_xla.tracebacks import FOLDER

_HEAD = "Detected at node {} defined at (most recent call last):\n"
_UNKNOWN = re.compile(r"Detected at node (\S+) defined at \(most recent call last\):\n<stack traces unavailable>\n?")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_FUNCTION = re.compile(r"\{\{function_node [^}]*\}\} ?")
_HIDDEN = os.path.dirname(tf.__file__) + os.sep, FOLDER


def with_lines(error: tf.errors.OpError, graph: Any) -> tf.errors.OpError:
    """An error of an operation of a step's `graph`, with the lines that made the operation, as plain Keras tells them.

    It is the same one where they are in it, or are not known.
    """
    if not isinstance(error.message, str) or "IteratorGetNext" in error.message:  # an operation of the data's
        return error
    message = _UNKNOWN.sub(lambda found: _lines(graph, found[1]) or found[0], error.message)
    node = _NODE.search(message)
    if "Detected at node" not in message and node and (lines := _lines(graph, node[1])):
        message = f"Graph execution error:\n\n{lines}{message}"
    if message == error.message:
        return error
    try:
        made = type(error)(error.node_def, error.op, _FUNCTION.sub("", message), error.experimental_payloads)
    except TypeError:  # a class of somebody else's
        return error
    for note in getattr(error, "__notes__", ()):
        made.add_note(note)
    return made.with_traceback(error.__traceback__)


def _lines(graph: Any, name: str) -> str:
    """Where an operation comes from; nothing for one that the graph does not have."""
    try:
        frames = graph.get_operation_by_name(name).traceback
    except (KeyError, ValueError):
        return ""
    shown = [frame for frame in frames if not frame.filename.startswith(_HIDDEN)]
    return _HEAD.format(name) + "\n".join(traceback.format_list(shown)) + "\n" if shown else ""
