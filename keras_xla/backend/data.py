"""What data are, as `fit`, `evaluate` and `predict` take them."""

from typing import Any

import keras


def is_dataset(data: Any) -> bool:
    """Whether it is of `tf.data`, or distributed by TensorFlow; which need not be there to tell."""
    return hasattr(data, "element_spec") and any(x.__module__.startswith("tensorflow.") for x in type(data).__mro__)


def runs_python(data: Any) -> bool:
    """Whether Keras gets the batches from Python code, as it does for a generator or a `PyDataset`."""
    if is_dataset(data):
        return False
    if isinstance(data, keras.utils.PyDataset):  # which may have a shape for reasons of its own
        return True
    return not all(hasattr(leaf, "shape") for leaf in keras.tree.flatten(data) if leaf is not None)


def known_batches(data: Any) -> int | None:
    """How many batches a `tf.data` dataset or a `PyDataset` has as it says; None if it does not, and for other data."""
    if isinstance(data, keras.utils.PyDataset):
        try:
            count = data.num_batches  # once: it runs Python of the user's
        except NotImplementedError:
            return None
        return None if count is None else int(count)
    count = int(data.cardinality()) if is_dataset(data) and callable(getattr(data, "cardinality", None)) else -1
    return count if count >= 0 else None
