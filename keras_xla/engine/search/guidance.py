"""Classifier-free guidance: a model's logits, led away from those behind negative prompts.

Sanchez et al., "Stay on topic with classifier-free guidance", 2023.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_xla.engine.search.request import Request
from keras_xla.models.interface import Cache, ChunkDecoder, View

# B prompts, S new tokens, T cache slots, V vocabulary


def guidance_tensors(ids: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """What a `GuidedDecoder` needs of a request.

    Args:
        ids: `[2 B, L]` int32, the prompts and behind them the negative ones; all end together.
        starts: `[2 B]` int32, each row's first real slot.
    """
    batch = len(ids) // 2
    return {"negative_starts": starts[batch:], "negative_last": ids[batch:, -1]}


class GuidedDecoder:
    """A `ChunkDecoder` whose cache has two rows for each of its own: first all prompts, then all negative prompts.

    Both read every new token. Its logits are those behind the negative prompt, moved on by `guidance_scale` times the
    way from there to those behind the prompt; all of them log-probabilities.

    Args:
        model: The model.
        request: With the `guidance_tensors`.
    """

    def __init__(self, model: ChunkDecoder, request: Request):
        self._model, self.vocab_size, self.max_positions = model, model.vocab_size, model.max_positions
        self._last, self._scale = request.prompt_end - 1, request.guidance_scale
        self._starts, self._last_token = request.extras["negative_starts"], request.extras["negative_last"]

    def step(self, tokens: Any, slot: Any, starts: Any, cache: Cache) -> tuple[Any, Cache]:
        """See `Decoder.step`."""
        both = self._both(tokens[:, None], slot)[:, 0]
        logits, cache = self._model.step(both, slot, ops.concatenate([starts, self._starts]), cache)
        return self._led(logits, self._scale[:, None]), cache

    def extend(self, tokens: Any, slot: Any, view: View, cache: Cache) -> tuple[Any, Cache]:
        """See `ChunkDecoder.extend`; the tokens are seen as `View.causal` says."""
        negative = View.causal(slot, tokens.shape[1], view.seen.shape[2], self._starts)
        views = View(*(ops.concatenate(pair) for pair in zip(view, negative, strict=True)))
        slots = ops.tile(slot, (2,)) if len(slot.shape) else slot
        logits, cache = self._model.extend(self._both(tokens, slot), slots, views, cache)
        return self._led(logits, self._scale[:, None, None]), cache

    def _both(self, tokens, slot):
        """What all rows read `[2 B, S]`: the same new tokens, but a prompt's last one is not the negative prompt's."""
        slots = ops.reshape(slot, (-1, 1)) + ops.arange(tokens.shape[1], dtype="int32")
        return ops.concatenate([tokens, ops.where(slots == self._last, self._last_token[:, None], tokens)])

    @staticmethod
    def _led(logits, scale):
        wanted, unwanted = ops.split(ops.log_softmax(logits, axis=-1), 2)
        alone, _ = ops.split(logits, 2)  # what a row without guidance has: a processor may tell logits apart
        return ops.where(scale == 1, alone, unwanted + scale * (wanted - unwanted))
