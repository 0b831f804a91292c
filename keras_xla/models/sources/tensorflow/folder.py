"""Weights that Hugging Face's TensorFlow classes saved: tf_model.h5, or safetensors under TensorFlow's names."""

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_xla.models.sources.tensorflow.names import as_pytorch, flat

H5 = "tf_model.h5"
_MOST_PACKED = 1100  # a chunk's values take at most so many times the bytes of their gzip


class Tensor:
    """A stored tensor in PyTorch's layout, read when asked for.

    Args:
        read: Gives it as it is stored.
        dtype: As safetensors names it, such as "F16".
        stored: Its stored shape.
        name: Its PyTorch name.
        axes: The axes that transpose it; None for as it is.
    """

    def __init__(self, read: Callable[[], np.ndarray], dtype: str, stored: tuple[int, ...], name: str, axes: Any):
        self._read, self.dtype, self._axes = read, dtype, axes
        self.shape = flat(name, stored) if axes is None else tuple(stored[axis] for axis in axes)

    def read(self) -> np.ndarray:
        """Its value, of `shape`."""
        value = self._read()
        return value.reshape(self.shape) if self._axes is None else value.transpose(self._axes)


def safetensors(file: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an open safetensors file with the metadata `{"format": "tf"}`, by PyTorch name."""
    for stored in file.keys():  # noqa: SIM118  (it is no mapping)
        there = file.get_slice(stored)
        shape = tuple(there.get_shape())
        # The model's own scope was left out on saving, except where a name holds "model.".
        name, axes = as_pytorch(stored if "model." in stored or "/" not in stored else f"model/{stored}", shape)
        yield name, Tensor(functools.partial(file.get_tensor, stored), there.get_dtype(), shape, name, axes)


def h5(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a `tf_model.h5`, by PyTorch name. Nothing outside of the file is opened.

    Raises:
        ValueError: for a file that is damaged, that holds something else, or that leads to other files; and so does
            reading a tensor.
    """
    import h5py  # late: few need it, and it comes with TensorFlow

    try:
        file = h5py.File(path, "r")
        groups = [_entry(file, name) for name in _names(file, "layer_names")]
        groups += [_entry(file, "top_level_model_weights")] if "top_level_model_weights" in file else []
        arrays = {name: _entry(group, name) for group in groups for name in _names(group, "weight_names")}
        for name, array in arrays.items():
            _check_array(name, array, path.stat().st_size)
    except Exception as error:  # h5py tells of damage by many kinds, OSError, RuntimeError and KeyError among them
        raise _unreadable(path, error) from error
    for stored, array in arrays.items():
        name, axes = as_pytorch(stored, array.shape)
        dtype = f"{array.dtype.kind}{8 * array.dtype.itemsize}".upper()
        yield name, Tensor(functools.partial(_read, path, stored, array), dtype, array.shape, name, axes)


def _names(group: Any, attribute: str) -> list[str]:
    """The names that an attribute lists."""
    names = group.attrs[attribute]
    if np.ndim(names) != 1 or not all(isinstance(name, (str, bytes)) for name in names):
        raise ValueError(f"{attribute!r} is no list of names")
    return [name.decode() if isinstance(name, bytes) else name for name in names]


def _entry(group: Any, name: str) -> Any:
    """What has this name in a group of the same file: of links, which could lead to other files, none is followed."""
    import h5py

    for part in filter(None, name.split("/")):
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            raise ValueError(f"{name!r} is not in the file")
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{name!r} is a link ({type(link).__name__}), and links are not followed")
        group = group[part]
    return group


def _check_array(name: str, array: Any, size: int) -> None:
    """Raise for what is no array of numbers inside of a file of `size` bytes."""
    import h5py

    if not isinstance(array, h5py.Dataset):
        raise ValueError(f"{name!r} is no array")
    if array.external or array.is_virtual:  # asked before anything else: a shape can depend on the other file
        raise ValueError(f"{name!r} has its values in another file, which is not opened")
    if array.shape is None or array.dtype.kind not in "fiu":
        raise ValueError(f"{name!r} holds no numbers")
    stored, needed = array.id.get_storage_size(), math.prod(array.shape) * array.dtype.itemsize
    if stored > size or needed > stored * (1 if array.chunks is None else _MOST_PACKED):
        raise ValueError(f"{name!r} needs {needed} bytes, of which the file has {stored}")


def _read(path: Path, name: str, array: Any) -> np.ndarray:
    try:
        return array[()]
    except Exception as error:  # as above
        raise _unreadable(path, f"{name!r}: {error}") from error


def _unreadable(path: Path, why: Exception | str) -> ValueError:
    return ValueError(
        f"{path} cannot be read as the weights of a Hugging Face TensorFlow model ({why}). Download or save it again."
    )
