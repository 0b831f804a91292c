"""What `jit` takes for a tensor."""

from typing import Any

from keras_xla.backend.steps import to_tensor


def as_dense(who: str, name: str, x: Any) -> Any:
    """An argument as one tensor.

    Raises:
        TypeError: It is ragged or sparse, or holds no numbers.
    """
    try:
        return to_tensor(x)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{who} received {name} of type {type(x).__name__}, which cannot be one dense tensor; it "
            "expects numbers, as tensors or NumPy arrays. Pass a ragged or sparse tensor as its dense parts."
        ) from error
