"""How the tokens of a stack come to know where they stand."""

from typing import Any

import numpy as np
from keras import ops

from keras_xla.models.layers.positions import distance_buckets, rotary_tables, sinusoids
from keras_xla.models.spec import StackSpec
from keras_xla.models.weights import WeightedLayer

# B batch, S tokens that see, T tokens that are seen, E hidden size, H heads


class PositionEmbedding(WeightedLayer):
    """The positions of a stack, whichever kind its spec has: each method serves some kinds and gives None for others.

    Args:
        spec: `StackSpec`.
        both_ways: Whether tokens see those behind them, as in an encoder.
    """

    def __init__(self, spec: StackSpec, both_ways: bool, **kwargs):
        super().__init__(**kwargs)
        position: Any = spec.position  # each kind has attributes of its own
        self.spec, self.kind, self.both_ways = position, position.kind, both_ways
        if self.kind == "learned":
            rows = position.max_positions + position.offset
            self.table = self.add_weight((rows, spec.hidden_size), name="table")
        elif self.kind == "relative":
            self.table = self.add_weight((position.buckets, spec.attention.heads), name="table")
            self._distances = np.arange(-position.max_distance, both_ways * position.max_distance + 1)
        elif self.kind == "sinusoidal":
            self._sinusoids = sinusoids(position.max_positions, spec.hidden_size)
        self.built = True

    def added(self, positions) -> Any:
        """What is added to the embeddings at `positions [B, S]`: `[B, S, E]`."""
        if self.kind == "learned":
            return ops.take(self.table, positions + self.spec.offset, axis=0)
        if self.kind == "sinusoidal":
            return ops.take(ops.convert_to_tensor(self._sinusoids, self.compute_dtype), positions, axis=0)
        return None

    def rotary(self, positions) -> Any:
        """Cosines and sines for `positions [B, S]`, see `rotary_tables`."""
        if self.kind == "rotary":
            return rotary_tables(positions, self.spec.inverse_frequencies, self.spec.attention_factor)
        return None

    def bias(self, queries, keys) -> Any:
        """What is added to the scores of tokens at `queries [B, S]` for those at `keys [B, T]`: `[B, H, S, T]`."""
        if self.kind != "relative":
            return None
        s = self.spec
        buckets = distance_buckets(self._distances, s.buckets, s.max_distance, self.both_ways)
        by_distance = ops.take(self.table, buckets, axis=0)
        first, last = int(self._distances[0]), int(self._distances[-1])
        distance = ops.clip(keys[:, None, :] - queries[:, :, None], first, last)  # [B, S, T]
        return ops.transpose(ops.take(by_distance, distance - first, axis=0), (0, 3, 1, 2))
