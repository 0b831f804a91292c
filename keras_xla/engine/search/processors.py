"""Logits processors: what changes scores before a token is chosen. In Hugging Face's order, with its meaning.

Each is a pure function of fixed shapes. All of them are in every executable, each behind a condition: switching one on
compiles nothing, and what is off takes no time.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_xla.backend.sizes import power_of_two
from keras_xla.config import GenerationOptions
from keras_xla.engine.search.samplers import FORBIDDEN

# R rows (batch times beams), T slots, L other places for tokens, M tokens of a source, V vocabulary, W words, S their
# longest


class Context(NamedTuple):
    """What the processors may look at."""

    tokens: Any  # [R, T] int32, the token in each slot, of which those before `end` are made
    starts: Any  # [R] int32, each row's first real slot
    prompt_end: Any  # int32, the slot of the first new token
    step: Any  # int32, of the token to choose: a scalar, or [R, 1]
    is_eos: Any  # [V] bool, the tokens that end a sequence
    max_new_tokens: Any  # [R, 1] int32
    min_new_tokens: Any  # int32
    min_length: Any  # int32
    source: Any = None  # [R, M] int32, what an encoder reads, padding -1; None where it reads no tokens

    @property
    def end(self):
        """The slot of the token to choose: a scalar, or `[R, 1]`."""
        return self.prompt_end + self.step

    def at(self, slots):
        """The tokens `[R, n]` in slots `[n]` or `[R, n]`, of which those below 0 count as 0."""
        slots = ops.maximum(slots, 0)
        return (
            ops.take(self.tokens, slots, axis=1) if len(slots.shape) < 2 else ops.take_along_axis(self.tokens, slots, 1)
        )


@dataclass(frozen=True)
class Processor:
    """One processor.

    Attributes:
        wanted: Whether options switch it on.
        names: What its tensors are called.
        tensors: From the options and V to their values.
        apply: From scores `[R, V]`, the context and all tensors by name to scores.
    """

    wanted: Callable[[GenerationOptions], bool]
    names: tuple[str, ...]
    tensors: Callable[[GenerationOptions, int], Sequence[Any]]
    apply: Callable[[Any, Context, dict[str, Any]], Any]


def process(scores, context: Context, active: Any, extras: dict[str, Any], table: Mapping[str, Processor]):
    """Apply the processors of a table that are `active` `[number of processors]` bool, in its order."""

    def apply_all():
        x = scores
        for i, processor in enumerate(table.values()):
            x = ops.cond(active[i], functools.partial(processor.apply, x, context, extras), lambda x=x: x)
        return x

    return ops.cond(ops.any(active), apply_all, lambda: scores)


def eos_mask(eos, vocab_size: int):
    """Which tokens end a sequence, `[V]` bool; `eos [N]` int32, unused entries -1."""
    return ops.any(ops.arange(vocab_size, dtype="int32")[:, None] == eos[None, :], axis=-1)


def is_real(context: Context):
    """Which of the slots hold a token of prompt or completion, `[R, T]` bool."""
    slot = ops.arange(context.tokens.shape[1], dtype="int32")[None]
    return ops.logical_and(slot >= context.starts[:, None], slot < context.end)


def is_read(context: Context):
    """What an encoder reads, or else the prompts: tokens `[R, L]` int32, and which of them are there, bool."""
    if context.source is not None:
        return ops.maximum(context.source, 0), context.source >= 0
    slot = ops.arange(context.tokens.shape[1], dtype="int32")[None]
    return context.tokens, ops.logical_and(slot >= context.starts[:, None], slot < context.prompt_end)


def added(tokens, values, vocab_size: int):
    """The sum of the `values [R, L]` of each of the vocabulary among the `tokens [R, L]`: `[R, V]`."""
    rows = ops.broadcast_to(ops.arange(tokens.shape[0], dtype="int32")[:, None], tokens.shape)
    indices = ops.reshape(ops.stack([rows, tokens], axis=-1), (-1, 2))
    return ops.scatter(indices, ops.reshape(values, (-1,)), (tokens.shape[0], vocab_size))


def marked(tokens, which, vocab_size: int):
    """Which of the vocabulary are among the `tokens [R, L]` that `which [R, L]` picks: `[R, V]` bool."""
    return added(tokens, ops.cast(which, "int32"), vocab_size) > 0


def _bias_sequences(scores, context, extras):
    complete = _completed(context, extras["sequences"], extras["sequence_lengths"])  # [R, W]
    last = ops.broadcast_to(extras["sequences"][None, :, -1], complete.shape)
    return scores + added(last, ops.where(complete, extras["sequence_biases"][None], 0.0), scores.shape[-1])


def _penalize_what_is_read(scores, context, extras):
    seen = marked(*is_read(context), scores.shape[-1])
    return _scaled(scores, seen, 1 / extras["encoder_repetition_penalty"])


def _penalize_repetition(scores, context, extras):
    """Keskar et al., 2019 (CTRL)."""
    seen = marked(context.tokens, is_real(context), scores.shape[-1])
    return _scaled(scores, seen, extras["repetition_penalty"])


def _scaled(scores, seen, penalty):
    changed = ops.logical_and(seen, scores > FORBIDDEN / 2)  # what is forbidden stays so
    return ops.where(changed, ops.where(scores < 0, scores * penalty, scores / penalty), scores)


def _penalize_presence(scores, context, extras):
    slot = ops.arange(context.tokens.shape[1], dtype="int32")[None]
    new = ops.logical_and(is_real(context), slot >= context.prompt_end)
    counts = added(context.tokens, ops.cast(new, "float32"), scores.shape[-1])
    presence = ops.where(counts > 0, extras["presence_penalty"], 0.0)
    return scores - presence - extras["frequency_penalty"] * counts


def _forbid_repeated_ngrams(scores, context, extras):
    """Forbid what would complete an n-gram that is there already."""
    matches = _followers(context.tokens, is_real(context), context, extras["ngram_size"])
    return ops.where(marked(context.tokens, matches, scores.shape[-1]), FORBIDDEN, scores)


def _forbid_ngrams_that_are_read(scores, context, extras):
    tokens, real = is_read(context)
    matches = _followers(tokens, real, context, extras["encoder_ngram_size"])
    return ops.where(marked(tokens, matches, scores.shape[-1]), FORBIDDEN, scores)


def _followers(sequence, real, context, size):
    """Which tokens of a `sequence [R, L]` stand behind the `size - 1` tokens that were made last: `[R, L]` bool."""
    end, size = context.end, ops.minimum(size, sequence.shape[1] + 1)  # a longer one is in no sequence

    def before(x, fill):
        return ops.concatenate([ops.full_like(x[:, :1], fill), x[:, :-1]], axis=1)

    def compare(back, carry):
        matches, shifted, known = carry
        shifted, known = before(shifted, 0), before(known, False)  # what stands `back` places before each
        last = context.at(ops.reshape(end - back, (-1, *end.shape[1:])))  # [R, 1]
        before_start = end - back < context.starts[:, None]
        same = ops.logical_and(shifted == last, ops.logical_not(before_start))
        return ops.logical_and(matches, ops.logical_and(known, same)), shifted, known

    return ops.fori_loop(1, size, compare, (real, sequence, real))[0]


def _forbid_words(scores, context, extras):
    """Forbid the last token of each word whose others have just been made."""
    complete = _completed(context, extras["words"], extras["word_lengths"])
    last = ops.broadcast_to(extras["words"][None, :, -1], complete.shape)
    return ops.where(marked(last, complete, scores.shape[-1]), FORBIDDEN, scores)


def _completed(context, words, lengths):
    """Of which `words [W, S]` (right-aligned, `lengths [W]`, unused 0) all tokens but the last are there: `[R, W]`."""
    size = words.shape[1]
    slots = context.end - size + 1 + ops.arange(size - 1, dtype="int32")  # the slots of the last S - 1 tokens
    recent, known = context.at(slots), slots >= context.starts[:, None]  # [R, S - 1]
    same = ops.logical_and(recent == words[:, None, :-1], known[None])  # [W, R, S - 1]
    outside = ops.arange(size - 1, dtype="int32")[None] < size - lengths[:, None]  # [W, S - 1]
    complete = ops.all(ops.logical_or(same, outside[:, None]), axis=-1)  # [W, R]
    return ops.transpose(ops.logical_and(complete, (lengths > 0)[:, None]))


def _forbid_early_end(scores, context, extras):
    prompt = context.prompt_end - context.starts  # tokens of each row
    least = ops.maximum(context.min_new_tokens, context.min_length - prompt)  # [R]
    early = context.step < least[:, None]
    return ops.where(ops.logical_and(context.is_eos[None], early), FORBIDDEN, scores)


def _force_first(scores, context, extras):
    """After a prompt of one token, which is an encoder-decoder's start token."""
    alone = context.starts[:, None] == context.prompt_end - 1
    return _force(extras["forced_bos"], ops.logical_and(alone, context.step == 0), scores, extras)


