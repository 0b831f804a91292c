"""What TensorFlow does not promise of its datasets."""

from typing import Any

import tensorflow as tf

from keras_xla.private.names import Name, otherwise

_SEEN = "TensorFlow 2.20 and 2.21"
_WAITS = "the end of each pass over a dataset waits for the threads of that pass"
INPUTS = Name("tensorflow.data.Dataset", "_inputs", "the datasets that a dataset is made of", _WAITS, _SEEN)
FUNCTIONS = Name("tensorflow.data.Dataset", "_functions", "the functions that a dataset calls", _WAITS, _SEEN)
_OF_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}


@otherwise(True)
def calls_python(data: Any) -> bool:
    """Whether elements of a dataset come from Python, as those of `from_generator` and `py_function` do."""
    left, seen = [data] if isinstance(data, tf.data.Dataset) else [], set()
    while left:
        each = left.pop()
        if id(each) not in seen:  # one may be in it many times
            seen.add(id(each))
            if any(_calls_python(function.function.graph) for function in FUNCTIONS.of(each)()):
                return True
            left += INPUTS.of(each)()
    return False


def _calls_python(graph: tf.Graph) -> bool:
    operations = graph.get_operations()
    if any(operation.type in _OF_PYTHON for operation in operations):
        return True
    # A constant may be large, and its operation calls nothing.
    attributes = (x for each in operations if each.type != "Const" for x in each.node_def.attr.values())
    if not any(x.HasField("func") or x.list.func for x in attributes):
        return False
    library = graph.as_graph_def().library.function
    return any(node.op in _OF_PYTHON for function in library for node in function.node_def)
