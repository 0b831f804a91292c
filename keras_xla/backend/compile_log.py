"""The compile log: every XLA compilation that keras_xla caused, with its cause."""

import threading
import time
from dataclasses import dataclass, field

from keras_xla.logger import logger
from keras_xla.troubleshooting import explained

_LOCK = threading.Lock()
EVENT_KINDS = ("train", "test", "predict", "generate", "function")
FIRST_CALL = "first call"  # a cause
_EVENTS: list["CompileEvent"] = []


class RecompileError(RuntimeError):
    """Raised in place of a further compilation, where `on_recompile="raise"` asks for that.

    `keras_xla.jit` and `XLAGenerationLayer` take `on_recompile`. The message names what would be compiled, and which
    shape or value differs from those before.

    Example:
    ```python
    double = keras_xla.jit(lambda x: x * 2, on_recompile="raise")
    double(np.ones((2, 3)))
    try:
        double(np.ones((4, 3)))  # another shape needs another executable
    except keras_xla.RecompileError as error:
        print(error)
    ```
    """


@dataclass(frozen=True)
class CompileEvent:
    """One XLA compilation: what was compiled, for which shapes, why, and how long it took.

    `keras_xla.compile_log()` returns these events; nobody else needs to make one. `str(event)` is one line.

    Attributes:
        name: What was compiled, as a person would call it, such as `"sequential.train_step"`.
        kind: `"train"`, `"test"` or `"predict"` for a step of a Keras model, `"generate"` for an `XLAGenerationLayer`,
            `"function"` for `keras_xla.jit` and for functions that `keras_xla.enable` has taken over.
        shapes: The shapes and dtypes that the executable is for, such as `"x: (32, 20) float32"`. For generation it is
            the part of the work and its sizes, such as `"advance, batch 4, cache 128"`.
        cause: Why it was compiled, such as `"first call"`, `"argument x: (32, 20) -> (8, 20)"` or
            `"batch bucket 1 -> 4"`.
        seconds: Seconds by the clock of the call that compiled: tracing, XLA's work and the first run.
        time: When the call ended, in seconds since 1970, as `time.time()` has it.

    Example:
    ```python
    double = keras_xla.jit(lambda x: x * 2, name="double")
    double(np.ones((2, 3)))
    event = keras_xla.compile_log()[-1]
    print(event.name, event.cause, event.seconds)
    ```
    """

    name: str
    kind: str
    shapes: str
    cause: str
    seconds: float
    time: float = field(default_factory=time.time)

    def __str__(self):
        return f"{self.seconds:7.2f} s  {self.name}  [{self.shapes}]  {self.cause}"


class CompileLog(list):
    """A list of `CompileEvent`, oldest first, that prints as a table.

    Example:
    ```python
    log = keras_xla.compile_log()
    print(len(log), log.seconds)
    print(log)
    ```
    """

    @property
    def seconds(self) -> float:
        """Seconds of all the calls which compiled, added up (float), also of those that ran side by side."""
        return sum(event.seconds for event in self)

    def __str__(self):
        if not self:
            return "no XLA compilation so far"
        count = f"{len(self)} XLA compilation{'s' if len(self) != 1 else ''}"
        return "\n".join([*map(str, self), f"{self.seconds:7.2f} s  in {count}"])


def record(name: str, kind: str, shapes: str, cause: str, seconds: float) -> CompileEvent:
    """Append one compilation to the log."""
    event = CompileEvent(name, kind, shapes, cause, seconds)
    with _LOCK:
        _EVENTS.append(event)
    logger.info(f"compiled {name} in {seconds:.2f} s [{shapes}]: {cause}")
    return event


@explained
def compile_log(kind: str | None = None) -> CompileLog:
    """List every XLA compilation that keras_xla caused in this process, oldest first.

    XLA compiles a function once for each set of argument shapes and dtypes. That takes from a fraction of a second to
    minutes, so the log is the place to look when something is slow. Models that run as plain Keras are not in it.

    Args:
        kind: Only the events of this kind (str, see `CompileEvent`); all of them by default.

    Returns:
        A `CompileLog`: a list of `CompileEvent` that `print` shows as a table. It is a copy: later compilations do not
        change it.

    Raises:
        ValueError: There is no such kind.

    Example:
    ```python
    double = keras_xla.jit(lambda x: x * 2)
    double(np.ones((2, 3)))
    print(keras_xla.compile_log())
    ```
    """
    if kind is not None and kind not in EVENT_KINDS:
        raise ValueError(f"Received kind={kind!r}; expected one of {', '.join(EVENT_KINDS)}, or None for all.")
    with _LOCK:
        return CompileLog(event for event in _EVENTS if kind in (None, event.kind))
