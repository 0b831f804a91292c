"""Outputs of a function whose arguments were padded, cut back to what they would have been without."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_xla.backend.steps import cut, output_shapes
from keras_xla.functions.arrays import is_array
from keras_xla.functions.buckets import Buckets, Padded
from keras_xla.private.keras import mask_if_known, put_mask

# Of each output, which of its axes follow which padded one: the axis of the output, then axis and size of the argument.
# Or, for an output that cannot be cut back, the reason.
Followed = list[list[tuple[int, tuple[int, int]]] | str]


def followed(
    call: Callable, tensors: Sequence[Any], owners: Sequence[str], buckets: Buckets, padded: Sequence[Padded], made: Any
) -> Followed:
    """Which axes of the outputs have the size of a padded axis because the function makes them so.

    It is traced once more, as if the arguments had been padded to a larger size, and once as if to a smaller one. Where
    it cannot be, the axes count that have the padded size.

    Args:
        call: The function, with a list of its tensors.
        tensors: They.
        owners: Of which argument each is.
        buckets: Of the arguments.
        padded: What was padded.
        made: The outputs.
    """
    shapes = [tuple(getattr(x, "shape", ())) for x in keras.tree.flatten(made)]

    def flat(tensors):
        leaves = [x.value if isinstance(x, keras.Variable) else x for x in keras.tree.flatten(call(tensors))]
        return [x if is_array(x) else None for x in leaves]

    def traced(sizes):
        """The shapes of the outputs for these sizes; None for a function that is not for them."""
        specs = [(buckets.resized(owner, x.shape, sizes), x.dtype) for owner, x in zip(owners, tensors, strict=True)]
        try:
            others = output_shapes(flat, specs)
        except Exception:
            return None
        return others if list(map(len, others)) == list(map(len, shapes)) else None

    found = []
    for attempts in buckets.other_sizes(padded):
        others = ((sizes, traced(sizes)) for sizes in attempts)
        found += list(itertools.islice((pair for pair in others if pair[1] is not None), 1))
    return [
        _of_one(i, shape, [(sizes, others[i]) for sizes, others in found], padded) for i, shape in enumerate(shapes)
    ]


def _of_one(
    number: int, shape: tuple, found: list[tuple[dict[tuple[int, int], int], tuple]], padded: Sequence[Padded]
) -> list[tuple[int, tuple[int, int]]] | str:
    """Of one output: its shapes where the arguments are padded to other sizes are `found`."""
    axes = []
    for axis, size in enumerate(shape):
        seen = [(sizes, other[axis]) for sizes, other in found if other[axis] is not None]
        if not seen:  # nobody knows, as in a loop of TensorFlow's: then equal sizes count
            axes += [(axis, entry[:2]) for entry in padded if entry[:2] == (axis, size)]
            continue
        follows = [
            entry for sizes, other in seen if other != size for entry, instead in sizes.items() if instead == other
        ]
        if follows:
            axes.append((axis, next((entry for entry in follows if entry[0] == axis), follows[0])))
        elif all(other != size for _, other in seen):
            return (
                f"its output {number} of shape {shape} has the padding in axis {axis}, which has not the size of any "
                "of them; expected the size of an axis that has buckets, so that it can be cut back. Return it in that "
                "shape, or do without buckets there."
            )
    return axes


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
                x = put_mask(cut(x, axis, size), mask)
        return x

    return keras.tree.map_structure(each, outputs)
