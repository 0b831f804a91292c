"""Step functions on TensorFlow: our own runner, and Keras' functions seen from outside where those have to run."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_xla.backend.row_numbers import are_numbers
from keras_xla.backend.signature import Leaf, Signature, with_names
from keras_xla.backend.tensorflow import predict_data as predict_data
from keras_xla.backend.tensorflow.functions.decorator import replace_functions as replace_functions
from keras_xla.backend.tensorflow.functions.decorator import restore_functions as restore_functions
from keras_xla.backend.tensorflow.graphs.operations import compilable_ops
from keras_xla.backend.tensorflow.runner.runner import Runner
from keras_xla.backend.tensorflow.runner.sources import gathered
from keras_xla.backend.tensorflow.state import state_maker as state_maker
from keras_xla.private.tensorflow.datasets import calls_python
from keras_xla.private.tensorflow.datasets import must_be_freed as must_be_freed
from keras_xla.private.tensorflow.graphs import require_graphs

make_runner = Runner
runs_eagerly = tf.config.functions_run_eagerly
DATA_ENDED = StopIteration, tf.errors.OutOfRangeError  # what Keras takes for the end of the data
make_state_runner = None  # the state of a model is in its variables


def reads_ahead(x: Any) -> bool:
    """Whether batches may be read before the steps of earlier ones run, so that nobody who makes them can tell.

    Keras makes a `tf.data` pipeline of all data, which reads ahead anyway; but not of a dataset that calls Python.
    """
    return not calls_python(x)


def end_of_data(iterator: Any, steps: int) -> Exception:
    """What Keras' own function, for so many steps at a time, raises where an iterator has no batch left."""
    if steps == 1 and isinstance(iterator, tf.data.Iterator):
        return tf.errors.OutOfRangeError(None, None, "End of sequence")
    return StopIteration()


def draws_by_row() -> bool:
    """Whether the random numbers of a row do not depend on how many rows there are behind it: here, always."""
    return True


def is_distributed(model) -> bool:
    """Whether the model belongs to a `tf.distribute` strategy."""
    return tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy()


def require_private() -> None:
    """Raise `Gone` unless this TensorFlow has what our own runners need of it."""
    require_graphs()
    compilable_ops()


def watched_step(kind: str, keras_make: Callable, own: bool, saw: Callable) -> Callable:
    """Keras' own function, observed from outside: the iterator's specs, or the shapes of the batches.

    Where the spec leaves the batch axis open, a smaller last batch cannot be seen. `saw([(trace, leaves), ...],
    seconds)` is told of the batches of one execution.
    """
    function = keras_make()

    def run(argument):
        start = time.perf_counter()
        batches = []
        if hasattr(argument, "element_spec"):
            batches.append(argument.element_spec)
        elif isinstance(argument, (list, tuple)):
            batches.extend(argument)
        else:
            argument = _noted(argument, batches)
        outputs = function(argument)
        saw([("", _outside_view(batch)) for batch in batches], time.perf_counter() - start)
        return outputs

    return run


def _noted(batches: Iterator, taken: list) -> Iterator:
    """Batches one by one, each put into a list as it is taken."""
    for batch in batches:
        taken.append(batch)
        yield batch


class TakingRows:
    """A function that is not ours as one that may be given row numbers: it gets the batches.

    `arrays` are, by the number that their row numbers carry, objects whose `batch` has all rows as tensors.
    """

    takes_rows = True

    def __init__(self, function: Callable, arrays: Mapping[int, Any]):
        self.function, self._arrays = function, arrays

    def __call__(self, batches):
        if isinstance(batches, tf.data.Iterator) and are_numbers(batches.element_spec):
            return self.function(_Batches(batches, self._arrays))
        return self.function(batches)


class _Batches:
    """The batches that an iterator has the row numbers of; raises `StopIteration` at once if there are none left."""

    def __init__(self, numbers: Iterator, arrays: Mapping[int, Any]):
        self._numbers, self._arrays = itertools.chain([next(numbers)], numbers), arrays

    def __iter__(self):
        return self

    def __next__(self):
        return gathered(next(self._numbers), self._arrays)

    get_next = __next__  # as iterators of `tf.data` have it


def _outside_view(data: Any) -> Signature:
    def view(x):
        shape = getattr(x, "shape", ())
        known = not isinstance(shape, tf.TensorShape) or shape.rank is not None
        dtype = getattr(x, "dtype", type(x))
        return tuple(shape) if known else ("...",), getattr(dtype, "name", str(dtype))

    return tuple(Leaf(name, *view(x)) for name, x in with_names(data))