def _force_last(scores, context, extras):
    return _force(extras["forced_eos"], context.step == context.max_new_tokens - 1, scores, extras)


def _force(tokens, when, scores, extras):
    """Only `tokens [V]`, bool, in the rows `when [B, 1]`; not where a grammar forbids them."""
    may = _may_follow(scores, extras)
    if may is not None:
        when = ops.logical_and(when, ops.any(ops.logical_and(may, tokens[None]), axis=-1, keepdims=True))
    return ops.where(when, ops.where(tokens[None], 0.0, FORBIDDEN), scores)


def _favor_end(scores, context, extras):
    """See `GenerationOptions.exponential_decay_length_penalty`."""
    late = ops.cast(ops.maximum(context.step - extras["decay_start"], 0), "float32")
    grown = ops.minimum(extras["decay_factor"] ** late, 1e20)  # not infinity: sampling would find NaN behind it
    raised = scores + ops.abs(scores) * (grown - 1)
    return ops.where(ops.logical_and(context.is_eos[None], scores > FORBIDDEN / 2), raised, scores)


def _suppress(scores, context, extras):
    return ops.where(extras["suppressed"][None], FORBIDDEN, scores)


def _suppress_first(scores, context, extras):
    """At the first step; at the second where the first is forced."""
    alone = context.starts == context.prompt_end - 1
    first = ops.cast(ops.logical_and(alone, extras["after_forced"]), "int32")[:, None]
    return ops.where(ops.logical_and(extras["suppressed_first"][None], context.step == first), FORBIDDEN, scores)


