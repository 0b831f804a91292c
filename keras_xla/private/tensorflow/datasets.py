"""What TensorFlow does not promise of its datasets."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_xla.private.names import Name, otherwise

_SEEN = "TensorFlow 2.20 and 2.21"
_WAITS = "the end of each pass over a dataset waits for the threads of that pass"
_ONE_BY_ONE = (
    "the end of each pass over a dataset waits for the threads of that pass, and its batches are read one by one"
)
INPUTS = Name("tensorflow.data.Dataset", "_inputs", "the datasets that a dataset is made of", _ONE_BY_ONE, _SEEN)
FUNCTIONS = Name("tensorflow.data.Dataset", "_functions", "the functions that a dataset calls", _ONE_BY_ONE, _SEEN)
FILENAME = Name("tensorflow.data.Dataset", "_filename", "the file of a dataset's cache, empty in memory", _WAITS, _SEEN)
_OF_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}
_OF_FILES = {"CacheDataset", "CacheDatasetV2", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}


@otherwise(True)
def must_be_freed(data: Any) -> bool:
    """Whether an iterator of a dataset has to be gone before the next one begins.

    Its elements come from Python, as those of `from_generator` and `py_function` do. Or it writes files, as `cache`
    with a file name does: it locks them until it is freed.
    """
    return any(_writes_files(each) or _calls(each, _OF_PYTHON | _OF_FILES) for each in _parts(data))


@otherwise(True)
def calls_python(data: Any) -> bool:
    """Whether Python runs when an element of a dataset is asked for: callers may see what it does.

    Where the dataset prefetches, Python runs before.
    """
    return any(_calls(each, _OF_PYTHON) for each in _parts(data, down_to="PrefetchDataset"))


def _parts(data: Any, down_to: str = "") -> Iterator[tf.data.Dataset]:
    """A dataset, and those that it is made of, `down_to` those of a class; nothing if it is none."""
    left, seen = [data] if isinstance(data, tf.data.Dataset) else [], set()
    while left:
        each = left.pop()
        if id(each) not in seen:  # one may be in it many times
            seen.add(id(each))
            yield each
            left += INPUTS.of(each)() if type(each).__name__.strip("_") != down_to else []


def _calls(data: tf.data.Dataset, operations: set[str]) -> bool:
    return any(_has(function.function.graph, operations) for function in FUNCTIONS.of(data)())


def _writes_files(data: tf.data.Dataset) -> bool:
    kind = type(data).__name__.strip("_")
    return kind in ("SnapshotDataset", "SaveDataset") or (kind == "CacheDataset" and FILENAME.of(data) != b"")


def _has(graph: tf.Graph, found: set[str]) -> bool:
    operations = graph.get_operations()
    if any(operation.type in found for operation in operations):
        return True
    # A constant may be large, and its operation calls nothing.
    attributes = (x for each in operations if each.type != "Const" for x in each.node_def.attr.values())
    if not any(x.HasField("func") or x.list.func for x in attributes):
        return False
    library = graph.as_graph_def().library.function
    return any(node.op in found for function in library for node in function.node_def)
