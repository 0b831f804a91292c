"""The matrices of a model's weights: each kind knows how it is stored, how it is multiplied, and how a row is read."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.models.weights import WeightedLayer, tensor_of

# N rows of a product, G groups of a matrix's row

# Up to here a product of int8 is faster than one of float32; measured on 2 CPU cores.
_FEW_ROWS = 32
_DIGIT = 254.0
_GROUP = 32  # values of a row that have a step of their own in int4, as in llama.cpp's Q4_1
_AT_ONCE = 2**17  # values for which groups are made at once: they stay in the processor's cache
_LARGEST = 127  # whole number of a row


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
            variable.assign(tensor_of(part, variable.dtype))

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
        rows, x = x.shape[0], _no_single_row(x)
        y = (ops.matmul(x, values) if self.transposed else backend.matmul_transposed(x, values))[:rows]
        # A scalar made of `x` would be computed again in every loop that uses the product.
        return y * _one(values) if backend.on_cpu() else y


class Int8Matrix(Matrix):
    """Whole numbers from -127 to 127 and a scale for each output.

    On a CPU, in a product, each row of the other factor becomes two rows of whole numbers, its first and its second
    digit in the base 254, with a scale for both. One digit would be too coarse: language models have a few activations
    a hundred times as large as the others (Dettmers et al., "LLM.int8()", 2022). And XLA's product of int8 on CPU is
    slow for one row, but hardly slower for several than for two. On a GPU the other factor stays as it is, and XLA
    makes floats of the whole numbers where it multiplies; they are exact, also in bfloat16.
    """

    quantization = "int8"
    transposed = False

    def _make(self, by_row):
        outputs, inputs = self.shape
        whole = dict(dtype="int8", initializer="zeros", trainable=False)
        self.values = self.add_weight((outputs, inputs), name="values", **whole)
        self.scales = self.add_weight((outputs,), name="scales", **{**whole, "dtype": "float32", "autocast": False})

    def parts(self, values):
        whole, scales = _scaled(values)
        return [np.rint(whole).astype("int8"), scales]

    def numpy(self):
        return ops.convert_to_numpy(self.values) * ops.convert_to_numpy(self.scales)[:, None]

    def rows(self, ids):
        rows = ops.cast(ops.take(self.values, ids, axis=0), "float32")
        return ops.cast(rows * ops.take(self.scales, ids)[..., None], self.compute_dtype)

    def _whole(self, x) -> Any:
        """Its whole numbers, `[outputs, inputs]` int8 or with more of both, for a product with `x [N, inputs]`.

        `x` is None outside of a product.
        """
        return ops.convert_to_tensor(self.values)

    def _product(self, x):
        scales = ops.convert_to_tensor(self.scales)[: self.shape[0]]

        @ops.custom_gradient
        def product(x):
            values = self._whole(x)

            def gradient(*args, upstream=None):
                upstream = ops.cast(args[0] if upstream is None else upstream, "float32")  # [N, outputs]
                floats = ops.cast(values[: self.shape[0]], "float32")
                return ops.cast(ops.matmul(upstream * scales, floats)[:, : self.shape[1]], x.dtype)

            return self._rounded(x, values, scales), gradient

        return product(x)

    def _rounded(self, x, values, scales):
        rows = x.shape[0]
        if not backend.on_cpu():
            narrow = keras.backend.standardize_dtype(x.dtype) == "bfloat16"
            x = _no_single_row(x if narrow else ops.cast(x, "float32"))  # in float16 the sums would be too large
            y = backend.matmul_transposed(x, ops.cast(values, x.dtype))[:rows, : self.shape[0]]
            return ops.cast(ops.cast(y, "float32") * scales, self.compute_dtype)
        x = ops.cast(x, "float32")
        # Bits of sizes are in the order of the sizes, and NaN's come last: XLA's maximum of floats may pass over NaN.
        bits = ops.bitwise_and(backend.float_bits(x), ops.convert_to_tensor(2**31 - 1, "int32"))
        step = ops.view(ops.max(bits, axis=-1, keepdims=True), "float32") * np.float32(1 / 127)  # [N, 1]
        x = x / ops.where(step == 0.0, 1.0, step)
        first = ops.round(x)
        second = ops.round((x - first) * _DIGIT)
        if isinstance(rows, int) and rows <= _FEW_ROWS:  # JAX counts with symbols while Keras asks for shapes
            both = ops.cast(ops.concatenate([first, second]), "int8")
            y = ops.cast(backend.matmul_int8(both, values), "float32")  # [2N, outputs]
            y = y[:rows] + y[rows:] / _DIGIT
        else:
            y = backend.matmul_transposed(first + second / _DIGIT, ops.cast(values, "float32"))
        return ops.cast(y[:, : self.shape[0]] * step * scales, self.compute_dtype)


class Int4Matrix(Int8Matrix):
    """Whole numbers from 0 to 15, a step and a start for each group of 32 of them, and a scale for each output.

    A value is `(number * step + start) * scale`. Steps and starts are whole numbers, too, so that `number * step +
    start` is that of an `Int8Matrix`: XLA on CPU has no fast product with a scale for each group, but one of int8. The
    matrix is unpacked for each product, which costs less than to read it in float32.

    `values` have two outputs in a byte, that of the first half in its lower bits: so rows are unpacked as wholes.
    """

    quantization = "int4"

    def _make(self, by_row):
        half, groups = -(-self.shape[0] // 2), -(-self.shape[1] // _GROUP)
        whole = dict(dtype="int8", initializer="zeros", trainable=False)
        self.values = self.add_weight((half, groups * _GROUP), name="values", **whole)
        self.steps = self.add_weight((2 * half, groups), name="steps", **whole)
        self.starts = self.add_weight((2 * half, groups), name="starts", **whole)
        self.scales = self.add_weight((2 * half,), name="scales", **{**whole, "dtype": "float32", "autocast": False})

    def parts(self, values):
        half, inputs = self.values.shape
        whole, scales = _scaled(values)
        whole = np.pad(whole, [(0, 2 * half - len(whole)), (0, inputs - whole.shape[1])], mode="edge")
        grouped = whole.reshape(2 * half, -1, _GROUP)
        some = np.array_split(grouped, -(-whole.size // _AT_ONCE))
        numbers, steps, starts = map(np.concatenate, zip(*map(_in_groups, some), strict=True))
        numbers = numbers.reshape(2, half, inputs)
        packed = numbers[0] | numbers[1] << 4
        return [packed.view("int8"), steps, starts, np.pad(scales, (0, 2 * half - len(scales)))]

    def numpy(self):
        whole = ops.convert_to_numpy(self._whole(None)) * ops.convert_to_numpy(self.scales)[:, None]
        return whole[: self.shape[0], : self.shape[1]]

    rows = Matrix.rows  # none: tokens are looked up in int8, see `make_matrix`

    def _whole(self, x):
        values = ops.convert_to_tensor(self.values)
        if x is not None:
            # XLA would unpack all matrices of a model before the first product, and keep them: so this one waits for
            # its `x`, of which the compiler cannot know that it adds nothing.
            values = ops.bitwise_xor(values, ops.cast(1 - _one(x, "int32"), "int8"))
        bits = ops.convert_to_tensor(np.array([0, 4], "int8")[:, None, None])
        numbers = ops.bitwise_and(ops.right_shift(values, bits), ops.convert_to_tensor(15, "int8"))  # [2, half, inputs]
        steps, starts = (ops.convert_to_tensor(each)[..., None] for each in (self.steps, self.starts))
        groups = ops.reshape(numbers, (*self.steps.shape, _GROUP)) * steps + starts  # [n, G, 32]
        return ops.reshape(groups, (2 * values.shape[0], values.shape[1]))

    def _rounded(self, x, values, scales):
        return super()._rounded(ops.pad(x, [(0, 0), (0, values.shape[1] - x.shape[1])]), values, scales)


def _scaled(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of floats from -127 to 127, and the scale of each: from `values [outputs, inputs]`."""
    values = np.asarray(values, "float32")
    scales = np.abs(values).max(axis=1) / _LARGEST
    return values / np.where(scales == 0, 1, scales)[:, None], scales


