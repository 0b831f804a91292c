"""`predict` on a `tf.data` dataset: many batches in one graph, while Keras' own method counts groups of them."""

import threading
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_xla.training.session import Pace
from keras_xla.training.steps.arrays import next_count
from keras_xla.training.steps.run_ahead import PredictDriver, free


class Going:
    """The calls of a model's `predict` that are going on, in whatever threads; a context for each of them.

    They share the model's `stop_predicting`.
    """

    def __init__(self):
        self._lock, self._count = threading.Lock(), 0

    def __enter__(self):
        with self._lock:
            self._count += 1
        return self

    def __exit__(self, *_):
        with self._lock:
            self._count -= 1

    def stop(self, model: keras.Model, stop: bool) -> None:
        """Set or reset the flag, unless other calls would take it for theirs."""
        with self._lock:
            if self._count == 1:
                model.stop_predicting = stop


class Feed:
    """The batches of a dataset for one call of `predict`, in groups that grow as far as the callbacks may wait.

    Args:
        stream: The runner's, of the dataset.
        steps: How many batches are wanted; None for all.
        pace: Of the call.
        gathered: Makes what gathers the outputs of so many batches.

    Attributes:
        done: How many batches have run.
        made: Has their outputs.
    """

    def __init__(self, stream: Any, steps: int | None, pace: Pace, gathered: Callable[[int | None], Any]):
        self._stream, self._pace = stream, pace
        total = steps or stream.length or -1  # as Keras understands it
        self._total = total if total > 0 else None
        self.done, self._count = 0, 1
        lengths = [n for n in (self._total, stream.length) if n]
        self.made, self._nothing = gathered(min(lengths, default=None)), keras.ops.zeros(())

    @property
    def ended(self) -> bool:
        """Whether all batches that are wanted have run, as far as their number is known."""
        return self._total is not None and self.done >= self._total

    def run(self, driver: PredictDriver) -> Any:
        """Run the next group.

        Returns:
            A number, of which Keras may keep as many as it likes.

        Raises:
            StopIteration: There is no batch left.
        """
        count = self._count if self._total is None else min(self._count, self._total - self.done)
        start = time.perf_counter()
        outputs, ran = self._stream.run(driver.runner, count)
        seconds = time.perf_counter() - start
        self.done += ran
        self._pace.done = self.done
        if driver.runner.settled:
            driver.journal.ran("predict", driver.runner.way, ran, seconds)
            self._count = next_count(ran, seconds, outputs)
        self.made.add(outputs, ran)
        return self._nothing


class Shown(keras.callbacks.CallbackList):
    """Callbacks that are told the numbers of batches where Keras counts groups; says when there are no more."""

    def __init__(self, feed: Feed, going: Going, *args, **kwargs):
        self._feed, self._going = feed, going
        super().__init__(*args, **kwargs)

    def on_predict_batch_begin(self, batch, logs=None):
        super().on_predict_batch_begin(self._feed.done, logs)

    def on_predict_batch_end(self, batch, logs=None):
        super().on_predict_batch_end(self._feed.done - 1, logs)
        if self._feed.ended:  # else Keras asks for one more group, and warns that there is none
            self._going.stop(self.model, True)


def predict_stream(model: keras.Model, pace: Pace, going: Going, stream: Any, given: dict[str, Any]) -> Any:
    """What `model.predict` returns for a dataset, or raises.

    Args:
        model: A built or unbuilt Keras model, whose predict function is a `PredictDriver`.
        pace: Of this call.
        going: Has this call among them.
        stream: The runner's, of the dataset.
        given: All arguments of `predict`; no callback of them watches batches.
    """
    verbose = given["verbose"]
    feed = Feed(stream, given["steps"], pace, model.predict_function.runner.gathered)
    shown = Shown(
        feed,
        going,
        given["callbacks"],
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=1,
        steps=given["steps"] or stream.length,
        model=model,
    )
    pace.feed = feed
    try:
        type(model).predict(model, **{**given, "x": stream.numbers(), "steps": None, "callbacks": shown})
        return feed.made.result()
    finally:
        pace.feed = None
        if feed.ended:
            going.stop(model, False)
        free(stream.let_go())
