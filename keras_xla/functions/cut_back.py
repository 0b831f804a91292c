"""Outputs of a function whose arguments were padded, cut back to what they would have been without."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_xla.backend.steps import cut, output_shapes
from keras_xla.functions.arrays import is_array
from keras_xla.functions.buckets import Buckets, Padded
from keras_xla.private.keras import mask_if_known, put_mask

# Of each output, which of its axes follow which padded one: axis of the output, then axis and size of the argument.
Followed = list[list[tuple[int, tuple[int, int]]]]


def followed(
    who: str,
    call: Callable,
    tensors: Sequence[Any],
    owners: Sequence[str],
    buckets: Buckets,
    padded: Sequence[Padded],
    outputs: Any,
) -> Followed:
    """Which axes of the outputs have the size of a padded axis because the function makes them so.

    It is traced once more, as if the arguments had been padded to other sizes. Where it cannot be, the axes count that
    have the padded size.

    Args:
        who: The function, for errors.
        call: It, as a function of the list of its tensors.
        tensors: They.
        owners: Of which argument each is.
        buckets: Of the arguments.
        padded: What was padded.
        outputs: What it made of the tensors.

    Raises:
        ValueError: for an output that the padding is in, and that cannot be cut back.
    """
    shapes = [tuple(getattr(x, "shape", ())) for x in keras.tree.flatten(outputs)]

    def flat(tensors):
        leaves = [x.value if isinstance(x, keras.Variable) else x for x in keras.tree.flatten(call(tensors))]
        return [x if is_array(x) else None for x in leaves]

    for sizes in buckets.other_sizes(padded):
        specs = [(buckets.resized(owner, x.shape, sizes), x.dtype) for owner, x in zip(owners, tensors, strict=True)]
        try:
            others = output_shapes(flat, specs)
        except Exception:  # a function may be for some sizes only
            continue
        if list(map(len, others)) == list(map(len, shapes)):
            return [_of_one(who, i, *pair, sizes) for i, pair in enumerate(zip(shapes, others, strict=True))]
    return [
        [(axis, (axis, size)) for axis, size, _ in padded if len(shape) > axis and shape[axis] == size]
        for shape in shapes
    ]


def _of_one(
    who: str, number: int, shape: tuple, other: tuple, sizes: Mapping[tuple[int, int], int]
) -> list[tuple[int, tuple[int, int]]]:
    """Of one output, whose shape is the `other` one where the arguments are padded to other `sizes`."""
    axes = []
    for axis, (before, after) in enumerate(zip(shape, other, strict=True)):
        if after in (before, None):  # TensorFlow does not know some
            continue
        follows = [entry for entry, size in sizes.items() if (entry[1], size) == (before, after)]
        if not follows:
            raise ValueError(
                f"{who} received arguments that were padded, and its output {number} of shape {shape} has the padding "
                f"in axis {axis}, which has not the size of any of them; expected the size of an axis that has "
                "buckets, so that it can be cut back. Return it in that shape, or do without buckets there."
            )
        axes.append((axis, next((entry for entry in follows if entry[0] == axis), follows[0])))
    return axes


def cut_back(outputs: Any, padded: Sequence[Padded], follows: Followed) -> Any:
    """The outputs, each cut along the axes that follow a padded one."""
    real = {entry[:2]: entry.real for entry in padded}
    axes = iter(follows)

    def each(x):
        for axis, entry in next(axes):
            if real[entry] != entry[1]:
                mask = mask_if_known(x)
                if mask is not None and len(mask.shape) > axis:
                    mask = cut(mask, axis, real[entry])
                x = put_mask(cut(x, axis, real[entry]), mask)
        return x

    return keras.tree.map_structure(each, outputs)
