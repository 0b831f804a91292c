"""Shape buckets of `jit`: arguments are padded to a few sizes, and outputs cut back, so that few shapes compile."""

import itertools
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_xla.backend.sizes import power_of_two
from keras_xla.backend.steps import pad, to_tensor
from keras_xla.functions.arrays import as_dense, attached_to, check_pad_value, with_attached

POW2 = "pow2"
Sizes = tuple[int, ...] | str


class Padded(NamedTuple):
    """What was padded: all arguments whose `axis` had `real` entries, and has `size`."""

    axis: int
    size: int
    real: int


class ArgumentBuckets:
    """The checked form of `{"x": {0: (1, 8, 32)}}`.

    Raises:
        ValueError: Something is no dict, a name is not an argument, an axis is not an int >= 0, or sizes are not
            positive ints or "pow2".
    """

    def __init__(self, buckets: Mapping[str, Mapping[int, Sequence[int] | str]] | None, names: Sequence[str], who: str):
        self._who = who
        self._axes: dict[str, dict[int, Sizes]] = {}
        self._check_dict("buckets", buckets or {})
        for name, axes in (buckets or {}).items():
            if name not in names:
                raise ValueError(
                    f"{who} received buckets for the argument {name!r}; it expects one of its arguments: "
                    f"{', '.join(names) or 'it has none'}."
                )
            self._check_dict(f"buckets[{name!r}]", axes)
            self._axes[name] = {axis: self._sizes(name, axis, sizes) for axis, sizes in axes.items()}

    def __bool__(self):
        return bool(self._axes)

    def _check_dict(self, what: str, x: Any) -> None:
        if not isinstance(x, Mapping):
            raise ValueError(
                f"{self._who} received {what} of type {type(x).__name__}; it expects a dict from the name of an "
                'argument to a dict from an axis to its sizes, such as {"x": {0: (8, 64)}} or {"x": {0: "pow2"}}.'
            )

    def _sizes(self, name, axis, sizes) -> Sizes:
        if not isinstance(axis, numbers.Integral) or int(axis) < 0:
            raise ValueError(
                f"{self._who} received axis {axis!r} in buckets[{name!r}]; it expects an int that is 0 or more."
            )
        if isinstance(sizes, str) and sizes == POW2:
            return sizes
        listed = isinstance(sizes, (list, tuple, range)) or (isinstance(sizes, np.ndarray) and sizes.ndim == 1)
        valid = listed and all(isinstance(size, numbers.Integral) and int(size) > 0 for size in sizes)
        if not valid or not len(sizes):
            raise ValueError(
                f'{self._who} received {sizes!r} in buckets[{name!r}][{axis}]; it expects positive ints or "pow2".'
            )
        return tuple(sorted(map(int, sizes)))

    def fit(self, name: str, axis: int, size: int) -> int:
        """The bucket that holds `size`; `size` itself where that axis has no buckets."""
        sizes = self._axes.get(name, {}).get(axis)
        return size if sizes is None else self._bucket(name, axis, size, sizes)

    def pad(self, arguments: dict[str, Any], pad_value) -> tuple[dict[str, Any], list[Padded]]:
        """Pad every bucketed argument at the end of its axes.

        Returns:
            The arguments, and what was padded, those that were of a bucket's size among it.
        """
        arguments = dict(arguments)
        padded: list[Padded] = []
        for name, axes in self._axes.items():
            value = keras.tree.map_structure(
                lambda x, name=name, axes=axes: self._pad(name, x, axes, pad_value, padded), arguments[name]
            )
            arguments[name] = value
        padded = list(dict.fromkeys(padded))
        for axis, size, real in padded:
            if any(other[:2] == (axis, size) and other[2] != real for other in padded):
                raise ValueError(
                    f"{self._who} received arguments of different sizes that go into the same bucket "
                    f"{size} of axis "
                    f"{axis}, so that its outputs cannot be cut back; pass arguments of one size, or other "
                    "buckets."
                )
        return arguments, padded

    def other_sizes(self, padded: Sequence[Padded]) -> Iterator[list[dict[tuple[int, int], int]]]:
        """Sizes that the arguments could have been padded to instead, by axis and padded size.

        First larger ones, then odd ones; then smaller ones, where each axis gets the least of all once, as outputs may
        end at a limit.
        Of each the likeliest first: all axes get sizes of their own, so that outputs tell which one they follow. Then
        axes that have one size get another one together, as they may have to agree.
        """
        yield self._chosen(padded, self._larger)
        yield self._chosen(padded, self._odd)
        for i in range(len(padded)):
            order = [*padded[i:], *padded[:i]]
            yield [sizes for choose in (self._least, self._smaller) for sizes in self._chosen(order, choose)]

    def _chosen(self, padded: Sequence[Padded], choose: Callable) -> list[dict[tuple[int, int], int]]:
        alone: dict[tuple[int, int], int] = {}
        alike: dict[int, int] = {}

        def new(entry, taken):
            return next(size for size in choose(entry) if size != entry.size and size not in taken)

        for entry in padded:
            alone[entry[:2]] = new(entry, set(alone.values()))
            if entry.size not in alike:
                alike[entry.size] = new(entry, set(alike.values()))
        together = {entry[:2]: alike[entry.size] for entry in padded}
        return [alone] if alone == together else [alone, together]

    def _listed(self, entry: Padded) -> list[int]:
        known = [axes[entry.axis] for axes in self._axes.values() if entry.axis in axes]
        return sorted({size for sizes in known if not isinstance(sizes, str) for size in sizes})

    def _larger(self, entry: Padded) -> Iterator[int]:
        """The nearest first: what a function does for each entry takes time, and memory."""
        yield from sorted({2 * entry.size, *(size for size in self._listed(entry) if size > entry.size)})
        yield from (times * entry.size for times in itertools.count(3))

    def _least(self, entry: Padded) -> Iterator[int]:
        """From 2 on: where outputs end at a limit, it is larger. And 1 goes with every size."""
        return itertools.count(2)

    def _odd(self, entry: Padded) -> Iterator[int]:
        """As most others are even: some outputs have a multiple of 2."""
        return itertools.count(3, 2)

    def _smaller(self, entry: Padded) -> Iterator[int]:
        yield from (size for size in reversed(self._listed(entry)) if 1 < size < entry.size)
        yield from itertools.count(max(entry.size // 2, 2))

    def resized(self, name: str, shape: Sequence[int], others: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
        """The shape of a padded tensor of an argument, or of its mask, with the `others` in place of its sizes."""
        axes = self._axes.get(name, {})
        return tuple(others.get((axis, size), size) if axis in axes else size for axis, size in enumerate(shape))

    def _pad(self, name, x, axes, pad_value, padded):
        if x is None or not axes:
            return x
        if not hasattr(x, "shape"):
            raise TypeError(
                f"{self._who} received {name!r} of type {type(x).__name__}, which has buckets; it expects a tensor or "
                "a NumPy array."
            )
        shape = np.shape(x if isinstance(x, np.ndarray) else as_dense(self._who, name, x))
        widths = [(0, 0)] * len(shape)
        for axis, sizes in axes.items():
            if axis >= len(shape):
                raise ValueError(
                    f"{self._who} received {name!r} of shape {shape}; it expects an axis {axis}, which has buckets."
                )
            bucket = self._bucket(name, axis, shape[axis], sizes)
            widths[axis] = (0, bucket - shape[axis])
            padded.append(Padded(axis, bucket, shape[axis]))
        if not any(after for _, after in widths):
            return x
        attached = attached_to(x)
        x = x if isinstance(x, np.ndarray) or attached else as_dense(self._who, name, x)
        check_pad_value(self._who, name, x, pad_value)
        made, values = pad(x, widths, pad_value), dict(mask=False, logits=pad_value)
        if not attached:
            return made
        padded_too = {
            key: to_tensor(pad(each, widths[: len(each.shape)], values[key])) for key, each in attached.items()
        }
        return with_attached(to_tensor(made), padded_too)

    def _bucket(self, name, axis, size, sizes) -> int:
        if sizes == POW2:
            return power_of_two(size)
        for bucket in sizes:
            if size <= bucket:
                return bucket
        raise ValueError(
            f"{self._who} received {name!r} with size {size} on axis {axis}; its largest bucket is "
            f"{sizes[-1]}. Pass a "
            f'smaller one, add a larger bucket, or use "pow2".'
        )
