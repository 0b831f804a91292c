"""The loop over new tokens where rows began at different times: one that has ended makes room for another prompt."""

from typing import Any

from keras import ops

from keras_xla.engine.search.request import Request
from keras_xla.engine.search.sampling import Sampling
from keras_xla.engine.search.while_loop import while_loop
from keras_xla.models.interface import ChunkDecoder

# B batch, T cache slots


def advance(
    model: ChunkDecoder, values: dict, request: Request, search: Sampling, slot: Any, count: Any, enough: Any
) -> tuple[dict, tuple[Any, Any]]:
    """Run the model up to `count` times, until `enough` rows have ended.

    What the cache knows of a row ends at the same slot in all of them. The search's tokens stand elsewhere: there all
    prompts end together.

    Args:
        model: The model.
        values: See `decode.advance`.
        request: What is asked for; `cache_starts [B]` int32 among its extras, each row's first slot in the cache.
        search: How tokens are chosen.
        slot: Scalar int32, where in the cache the next run's tokens go.
        count: Scalar int32; there has to be room for them in the cache, and in the search's tokens.
        enough: Scalar int32; rows that nobody uses have ended, too.

    Returns:
        The values; how often the model ran, and the search's progress.
    """
    starts = request.extras["cache_starts"]

    def more(now):
        runs, _, state, _ = now
        return ops.logical_and(runs < count, ops.sum(ops.cast(state.done, "int32")) < enough)

    def one(now):
        runs, chosen, state, cache = now
        scores, cache = model.step(chosen[:, 0], slot + runs, starts, cache)
        chosen, state = search.advance_rows(scores, ops.logical_not(state.done), chosen, state)
        return runs + 1, chosen, state, cache

    initial = ops.zeros((), "int32"), values["chosen"], values["search"], values["cache"]
    runs, chosen, state, cache = while_loop(more, one, initial)
    values = {**values, "cache": cache, "chosen": chosen, "search": state}
    return values, (runs, search.progress(state))
