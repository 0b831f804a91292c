"""What a loop in a graph keeps of the outputs of its steps: those of the last one, or those of all, joined."""

from collections.abc import Sequence

import tensorflow as tf


class Last:
    """The outputs of the last step; zeros if there was none.

    `made` are the outputs of a traced step, flat; `start` are variables of the loop, `invariants` their shapes.
    """

    def __init__(self, made: Sequence[tf.Tensor]):
        # No first step in front of the loop: large ones take seconds to be made ready.
        self.start = [tf.zeros([n or 0 for n in x.shape] if x.shape.rank else [], x.dtype) for x in made]
        self.invariants = [x.shape for x in made]

    def added(self, _kept: list, _i: tf.Tensor, outputs: list) -> list:
        """The variables after step `i`."""
        return outputs

    def result(self, kept: list) -> list:
        """The outputs."""
        return kept


class All(Last):
    """The outputs of all steps, joined along the first axis; of shapes that `collectable` accepts."""

    def __init__(self, made: Sequence[tf.Tensor]):
        self.start = [
            tf.TensorArray(x.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=x.shape) for x in made
        ]
        self.invariants = [tf.TensorShape([]) for _ in made]

    def added(self, kept: list, i: tf.Tensor, outputs: list) -> list:
        return [array.write(i, x) for array, x in zip(kept, outputs, strict=True)]

    def result(self, kept: list) -> list:
        return [array.concat() for array in kept]
