"""One call of `fit`, `evaluate` or `predict`: how far it is, what is still to come, and what ends with it."""

import operator
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_xla.private.keras.layers import is_of_keras
from keras_xla.private.keras.trainer import CACHED_EVALUATION, profiles_batches
from keras_xla.private.tf_keras import AnyKeras

_EPOCHS_ONLY = {  # callbacks that look at every batch only if told so
    "ProgbarLogger": lambda callback: True,
    "ModelCheckpoint": lambda callback: callback.save_freq == "epoch",
    "BackupAndRestore": lambda callback: callback.save_freq == "epoch",
    "TensorBoard": lambda callback: (
        callback.update_freq == "epoch"
        and not (callback.write_steps_per_second or profiles_batches(callback) or _records())
    ),
}


def _records() -> bool:
    """Whether a script has set TensorFlow's default summary writer: TensorBoard gives that one each batch's logs."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and bool(tensorflow.summary.should_record_summaries())


class Sessions(threading.local):
    """The calls that are going on in this thread.

    Attributes:
        current: The innermost of each kind. They began with methods of ours, which take them out however they end.
        followed: A `fit` that was Keras' own when it began. It may have failed, and nobody would know: it is good for
            guesses at what is to come, and for nothing else.
    """

    def __init__(self) -> None:
        self.current: dict[str, Session] = {}
        self.followed: Session | None = None

    def pace(self, kind: str) -> "Session | None":
        """The call that tells how many steps of a kind are to come."""
        return self.current.get(kind) or (self.followed if kind == "train" else None)

    def epochs(self, kind: str, given: dict[str, Any]) -> int:
        """How many passes over data as in a new call are expected: after each epoch of `fit` comes a validation."""
        inside = CACHED_EVALUATION in given  # of `fit`, which may have been Keras' own when it began
        outer = self.pace("train") if inside else self.current.get("train")
        epochs = given.get("epochs", 1) if kind != "test" or outer is None else outer.epochs
        return epochs if isinstance(epochs, int) else 1


def _batch_hook(kind: str, begins: bool) -> Callable:
    """Takes note that a batch of a call begins or ends; or one of its validation, whose callbacks are the same."""

    def hook(self, batch, logs=None):
        session = self if kind == self.kind else self.sessions.current.get(kind)
        if session is not None:
            session.called = begins
            (session.batch_begins if begins else session.batch_ends)()

    return hook


class Session(AnyKeras):
    """One call of `fit`, `evaluate` or `predict`; as a callback, it counts the steps.

    There are `steps` in an epoch, None if only Keras knows, or nobody, and so many `epochs`. `ahead` tells whether
    several steps may run before the `callbacks` of the first of them are called, unless those look at batches.

    Attributes:
        sessions: Those of the thread, which this one is among.
        done: Steps of this epoch that have run.
        called: Whether Keras' loop is between the beginning and the end of a batch, and has not asked for its step yet:
            the next step is for that loop. All others are asked for by somebody else: a callback, another method.
        ahead_steps: How many of the steps that have run the loop has not asked for yet.
        logs: What the last of those returned.
        iterator: That the loop takes batches from.
        must_be_freed: Whether that runs code of the user's, as it does for a generator, or locks a file.
        owners: Numbers of the arrays that are kept in memory for it.
        stopped: Whether a callback has told Keras' loop to end behind the next step.
        wrapped: Whether the loop calls another function than the one given, which may call that one.
        batch_begins: Called before each step that the loop asks for.
        batch_ends: Called behind each of them.
        usual: The shapes of the batches that it began with; None before the first.
        of_fit: Whether it is the validation of a `fit`.
        in_memory: The kinds of steps whose batches are rows of arrays that are kept in memory.
    """

    def __init__(
        self,
        kind: str,
        sessions: Sessions | None = None,
        ahead: bool = False,
        steps: int | None = None,
        epochs: int = 1,
        callbacks: Any = None,
    ):
        super().__init__()
        self.kind, self.epochs = kind, epochs
        self.sessions = sessions or Sessions()
        self._ahead, self._callbacks = ahead, callbacks
        self._steps, self._epoch, self.done = steps, 0, 0
        self.begin_epoch()
        self.iterator: Any = None
        self.must_be_freed = False
        self.owners: list[int] = []
        self.stopped: Callable[[], bool] = lambda: False
        self.wrapped: Callable[[Any], bool] = lambda function: False
        self.batch_begins: Callable[[], None] = lambda: None
        self.batch_ends: Callable[[], None] = lambda: None
        self.usual: tuple | None = None
        self.of_fit = False
        self.in_memory: set[str] = set()

    @property
    def ahead(self) -> bool:
        """Whether several steps may run before the callbacks of the first; those may get other hooks at any time."""
        return self._ahead and not watched(self._callbacks, self.kind)

    @property
    def steps(self) -> int | None:
        """Steps of an epoch, if that is known; at most, after one that nobody knew the steps of."""
        return whole(self._steps or (self.params or {}).get("steps"))

    @steps.setter
    def steps(self, steps: int | None) -> None:
        self._steps = steps

    def left_in_epoch(self) -> int | None:
        """Steps that this epoch still has."""
        return None if self.steps is None else max(self.steps - self.done, 0)

    def left(self) -> int | None:
        """Steps that are still to come in all."""
        return None if self.steps is None else (self.epochs - self._epoch) * self.steps - self.done

    def begin_epoch(self) -> None:
        """A pass over the data begins. Of one that nobody knew the steps of, Keras asks for one more in the next."""
        if self.done and self.steps is None:
            self._steps = self.done + 1
        self.done, self.called, self.ahead_steps, self.logs = 0, False, 0, None

    def answers_loop(self) -> bool:
        """Whether the step that is asked for now is the one that Keras' loop of this call needs next."""
        called, self.called = self.called, False
        return called

    def let_go(self) -> None:
        """Give up the iterator, without waiting for it where nobody can tell.

        Freeing a `tf.data` iterator now and then waits for its autotuner to wake up, for up to about as long as the
        iterator has lived. Keras does that between the epochs; here a thread waits. Not so where it
        `must_be_freed`, a generator say: that shall have ended by then, as the next call begins with it.
        """
        held, self.iterator = [self.iterator], None
        if held[0] is not None and not self.must_be_freed:
            threading.Thread(target=held.clear, daemon=True).start()

    def on_train_begin(self, logs=None):
        if self.kind == "train":
            self.epochs = (self.params or {}).get("epochs", self.epochs)

    def on_epoch_begin(self, epoch, logs=None):
        if self.kind == "train":
            self._epoch = epoch
            self.begin_epoch()

    # A callback with an end of batches makes Keras call all of them in this thread. The threads that it calls them in
    # otherwise fight for the interpreter with a loop that no longer waits for steps.
    on_train_batch_begin, on_train_batch_end = _batch_hook("train", True), _batch_hook("train", False)
    on_test_batch_begin, on_test_batch_end = _batch_hook("test", True), _batch_hook("test", False)
    on_predict_batch_begin, on_predict_batch_end = _batch_hook("predict", True), _batch_hook("predict", False)


