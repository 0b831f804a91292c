"""Log-probabilities of tokens that are given, not made."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Part
from keras_xla.engine.call import Call
from keras_xla.engine.checks import check
from keras_xla.engine.generator import Generator
from keras_xla.engine.keys import LogprobKey, StateKey
from keras_xla.engine.padding import Rows, chunk_size, chunks, pad_left
from keras_xla.engine.warmup import FirstCall

# B batch, C chunk, L length of the rows, N likeliest tokens, V vocabulary

MOST_LOGITS = 2**24  # of a chunk at most: 64 MB in float32
SHORT_ANSWER = 8  # tokens that are worth a chunk size of their own
MOST_TOP = 20  # likeliest tokens


@dataclass(frozen=True)
class Logprobs:
    """The log-probabilities of the tokens of one text, completion or answer.

    n tokens; N is `top_logprobs` of the call, 0 by default.

    Attributes:
        tokens: `(n,)` int32, the ids of the tokens.
        logprobs: `(n,)` float32, the natural logarithm of the probability of each token behind all that stand before.
        top_tokens: `(n, N)` int32, the likeliest tokens at each place, likeliest first.
        top_logprobs: `(n, N)` float32, their log-probabilities.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    top_tokens: np.ndarray
    top_logprobs: np.ndarray

    @classmethod
    def none(cls, top: int) -> "Logprobs":
        """Those of no tokens, with arrays for `top` likeliest ones at each place."""
        ids, numbers = np.zeros((0, top), np.int32), np.zeros((0, top), np.float32)
        return cls(ids[:, :0].reshape(-1), numbers[:, :0].reshape(-1), ids, numbers)


@dataclass(frozen=True)
class _Laid:
    """Rows that run together.

    Attributes:
        ids: `[B, L]` int32, padded.
        starts: `[B]` int32, where each row begins.
        key: Of the state that they need.
        sources: What `PromptRunner.sources` returned.
        begin: The last slot that only stands before.
        name: Of the executable.
    """

    ids: np.ndarray
    starts: np.ndarray
    key: StateKey
    sources: list
    begin: int
    name: LogprobKey


