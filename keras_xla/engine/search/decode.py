"""The steps of a generation as pure functions of fixed shapes: a chunk of the prompt, and the loop over new tokens."""

from typing import Any, Protocol

import keras
from keras import ops

from keras_xla.engine.search.beam_cache import is_chunked, kind_of_cache
from keras_xla.engine.search.request import Request
from keras_xla.engine.search.while_loop import while_loop
from keras_xla.models.interface import ChunkDecoder, Decoder, View

# B batch, C chunk, K beams, T cache slots, V vocabulary


class Search(Protocol):
    """How tokens are chosen: `sampling.Sampling` or `beam_search.BeamSearch`. Its state is a tree of tensors."""

    width: int  # K

    def begin(self, tokens: Any) -> Any:
        """The state before the first token, from the prompts `[B, T]`."""

    def advance(self, scores: Any, step: Any, state: Any) -> tuple[Any, Any, Any]:
        """From `scores [B, K, V]` to the tokens of `step [B, K]`, the beams they continue `[B, K]`, and the state."""

    def unfinished(self, state: Any) -> Any:
        """Whether any row needs another step."""

    def progress(self, state: Any) -> Any:
        """What a caller wants to know of each row between calls."""


def prefill(model: ChunkDecoder, cache: Any, ids: Any, starts: Any, slot: Any, slots: int) -> Any:
    """The cache with a chunk of the prompts in it.

    Args:
        model: The model.
        cache: With room for `slots` tokens a row.
        ids: `[B, C]` int32. What stands behind a prompt's end is overwritten before it is seen.
        starts: `[B]` int32, each row's first real slot.
        slot: Scalar int32, of the chunk's first token; the chunk has to fit between it and the end.
        slots: T.
    """
    view = View.causal(slot, ids.shape[1], slots, starts)
    return model.extend(ids, slot, view, cache)[1]


def begin(scores: Any, tokens: Any, search: Search) -> dict[str, Any]:
    """The first token of each row, from the logits `[B, V]` behind the prompts, whose `tokens [B, T]` are given."""
    scores = ops.tile(scores[:, None], (1, search.width, 1))
    chosen, parents, state = search.advance(scores, ops.zeros((), "int32"), search.begin(tokens))
    return {"chosen": chosen, "parents": parents, "search": state}


def advance(
    model: Decoder, values: dict, request: Request, search: Search, step: Any, count: Any
) -> tuple[dict, tuple[Any, Any, Any]]:
    """Choose up to `count` more tokens a row, until every row is finished.

    Each step runs the tokens that were chosen in the one before, the first one the last tokens of the prompts.

    Args:
        model: The model.
        values: `cache`; `tokens [B, T]` int32, the prompts; `chosen [B, K]` and `parents [B, K]` int32, the tokens to
            run and the beams they continue; `search`, of the search's state; `table`, see `beam_cache`.
        request: What is asked for.
        search: How tokens are chosen.
        step: Scalar int32, how many tokens there are.
        count: Scalar int32; there has to be room for them.

    Returns:
        The values; how many tokens there are now, whether a row needs more, and the search's progress.
    """
    slots = values["tokens"].shape[1]
    kind = kind_of_cache(is_chunked(model), search.width)
    beams = kind(model, request.starts, request.prompt_end, slots, search.width)
    most = ops.max(request.max_new_tokens)
    until = ops.minimum(step + count, most)
    state = state_at(step, search, values)

    def more(now):
        step, _, _, state, *_ = now
        return ops.logical_and(step < until, search.unfinished(state))

    def one(now):
        step, tokens, parents, state, cache, table = now
        scores, cache, table = beams.forward(tokens, parents, step, cache, table)
        return step + 1, *search.advance(scores, step, state), cache, table

    initial = step, values["chosen"], values["parents"], state, values["cache"], values["table"]
    step, chosen, parents, state, cache, table = while_loop(more, one, initial)
    values = {**values, "cache": cache, "table": table, "chosen": chosen, "parents": parents, "search": state}
    unfinished = ops.logical_and(step < most, search.unfinished(state))
    return values, (step, unfinished, search.progress(state))


def state_at(step: Any, search: Search, values: dict) -> Any:
    """The search's state: that of the `values`, or a new one before the first token."""
    begun = search.begin(values["tokens"])
    return keras.tree.map_structure(lambda new, old: ops.where(step == 0, new, old), begun, values["search"])
