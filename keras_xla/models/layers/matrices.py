"""The matrices of a model's weights: each kind knows how it is stored, how it is multiplied, and how a row is read."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.models.weights import WeightedLayer

# N rows of a product

# Up to here a product of int8 is faster than one of float32; measured on 2 CPU cores.
_FEW_ROWS = 32
_DIGIT = 254.0


class Matrix(WeightedLayer):
    """A matrix `[outputs, inputs]`, as PyTorch's checkpoints have it. Kinds differ in what they store.

    Attributes:
        quantization: As in `stored_as`.

    Args:
        outputs: What a product with it makes of a row.
        inputs: What a row has.
        by_row: Whether its rows are looked up, as in an embedding.
        dtype: dtype policy of the computation, and of the values where they are floats.
    """

    quantization: str | None = None

    def __init__(self, outputs: int, inputs: int, by_row: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.shape = (outputs, inputs)
        self._make(by_row)
        self.built = True

    @property
    def transposed(self) -> bool:
        """Whether the values are stored `[inputs, outputs]`."""
        raise NotImplementedError

    def assign(self, values: Any) -> None:
        """Store `values [outputs, inputs]` float."""
        for variable, part in zip(self.variables, self.parts(values), strict=True):
            variable.assign(part)

    def parts(self, values: Any) -> list[np.ndarray]:
        """What each of its variables holds of `values [outputs, inputs]` float."""
        raise NotImplementedError

    def numpy(self) -> np.ndarray:
        """The values, `[outputs, inputs]` float32."""
        raise NotImplementedError

    def product(self, x: Any) -> Any:
        """`x [..., inputs]` -> `[..., outputs]`."""
        shape = ops.shape(x)
        y = self._product(ops.reshape(x, (-1, shape[-1])))
        return ops.reshape(y, (*shape[:-1], self.shape[0]))

    def rows(self, ids: Any) -> Any:
        """The rows at `ids [...]` int32: `[..., inputs]` in the compute dtype."""
        raise NotImplementedError

    def _make(self, by_row: bool) -> None:
        raise NotImplementedError

    def _product(self, x: Any) -> Any:
        """`x [N, inputs]` -> `[N, outputs]`."""
        raise NotImplementedError


class FloatMatrix(Matrix):
    """Values as they are.

    Without `by_row` they are stored `[inputs, outputs]`: measured with XLA on 2 CPU cores, one row takes the same time
    either way, but for 2 to 16 rows (batches, beams) a product with values stored `[outputs, inputs]` takes twice as
    long.
    """

    def _make(self, by_row):
        self._by_row = by_row
        self.values = self.add_weight(self.shape if by_row else self.shape[::-1], name="values")

    @property
    def transposed(self):
        return not self._by_row

    def parts(self, values):
        return [np.asarray(values).T if self.transposed else np.asarray(values)]

    def numpy(self):
        values = ops.convert_to_numpy(self.values).astype("float32")
        return values.T if self.transposed else values

    def rows(self, ids):
        return ops.cast(ops.take(self.values, ids, axis=0), self.compute_dtype)

    def _product(self, x):
        values = ops.cast(ops.convert_to_tensor(self.values), x.dtype)
        y = ops.matmul(x, values) if self.transposed else backend.matmul_transposed(x, values)
        return y * _one(x)


class Int8Matrix(Matrix):
    """Whole numbers from -127 to 127 and a scale for each output.

    In a product each row of the other factor becomes two rows of whole numbers, its first and its second digit in the
    base 254, with a scale for both. One digit would be too coarse: language models have a few activations a hundred
    times as large as the others (Dettmers et al., "LLM.int8()", 2022). And XLA's product of int8 on CPU is slow for one
    row, but hardly slower for several than for two.
    """

    quantization = "int8"
    transposed = False

    def _make(self, by_row):
        outputs, inputs = self.shape
        whole = dict(dtype="int8", initializer="zeros", trainable=False)
        self.values = self.add_weight((outputs, inputs), name="values", **whole)
        self.scales = self.add_weight((outputs,), name="scales", **{**whole, "dtype": "float32", "autocast": False})

    def parts(self, values):
        values = np.asarray(values, "float32")
        scales = np.abs(values).max(axis=1) / 127
        return [np.rint(values / np.where(scales == 0, 1, scales)[:, None]).astype("int8"), scales]

    def numpy(self):
        return ops.convert_to_numpy(self.values) * ops.convert_to_numpy(self.scales)[:, None]

    def rows(self, ids):
        rows = ops.cast(ops.take(self.values, ids, axis=0), "float32")
        return ops.cast(rows * ops.take(self.scales, ids)[..., None], self.compute_dtype)

    def _product(self, x):
        values, scales = ops.convert_to_tensor(self.values), ops.convert_to_tensor(self.scales)

        @ops.custom_gradient
        def product(x):
            def gradient(*args, upstream=None):
                upstream = ops.cast(args[0] if upstream is None else upstream, "float32")  # [N, outputs]
                return ops.cast(ops.matmul(upstream * scales, ops.cast(values, "float32")), x.dtype)

            return self._rounded(x, values, scales), gradient

        return product(x)

    def _rounded(self, x, values, scales):
        rows, x = x.shape[0], ops.cast(x, "float32")
        size = ops.where(ops.isnan(x), np.inf, ops.abs(x))  # XLA's maximum may pass over NaN
        step = ops.max(size, axis=-1, keepdims=True) / 127.0  # [N, 1]
        x = x / ops.where(step == 0.0, 1.0, step)
        first = ops.round(x)
        second = ops.round((x - first) * _DIGIT)
        if rows is not None and rows <= _FEW_ROWS:
            both = ops.cast(ops.concatenate([first, second]), "int8")
            y = ops.cast(backend.matmul_int8(both, values), "float32")  # [2N, outputs]
            y = y[:rows] + y[rows:] / _DIGIT
        else:
            y = backend.matmul_transposed(first + second / _DIGIT, ops.cast(values, "float32"))
        return ops.cast(y * step * scales, self.compute_dtype)


_KINDS = {kind.quantization: kind for kind in (FloatMatrix, Int8Matrix)}
_KIND: ContextVar[str | None] = ContextVar("kind", default=None)


def check_quantization(quantization: str | None) -> None:
    """Raise a ValueError for what `stored_as` does not know."""
    if quantization not in _KINDS:
        known = ", ".join(repr(kind) for kind in _KINDS if kind)
        raise ValueError(f"Received quantization={quantization!r}; expected {known}, or None.")


@contextlib.contextmanager
def stored_as(quantization: str | None) -> Iterator[None]:
    """Matrices made here are stored in this way: `"int8"`, or None for floats."""
    token = _KIND.set(quantization)
    try:
        yield
    finally:
        _KIND.reset(token)


def make_matrix(outputs: int, inputs: int, by_row: bool = False, **kwargs: Any) -> Matrix:
    """The `Matrix` for a model that is being built; see `stored_as`."""
    return _KINDS[_KIND.get()](outputs, inputs, by_row, **kwargs)


def _one(x: Any) -> Any:
    """A scalar that is 1 but that the compiler cannot know to be.

    XLA on CPU fuses a dot with an addition behind it into a loop 1.5 times slower than its matrix-vector product; a
    multiplication by this keeps them apart.
    """
    bits = backend.float_bits(ops.cast(x[0, 0], "float32"))
    return ops.cast(ops.bitwise_or(bits, 1) != 0, x.dtype)
