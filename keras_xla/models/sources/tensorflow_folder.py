"""Weights that Hugging Face's TensorFlow classes saved: tf_model.h5, or safetensors under TensorFlow's names."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_xla.models.sources.tensorflow_names import as_pytorch, flat

H5 = "tf_model.h5"


class Tensor:
    """A stored tensor in PyTorch's layout, read when asked for.

    Args:
        read: Gives it as it is stored.
        stored: Its stored shape.
        name: Its PyTorch name.
        axes: The axes that transpose it; None for as it is.
    """

    def __init__(self, read: Callable[[], np.ndarray], stored: tuple[int, ...], name: str, axes: Any):
        self._read, self._axes = read, axes
        self.shape = flat(name, stored) if axes is None else tuple(stored[axis] for axis in axes)

    def read(self) -> np.ndarray:
        """Its value, of `shape`."""
        value = self._read()
        return value.reshape(self.shape) if self._axes is None else value.transpose(self._axes)


def safetensors(file: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an open safetensors file with the metadata `{"format": "tf"}`, by PyTorch name."""
    for stored in file.keys():  # noqa: SIM118  (it is no mapping)
        shape = tuple(file.get_slice(stored).get_shape())
        # The model's own scope was left out on saving, except where a name holds "model.".
        name, axes = as_pytorch(stored if "model." in stored or "/" not in stored else f"model/{stored}", shape)
        yield name, Tensor(lambda stored=stored: file.get_tensor(stored), shape, name, axes)


def h5(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a `tf_model.h5`, by PyTorch name.

    Raises:
        ValueError: for a file that is damaged, or holds something else.
    """
    import h5py  # late: few need it, and it comes with TensorFlow

    try:
        file = h5py.File(path, "r")
        layers = [_text(name) for name in file.attrs["layer_names"]]
        groups = [file[name] for name in layers]
        groups += [file["top_level_model_weights"]] if "top_level_model_weights" in file else []
        arrays = {_text(name): group[name] for group in groups for name in group.attrs["weight_names"]}
    except (OSError, KeyError) as error:
        raise ValueError(
            f"{path} cannot be read as the weights of a Hugging Face TensorFlow model ({error}). Download or save it "
            "again."
        ) from error
    for stored, array in arrays.items():
        name, axes = as_pytorch(stored, array.shape)
        yield name, Tensor(lambda array=array: array[()], array.shape, name, axes)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
