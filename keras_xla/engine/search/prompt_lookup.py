"""Guesses at what comes next, from what was read and made: texts that quote, edit or repeat go on as they did before.

Saxena, "Prompt lookup decoding", 2023; Yang et al., "Inference with reference", 2023.
"""

from typing import Any

from keras import ops

from keras_xla.engine.search.request import Request
from keras_xla.engine.search.sampling import SamplingState

LONGEST = 4  # tokens that are compared

# B batch, T slots, M tokens of a source, L places for tokens (M + T), G guesses


class PromptLookup:
    """Guesses for a request; a `speculate.Guesser`.

    Args:
        request: The request.
        count: G.
    """

    gain, foretells = 1.5, True

    def __init__(self, request: Request, count: int):
        self._request, self.count = request, count

    def begun(self, draft: Any, step: Any) -> Any:
        """See `speculate.Guesser`."""
        return draft

    def look(self, state: SamplingState) -> tuple[Any, Any]:
        """See `speculate.Guesser`."""
        starts, next_slots = self._request.starts, self._request.prompt_end + state.lengths
        return look_up(state.tokens, starts, next_slots, self._request.extras.get("source"), self.count)

    def guess(self, found, count, going, chosen, state: SamplingState, draft) -> tuple[Any, Any]:
        """See `speculate.Guesser`."""
        return found, draft

    def settled(self, state: SamplingState, draft: Any) -> Any:
        """See `speculate.Guesser`."""
        return draft


def look_up(tokens: Any, starts: Any, next_slots: Any, source: Any, count: int) -> tuple[Any, Any]:
    """What followed where the text last was as it is at its end.

    Of several places that with the most tokens alike counts, and of those the last one.

    Args:
        tokens: `[B, T]` int32.
        starts: `[B]` int32, each row's first real slot.
        next_slots: `[B]` int32, the slot behind each row's last token.
        source: `[B, M]` int32, what an encoder reads, padding -1; None where it reads no tokens.
        count: G.

    Returns:
        `[B, G]` int32, with no promise that it comes; and `[B]` int32, how many tokens before it are as in the text
        that it comes from, 0 where there is no such text.
    """
    slot = ops.arange(tokens.shape[1], dtype="int32")[None]
    text = ops.where(ops.logical_and(slot >= starts[:, None], slot < next_slots[:, None]), tokens, -1)
    text = text if source is None else ops.concatenate([source, text], axis=1)  # [B, L]
    places, before = text.shape[1], text.shape[1] - tokens.shape[1]
    place, last = ops.arange(places, dtype="int32")[None], before + next_slots[:, None] - 1
    alike, matched, shifted = text >= 0, ops.zeros_like(text), text
    for back in range(LONGEST):
        same = shifted == ops.take_along_axis(text, ops.maximum(last - back, 0), axis=1)
        alike = ops.logical_and(alike, ops.logical_and(same, last - back >= before + starts[:, None]))
        matched = matched + ops.cast(alike, "int32")
        shifted = ops.pad(shifted[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    rank = ops.where(ops.logical_and(matched > 0, place < last), matched * places + place, 0)
    best = ops.max(rank, axis=1, keepdims=True)  # [B, 1]
    found = best % places
    # Behind the end it goes on as from there: a text that repeats itself goes round.
    ahead = ops.arange(count, dtype="int32")[None] % ops.maximum(last - found, 1)
    guessed = ops.take_along_axis(text, ops.minimum(found + 1 + ahead, places - 1), axis=1)
    return ops.maximum(guessed, 0), best[:, 0] // places
