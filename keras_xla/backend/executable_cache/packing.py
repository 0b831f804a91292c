"""What is kept of an executable as bytes: named parts in one, and structures of tensors as JSON."""

import importlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any


def pack(parts: Mapping[str, bytes]) -> bytes:
    """Named parts as one; equal bytes for equal parts."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time, which would be another each time
    return packed.getvalue()


def unpack(payload: bytes) -> dict[str, bytes]:
    """The parts of `pack`, none of what is no such payload."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError):
        return {}


def structure_to_json(structure: Any) -> bytes:
    """A structure of lists, tuples, named tuples of ours and dicts, whose leaves are ints.

    Raises:
        TypeError: if there is anything else in it.
    """
    return json.dumps(_described(structure)).encode()


def structure_from_json(content: bytes) -> Any:
    """The structure that `structure_to_json` wrote.

    Raises:
        ValueError: for anything else.
    """
    try:
        return _made(json.loads(content))
    except (TypeError, KeyError, AttributeError, ImportError) as error:
        raise ValueError(f"this describes no structure of tensors: {error}") from error


def _described(x: Any) -> Any:
    kind = type(x)
    if x is None or kind is int:
        return x
    if kind is dict and all(isinstance(key, str) for key in x):
        return ["dict", {key: _described(value) for key, value in x.items()}]
    if kind in (list, tuple):
        return [kind.__name__, _each(x)]
    if isinstance(x, tuple) and hasattr(kind, "_fields") and _is_ours(kind.__module__):
        return [f"{kind.__module__}:{kind.__qualname__}", _each(x)]
    raise TypeError(f"{kind.__qualname__} cannot be written down")


def _each(values: Iterable) -> list:
    return [_described(value) for value in values]


def _made(x: Any) -> Any:
    if x is None or type(x) is int:
        return x
    kind, content = x
    if kind == "dict":
        return {key: _made(value) for key, value in content.items()}
    parts = [_made(value) for value in content]
    if kind in ("list", "tuple"):
        return parts if kind == "list" else tuple(parts)
    module, _, name = kind.partition(":")
    if not _is_ours(module):
        raise KeyError(kind)
    return getattr(importlib.import_module(module), name)(*parts)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
