"""How many steps are still to come, and whether anyone watches each of them."""

from collections.abc import Iterable
from typing import Any

import keras

from keras_xla.backend.keras2 import AnyKeras

_EPOCHS_ONLY = {  # callbacks that look at every batch only if told so
    "ProgbarLogger": lambda callback: True,
    "ModelCheckpoint": lambda callback: callback.save_freq == "epoch",
    "BackupAndRestore": lambda callback: callback.save_freq == "epoch",
    "TensorBoard": lambda callback: (
        callback.update_freq == "epoch" and not (callback.write_steps_per_second or callback._should_trace)
    ),
}


class Pace(AnyKeras):
    """Counts the steps of `fit`, `evaluate` or `predict`.

    Args:
        mode: `"train"`, `"test"` or `"predict"`.
        ahead: Whether several steps may run before the callbacks of the first of them are called.
        steps: Of an epoch; None if only Keras knows, or nobody.
        epochs: How often those come.

    Attributes:
        feed: Where the batches come from instead of Keras' iterator; None if from there.
    """

    def __init__(self, mode: str, ahead: bool = False, steps: int | None = None, epochs: int = 1):
        super().__init__()
        self.mode, self.ahead, self.epochs = mode, ahead, epochs
        self._steps, self._epoch, self.done = steps, 0, 0
        self.begun = 0
        self.feed: Any = None

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, if that is known."""
        return self._steps or (self.params or {}).get("steps")

    @steps.setter
    def steps(self, steps: int | None) -> None:
        self._steps = steps

    def left_in_epoch(self) -> int | None:
        """Steps that this epoch still has."""
        return None if self.steps is None else max(self.steps - self.done, 0)

    def left(self) -> int | None:
        """Steps that are still to come in all."""
        return None if self.steps is None else (self.epochs - self._epoch) * self.steps - self.done

    def begin(self) -> None:
        """A pass over the data begins."""
        self.begun, self.done = self.begun + 1, 0

    def on_train_begin(self, logs=None):
        if self.mode == "train":
            self.epochs = (self.params or {}).get("epochs", self.epochs)

    # A callback with these makes Keras call all of them in this thread. The threads that it calls them in otherwise
    # fight for the interpreter with a loop that no longer waits for steps.
    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_test_batch_end(self, batch, logs=None):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        if self.mode == "train":
            self._epoch = epoch
            self.begin()


def watched(callbacks: Iterable | None, mode: str) -> bool:
    """Whether a callback looks at every batch, so that steps must not run ahead of it.

    Args:
        callbacks: As `fit`, `evaluate` or `predict` takes them.
        mode: `"train"`, `"test"` or `"predict"`.
    """
    return any(_watches(callback, mode) for callback in flat(callbacks))


def flat(callbacks: Iterable | None) -> list:
    """The callbacks one by one, as `fit` takes them: None, one, a structure, or a `CallbackList`."""
    if callbacks is None:
        return []
    if hasattr(callbacks, "callbacks"):  # a CallbackList, of either Keras
        return callbacks.callbacks
    return keras.tree.flatten(callbacks)


def _watches(callback, mode: str) -> bool:
    if isinstance(callback, Pace):
        return False
    known = _EPOCHS_ONLY.get(type(callback).__name__) if type(callback).__module__.startswith("keras.") else None
    if known is not None and known(callback):
        return False
    hooks = [f"on_{mode}_batch_begin", f"on_{mode}_batch_end"]
    if mode == "train":
        hooks += ["on_batch_begin", "on_batch_end"]
    plain = keras.callbacks.Callback
    return any(
        hook in vars(callback) or getattr(type(callback), hook, None) is not getattr(plain, hook) for hook in hooks
    )
