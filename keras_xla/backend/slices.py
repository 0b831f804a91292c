"""Slices of tensors from places of int32 on.

With `jax_enable_x64` JAX makes an int64 of a Python number, and wants all places of one type.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops


def slice_at(x: Any, start: Sequence[Any], shape: Sequence[int]) -> Any:
    """`keras.ops.slice`; places are ints, or scalars of int32."""
    return ops.slice(x, _of_int32(start), shape)


def update_slice(x: Any, start: Sequence[Any], values: Any) -> Any:
    """`keras.ops.slice_update`; places are ints, or scalars of int32."""
    return ops.slice_update(x, _of_int32(start), values)


def _of_int32(start: Sequence[Any]) -> list[Any]:
    return [np.int32(place) if isinstance(place, int) else ops.cast(place, "int32") for place in start]
