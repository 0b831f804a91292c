"""The function inside of a `functools.partial`."""

import functools
from typing import Any


def without_partial(fn: Any) -> Any:
    """What a `functools.partial` calls; any other function itself."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn
