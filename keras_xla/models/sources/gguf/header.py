"""The first part of a GGUF file: its metadata, and where each tensor lies.

`gguf.GGUFReader` gives the same, but takes seconds for the 100,000 strings of a vocabulary, and tells a
truncated file by whatever numpy says when it runs off the end.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.quants import quant_shape_to_byte_shape

from keras_xla.models.sources.dtypes import dtype_of_most
from keras_xla.models.sources.gguf.fields import Fields

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_DTYPES = {"F64": "float64", "F16": "float16", "BF16": "bfloat16"}
_STRING, _ARRAY = 8, 9
_MOST_AXES = 4  # as in ggml


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies in the file, and how it is stored; `shape` in numpy's order."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


class GGUFHeader:
    """Metadata and tensors of one GGUF file; tensor data is mapped, and read when asked for.

    Attributes:
        metadata: Strings, numbers, lists of strings and arrays of numbers by key; the arrays are a part of the mapped
            file.
        fields: The same, checked.
        tensors: Where each tensor lies, by name.

    Raises:
        ValueError: not a GGUF file, a kind of GGUF file that cannot be read, or a truncated one.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        size = Path(path).stat().st_size
        self._data = np.memmap(path, dtype=np.uint8, mode="r") if size else np.empty(0, np.uint8)
        cursor = _Cursor(self._data)
        tensor_count, field_count = self._begin(cursor, size)
        try:
            self.metadata = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(field_count)}
            entries = [cursor.tensor() for _ in range(tensor_count)]
        except EOFError as error:
            raise self._truncated(size, "its list of fields and tensors does not end") from error
        except ValueError as error:  # text that is no UTF-8, too
            raise ValueError(f"{self.path} is damaged: {error}. Download it again.") from error
        self.fields = Fields(self.metadata, self.path)
        alignment = self.fields.whole("general.alignment", 32) or 32
        start = -(-cursor.offset // alignment) * alignment
        self.tensors = {name: self._tensor(name, start, shape, kind, at) for name, shape, kind, at in entries}
        needed = max((t.offset + t.nbytes for t in self.tensors.values()), default=0)
        if needed > size:
            raise self._truncated(size, f"its tensors need {needed}")

    def dtype(self) -> str:
        """The float dtype of most of its numbers; float32 for those that are quantized."""
        return dtype_of_most((_DTYPES.get(x.kind.name, "float32"), x.shape) for x in self.tensors.values())

    def read(self, name: str) -> np.ndarray:
        """One tensor, dequantized to float32."""
        tensor = self.tensors[name]
        raw = self._data[tensor.offset : tensor.offset + tensor.nbytes]
        rows = np.asarray(raw).reshape(quant_shape_to_byte_shape(tensor.shape, tensor.kind))
        try:
            return dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise ValueError(
                f"{self.path}: {name} is stored as {tensor.kind.name}, which the installed gguf package "
                "cannot dequantize. Install a newer gguf, or use a file with another quantization."
            ) from error

    def _begin(self, cursor: "_Cursor", size: int) -> tuple[int, int]:
        start = bytes(self._data[:8])
        if start == b"version ":
            raise ValueError(f"{self.path} is a Git LFS pointer ({size} bytes); run `git lfs pull` to get the file.")
        if start[:4] != b"GGUF":
            raise ValueError(
                f"{self.path} ({size} bytes) is no GGUF file: it starts with {start[:4]!r}; expected b'GGUF'."
            )
        if size < 24:
            raise self._truncated(size, "a header alone has 24")
        cursor.offset = 4
        version = cursor.scalar("I")
        if version not in (2, 3):
            what = "a big-endian GGUF file" if version & 0xFFFF == 0 else f"a GGUF file of version {version}"
            raise ValueError(
                f"{self.path} is {what}; expected a little-endian one of version 2 or 3. Convert the model again."
            )
        return cursor.scalar("Q"), cursor.scalar("Q")

    def _tensor(self, name: str, start: int, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        try:
            kind = GGMLQuantizationType(kind)
            stored = quant_shape_to_byte_shape(shape, kind)
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{self.path}: the tensor {name} {shape} cannot be read: {error}. The file is damaged, or "
                "stored in a way that the installed gguf package does not know; install a newer one."
            ) from error
        return TensorInfo(shape, kind, start + offset, math.prod(stored))

    def _truncated(self, size: int, why: str) -> ValueError:
        return ValueError(f"{self.path} is incomplete: it has {size} bytes, and {why}. Download it again.")


class _Cursor:
    """Reads little-endian values one after the other.

    Raises:
        EOFError: where the file ends too early.
        ValueError: for what a GGUF file cannot hold.
    """

    def __init__(self, data: np.ndarray):
        self._bytes = data.data
        self.offset = 0

    def _take(self, count: int) -> memoryview:
        start, self.offset = self.offset, self.offset + count
        if self.offset > len(self._bytes):
            raise EOFError
        return self._bytes[start : self.offset]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return str(self._take(self.scalar("Q")), "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise EOFError  # the cursor is lost in a damaged file
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[str] | np.ndarray:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        if kind == _ARRAY:
            raise ValueError("it holds an array of arrays, which llama.cpp does not read either")
        return [self.value(kind) for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self.text(), self.scalar("I")
        if not 1 <= axes <= _MOST_AXES:
            raise ValueError(f"a tensor has {axes} axes; expected 1 to {_MOST_AXES}")
        shape = tuple(self.scalar("Q") for _ in range(axes))[::-1]
        return name, shape, self.scalar("I"), self.scalar("Q")
