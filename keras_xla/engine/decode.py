"""The decode loop: prefill once, then a token a lane and step until every row is finished."""

from typing import Any, Protocol

import keras
from keras import ops

from keras_xla.engine.lanes import lanes_for
from keras_xla.engine.state import Request, Result
from keras_xla.models.interface import Decoder

# B batch, K lanes, V vocabulary


class Search(Protocol):
    """What to do with scores: `single.Single` or `beam_search.BeamSearch`. Its state is a tree of tensors."""

    width: int  # K

    def begin(self) -> Any:
        """The state before the first token."""

    def advance(self, scores: Any, step: Any, state: Any) -> tuple[Any, Any, Any]:
        """From `scores [B, K, V]` to the tokens of `step [B, K]`, the lanes they continue `[B, K]`, and the state."""

    def unfinished(self, state: Any) -> Any:
        """Whether any row needs another step."""

    def result(self, state: Any) -> Result:
        """What was found."""


def decode(model: Decoder, request: Request, search: Search, new_tokens: int) -> Result:
    """Generate; pure, of fixed shapes, and so compilable as one executable.

    Args:
        model: The `Decoder`.
        request: Bucketed tensors.
        search: How tokens are chosen.
        new_tokens: N, the bucket; `request.max_new_tokens` is at most this.
    """
    lanes = lanes_for(model, request.starts, request.ids.shape[1], new_tokens, search.width)
    scores, cache = model.prefill(request.ids, request.starts, lanes.slots)
    zero = ops.zeros((), "int32")
    first = search.advance(ops.tile(scores[:, None], (1, search.width, 1)), zero, search.begin())
    initial = (*first, lanes.begin(cache))
    leaves = keras.tree.flatten(initial)

    def pack(flat):
        return keras.tree.pack_sequence_as(initial, list(flat))

    def unfinished(step, *flat):
        state = pack(flat)[2]
        return ops.logical_and(step < request.max_new_tokens, search.unfinished(state))

    def advance(step, *flat):
        tokens, parents, state, cache = pack(flat)
        scores, cache = lanes.forward(tokens, parents, step - 1, cache)
        return (step + 1, *keras.tree.flatten((*search.advance(scores, step, state), cache)))

    final = ops.while_loop(unfinished, advance, (zero + 1, *leaves))
    return search.result(pack(final[1:])[2])