class Scorer:
    """Runs rows through a generator's model.

    Args:
        generator: Whose model runs prompts in chunks.
    """

    def __init__(self, generator: Generator):
        self._generator = generator

    def check(self) -> None:
        """Raise ValueError for a model that cannot be asked."""
        if not self._generator.chunked:
            raise ValueError(
                "Received a model with a cache of its own, which tells the logits of the last token only; expected a "
                "model of keras_xla's for log-probabilities."
            )

    def __call__(
        self,
        rows: Rows,
        first: Sequence[int],
        reads: Rows | None = None,
        top: int = 0,
        numbers: Sequence[int] | None = None,
        room_for: int = 0,
    ) -> list[Logprobs]:
        """Of the tokens of each row from its `first` on.

        Args:
            rows: 1-D int32 arrays.
            first: Of each row, how many tokens only stand before; at least 1.
            reads: What an encoder-decoder reads for each row.
            top: N, at most 20.
            numbers: By which errors call the rows; from 0 on by default.
            room_for: Rows of the whole call, of which some may have been left out; see `batches.split`.

        Raises:
            ValueError: for ids outside of the vocabulary, rows that are too long, and models without chunks; before
                anything compiles.
        """
        made: list[Logprobs | Any] = [None] * len(rows)  # `Any`: None until its part has run
        for part in self._parts(rows, reads, room_for):
            for i, each in zip(part.prompts, self._part(part, rows, first, reads, top), strict=True):
                made[i] = each
        numbers = range(len(rows)) if numbers is None else numbers
        bad = [number for number, each in zip(numbers, made, strict=True) if np.isnan(each.logprobs).any()]
        if bad:
            raise ValueError(
                f"The model's logits are NaN for rows {sorted(set(bad))}; its weights hold NaN or infinity, or its "
                "dtype overflows. Check the weights."
            )
        return made

    def first_calls(
        self, rows: Rows, first: Sequence[int], reads: Rows | None = None, top: int = 0
    ) -> Iterator[FirstCall]:
        """Of what such rows need, and those that end sooner; arguments and errors as for a call."""
        asked = GenerationOptions(max_new_tokens=max(len(row) - n for row, n in zip(rows, first, strict=True)))
        sizes = [fewer.most_new_tokens for fewer in self._generator.limits.with_fewer_tokens(max(first), asked)]
        for new in sizes:
            cut = [row[: n + new] for row, n in zip(rows, first, strict=True)]
            parts = self._parts(cut, reads)
            if reads is None:
                lengths = self._generator.limits.cache.below(max(first), new)
            else:
                lengths = self._generator.prompt_runner.source_buckets.below(max(map(len, reads)))
            for part in parts:
                yield from self._first_calls_of(self._lay_out(part, cut, first, reads, top))
                # A part of short rows takes smaller buckets.
                for most in lengths if len(parts) > 1 else ():
                    few = [most if reads is None else n for n in first]
                    short = [row[n - m :] for row, n, m in zip(cut, first, few, strict=True)]
                    read = None if reads is None else [each[:most] for each in reads]
                    yield from self._first_calls_of(self._lay_out(part, short, few, read, top))

    def _first_calls_of(self, laid: _Laid) -> Iterator[FirstCall]:
        runner, executables = self._generator.prompt_runner, self._generator.executables
        if laid.sources:
            yield runner.first_remember(laid.key, laid.sources)
        for name in self._names(laid):
            key = dataclasses.replace(laid.key, cache=name.cache)
            if laid.begin:
                yield runner.first_prefill(key)
            run = functools.partial(self._run_nothing, dataclasses.replace(laid, name=name))
            yield FirstCall(executables, name, run, (key,))

    def _names(self, laid: _Laid) -> list[LogprobKey]:
        """Of the executables of rows that end anywhere behind their beginnings, the smallest first."""
        made = []
        for cache in self._generator.limits.cache.between(laid.begin + 2, laid.key.cache):
            most = min(self._chunk(laid.key.batch, cache), laid.name.chunk)
            sizes = sorted({min(most, SHORT_ANSWER), most})
            made += [dataclasses.replace(laid.name, cache=cache, chunk=chunk) for chunk in sizes]
        return made

    def _chunk(self, batch: int, cache: int) -> int:
        """How many tokens' logits are made at once."""
        room = max(MOST_LOGITS // (batch * self._generator.model.vocab_size), 1)
        return min(1 << (room.bit_length() - 1), chunk_size(cache))

    def _run_nothing(self, laid: _Laid, state) -> None:
        ids = np.zeros((laid.name.batch, laid.name.chunk), np.int32)
        arguments = map(backend.to_device, (ids, ids, np.int32(0), laid.starts))
        self._generator.executables(laid.name, state, *arguments)

    def _parts(self, rows: Rows, reads: Rows | None, room_for: int = 0) -> list[Part]:
        """Which rows run together; raises what `__call__` does before anything compiles."""
        self.check()
        generator, options = self._generator, GenerationOptions(max_new_tokens=1)
        runs = [row[:-1] if len(row) > 1 else row for row in rows]  # nothing is asked behind a last token
        check(generator.model, runs, options, reads)
        check(generator.model, [row[-1:] for row in rows], options)
        generator.limits.cache.fit(max(map(len, rows)))
        return generator.parts(Call(runs if reads is None else reads, options, room_for=room_for))

    def _lay_out(self, part: Part, rows: Rows, first: Sequence[int], reads: Rows | None, top: int) -> _Laid:
        generator, runner = self._generator, self._generator.prompt_runner
        reads = None if reads is None else part.of(reads)
        vocab, batch = generator.model.vocab_size, generator.limits.batch.fit(part.room)
        ids, starts = pad_left(part.of(rows), batch, 0)
        length = ids.shape[1]
        key = StateKey(batch, generator.limits.cache.fit(length), 1, runner.source_length(reads, None))
        begin = max(int(min(start + n for start, n in zip(starts, part.of(first), strict=False))) - 1, 0)
        chunk = self._chunk(batch, key.cache)
        if length - 1 - begin <= SHORT_ANSWER:  # short answers to long prompts
            chunk = min(chunk, SHORT_ANSWER)
        name = LogprobKey(batch, key.cache, chunk, key.source, min(MOST_TOP, vocab) if top else 0)
        return _Laid(ids, starts, key, runner.sources(reads, None, 1, batch), begin, name)

    def _part(self, part: Part, rows: Rows, first: Sequence[int], reads: Rows | None, top: int) -> list[Logprobs]:
        generator, runner = self._generator, self._generator.prompt_runner
        runner.refresh()
        weights = generator.executables.read_weights()
        laid = self._lay_out(part, rows, first, reads, top)
        ids, starts, begin, chunk = laid.ids, laid.starts, laid.begin, laid.name.chunk
        batch, length = ids.shape
        key, state, _ = runner.state(laid.key, laid.sources, ids, starts, None, weights)
        runner.prefill(key, state, ids[:, : begin + 1], starts, weights=weights)
        logprobs = np.zeros((batch, length), np.float32)
        tokens, likely = np.zeros((batch, length, top), np.int32), np.zeros((batch, length, top), np.float32)
        device_starts = backend.to_device(starts)
        for inputs, slot in chunks(ids[:, :-1], chunk, key.cache, begin):
            targets = ids[:, slot + 1 : slot + 1 + chunk]
            behind = targets.shape[1]
            targets = np.pad(targets, ((0, 0), (0, chunk - behind)))
            arguments = map(backend.to_device, (inputs, targets, slot))
            made = generator.executables(laid.name, state, *arguments, device_starts, weights=weights)
            made = [ops.convert_to_numpy(x)[:, :behind] for x in made]
            at = slice(slot + 1, slot + 1 + behind)
            logprobs[:, at] = made[0]
            if top:
                tokens[:, at], likely[:, at] = made[1][..., :top], made[2][..., :top]
        if not np.isnan(logprobs).any():  # else it would reach rows of others
            generator.pool.give(key, state)
        each = []
        for i, (row, n) in enumerate(zip(part.of(rows), part.of(first), strict=True)):
            at = slice(starts[i] + n, None)
            each.append(Logprobs(row[n:], logprobs[i, at], tokens[i, at], likely[i, at]))
        return each
