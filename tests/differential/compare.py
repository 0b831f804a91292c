"""Where what was seen on our side differs from what plain Keras showed."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")

SAID = (": printed", ": warnings", ": logged")  # the ends of the labels of events that change nothing


@dataclass(frozen=True)
class Tolerance:
    """How far apart numbers may be, of the larger of the two or of one, whichever is more; 0 for bit for bit."""

    numbers: float = 0.0

    def same(self, a: np.ndarray, b: np.ndarray) -> bool:
        if a.dtype.kind not in "fV" or not self.numbers:
            return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        a, b = a.astype("float64"), b.astype("float64")
        return np.allclose(a, b, self.numbers, self.numbers, equal_nan=True)


def differences(expected: list[tuple[str, Any]], made: list[tuple[str, Any]], tolerance: Tolerance) -> list[str]:
    """What differs in the first event that does, as later ones follow from it; and in what was only said before it.

    Args:
        expected: `(label, value)` of the events in plain Keras.
        made: Those on our side.
    """
    said: list[str] = []
    for number, ((label, a), (other, b)) in enumerate(zip(expected, made, strict=False)):
        if label != other:
            return [*said, f"event {number}: plain Keras {label!r}, ours {other!r}"]
        found = list(_found(a, b, tolerance, label))
        if label.endswith(SAID):
            said += found
        elif found:
            return said + found
    if len(expected) != len(made):
        longer, side = (expected, "plain Keras") if len(expected) > len(made) else (made, "ours")
        said.append(f"only in {side}: {longer[min(len(expected), len(made))][0]!r}")
    return said


def _found(a: Any, b: Any, tolerance: Tolerance, where: str):
    if type(a) is not type(b):
        yield f"{where}: plain Keras {_short(a)}, ours {_short(b)}"
    elif isinstance(a, dict):
        if list(a) != list(b):
            yield f"{where}: plain Keras has {list(a)}, ours {list(b)}"
        for name in a.keys() & b.keys():
            yield from _found(a[name], b[name], tolerance, f"{where} / {name}")
    elif isinstance(a, list):
        if len(a) != len(b):
            yield f"{where}: plain Keras {_short(a)}, ours {_short(b)}"
        for number, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _found(x, y, tolerance, f"{where}[{number}]")
    elif isinstance(a, str):
        if NUMBER.sub("#", a) != NUMBER.sub("#", b):
            yield f"{where}:\n    plain Keras {a!r}\n    ours        {b!r}"
        else:
            numbers = [np.array(list(map(float, NUMBER.findall(text)))) for text in (a, b)]
            shown = Tolerance(tolerance.numbers and max(tolerance.numbers, 2e-3))  # the last digit that is printed
            if not shown.same(*numbers):
                yield f"{where}:\n    plain Keras {a!r}\n    ours        {b!r}"
    elif isinstance(a, np.ndarray | np.generic | float):
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            yield f"{where}: plain Keras {x.dtype}{x.shape}, ours {y.dtype}{y.shape}"
        elif not tolerance.same(x, y):
            yield f"{where}: plain Keras {_short(x)}, ours {_short(y)}{_apart(x, y)}"
    elif a != b:
        yield f"{where}: plain Keras {_short(a)}, ours {_short(b)}"


def _apart(x: np.ndarray, y: np.ndarray) -> str:
    if x.dtype.kind != "f" or not x.size:
        return ""
    return f" (up to {np.max(np.abs(x.astype('float64') - y.astype('float64'))):.2g} apart)"


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 200 else f"{text[:200]}..."
