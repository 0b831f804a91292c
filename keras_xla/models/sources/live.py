"""Models that live in memory: their weights are shared where layouts allow, and followed elsewhere."""

import operator
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from keras_xla import backend
from keras_xla.models.convert.common import Filled, fill
from keras_xla.models.layers.matrices import FloatMatrix, Matrix
from keras_xla.models.sources.checkpoint import Checkpoint
from keras_xla.private.keras.variables import as_stored, stateless_scope


class LiveCheckpoint(Checkpoint, Protocol):
    """A checkpoint whose values may change; `read` then gives other memory than before."""

    def variable(self, name: str) -> Any | None:
        """The variable whose value `read(name)` is as it stands; None if the layouts differ."""
        ...

    def transposed(self, name: str) -> Any | None:
        """The variable whose value is the transpose of `read(name)`; None if there is none."""
        ...


class Follower:
    """Keeps the variables of our model at the values of a live one.

    Sharing a variable needs one layout and dtype. What cannot be shared is copied, and copied again once the
    live variable has other memory: TensorFlow never writes into memory that a tensor in use stands on, so as
    long as we hold the last value read, any change gives the variable new memory. Looking at the addresses
    takes microseconds a variable, where reading the values would take as long as a decoding step or two. The price:
    once the live model is trained on, the last values that we read stay in memory until the next `refresh`.

    Args:
        filled: What our variables were filled from.
        checkpoint: Where the live values are.
    """

    def __init__(self, filled: Sequence[Filled], checkpoint: LiveCheckpoint):
        self._checkpoint = checkpoint
        self._copied = [step for step in filled if not self._share(step)]
        self._seen = [self._views(step) for step in self._copied]
        self._lock = threading.Lock()

    def refresh(self) -> int:
        """Copy what has changed; returns how many of our variables that was."""
        changed = 0
        with self._lock, as_stored():  # a layer around the call may have variables read in another dtype
            lasts = stateless_scope() is None  # of what is assigned in a batch of a `predict` on JAX, nothing stays
            for i, step in enumerate(self._copied):
                # Taken before the copy: a change in between is then seen at the next call.
                views = self._views(step)
                if any(map(_moved, self._seen[i], views)):
                    fill(step, self._checkpoint)
                    self._seen[i] = views if lasts else self._seen[i]
                    changed += 1
        return changed

    def _share(self, step: Filled) -> bool:
        if len(step.names) != 1:
            return False
        target = step.target
        if isinstance(target, Matrix) and not isinstance(target, FloatMatrix):
            return False
        # Filling transposes twice, or not at all; or once, which then undoes how the live model stores it.
        turned = isinstance(target, Matrix) and target.transposed
        find = self._checkpoint.variable if step.flip == turned else self._checkpoint.transposed
        source = find(step.names[0])
        return source is not None and backend.share(target.values if isinstance(target, Matrix) else target, source)

    def _views(self, step: Filled) -> list[np.ndarray]:
        return [self._checkpoint.read(name) for name in step.names]


class SameWeights:
    """Knows whether a live model has other variables than those it generates with: only their values may change.

    Args:
        model: A Keras model.
    """

    def __init__(self, model: Any):
        self._model, self._known = model, list(model.weights)

    def hold(self) -> bool:
        """Whether it has the same."""
        now = self._model.weights
        return len(now) == len(self._known) and all(map(operator.is_, now, self._known))

    def check(self) -> None:
        """Look at the model.

        Raises:
            ValueError: it has others.
        """
        if not self.hold():
            raise ValueError(
                f"The model {self._model.name!r} has other weights than when the layer was made, such as those of a "
                "LoRA or of a quantization. Make the layer again: XLAGenerationLayer(model, ...)."
            )


def _moved(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether two arrays that are both alive stand on different memory."""
    return before.ctypes.data != now.ctypes.data


def follow(model: Any, filled: Sequence[Filled], checkpoint: Any) -> None:
    """From now on `refresh(model)` brings `model` up to date, if `checkpoint` is a live one."""
    if hasattr(checkpoint, "variable"):
        model.follower = Follower(filled, checkpoint)


def refresh(model: Any) -> None:
    """Give a model that follows a live one the weights of that one; nothing happens to any other.

    Call it before each run; it takes microseconds a variable where nothing has changed.

    Raises:
        ValueError: the live model has other variables than when this one was made of it.
    """
    if (same_weights := getattr(model, "same_weights", None)) is not None:
        same_weights.check()
    follower = getattr(model, "follower", None)
    if follower is not None:
        follower.refresh()
