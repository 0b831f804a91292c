"""Batches of varying length, padded up to a few sizes, so that XLA compiles a few executables."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import keras
import numpy as np

from keras_xla import backend
from keras_xla.backend.data import is_dataset
from keras_xla.backend.signature import batch_names, with_names
from keras_xla.functions.argument_buckets import POW2
from keras_xla.training.data.padding import WHO, Padding
from keras_xla.troubleshooting import explained

SMALLEST = 16  # of "pow2": below it, one more executable costs more than the padding
LOOKED_AT = 8  # batches that tell which leaves vary
_PEEKED = 2  # batches whose shapes Keras takes for those of all, on TensorFlow


@explained
def bucket_lengths(
    data: Any,
    buckets: Sequence[int] | str = POW2,
    axis: int = 1,
    *,
    budget: int = 8,
    leaves: Sequence[str] | None = None,
    padding_values: Any = 0,
    weights: str | None = "mask",
) -> Any:
    """Pad batches of varying length up to a few sizes, so that XLA compiles few times.

    XLA compiles one executable for every shape of a batch. Batches as `padded_batch` makes them have nearly as many
    lengths as there are batches; these have at most `budget`. All padded leaves of a batch get one size, the smallest
    that holds the longest of them. (A leaf is one tensor in the structure of a batch.) So a step has at most `budget`
    executables, for each number of rows: the last batch stays as small as it is. Rows keep their order, and nothing is
    ever cut off.

    Padding here is more of what `padded_batch` adds, and what makes a model ignore that makes it ignore this:

    - A model that masks (`Embedding(mask_zero=True)`, `Masking`) up to its output, or that pools by its mask, gives the
      losses of the unpadded run, with any `weights` but `"mean"`. So does a loss with `ignore_class=c`, with
      `padding_values={"y": c}`.
    - Where `y` has the axis, padded positions get the sample weight 0, so that they add nothing to the loss or to
      `weighted_metrics`. Without a mask Keras still divides by the number of all positions: `weights="mean"` makes up
      for that.
    - With a mask, Keras counts a row in `weighted_metrics` by the part of its positions that are real. These are fewer
      in a larger bucket, so that such metrics change.
    - What looks at padded positions in some other way (a convolution without mask, `BatchNormalization`, a mean over
      time, `metrics` that are not weighted) sees the padding.

    Args:
        data: What `fit`, `evaluate` and `predict` take as batches: a batched `tf.data.Dataset` (of `padded_batch`, of
            ragged tensors, of `tensorflow_datasets`; on every backend), a `keras.utils.PyDataset`, or a generator or
            another iterable of batches, which is gone through once: for several epochs make a `PyDataset` of it. Each
            batch is `x`, `(x, y)` or `(x, y, sample_weight)`, of any structure.
        buckets: The sizes (ints), or `"pow2"`, the default: 16, 32, 64 and so on, `budget` of them (up to 2048 with the
            default of 8).
        axis: The axis that varies (int), 1 or more, as 0 is that of the rows; 1 by default.
        budget: The most sizes that there may be (int), 8 by default.
        leaves: The names of what is padded, as the compile log has them: `["x['ids']", "x['mask']", "y"]`. By default
            it is what varies: in a dataset, leaves whose spec has None there; else those that vary in the first batches
            (at most 8, which are read at once). Where lengths have nothing to do with each other (audio and text), call
            this once for each, with its leaves and sizes; executables are for pairs of sizes then.
        padding_values: What to pad with: a value for all, 0 by default, or a dict from names of leaves to values.
            Strings are padded with `""` where it is 0.
        weights: The sample weights of a `y` that is padded, where the data have none of its shape. `"mask"`, the
            default: 1, and 0 where it is padded (in ragged rows too). `"mean"`: the same, times all positions over real
            ones, so that Keras' default reduction of a loss is the mean over real positions; for models that do not
            mask. None: no weights are added, and those that there are get zeros.

    Returns:
        The same kind of data: a dataset of the same cardinality, a `PyDataset` with its workers, length and hooks, or a
        generator. On TensorFlow the first two batches of the latter two have None in their `shape` on the axis, which
        tells Keras that it varies; `np.asarray(x)` has the real one.

    Raises:
        ValueError: There are more sizes than `budget`, an argument has another value than those above, no leaf varies,
            there is no leaf of a name, or the weights of a float `y` whose last axis is `axis` are asked for, over
            which losses such as `"mse"` take a mean. While the batches are read: a length is above the largest size, or
            another leaf varies too.
        TypeError: `data` is none of these, such as an array.

    Example:
    ```python
    def batches():
        for length in (9, 12, 30, 17):
            yield np.ones((2, length), "int32"), np.ones((2, 1))

    embedding = keras.layers.Embedding(100, 8, mask_zero=True)  # 0 is padding, which the mean then leaves out
    layers = [embedding, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    model = keras_xla.compile(model, optimizer="adam", loss="mse", jit_compile=True)
    model.fit(keras_xla.bucket_lengths(batches(), (16, 32)), verbose=0)
    print(keras_xla.compile_log("train"))  # for the lengths 16 and 32
    ```
    """
    _check(axis, budget, weights, leaves)
    padding = Padding(sizes_of(buckets, budget), axis, tuple(leaves or ()), padding_values, weights)
    if is_dataset(data) and hasattr(data, "map"):  # what TensorFlow has distributed has none
        from keras_xla.backend.tensorflow.pad_batches import map_batches, open_axis

        if leaves is None:
            varying = [name for name, spec in with_names(data.element_spec) if open_axis(spec, axis)]
            padding = padding.of(varying, batch_names(data.element_spec))
        return map_batches(data, padding)
    if isinstance(data, keras.utils.PyDataset):
        if leaves is None:
            count = LOOKED_AT if data.num_batches is None else min(LOOKED_AT, data.num_batches)
            padding, _ = _looked_at(padding, (data[i] for i in range(count)))
        return PaddedPyDataset(data, padding)
    if not isinstance(data, Iterable) or isinstance(data, (list, tuple, str, Mapping)) or hasattr(data, "shape"):
        raise TypeError(
            f"{WHO} received {type(data).__name__}; it expects batches: a batched tf.data.Dataset, a "
            "keras.utils.PyDataset, or a generator of batches. Arrays and ragged tensors become batches by "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(32)."
        )
    batches = iter(data)
    first: list[Any] = []
    if leaves is None:
        padding, first = _looked_at(padding, batches)
    return _generator(itertools.chain(first, batches), padding)


def sizes_of(buckets: Sequence[int] | str, budget: int) -> tuple[int, ...]:
    """The sizes, smallest first; raises `ValueError` unless they are "pow2" or at most `budget` positive ints."""
    if isinstance(buckets, str) and buckets == POW2:
        return tuple(SMALLEST << i for i in range(budget))
    given = buckets if isinstance(buckets, (list, tuple, range, set, np.ndarray)) else ()
    if not len(given) or not all(isinstance(size, Integral) and int(size) > 0 for size in given):
        raise ValueError(f'{WHO} received buckets={buckets!r}; it expects positive ints or "pow2".')
    sizes = tuple(sorted(set(map(int, given))))
    if len(sizes) > budget:
        raise ValueError(
            f"{WHO} received {len(sizes)} buckets and budget={budget}; each bucket may be a compilation. Pass at most "
            f"{budget}, or budget={len(sizes)}."
        )
    return sizes


@explained
class PaddedPyDataset(keras.utils.PyDataset):
    """A `PyDataset` whose batches are padded; everything else is that of the one inside."""

    def __init__(self, data: keras.utils.PyDataset, padding: Padding):
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self._data, self._padding = data, padding

    def __getitem__(self, index: int) -> Any:
        return self._padding(self._data[index], Arrays(index < _PEEKED))

    def __len__(self) -> int:
        return len(self._data)

    @property
    def num_batches(self) -> int | None:
        """As the one inside says."""
        return self._data.num_batches

    def on_epoch_begin(self):
        self._data.on_epoch_begin()

    def on_epoch_end(self):
        self._data.on_epoch_end()


class Arrays:
    """What padding does, in numpy; `peeked` where Keras may take the shapes for those of all batches."""

    def __init__(self, peeked: bool = False):
        self._open = peeked and backend.name == "tensorflow"

    def rank(self, x: Any) -> int:
        return _array(x).ndim

    def dtype(self, x: Any) -> np.dtype:
        return _array(x).dtype

    def length(self, x: Any, axis: int) -> int:
        return _array(x).shape[axis]

    def size(self, lengths: Mapping[str, int], sizes: Sequence[int], too_long: str) -> int:
        name = max(lengths, key=lengths.__getitem__)
        for size in sizes:
            if lengths[name] <= size:
                return size
        raise ValueError(f"{too_long} Received: {name!r} with a length of {lengths[name]}.")

    def pad(self, x: Any, axis: int, size: int, value: Any) -> np.ndarray:
        x = _array(x)
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, size - x.shape[axis])
        if not widths[axis][1]:
            return x
        if x.dtype.kind in "SU":  # its dtype has the length of its longest string, and would cut a longer value
            value = np.asarray(value, x.dtype.kind)
            x = x.astype(np.promote_types(x.dtype, value.dtype))
        return np.pad(x, widths, constant_values=value)

    def real(self, x: Any, axis: int, size: int) -> np.ndarray:
        return self.pad(np.ones(_array(x).shape[: axis + 1], keras.config.floatx()), axis, size, 0)

    def ones(self, x: Any) -> np.ndarray:
        return np.ones(_array(x).shape[:1], keras.config.floatx())

    def floats(self, x: Any) -> np.ndarray:
        return np.asarray(x, keras.config.floatx())

    def whole_over_real(self, real: np.ndarray) -> np.ndarray:
        # Half precision has no numbers as large as these sums.
        return (real * (real.size / max(real.sum(dtype="float64"), 1))).astype(real.dtype)

    def done(self, x: Any, axis: int) -> np.ndarray:
        return _Open.of(x, axis) if self._open else _array(x)


class _Open(np.ndarray):
    """An array whose shape has None where lengths vary.

    On TensorFlow, Keras asks the first two batches of a `PyDataset` or a generator what all batches are like, and where
    they agree, no other batch may differ. In the same bucket they agree. `np.asarray(x)` has the real shape.
    """

    _axis: int | None = None

    @classmethod
    def of(cls, x: Any, axis: int) -> "_Open":
        x = np.asarray(x).view(cls)
        x._axis = axis
        return x

    @property
    def shape(self) -> tuple[int | None, ...]:
        real = np.asarray(self).shape
        return real if self._axis is None else (*real[: self._axis], None, *real[self._axis + 1 :])

    def __repr__(self):
        return repr(np.asarray(self))

    def __reduce_ex__(self, protocol):
        return np.asarray(self).__reduce_ex__(protocol)  # from another process comes a plain array

    def __array_function__(self, function, types, arguments, options):
        given = arguments, dict(options)
        arguments, options = keras.tree.map_structure(lambda x: np.asarray(x) if isinstance(x, _Open) else x, given)
        return function(*arguments, **options)


@explained
def _generator(batches: Iterable, padding: Padding) -> Iterator:
    for index, batch in enumerate(batches):
        yield padding(batch, Arrays(index < _PEEKED))


def _looked_at(padding: Padding, batches: Iterable) -> tuple[Padding, list]:
    """What varies among the first batches, and those batches."""
    first: list[Any] = []
    lengths: dict[str, set[int]] = {}
    for batch in batches:
        first.append(batch)
        for name, leaf in with_names(batch):
            shape = _array(leaf).shape
            if len(shape) > padding.axis:
                lengths.setdefault(name, set()).add(shape[padding.axis])
        if len(first) == LOOKED_AT or (lengths and all(len(seen) > 1 for seen in lengths.values())):
            break
    if not first:
        raise ValueError(f"{WHO} received data without a batch; it expects at least one.")
    varying = [name for name, seen in lengths.items() if len(seen) > 1]
    fixed = {name: min(seen) for name, seen in lengths.items() if len(seen) == 1}
    return padding.of(varying, batch_names(first[0]), fixed), first


def _array(x: Any) -> np.ndarray:
    if hasattr(x, "row_lengths"):
        raise TypeError(
            f"{WHO} received a ragged tensor in a batch of a PyDataset or a generator; it expects arrays there. Ragged "
            "tensors are for a tf.data.Dataset: tf.data.Dataset.from_tensor_slices((x, y)).batch(32)."
        )
    return np.asarray(x)


def _check(axis, budget, weights, leaves) -> None:
    if not isinstance(axis, int) or axis < 1:
        raise ValueError(f"{WHO} received axis={axis!r}; it expects an int that is 1 or more: 0 is the rows'.")
    if not isinstance(budget, int) or budget < 1:
        raise ValueError(f"{WHO} received budget={budget!r}; it expects the number of sizes, 1 or more.")
    if weights not in ("mask", "mean", None):
        raise ValueError(f'{WHO} received weights={weights!r}; it expects "mask", "mean" or None.')
    named = leaves if isinstance(leaves, (list, tuple)) else ()
    if leaves is not None and not (named and all(isinstance(name, str) for name in named)):
        raise ValueError(f'{WHO} received leaves={leaves!r}; it expects names such as ["x[\'ids\']", "y"].')
