"""Arrays in the host's memory on which a tensor can stand."""

import math
from typing import Any, Literal

import numpy as np

ALIGNMENT = 64  # bytes: where tensors of TensorFlow and JAX begin. NumPy's arrays begin anywhere


def new_array(shape: tuple[int, ...], dtype: Any, order: Literal["C", "F"] = "C", zeros: bool = False) -> np.ndarray:
    """As `np.empty`, or `np.zeros`, but that it begins where a tensor may."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    whole = (np.zeros if zeros else np.empty)(size + ALIGNMENT, np.uint8)
    begin = -whole.ctypes.data % ALIGNMENT
    return whole[begin : begin + size].view(dtype).reshape(shape, order=order)


def may_hold_a_tensor(x: Any) -> bool:
    """Whether a tensor of the same shape and dtype can stand on the memory of an array."""
    whole = isinstance(x, np.ndarray) and x.flags.c_contiguous and x.flags.writeable and x.size > 0
    return whole and x.dtype.isnative and x.ctypes.data % ALIGNMENT == 0
