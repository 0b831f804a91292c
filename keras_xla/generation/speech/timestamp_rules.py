"""Whisper's rules for timestamps: they come in pairs around text, never go back, and win by their joint probability."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.search.processors import Processor
from keras_xla.engine.search.samplers import FORBIDDEN

# R rows, T slots, V vocabulary: text < eos <= special tokens < first <= timestamps


def timestamp_rules(
    scores: Any, tokens: Any, begin: Any, step: Any, first: Any, no_timestamps: Any, eos: Any, max_initial_index: Any
) -> Any:
    """Forbid what must not come next (Radford et al., 2022, section 2.3, and the `ApplyTimestampRules` of its code).

    - `<|notimestamps|>` is never made.
    - A transcription begins with a timestamp, of at most `max_initial_index` steps.
    - After the timestamp that begins a segment there is text; after the one that ends it, another timestamp or the end.
    - No timestamp is before the last one, nor equal to it unless it begins the next segment where one ended.
    - If the timestamps together are more likely than any one other token, it is a timestamp.

    Args:
        scores: `[R, V]` float32.
        tokens: `[R, T]` int32, the token in each slot.
        begin: Scalar int32, the slot of the first token after the prompt.
        step: Scalar int32, how many tokens there are from it on.
        first: Scalar int32, id of `<|0.00|>`; all ids from it on are timestamps.
        no_timestamps: Scalar int32, id of `<|notimestamps|>`.
        eos: Scalar int32, end of the sequence; all ids below it are text.
        max_initial_index: Scalar int32; V for no limit.

    Returns:
        `[R, V]` float32, what is forbidden at `samplers.FORBIDDEN`.
    """
    ids = ops.arange(scores.shape[-1], dtype="int32")[None]  # [1, V]
    timestamp = ids >= first
    other = ids < first

    def timed(token):
        return (token >= first)[:, None]  # [R, 1]

    last = ops.take(tokens, ops.maximum(begin + step - 1, 0), axis=1)
    before_last = ops.take(tokens, ops.maximum(begin + step - 2, 0), axis=1)
    after_timestamp = ops.logical_and(step >= 1, timed(last))
    begins = ops.logical_and(after_timestamp, ops.logical_or(step < 2, timed(before_last)))
    ends = ops.logical_and(after_timestamp, ops.logical_not(begins))

    slots = ops.arange(tokens.shape[1], dtype="int32")[None]
    generated = ops.logical_and(slots >= begin, slots < begin + step)
    is_timestamp = ops.logical_and(generated, tokens >= first)  # [R, T]
    latest = ops.max(ops.where(is_timestamp, slots, -1), axis=1, keepdims=True)  # [R, 1]
    lowest = ops.take_along_axis(tokens, ops.maximum(latest, 0), axis=1) + ops.where(ends, 0, 1)
    lowest = ops.where(latest >= 0, lowest, first)

    initial = ops.logical_and(step == 0, ops.logical_or(other, ids > first + max_initial_index))
    forbidden = ops.logical_or(ids == no_timestamps, initial)
    forbidden = ops.logical_or(forbidden, ops.logical_and(begins, timestamp))
    forbidden = ops.logical_or(forbidden, ops.logical_and(ends, ids < eos))
    forbidden = ops.logical_or(forbidden, ops.logical_and(timestamp, ids < lowest))
    scores = ops.where(forbidden, FORBIDDEN, scores)

    together = ops.logsumexp(ops.where(timestamp, scores, FORBIDDEN), axis=-1, keepdims=True)
    likeliest = ops.max(ops.where(timestamp, FORBIDDEN, scores), axis=-1, keepdims=True)
    return ops.where(ops.logical_and(other, together > likeliest), FORBIDDEN, scores)


@dataclass(frozen=True)
class TimestampOptions(GenerationOptions):
    """Generation options of a speech model.

    Attributes:
        timestamps: Whether the rules apply.
    """

    timestamps: bool = False


def timestamps_processor(first: int, no_timestamps: int, eos: int, max_initial_index: int | None) -> Processor:
    """The rules as a logits processor, switched on by `TimestampOptions`; behind all others but a user's own.

    Args:
        first: Id of `<|0.00|>`.
        no_timestamps: Id of `<|notimestamps|>`.
        eos: End of the sequence.
        max_initial_index: See `timestamp_rules`; None for no limit.
    """
    names = ("first_timestamp", "no_timestamps", "end_of_text", "max_initial_index")

    def tensors(options, vocab_size):
        limit = vocab_size if max_initial_index is None else max_initial_index
        return [np.int32(value) for value in (first, no_timestamps, eos, limit)]

    def apply(scores, context, extras):
        return timestamp_rules(
            scores, context.tokens, context.prompt_end, context.step, *(extras[name] for name in names)
        )

    return Processor(lambda options: getattr(options, "timestamps", False), names, tensors, apply)
