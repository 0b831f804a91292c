"""The losses of several outputs, which Keras shows beside their sum."""

import contextlib
from collections.abc import Iterator

import keras

from keras_xla.private.keras.compiled_model import loss_trackers


@contextlib.contextmanager
def counted_by_batches(model: keras.Model) -> Iterator[None]:
    """While a step is traced on TensorFlow, make these losses means over batches, as if the batch axis were open.

    Keras weights the loss of a batch with its number of rows, if that is known while it traces, and with 1 where the
    batch axis is open. XLA has to know it, where plain Keras leaves it open.
    """
    trackers = loss_trackers(model)
    before = [vars(tracker).get("update_state") for tracker in trackers]
    for tracker in trackers:
        tracker.update_state = _counting(tracker.update_state)
    try:
        yield
    finally:
        for tracker, own in zip(trackers, before, strict=True):
            vars(tracker).pop("update_state", None)
            if own is not None:
                tracker.update_state = own


def _counting(update):
    def update_state(values, sample_weight=None):
        return update(values, sample_weight=None if isinstance(sample_weight, int) else sample_weight)

    return update_state
