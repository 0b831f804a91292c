"""Outputs of a function whose arguments were padded, cut back to what they would have been without."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_xla.backend.steps import cut, output_shapes
from keras_xla.functions.argument_buckets import ArgumentBuckets, Padded
from keras_xla.functions.arrays import is_tensor, is_variable
from keras_xla.functions.executable import as_it_is
from keras_xla.private.keras.logits import with_logits
from keras_xla.private.keras.masks import mask_if_known, put_mask

# Of each output, which of its axes follow which padded one: the axis of the output, then axis and size of the argument.
# Or, for an output that cannot be cut back, the reason.
Followed = list[list[tuple[int, tuple[int, int]]] | str]
_OTHERS = (
    "the number of its outputs, or of their axes, depends on the padding; expected as many for each size. Do without "
    "buckets there."
)
_ONE_SIZE = (
    "its output {} of shape {} has an axis of the padded size {}, and it runs with no other size, so that nobody can "
    "tell whether that axis is to be cut back. Pass arguments of that size, and do without buckets there."
)
_CHANGED = (
    "its output {} is {!r}, which follows from the padding. Return no number that is made of the size of such an axis, "
    "or do without buckets there."
)


def followed(
    call: Callable,
    tensors: Sequence[Any],
    owners: Sequence[str],
    buckets: ArgumentBuckets,
    padded: Sequence[Padded],
    made: Any,
) -> Followed:
    """Which axes of the outputs have the size of a padded axis because the function makes them so.

    It is traced once more, as if the arguments had been padded to a larger size, and once as if to a smaller one. An
    axis that changes has to do so as an argument's does, up to a limit. Where the function can be traced for no other
    size, no output may have an axis of the padded one: nobody could tell whether it follows.

    Args:
        call: The function, with a list of its tensors.
        tensors: They.
        owners: Of which argument each is.
        buckets: Of the arguments.
        padded: What was padded.
        made: The outputs.
    """
    shapes = [tuple(getattr(x, "shape", ())) for x in keras.tree.flatten(made)]
    values = list(map(as_it_is, keras.tree.flatten(made)))
    seen: list[Any] = []  # in the last trace: what is no tensor

    def flat(tensors):
        leaves = [x.value if isinstance(x, keras.Variable) else x for x in keras.tree.flatten(call(tensors))]
        seen[:] = map(as_it_is, leaves)
        return [x if is_tensor(x) or is_variable(x) else None for x in leaves]

    found = []
    for attempts in buckets.other_sizes(padded):
        for sizes in attempts:
            specs = [
                (buckets.resized(owner, x.shape, sizes), x.dtype) for owner, x in zip(owners, tensors, strict=True)
            ]
            try:
                others = output_shapes(flat, specs)
            except Exception:  # a function may be for some sizes only
                continue
            pairs = zip(others, shapes, strict=False)
            if len(others) != len(shapes) or any(other is not None and len(other) != len(x) for other, x in pairs):
                return [_OTHERS] * len(shapes)
            for i, (value, other) in enumerate(zip(values, seen, strict=True)):
                if value is not None and repr(value) != repr(other):
                    return [_CHANGED.format(i, value)] * len(shapes)
            found.append((sizes, others))
            break
    if not found:
        return [_alone(i, shape, padded) for i, shape in enumerate(shapes)]
    return [
        _of_one(i, shape, [(sizes, others[i]) for sizes, others in found], padded) for i, shape in enumerate(shapes)
    ]


def _alone(number: int, shape: tuple, padded: Sequence[Padded]) -> list | str:
    """Of one output of a function that runs with no other size."""
    same = [entry.size for entry in padded if entry.size in shape]
    return _ONE_SIZE.format(number, shape, same[0]) if same else []


def _of_one(
    number: int, shape: tuple, found: list[tuple[dict[tuple[int, int], int], tuple | None]], padded: Sequence[Padded]
) -> list[tuple[int, tuple[int, int]]] | str:
    """Of one output: its shapes where the arguments are padded to other sizes are `found`."""
    axes = []
    for axis, size in enumerate(shape):
        seen = [(sizes, other[axis]) for sizes, other in found if other is not None and other[axis] is not None]
        if not seen:  # nobody knows, as in a loop of TensorFlow's: then equal sizes count
            axes += [(axis, entry[:2]) for entry in padded if entry[:2] == (axis, size)]
        elif any(other != size for _, other in seen):
            entries = [
                entry[:2]
                for entry in padded
                if all(_follows(size, other, entry.size, sizes[entry[:2]]) for sizes, other in seen)
            ]
            if not entries:
                return (
                    f"its output {number} of shape {shape} has the padding in axis {axis}, which has not the size of "
                    "any of them; expected the size of an axis that has buckets, so that it can be cut back. Return it "
                    "in that shape, or do without buckets there."
                )
            # Of several that fit, the one that it follows without a limit.
            exact = {entry: sum(other == sizes[entry] for sizes, other in seen) for entry in entries}
            axes.append((axis, max(entries, key=lambda entry: (exact[entry], entry[0] == axis))))
    return axes


def _follows(size: int, other: int, padded: int, instead: int) -> bool:
    """Whether an output's `size`, and the `other` one, may be those of an axis of an argument, or a limit for them.

    The axis is `padded`, or to the size `instead`.
    """
    if size == padded:
        return other == instead if instead < padded else size <= other <= instead
    return size < padded and other == min(instead, size)


def cut_back(who: str, outputs: Any, padded: Sequence[Padded], follows: Followed) -> Any:
    """The outputs, each cut along the axes that follow a padded one.

    Raises:
        ValueError: for an output that the padding is in, and that cannot be cut back; `who` made it.
    """
    real = {entry[:2]: entry.real for entry in padded}
    if reason := next((each for each in follows if isinstance(each, str)), None):
        raise ValueError(f"{who} received arguments that were padded, and {reason}")
    axes = iter(follows)

    def each(x):
        for axis, entry in next(axes):
            if (size := min(real[entry], x.shape[axis])) != x.shape[axis]:
                mask = mask_if_known(x)
                if mask is not None and len(mask.shape) > axis:
                    mask = cut(mask, axis, size)
                x = put_mask(with_logits(x, functools.partial(cut, axis=axis, size=size)), mask)
        return x

    return keras.tree.map_structure(each, outputs)