def whole(steps: Any) -> Any:
    """A number of steps as an int, of which NumPy and TensorFlow have kinds of their own; what is none stays."""
    try:
        return operator.index(steps)
    except TypeError:
        return steps


def watched(callbacks: Iterable | None, kind: str) -> bool:
    """Whether one of these callbacks looks at every batch, so that steps must not run ahead of it."""
    made, plain = type(callbacks), _list_class(callbacks)
    if plain is not None and any(getattr(made, x, None) is not getattr(plain, x, None) for x in _hooks(kind)):
        return True  # a CallbackList of a class with a hook of its own
    return any(_watches(callback, kind) for callback in flat(callbacks))


def is_list(callbacks: Any) -> bool:
    """Whether callbacks came as a `CallbackList`, of either Keras; a callback may have `callbacks`, too."""
    return _list_class(callbacks) is not None


def flat(callbacks: Any) -> list:
    """The callbacks one by one, as `fit` takes them: None, one, a structure, or a `CallbackList`."""
    if callbacks is None:
        return []
    if is_list(callbacks):
        return callbacks.callbacks
    return keras.tree.flatten(callbacks)


def capped() -> bool:
    """Whether Keras is told to end every pass over data after some steps."""
    return getattr(keras.config, "max_steps_per_epoch", lambda: None)() is not None


def _watches(callback, kind: str) -> bool:
    if isinstance(callback, Session):
        return False
    known = _EPOCHS_ONLY.get(type(callback).__name__) if is_of_keras(type(callback)) else None
    if known is not None and known(callback):
        return any(hook in vars(callback) for hook in _hooks(kind))
    return any(has_own(callback, hook) for hook in _hooks(kind))


def has_own(callback: Any, hook: str) -> bool:
    """Whether a callback, or its class, does something in a hook; also of None, say: Keras says what is wrong."""
    plain = getattr(keras.callbacks.Callback, hook)
    return hook in getattr(callback, "__dict__", {}) or getattr(type(callback), hook, None) is not plain


def _hooks(kind: str) -> list[str]:
    hooks = [f"on_{kind}_batch_begin", f"on_{kind}_batch_end"]
    return [*hooks, "on_batch_begin", "on_batch_end"] if kind == "train" else hooks


def _list_class(callbacks: Any) -> type | None:
    return next((each for each in type(callbacks).__mro__ if each.__name__ == "CallbackList"), None)
