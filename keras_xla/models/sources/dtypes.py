"""The dtype of a whole checkpoint."""

import collections
import math
from collections.abc import Iterable, Sequence

SAFETENSORS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # as its files name them


def dtype_of_most(tensors: Iterable[tuple[str, Sequence[int]]]) -> str:
    """The dtype that most numbers have, of the dtype and the shape of each tensor; float32 if there is none."""
    numbers: collections.Counter[str] = collections.Counter()
    for dtype, shape in tensors:
        numbers[dtype] += math.prod(shape)
    return max(numbers, key=numbers.__getitem__, default="float32")
