"""What `jit` takes for a tensor."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_xla.backend.steps import to_tensor
from keras_xla.private.keras.logits import logits_of, put_logits
from keras_xla.private.keras.masks import mask_if_known, put_mask


def is_array(x: Any) -> bool:
    """Whether an argument may change its values freely; a variable is read where the function reads it.

    Arrays of other libraries are some, too, such as tensors of PyTorch. NumPy's bool is a flag, as Python's is.
    """
    if isinstance(x, str | bytes | type | np.bool_) or is_variable(x):
        return False
    return is_tensor(x) or all(hasattr(x, name) for name in ("__array__", "shape", "dtype"))


def holds_arrays(x: Any) -> bool:
    """Whether it is a dataclass with arrays in its fields, or in those of a dataclass in it."""
    if not dataclasses.is_dataclass(x) or isinstance(x, type):
        return False
    values = [getattr(x, field.name, None) for field in dataclasses.fields(x)]
    return any(is_array(value) or holds_arrays(value) for value in keras.tree.flatten(values))


def is_tensor(x: Any) -> bool:
    """Whether it is an array of NumPy's or a tensor of the backend's."""
    return isinstance(x, np.ndarray | np.generic) or keras.ops.is_tensor(x)


def is_variable(x: Any) -> bool:
    """Whether it is Keras' or TensorFlow's; a table of pandas has `assign`, too."""
    return hasattr(type(x), "assign") and hasattr(type(x), "value")


def _dtype_of(x: Any) -> Any:
    """What NumPy knows of the dtype of a tensor."""
    return getattr(x.dtype, "as_numpy_dtype", x.dtype)


def as_dense(who: str, name: str, x: Any) -> Any:
    """An argument as one tensor.

    Raises:
        TypeError: It is ragged or sparse, or holds no numbers.
    """
    try:
        return to_tensor(x if is_tensor(x) else np.asarray(x))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{who} received {name} of type {type(x).__name__}, which cannot be one dense tensor; it "
            "expects numbers, as tensors or NumPy arrays. Pass a ragged or sparse tensor as its dense parts."
        ) from error


def check_pad_value(who: str, name: str, x: Any, pad_value: float) -> None:
    """Raise a ValueError where the dtype of an argument cannot hold the number that it is padded with."""
    dtype = getattr(x.dtype, "name", str(x.dtype))  # a variable's is a string
    if not dtype.startswith(("int", "uint", "bool")):
        return
    low, high = (0, 1) if dtype.startswith("bool") else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (low <= pad_value <= high and pad_value == int(pad_value)):
        raise ValueError(
            f"{who} received {name!r} of dtype {dtype} and pad_value={pad_value!r}; it expects a number that {dtype} "
            f"can hold: a whole one from {low} to {high}."
        )


def attached_to(x: Any) -> dict[str, Any]:
    """What Keras has put on a tensor, by name: its mask, and the logits of probabilities."""
    mask, logits = mask_if_known(x), logits_of(x)
    attached = {} if mask is None else {"mask": mask}
    if logits is not None:  # of whatever the function of Keras was given
        attached["logits"] = to_tensor(logits if keras.ops.is_tensor(logits) else np.array(logits, _dtype_of(x)))
    return attached


def with_attached(x: Any, attached: Mapping[str, Any]) -> Any:
    """The tensor, with that on it."""
    x = put_mask(x, attached["mask"]) if "mask" in attached else x
    return put_logits(x, attached.get("logits"))