def _allow(scores, context, extras):
    may = _may_follow(scores, extras)
    return scores if may is None else ops.where(may, scores, FORBIDDEN)


def _may_follow(scores, extras):
    """What a grammar lets follow, `[B, V]` bool, of a bit for each token, 32 to a word; None where there is none."""
    allowed = extras.get("allowed")
    if allowed is None or allowed.shape[0] != scores.shape[0]:  # beams, which nothing leads
        return None
    token = ops.arange(scores.shape[-1], dtype="int32")
    word = ops.repeat(allowed, 32, axis=1)[:, : scores.shape[-1]]
    return ops.bitwise_and(ops.right_shift(word, (token % 32)[None]), 1) > 0


def _mask(tokens: Sequence[int], vocab_size: int) -> np.ndarray:
    mask = np.zeros((vocab_size,), bool)
    mask[list(tokens)] = True
    return mask


def _decay(start: int, factor: float) -> tuple[np.int32, np.float32]:
    return np.int32(start), np.float32(factor)


def _words(options: GenerationOptions, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    return _table([word for word in options.bad_words_ids if word not in [(end,) for end in options.eos_token_id]])


def _sequences(options: GenerationOptions, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table, lengths = _table([sequence for sequence, _ in options.sequence_bias])
    biases = np.zeros((len(table),), np.float32)
    biases[: len(options.sequence_bias)] = [max(bias, float(FORBIDDEN)) for _, bias in options.sequence_bias]
    return table, lengths, biases


def _table(words: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Words right-aligned `[W, S]` int32, and their lengths `[W]` int32, 0 behind the last one.

    There are few sizes, since each compiles: 16 words of up to 8 tokens, or the next powers of two.
    """
    longest = max(map(len, words), default=1)
    count, size = power_of_two(len(words), 16), power_of_two(longest, 8)
    table, lengths = np.zeros((count, size), np.int32), np.zeros((count,), np.int32)
    for i, word in enumerate(words):
        table[i, size - len(word) :], lengths[i] = word, len(word)
    return table, lengths


PROCESSORS: dict[str, Processor] = {
    "sequence_bias": Processor(
        lambda o: bool(o.sequence_bias),
        ("sequences", "sequence_lengths", "sequence_biases"),
        _sequences,
        _bias_sequences,
    ),
    "encoder_repetition_penalty": Processor(
        lambda o: o.encoder_repetition_penalty != 1,
        ("encoder_repetition_penalty",),
        lambda o, v: [np.float32(o.encoder_repetition_penalty)],
        _penalize_what_is_read,
    ),
    "repetition_penalty": Processor(
        lambda o: o.repetition_penalty != 1,
        ("repetition_penalty",),
        lambda o, v: [np.float32(o.repetition_penalty)],
        _penalize_repetition,
    ),
    "presence_penalty": Processor(
        lambda o: o.presence_penalty != 0 or o.frequency_penalty != 0,
        ("presence_penalty", "frequency_penalty"),
        lambda o, v: [np.float32(o.presence_penalty), np.float32(o.frequency_penalty)],
        _penalize_presence,
    ),
    "no_repeat_ngram_size": Processor(
        lambda o: o.no_repeat_ngram_size > 0,
        ("ngram_size",),
        lambda o, v: [np.int32(o.no_repeat_ngram_size)],
        _forbid_repeated_ngrams,
    ),
    "encoder_no_repeat_ngram_size": Processor(
        lambda o: o.encoder_no_repeat_ngram_size > 0,
        ("encoder_ngram_size",),
        lambda o, v: [np.int32(o.encoder_no_repeat_ngram_size)],
        _forbid_ngrams_that_are_read,
    ),
    "bad_words_ids": Processor(lambda o: bool(o.bad_words_ids), ("words", "word_lengths"), _words, _forbid_words),
    "min_length": Processor(lambda o: o.min_new_tokens > 0 or o.min_length > 0, (), lambda o, v: [], _forbid_early_end),
    "forced_bos_token_id": Processor(
        lambda o: o.forced_bos_token_id is not None,
        ("forced_bos",),
        lambda o, v: [_mask([] if o.forced_bos_token_id is None else [o.forced_bos_token_id], v)],
        _force_first,
    ),
    "forced_eos_token_id": Processor(
        lambda o: bool(o.forced_eos_token_id),
        ("forced_eos",),
        lambda o, v: [_mask(o.forced_eos_token_id, v)],
        _force_last,
    ),
    "exponential_decay_length_penalty": Processor(
        lambda o: o.exponential_decay_length_penalty is not None,
        ("decay_start", "decay_factor"),
        lambda o, v: _decay(*(o.exponential_decay_length_penalty or (0, 1.0))),
        _favor_end,
    ),
    "suppress_tokens": Processor(
        lambda o: bool(o.suppress_tokens),
        ("suppressed",),
        lambda o, v: [_mask(o.suppress_tokens, v)],
        _suppress,
    ),
    "begin_suppress_tokens": Processor(
        lambda o: bool(o.begin_suppress_tokens),
        ("suppressed_first", "after_forced"),
        lambda o, v: [_mask(o.begin_suppress_tokens, v), np.bool_(o.forced_bos_token_id is not None)],
        _suppress_first,
    ),
    "allowed": Processor(lambda o: o.constrained, (), lambda o, v: [], _allow),
}
