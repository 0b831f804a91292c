"""How the beams of one prompt keep their caches apart.

A model that can run several tokens a row (`ChunkDecoder`) keeps one cache a row: the prompt once, and behind it a slot
for every beam and step. A table says in which beam's slot each token of a beam's past was run, and becomes the
attention mask; keys and values are written once and never move. For other models beams are rows of the batch, and the
cache is gathered anew whenever beams change places.
"""

from typing import Any

import keras
from keras import ops

from keras_xla.backend.slices import update_slice
from keras_xla.models.interface import ChunkDecoder, Decoder, View

# B batch, K beams, T cache slots, N steps for which there is room, V vocabulary


def kind_of_cache(chunked: bool, width: int) -> Any:
    """The cheapest way to run `width` beams (1: no beam search) of a model that is a `ChunkDecoder`, or is not."""
    if width == 1:
        return PlainCache
    return SharedCache if chunked else GatheredCache


def is_chunked(model: Any) -> bool:
    """Whether a model is a `ChunkDecoder`."""
    return hasattr(model, "extend") and hasattr(model, "empty_cache")


class PlainCache:
    """A single continuation a row.

    Args:
        model: The model.
        starts: `[B]` int32, each row's first real slot.
        prompt_end: Scalar int32, the first slot behind the prompts.
        slots: T.
        width: K.
    """

    def __init__(self, model: Decoder, starts, prompt_end, slots: int, width: int = 1):
        self._model, self._starts, self._prompt_end = model, starts, prompt_end

    @staticmethod
    def specs(batch: int, slots: int, width: int):
        """Shapes and dtypes of what is kept beside the model's cache: nothing."""
        return ()

    def forward(self, tokens, parents, step, cache, table):
        """Run the `tokens [B, K]` before the one of a step; they continue the beams `parents [B, K]`.

        Returns:
            Logits `[B, K, V]`, and cache and table to pass next.
        """
        scores, cache = self._model.step(tokens[:, 0], self._prompt_end - 1 + step, self._starts, cache)
        return scores[:, None], cache, table


class SharedCache:
    """Beams over one cache a row, told apart by the attention mask."""

    def __init__(self, model: ChunkDecoder, starts, prompt_end, slots: int, width: int):
        self._model, self._starts, self._prompt_end = model, starts, prompt_end
        self._slots, self._width = slots, width

    @staticmethod
    def specs(batch: int, slots: int, width: int):
        """The table `[B, K, N]` int32: in which beam each beam's token of each step was run."""
        return keras.KerasTensor((batch, width, -(-slots // width)), "int32")

    def forward(self, tokens, parents, step, cache, table):
        """See `PlainCache.forward`."""
        (batch, width), slots = tokens.shape, self._slots
        shared = self._prompt_end - 1  # slots of the prompts: every beam runs their last token itself
        beams = ops.arange(width, dtype="int32")
        table = ops.take_along_axis(table, parents[:, :, None], axis=1)
        table = update_slice(table, (0, 0, step), ops.tile(beams[None, :, None], (batch, 1, 1)))
        slot = ops.arange(slots, dtype="int32")
        which, beam = (slot - shared) // width, (slot - shared) % width  # step and beam of each slot behind those
        ran_in = ops.take(table, ops.clip(which, 0, table.shape[2] - 1), axis=2)  # [B, K, T]
        mine = ops.logical_and(ran_in == beam, ops.logical_and(slot >= shared, which <= step))
        prompt = ops.logical_and(slot[None] >= self._starts[:, None], slot < shared)  # [B, T]
        seen = ops.logical_or(mine, prompt[:, None])
        positions = ops.tile((shared + step - self._starts)[:, None], (1, width))
        slot_positions = ops.where(slot < shared, slot, shared + which)[None] - self._starts[:, None]  # [B, T]
        view = View(positions, slot_positions, seen)
        scores, cache = self._model.extend(tokens, shared + width * step, view, cache)
        return scores, cache, table


class GatheredCache:
    """Beams as rows of the batch; the cache is gathered when they change places."""

    def __init__(self, model: Decoder, starts, prompt_end, slots: int, width: int):
        self._model, self._prompt_end, self._width = model, prompt_end, width
        self._batch, self._starts = starts.shape[0], ops.repeat(starts, width)

    @staticmethod
    def specs(batch: int, slots: int, width: int):
        """Shapes and dtypes of what is kept beside the model's cache: nothing."""
        return ()

    def forward(self, tokens, parents, step, cache, table):
        """See `PlainCache.forward`."""
        first = ops.arange(self._batch, dtype="int32")[:, None] * self._width
        cache = rows_of_cache(cache, self._batch * self._width, ops.reshape(first + parents, (-1,)))
        scores, cache = self._model.step(ops.reshape(tokens, (-1,)), self._prompt_end - 1 + step, self._starts, cache)
        return ops.reshape(scores, (self._batch, self._width, -1)), cache, table


def rows_of_cache(cache, rows: int, which):
    """The rows `which` of every array, whose first axis is `rows` or a multiple of it."""

    def take(x):
        groups = ops.take(ops.reshape(x, (rows, x.shape[0] // rows, *x.shape[1:])), which, axis=0)
        return ops.reshape(groups, (-1, *x.shape[1:]))

    return keras.tree.map_structure(take, cache)
