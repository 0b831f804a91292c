"""What TensorFlow does not promise of its datasets."""

from typing import Any

import tensorflow as tf

from keras_xla.private.names import Name, otherwise

_SEEN = "TensorFlow 2.20 and 2.21"
_WAITS = "the end of each pass over a dataset waits for the threads of that pass"
INPUTS = Name("tensorflow.data.Dataset", "_inputs", "the datasets that a dataset is made of", _WAITS, _SEEN)
FUNCTIONS = Name("tensorflow.data.Dataset", "_functions", "the functions that a dataset calls", _WAITS, _SEEN)


@otherwise(True)
def calls_python(data: Any) -> bool:
    """Whether elements of a dataset come from Python, as those of `from_generator` and `py_function` do."""
    if not isinstance(data, tf.data.Dataset):
        return False
    for each in FUNCTIONS.of(data)():
        if b"PyFunc" in each.function.graph.as_graph_def().SerializeToString():
            return True
    return any(map(calls_python, INPUTS.of(data)()))
