"""Columns of tables and of datasets, as lists of what is in them."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def as_list(x: Any) -> Any:
    """A list in place of what is not an array: a ragged tensor, or a column of a table that is not pandas'."""
    if isinstance(x, (str, bytes, list, tuple)):
        return x
    if hasattr(x, "to_pylist"):  # of pyarrow
        return x.to_pylist()
    if hasattr(x, "to_list") and not isinstance(getattr(x, "dtype", None), np.dtype) and not _of_pandas(x):
        return x.to_list()  # of polars
    return list(x) if isinstance(x, Sequence) else x  # of Hugging Face's datasets


def _of_pandas(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "pandas"
