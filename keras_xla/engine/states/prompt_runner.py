"""Prompts, and what an encoder reads, on their way into a state on the device."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.backend import DeviceState
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.checks import check
from keras_xla.engine.executables import Executables
from keras_xla.engine.keys import EncodeKey, LogitsKey, PrefillKey, RememberKey, StateKey
from keras_xla.engine.padding import Rows, chunk_size, chunks, pad_left, pad_source
from keras_xla.engine.programs import Programs
from keras_xla.engine.states.prompt_cache import PrefixMatch, PromptCache, SavedPrompt
from keras_xla.engine.states.state_pool import StatePool
from keras_xla.engine.warmup import FirstCall
from keras_xla.models.interface import Decoder, EncoderDecoder

# B batch, L length of the prompts, M length of what an encoder reads


class PromptRunner:
    """Runs the prompts of one model.

    Args:
        model: A `Decoder` or an `EncoderDecoder`.
        programs: What is compiled for it.
        executables: Of these programs.
        pool: Of states.
        batch: Buckets of the batch size.
        cache: Buckets of the cache.
        source: Buckets of the length of what an encoder-decoder reads.
        refresh: Called before each run: gives the model the weights that count now.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        programs: Programs,
        executables: Executables,
        pool: StatePool,
        batch: Buckets,
        cache: Buckets,
        source: Buckets | None,
        refresh: Callable[[], None],
    ):
        self._model: Any = model  # an `EncoderDecoder` has more
        self._programs, self._executables, self._pool = programs, executables, pool
        self._batch, self._cache, self.refresh = batch, cache, refresh
        self.source_buckets: Buckets | Any = source  # `Any`: None without an encoder

    def encode(self, features: np.ndarray) -> Any:
        """An encoder's hidden states `(batch bucket, length, hidden)` of speech `features (rows, mel, frames)`."""
        batch = self._batch.fit(len(features))
        filled = np.zeros((batch, *features.shape[1:]), np.float32)
        filled[: len(features)] = features
        self.refresh()
        return self._executables(EncodeKey(batch, features.shape[1:]), backend.to_device(filled))

    def first_encoding(self, shape: tuple[int, ...]) -> FirstCall:
        """Of what `encode` needs for features of this shape."""
        key = EncodeKey(self._batch.fit(shape[0]), shape[1:])
        return FirstCall(self._executables, key, lambda: self.encode(np.zeros(shape, np.float32)))

    def blank_encoding(self, shape: tuple[int, ...]) -> Any:
        """Zeros of the shape and dtype of what `encode` returns for features of this shape."""
        features = keras.KerasTensor((self._batch.fit(shape[0]), *shape[1:]), "float32")
        spec = backend.output_spec(lambda x: self._model.encode(x, None), features)
        return ops.zeros(spec.shape, spec.dtype)

    def logits(self, prompts: Rows, hidden: Any) -> np.ndarray:
        """Logits `(rows, vocab_size)` of the token after each decoder prompt; `hidden` is what `encode` returned.

        Raises:
            ValueError: for prompts that the model cannot run; before anything compiles.
        """
        ids, starts, key = self._checked(prompts, hidden)
        self.refresh()
        weights = self._executables.read_weights()
        key, state, _ = self.state(key, [hidden], ids, starts, None, weights)
        self.prefill(key, state, ids, starts, weights=weights)
        logits = ops.convert_to_numpy(self._next_logits(key, ids, starts, weights, state))[: len(prompts)]
        if not np.isnan(logits).any():
            self._pool.give(key, state)
        return logits

    def first_logits(self, prompts: Rows, hidden: Any) -> Iterator[FirstCall]:
        """Of what `logits` needs; errors as it raises them."""
        ids, starts, key = self._checked(prompts, hidden)
        yield self.first_remember(key, [hidden])
        if ids.shape[1] > 1:
            yield self.first_prefill(key)
        run = functools.partial(self._next_logits, key, ids, starts, None)
        yield FirstCall(self._executables, _logits_key(key), run, (key,))

    def _checked(self, prompts: Rows, hidden: Any) -> tuple[np.ndarray, np.ndarray, StateKey]:
        """The prompts `[B, L]`, padded, where each begins `[B]`, and the key of a state for them."""
        check(self._model, [prompt for prompt in prompts if len(prompt)], GenerationOptions(max_new_tokens=1))
        ids, starts = pad_left(prompts, hidden.shape[0], 0)
        return ids, starts, StateKey(hidden.shape[0], self._cache.fit(ids.shape[1] + 1), 1, hidden.shape[1])

    def _next_logits(self, key: StateKey, ids: np.ndarray, starts: np.ndarray, weights: list | None, state) -> Any:
        inputs = map(backend.to_device, (ids[:, -1], np.int32(ids.shape[1] - 1), starts))
        return self._executables(_logits_key(key), state, *inputs, weights=weights)

    def source_length(self, reads: Rows | None, hidden: Any) -> int:
        """What is read is padded to: ids, or what `encode` returned; 0 without an encoder."""
        if not self._programs.has_encoder:
            return 0
        if hidden is not None:
            return hidden.shape[1]
        rows: Any = reads  # given where `hidden` is not
        length, limit = self.source_buckets.fit(max(map(len, rows))), self._model.max_source
        return length if limit is None else min(length, limit)

    def sources(self, reads: Rows | None, hidden: Any, copies: int, batch: int) -> list:
        """What `state` takes: ids and their mask `[B, M]`, or hidden states; nothing without an encoder."""
        if not self._programs.has_encoder:
            return []
        if reads is None:
            return [_repeat(hidden, copies, batch)]
        reads = [row for row in reads for _ in range(copies)]
        return list(pad_source(reads, batch, self.source_length(reads, None)))

    def state(
        self,
        key: StateKey,
        sources: list,
        ids: np.ndarray,
        starts: np.ndarray,
        reuse: PromptCache | SavedPrompt | None,
        weights: list,
    ) -> tuple[StateKey, DeviceState, int]:
        """A state with what the decoder needs of its source in it.

        Returns:
            Its key, the state, and how many slots of its cache hold the prompts already.
        """
        begun = None if reuse is None else reuse.take(key, chunk_size(key.cache), ids, starts)
        if begun is not None:
            return self._begun(key, begun)
        sources = [backend.to_device(x) for x in sources]
        if sources:
            self._programs.remember_specs(key, sources)
        state = self._pool.take(key)
        if sources:
            self._remember(key, sources, weights, state)
        return key, state, 0

    def first_remember(self, key: StateKey, sources: list) -> FirstCall:
        """Of what puts into a state what the decoder needs of its source."""
        sources = [backend.to_device(x) for x in sources]
        self._programs.remember_specs(key, sources)
        run = functools.partial(self._remember, key, sources, None)
        return FirstCall(self._executables, _remember_key(key, sources), run, (key,))

    def _remember(self, key: StateKey, sources: list, weights: list | None, state) -> None:
        self._executables(_remember_key(key, sources), state, *sources, weights=weights)

    def _begun(self, key: StateKey, begun: PrefixMatch) -> tuple[StateKey, DeviceState, int]:
        """A state with the beginnings of the prompts in it, and the room that `key` has."""
        kept = begun.kept
        # A larger cache would need executables that nobody warmed up for prompts of this length.
        same = kept.key.cache == key.cache and kept.key.assistant == key.assistant
        if begun.free and begun.still and same:
            return kept.key, kept.state, begun.slots
        state = self._pool.take(key)
        state.copy_rows("cache", kept.state, self._programs.slot_axes, begun.rows, begun.shifts, kept.key.batch)
        if begun.free:
            self._pool.give(kept.key, kept.state)
        return key, state, begun.slots

    def prefill(
        self,
        key: StateKey,
        state,
        ids: np.ndarray,
        starts: np.ndarray,
        known: int = 0,
        weights: list | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Run prompts `ids [B, L]` from the slot `known` on, but for their last tokens, which `advance` runs.

        What `check` raises before a chunk ends it.
        """
        name = _prefill_key(key)
        starts = backend.to_device(starts)
        for chunk, slot in chunks(ids[:, :-1], name.chunk, key.cache, known):
            check()
            inputs = backend.to_device(chunk), starts, backend.to_device(slot)
            self._executables(name, state, *inputs, weights=weights)

    def first_prefill(self, key: StateKey) -> FirstCall:
        """Of what runs a chunk of prompts."""
        ids, starts = np.zeros((key.rows, 2), np.int32), np.zeros((key.rows,), np.int32)
        run = functools.partial(self.prefill, key, ids=ids, starts=starts)
        return FirstCall(self._executables, _prefill_key(key), run, (key,))


def _remember_key(key: StateKey, sources: list) -> RememberKey:
    return RememberKey(key.batch, key.source, encoded=len(sources) == 1)


def _prefill_key(key: StateKey) -> PrefillKey:
    return PrefillKey(key.rows, key.cache, chunk_size(key.cache), key.source)


def _logits_key(key: StateKey) -> LogitsKey:
    return LogitsKey(key.batch, key.cache, key.source)


def _repeat(hidden, copies: int, batch: int):
    """Each row of `hidden` `copies` times, `batch` rows in all."""
    if copies == 1 and hidden.shape[0] == batch:
        return hidden
    rows = np.minimum(np.arange(batch) // copies, hidden.shape[0] - 1)
    return ops.take(hidden, rows.astype("int32"), axis=0)
