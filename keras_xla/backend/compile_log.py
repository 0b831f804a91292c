"""The compile log: every XLA compilation that keras_xla caused, with its cause."""

import threading
import time
from dataclasses import dataclass, field

_LOCK = threading.Lock()
_EVENTS: list["CompileEvent"] = []


class RecompileError(RuntimeError):
    """Raised instead of compiling again, where `on_recompile="raise"` asks for that."""


@dataclass(frozen=True)
class CompileEvent:
    """One XLA compilation.

    Attributes:
        name: What was compiled, as a person would call it (`"sequential.train_step"`).
        kind: `"train"`, `"test"`, `"predict"`, `"generate"` or `"function"`.
        shapes: The argument shapes and dtypes that the executable is for.
        cause: Why it was compiled ("first call", "prompt bucket 64 is new", ...).
        seconds: Wall-clock seconds of the call that compiled: tracing, lowering, XLA and that first run.
        time: `time.time()` when the call ended.
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
    """A list of `CompileEvent` that prints as a table."""

    @property
    def seconds(self) -> float:
        """Seconds spent in compiling calls, all together."""
        return sum(event.seconds for event in self)

    def __str__(self):
        if not self:
            return "no XLA compilation so far"
        return "\n".join([*map(str, self), f"{self.seconds:7.2f} s  in {len(self)} XLA compilations"])


def record(name: str, kind: str, shapes: str, cause: str, seconds: float) -> CompileEvent:
    """Append one compilation to the log."""
    event = CompileEvent(name, kind, shapes, cause, seconds)
    with _LOCK:
        _EVENTS.append(event)
    return event


def compile_log(kind: str | None = None) -> CompileLog:
    """Every XLA compilation so far, oldest first.

    Args:
        kind: Only the events of this kind (see `CompileEvent`); all by default.

    Returns:
        A list of `CompileEvent`; `print` shows it as a table.

    Example:
    ```python
    double = keras_xla.jit(lambda x: x * 2)
    double(np.ones((2, 3)))
    print(keras_xla.compile_log())
    ```
    """
    with _LOCK:
        return CompileLog(event for event in _EVENTS if kind in (None, event.kind))