def _in_groups(whole: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of floats `whole [n, G, 32]` from -127 to 127: numbers from 0 to 15 uint8, and steps and starts `[n, G]` int8.

    Of the two steps around the one with which 16 numbers cover a group exactly, the one with the smaller error is
    taken: the smaller one cuts off what is farthest from the middle.
    """
    lowest, highest = whole.min(axis=-1), whole.max(axis=-1)
    exact = (highest - lowest) / 15

    def rounded(step):
        start = np.clip(np.rint((lowest + highest) / 2 - 7.5 * step), -_LARGEST, _LARGEST)
        most = np.minimum(np.floor((_LARGEST - start) / step), 15)  # the largest number whose value is one of int8
        numbers = np.clip(np.rint((whole - start[..., None]) / step[..., None]), 0, most[..., None])
        error = np.square(numbers * step[..., None] + start[..., None] - whole).sum(axis=-1)
        return numbers.astype("uint8"), step.astype("int8"), start.astype("int8"), error

    *small, error = rounded(np.maximum(np.floor(exact), 1))
    *large, other = rounded(np.maximum(np.ceil(exact), 1))
    best = error <= other
    numbers, steps, starts = (
        np.where(best[(..., *[None] * (one.ndim - best.ndim))], one, two) for one, two in zip(small, large, strict=True)
    )
    return numbers, steps, starts


_KINDS = {kind.quantization: kind for kind in (FloatMatrix, Int8Matrix, Int4Matrix)}
_KIND: ContextVar[str | None] = ContextVar("kind", default=None)


def check_quantization(quantization: str | None) -> None:
    """Raise a ValueError for what `stored_as` does not know."""
    if quantization not in _KINDS:
        known = ", ".join(repr(kind) for kind in _KINDS if kind)
        raise ValueError(f"Received quantization={quantization!r}; expected {known}, or None.")


@contextlib.contextmanager
def stored_as(quantization: str | None) -> Iterator[None]:
    """Matrices made here are stored in this way: `"int8"`, `"int4"`, or None for floats."""
    token = _KIND.set(quantization)
    try:
        yield
    finally:
        _KIND.reset(token)


def quantization_here() -> str | None:
    """How matrices made here are stored, see `stored_as`."""
    return _KIND.get()


def make_matrix(outputs: int, inputs: int, by_row: bool = False, of_tokens: bool = False, **kwargs: Any) -> Matrix:
    """The `Matrix` for a model that is being built; see `stored_as`.

    With `of_tokens` (or `by_row`) its rows are those of the vocabulary. They stay in int8 where the others are of int4:
    what a token is made of, and what its probability is made of, is what rounding hurts most.
    """
    kind = _KINDS[_KIND.get()]
    kind = Int8Matrix if kind is Int4Matrix and (by_row or of_tokens) else kind
    return kind(outputs, inputs, by_row, **kwargs)


def _no_single_row(x: Any) -> Any:
    """`x [N, inputs]`. On a GPU a single row gets a second one, of zeros.

    XLA on GPU may make of a product with one row a multiplication, rounded to the dtype of `x`, and a sum. In between
    it writes as many values as the matrix has.
    """
    return ops.pad(x, [(0, 1), (0, 0)]) if x.shape[0] == 1 and not backend.on_cpu() else x


def _one(x: Any, dtype: Any = None) -> Any:
    """A scalar that is 1 but that the compiler cannot know to be.

    XLA on CPU fuses a dot with an addition behind it into a loop 1.5 times slower than its matrix-vector product; a
    multiplication by this keeps them apart.
    """
    bits = backend.float_bits(ops.cast(x[0, 0], "float32"))
    return ops.cast(ops.bitwise_or(bits, 1) != 0, dtype or x.dtype)
