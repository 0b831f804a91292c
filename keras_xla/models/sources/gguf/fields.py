"""The metadata of a GGUF file, each value checked when it is asked for: a damaged file may hold anything there."""

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_REQUIRED = object()
_LARGEST = float(np.finfo(np.float32).max)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlist = _SHORT.maxdict = 16


class Fields:
    """Values of the kind that is asked for, or a clear error.

    Where a file has no such key, its methods return the default, whatever that is.

    Args:
        metadata: Strings, numbers, and lists and arrays of them by key, as `GGUFHeader` reads them.
        path: Where the file is, for messages.

    Raises:
        ValueError: for a value of another kind, and for a missing one where there is no default.
    """

    def __init__(self, metadata: Mapping[str, Any], path: str):
        self._metadata, self._path = metadata, path

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        return self._checked(key, default, lambda value: isinstance(value, str), "a string")

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """True or False, or a whole number in place of one."""
        return self._checked(key, default, lambda value: isinstance(value, int), "True or False")

    def whole(self, key: str, default: Any = _REQUIRED, least: int = 0) -> Any:
        """An int of at least `least`; or an array of such for the layers, all the same."""
        return self._checked(
            key,
            default,
            lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
            f"a whole number of at least {least}",
            layers=True,
        )

    def number(self, key: str, default: Any = _REQUIRED, least: float = -_LARGEST) -> Any:
        """A number of at least `least` that float32 can hold; or an array of such for the layers, all the same."""
        return self._checked(
            key,
            default,
            lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= _LARGEST,
            "a finite number" if least < 0 else f"a finite number of at least {least}",
            layers=True,
        )

    def texts(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of strings."""
        return self._checked(
            key,
            default,
            lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
            "a list of strings",
        )

    def numbers(self, key: str) -> np.ndarray:
        """Numbers, `[n]`; none of them where the file has no such key."""
        value = self._checked(
            key,
            (),
            lambda value: _is_array(value) or (isinstance(value, list) and not any(isinstance(x, str) for x in value)),
            "an array of numbers",
        )
        return np.asarray(value)

    def _checked(self, key: str, default: Any, fits: Callable[[Any], bool], expected: str, layers: bool = False) -> Any:
        value = self._metadata.get(key)
        if value is None:
            if default is _REQUIRED:
                raise ValueError(f"{self._path} has no '{key}'; convert the model to GGUF again.")
            return default
        if layers and _is_array(value) and len(value):
            # Some converters write one number a layer, all of them the same.
            if (value != value[0]).any():
                raise ValueError(
                    f"{self._path}: '{key}' differs between layers: {shown(value[:20].tolist())}; expected one value. "
                    "Use the safetensors folder of this model."
                )
            value = value[0].item()
        if not fits(value):
            raise ValueError(
                f"{self._path}: received {key}={shown(value)}; expected {expected}. Download the file again, or "
                "convert the model to GGUF again."
            )
        return value


def shown(value: Any) -> str:
    """A value for a message, where a vocabulary is cut short."""
    return _SHORT.repr(value)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iuf"
