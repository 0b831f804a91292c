"""One batch padded along one axis: which of its leaves, with what, and what that makes of the sample weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from keras_xla.backend.signature import batch_names, is_parts, named_leaves, parts_of, with_names

WHO = "keras_xla.bucket_lengths"


@dataclass(frozen=True)
class Padding:
    """What is padded, and how; called with a batch and with what pads its kind of arrays."""

    sizes: tuple[int, ...]  # smallest first
    axis: int  # that varies
    leaves: tuple[str, ...]  # names of what is padded; empty while that is not known
    values: Any  # to pad with, for all leaves or by name
    weights: str | None  # see `bucket_lengths`
    fixed: Mapping[str, int] = field(default_factory=dict)  # the lengths of other leaves, which must not vary

    def of(self, varying: Sequence[str], existing: Sequence[str], fixed: Mapping[str, int] | None = None) -> "Padding":
        """The same for leaves that were found to vary; raises `ValueError` if none was."""
        if not varying:
            raise ValueError(
                f"{WHO} received batches of which no leaf varies on axis {self.axis}, as far as their spec or the "
                f"first of them tell: {', '.join(existing)}. Pass the axis that varies, or leaves=[...] with the "
                "names of what to pad. If these are single examples, batch them first: dataset.padded_batch(32)."
            )
        return replace(self, leaves=tuple(varying), fixed=fixed or {})

    def __call__(self, batch: Any, kit: Any) -> Any:
        """The batch, padded."""
        parts = parts_of(batch)
        leaves = dict(with_names(parts))
        self._check(leaves, kit)
        chosen = [*self.leaves, *(name for name in leaves if self._follows(name, leaves[name], kit))]
        lengths = {name: kit.length(leaves[name], self.axis) for name in chosen}
        size = kit.size(lengths, self.sizes, _too_long(self.sizes, self.axis))
        x, *targets = _map(
            lambda name, leaf: (
                kit.pad(leaf, self.axis, size, self._value(name, kit.dtype(leaf))) if name in chosen else leaf
            ),
            parts,
        )
        if targets and (self.weights or any(self._is_for_all(name, leaf, kit) for name, leaf in leaves.items())):
            targets = [targets[0], *self._weighted(parts[1], targets[1] if len(targets) > 1 else None, size, kit)]
        made = _map(
            lambda name, leaf: (
                kit.done(leaf, self.axis) if name in chosen or self._is_weight(name, leaf, kit) else leaf
            ),
            (x, *targets),
        )
        return made if is_parts(batch) else made[0]

    def _check(self, leaves: Mapping[str, Any], kit) -> None:
        named = [*self.leaves, *(self.values if isinstance(self.values, Mapping) else ())]
        if unknown := [name for name in named if name not in leaves]:
            raise ValueError(
                f"{WHO} received a batch of {', '.join(leaves)}; there is no {', '.join(unknown)} in it. "
                "Name what is there in leaves and padding_values."
            )
        for name in self.leaves:
            if kit.rank(leaves[name]) <= self.axis:
                raise ValueError(
                    f"{WHO} received {name!r} of rank {kit.rank(leaves[name])}, which has no axis {self.axis} to pad. "
                    "Pass leaves=[...] without it, or another axis."
                )
        for name, length in self.fixed.items():
            if name in leaves and (found := kit.length(leaves[name], self.axis)) != length:
                raise ValueError(
                    f"{WHO} received {name!r} with length {found} on axis {self.axis}; it was {length} in all of the "
                    f"first batches, so that only {', '.join(self.leaves)} are padded. Pass leaves=[...] with the "
                    "names of all that vary."
                )

    def _is_weight(self, name: str, leaf: Any, kit) -> bool:
        return name.startswith("sample_weight") and kit.rank(leaf) > self.axis

    def _follows(self, name: str, leaf: Any, kit) -> bool:
        """Whether it is the weight of a padded target, with a value for each position."""
        if name in self.leaves or not self._is_weight(name, leaf, kit) or self._is_for_all(name, leaf, kit):
            return False
        path = name.removeprefix("sample_weight")
        return f"y{path}" in self.leaves or (not path and any(_part(other) == "y" for other in self.leaves))

    def _is_for_all(self, name: str, leaf: Any, kit) -> bool:
        """Whether it is a weight of size 1 on the axis: Keras takes that for all positions."""
        return self._is_weight(name, leaf, kit) and leaf.shape[self.axis] == 1

    def _value(self, name: str, dtype: np.dtype) -> Any:
        if _part(name) == "sample_weight":
            return 0
        value = self.values.get(name, 0) if isinstance(self.values, Mapping) else self.values
        if dtype.kind in "SUO":
            return "" if isinstance(value, (int, float)) and value == 0 else value
        held = np.asarray(value).astype(dtype)
        if dtype.kind in "iub" and held != value:
            raise ValueError(
                f"{WHO} received the padding value {value!r} for {name!r} of dtype {dtype.name}, which cannot hold it; "
                'pass padding_values={"name": value} with values that their leaves can hold.'
            )
        return held[()]

    def _weighted(self, y: Any, given: Any, size: Any, kit) -> list:
        """The sample weights; `y` as it came, `given` padded."""
        targets = keras.tree.flatten(y)
        there = iter(named_leaves("y", y))
        names = ["" if target is None else next(there) for target in targets]
        if not set(names) & set(self.leaves):
            return [] if given is None else [given]
        several = keras.tree.flatten(given) if keras.tree.is_nested(given) else [given] * len(targets)
        if len(several) != len(targets):
            raise ValueError(
                f"{WHO} received {len(several)} sample weights for {len(targets)} targets; expected one for "
                "each, or one for all."
            )
        weights = [
            self._weight(name, target, weight, size, kit)
            for name, target, weight in zip(names, targets, several, strict=True)
        ]
        return [keras.tree.pack_sequence_as(y, weights) if keras.tree.is_nested(y) else weights[0]]

    def _weight(self, name: str, target: Any, given: Any, size: Any, kit) -> Any:
        if self.weights is None and not (given is not None and self._is_for_all("sample_weight", given, kit)):
            return given
        if name not in self.leaves:
            return kit.ones(target) if given is None and name else given
        if kit.rank(target) == self.axis + 1 and kit.dtype(target).kind == "f" and not _has(given, self.axis, kit):
            raise ValueError(
                f"{WHO} received floats {name!r} whose last axis is the padded one, {self.axis}. Losses such as "
                '"mse" take a mean over the last axis, in which no weight can leave positions out. Give the targets '
                "and outputs a last axis of size 1, or pass weights=None."
            )
        real = kit.real(target, self.axis, size)
        factor = kit.whole_over_real(real) if self.weights == "mean" else real
        if given is None:
            return factor
        rank = max(kit.rank(given), kit.rank(factor))
        given, factor = (x[(..., *[None] * (rank - kit.rank(x)))] for x in (kit.floats(given), factor))
        return given * factor


def _too_long(sizes: Sequence[int], axis: int) -> str:
    """What is wrong with a length that no size holds, and what to do."""
    shown = ", ".join(map(str, sizes if len(sizes) < 5 else (*sizes[:3], "...", sizes[-1])))
    return (
        f"{WHO} found a batch that is longer on axis {axis} than the largest of its buckets ({shown}), and it cuts "
        'nothing off. Pass buckets with a larger one, a larger budget for "pow2", or shorter data.'
    )


def _part(name: str) -> str:
    return name.partition("[")[0]


def _map(function: Callable, parts: tuple) -> tuple:
    """`parts` with `function(name, leaf)` for every leaf that is not None."""
    names = iter(batch_names(parts))
    flat = [None if leaf is None else function(next(names), leaf) for leaf in keras.tree.flatten(parts)]
    return tuple(keras.tree.pack_sequence_as(parts, flat))


def _has(weight: Any, axis: int, kit) -> bool:
    return weight is not None and kit.rank(weight) > axis
