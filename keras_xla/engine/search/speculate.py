"""The loop over new tokens with guesses: several tokens run through the model at once, and count as far as they agree.

The logits behind each guess are those that a step would have had, and the search chooses from them as it always does.
So what is made does not depend on the guesses, only how often the model runs. (Leviathan et al., "Fast inference from
transformers via speculative decoding", 2023; here the draws are those of plain sampling.)

Rows come on at their own speed: each has its own next slot. Guesses that were wrong leave keys and values behind a
row's last token, which no token sees before they are written anew.
"""

from typing import Any

import keras
from keras import ops

from keras_xla.engine.search.decode import state_at
from keras_xla.engine.search.prompt_lookup import LONGEST, look_up
from keras_xla.engine.search.request import Request
from keras_xla.engine.search.sampling import Sampling
from keras_xla.models.interface import ChunkDecoder, View

# B batch, T cache slots, G guesses, S tokens that run at once (G + 1), V vocabulary

# Guesses are paid for with what earlier ones have saved, counted in steps: so they cannot cost more than they bring.
SLACK = 0.02  # that each step without guesses adds
MOST_SAVED = 4  # checks of guesses that can be paid for at most: what was saved long ago says little
WELL_OFF = 2  # checks; with less, guesses have to be good
SHORTEST = 2  # tokens alike that make a guess worth a check


def advance(
    model: ChunkDecoder,
    values: dict,
    request: Request,
    search: Sampling,
    step: Any,
    count: Any,
    budget: Any,
    guesses: int,
) -> tuple[dict, tuple[Any, ...]]:
    """Run the model up to `count` times, until every row is finished or one has no more room in the cache.

    Args:
        model: The model.
        values: See `decode.advance`.
        request: What is asked for.
        search: How tokens are chosen.
        step: Scalar int32; 0 before the first token.
        count: Scalar int32.
        budget: `[2]` float32: how many steps guesses have saved, and how many it costs to check some.
        guesses: G.

    Returns:
        The values; how many tokens a row has at most, whether a row needs more, the search's progress, `[3]` int32 (the
        tokens of the unfinished row that has the most; runs without guesses, and with them), and the steps saved.
    """
    slots = values["tokens"].shape[1]
    price, source = budget[1], request.extras.get("source")

    def slot(state):
        """Of each row's last token, which has not been run, `[B]`."""
        return request.prompt_end - 1 + state.lengths

    def going(state):
        """Which rows need another token and have room for it, `[B]` bool."""
        return ops.logical_and(ops.logical_not(state.done), slot(state) < slots - 1)

    def more(saved, runs, chosen, state, *_):
        stuck = ops.logical_and(ops.logical_not(state.done), ops.logical_not(going(state)))
        on = ops.logical_and(search.unfinished(state), ops.logical_not(ops.any(stuck)))
        return ops.logical_and(on, ops.sum(runs) < count)

    def guess(saved, runs, chosen, state, cache):
        """The carry, with guesses and whether to check them."""
        made = look_up(state.tokens, request.starts, slot(state) + 1, source, guesses)
        least = ops.where(saved >= WELL_OFF * price, SHORTEST, LONGEST)
        good = ops.cast(ops.logical_and(going(state), made.matched >= least), "float32")
        share = ops.sum(good) / ops.maximum(ops.sum(ops.cast(going(state), "float32")), 1.0)
        fits = ops.max(slot(state)) + guesses + 1 <= slots
        worth = ops.logical_and(saved >= price, ops.logical_and(share > 0, share * guesses >= price))
        return saved, runs, chosen, state, cache, made.tokens, ops.logical_and(worth, fits)

    def run(tokens, state, cache):
        """Logits `[B, S, V]` of `tokens [B, S]` from each row's slot on; a finished row runs its last token again."""
        view = View.causal(slot(state), tokens.shape[1], slots, request.starts)
        return model.extend(tokens, slot(state), view, cache)

    def one(saved, runs, chosen, state, cache, *_):
        scores, cache = run(chosen, state, cache)
        chosen, state = search.advance_rows(scores[:, 0], going(state), chosen, state)
        return guess(saved + SLACK, runs + ops.convert_to_tensor([1, 0]), chosen, state, cache)

    def several(saved, runs, chosen, state, cache, guessed, check):
        scores, cache = run(ops.concatenate([chosen, guessed], axis=1), state, cache)
        before, asked = state.lengths, going(state)

        def agreed(i, on, chosen, *flat):
            return ops.logical_and(i <= guesses, ops.any(on))

        def choose(i, on, chosen, *flat):
            state = keras.tree.pack_sequence_as(values["search"], list(flat))
            chosen, state = search.advance_rows(ops.take(scores, i, axis=1), on, chosen, state)
            same = chosen[:, 0] == ops.take(guessed, ops.minimum(i, guesses - 1), axis=1)
            on = ops.logical_and(ops.logical_and(on, same), going(state))
            return (i + 1, on, chosen, *keras.tree.flatten(state))

        initial = (ops.zeros((), "int32"), asked, chosen, *keras.tree.flatten(state))
        _, _, chosen, *flat = ops.while_loop(agreed, choose, initial)
        state = keras.tree.pack_sequence_as(values["search"], list(flat))
        made = ops.sum(ops.cast(state.lengths - before, "float32"))
        extra = made / ops.maximum(ops.sum(ops.cast(asked, "float32")), 1.0) - 1.0
        saved = ops.minimum(saved + extra - price, ops.maximum(MOST_SAVED * price, saved))
        return guess(saved, runs + ops.convert_to_tensor([0, 1]), chosen, state, cache)

    state = state_at(step, search, values)
    carry = guess(budget[0], ops.zeros((2,), "int32"), values["chosen"], state, values["cache"])

    def loop(condition, body, carry):
        def packed(flat):
            return keras.tree.pack_sequence_as(carry, list(flat))

        flat = ops.while_loop(
            lambda *flat: condition(*packed(flat)),
            lambda *flat: tuple(keras.tree.flatten(body(*packed(flat)))),
            tuple(keras.tree.flatten(carry)),
        )
        return packed(flat)

    # Two loops in one, not a condition: XLA changes what a loop carries in place.
    def both(*carry):
        carry = loop(lambda *now: ops.logical_and(more(*now), ops.logical_not(now[-1])), one, carry)
        return loop(lambda *now: ops.logical_and(more(*now), now[-1]), several, carry)

    saved, runs, chosen, state, cache, _, _ = loop(more, both, carry)
    values = {**values, "cache": cache, "chosen": chosen, "parents": ops.zeros_like(chosen), "search": state}
    furthest = ops.max(ops.where(state.done, 0, state.lengths))
    told = ops.concatenate([furthest[None], runs])
    return values, (ops.max(state.lengths), search.unfinished(state), search.progress(state), told, saved)
