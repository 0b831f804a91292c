"""What each executable computes, and what state it works on."""

import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.backend.signature import symbolic
from keras_xla.engine.checked_decoder import CheckedDecoder
from keras_xla.engine.kept import what_is_computed
from keras_xla.engine.keys import (
    AdvanceKey,
    ContinuousKey,
    EncodeKey,
    LogitsKey,
    LogprobKey,
    PrefillKey,
    PrefillWholeKey,
    RememberKey,
    SpeculateKey,
    StateKey,
)
from keras_xla.engine.padding import chunk_size
from keras_xla.engine.search import continuous, decode, processors, speculate
from keras_xla.engine.search.assistant import Assistant, Draft
from keras_xla.engine.search.beam_cache import is_chunked, kind_of_cache, rows_of_cache
from keras_xla.engine.search.beam_search import BeamSearch
from keras_xla.engine.search.guidance import GuidedDecoder
from keras_xla.engine.search.prompt_lookup import PromptLookup
from keras_xla.engine.search.request import Request
from keras_xla.engine.search.sampling import Sampling
from keras_xla.models.interface import ChunkDecoder, Decoder, EncoderDecoder, View

_STORED_AS = {"bfloat16": "float16"}  # as many bytes, for NumPy
_SEARCHED = ("tokens", "chosen", "parents", "search", "table")  # of a state, beside what the model needs


class Programs:
    """The functions of one model that are compiled, and the states that they change.

    Args:
        model: A `Decoder` or an `EncoderDecoder`.
        logits_processors: The logits processors there are, by name.
        processed_scores: Whether scores are of the processed distribution, before the temperature.

    Attributes:
        has_encoder: Whether the model is an `EncoderDecoder`.
        chunked: Whether it runs prompts in chunks, over a cache that may grow.
        processors: The logits processors there are, by name.
        vocab_size: Of the model.
        words: Of 32 tokens each, that the vocabulary has.
        tracing: A lock for whoever runs the model's Python: it need not be safe to call from several threads.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        logits_processors: Mapping[str, processors.Processor],
        processed_scores: bool,
    ):
        self._model: Any = model  # what it can do, `has_encoder` and `chunked` tell
        self.processors, self._processed_scores = logits_processors, processed_scores
        self.vocab_size, self.words = model.vocab_size, -(-model.vocab_size // 32)
        self.has_encoder = hasattr(model, "encode")
        self.chunked = self.has_encoder or is_chunked(model)
        whole: Any = model
        self._checked: Any = whole if self.chunked else CheckedDecoder(whole)
        self._memory_specs: dict[tuple[int, int], Any] = {}
        self._specs: dict[StateKey, dict[str, Any]] = {}
        self._assistants: list[ChunkDecoder] = []
        self._lock, self.tracing = threading.Lock(), threading.Lock()

    def function(self, key: Any) -> tuple[Callable, tuple[str, ...] | None]:
        """The function of a key, and the parts of a state that it works on; see `Executables`."""
        model = ("memory", "cache") if self.has_encoder else ("cache",)
        if isinstance(key, EncodeKey):
            return (lambda features: self._model.encode(features, None)), None
        if isinstance(key, RememberKey):
            return (lambda values, *inputs: ({"memory": self._memory(*inputs)}, ())), ("memory",)
        if isinstance(key, LogprobKey):
            return functools.partial(self._logprobs, key), model
        if isinstance(key, PrefillKey):
            return functools.partial(self._prefill_chunk, key), model
        if isinstance(key, LogitsKey):
            return self._next_logits, model
        if isinstance(key, ContinuousKey):
            return functools.partial(self._advance_continuously, key), (*model, *_SEARCHED)
        if isinstance(key, SpeculateKey):
            return functools.partial(self._speculate, key), (*model, *_SEARCHED, "draft")
        advance = self._prefill_whole if isinstance(key, PrefillWholeKey) else self._advance
        return functools.partial(advance, key), (*model, *_SEARCHED)

    def computes(self) -> str | None:
        """What the functions compute, see `kept.what_is_computed`."""
        return what_is_computed(self._model, self.processors, self._processed_scores)

    def number_of(self, assistant: Any) -> int:
        """A number for an assisting `ChunkDecoder`, from 1 on: the same for the same one, kept from then on."""
        with self._lock:
            for number, each in enumerate(self._assistants, 1):
                if each is assistant:
                    return number
            self._assistants.append(assistant)
            return len(self._assistants)

    def more_variables(self, key: Any) -> list:
        """What a key's function reads beside the model's variables."""
        number = getattr(key, "assistant", 0)
        return list(self._assistants[number - 1].variables) if number else []

    def remember_specs(self, key: StateKey, sources: list) -> None:
        """Note the shapes of what the decoder keeps of `sources`, the inputs of a `RememberKey`."""
        with self.tracing:
            if (key.batch, key.source) in self._memory_specs:
                return
            specs = [symbolic(source) for source in sources]
            self._memory_specs[key.batch, key.source] = backend.output_spec(self._memory, *specs)

    def new_state(self, key: StateKey) -> backend.DeviceState:
        """A state of zeros."""
        return backend.DeviceState(self._state_specs(key))

    def state_bytes(self, key: StateKey) -> int:
        """Of all that a state holds."""
        return _bytes_of(self._state_specs(key))

    def _state_specs(self, key: StateKey) -> dict[str, Any]:
        with self.tracing:
            if key not in self._specs:
                self._specs[key] = self._new_specs(key)
            return self._specs[key]

    def _new_specs(self, key: StateKey) -> dict[str, Any]:
        model = self._model
        specs: dict[str, Any] = {}
        row = keras.KerasTensor((key.batch,), "int32")
        if key.source:
            specs["memory"] = memory = self._memory_specs[key.batch, key.source]
            specs["cache"] = backend.output_spec(lambda m: _empty_cache(model.with_memory(m), key), memory)
        elif self.chunked:
            specs["cache"] = backend.output_spec(lambda row: _empty_cache(model, key), row)
        else:
            ids = keras.KerasTensor((key.batch, 1), "int32")
            specs["cache"] = backend.output_spec(
                lambda ids, starts: _once_a_beam(self._checked.prefill(ids, starts, key.cache)[1], key), ids, row
            )
        table = kind_of_cache(self.chunked, key.beams)
        sizes, beams = (key.batch, key.cache, key.beams), keras.KerasTensor((key.batch, key.beams), "int32")
        specs |= {
            "tokens": keras.KerasTensor((key.batch, key.cache), "int32"),
            "chosen": beams,
            "parents": beams,
            "search": Sampling.specs(*sizes) if key.beams == 1 else BeamSearch.specs(*sizes, self._processed_scores),
            "table": table.specs(*sizes),
            "draft": (),
        }
        if key.assistant:
            assistant = self._assistants[key.assistant - 1]
            cache = backend.output_spec(lambda row: assistant.empty_cache(key.batch, key.cache), row)
            specs["draft"] = Draft.specs(cache, key.batch)
        return specs

    @functools.cached_property
    def slot_axes(self) -> list[int | None]:
        """Which axis of each array of a cache counts the slots, None for none; where prompts run in chunks."""
        both = [zip(a.shape, b.shape, strict=True) for a, b in zip(self._row_cache(2), self._row_cache(3), strict=True)]
        return [next((axis for axis, (n, m) in enumerate(shape) if n != m), None) for shape in both]

    @functools.cached_property
    def slot_bytes(self) -> int:
        """Of a row's cache for each slot; where prompts run in chunks."""
        return _bytes_of(self._row_cache(1))

    def _row_cache(self, slots: int) -> list:
        row = keras.KerasTensor((1,), "int32")
        with self.tracing:
            return keras.tree.flatten(backend.output_spec(lambda row: self._model.empty_cache(1, slots), row))

    def _memory(self, source, mask=None):
        """What the decoder needs of ids `[B, M]` int32 with a mask, or of hidden states `[B, M, E]` without one."""
        hidden = source if mask is None else self._model.encode(source, mask)
        return self._model.remember(hidden, mask)

    def _prefill_chunk(self, key: PrefillKey, values, ids, starts, slot):
        cache = decode.prefill(self._decoder(values), values["cache"], ids, starts, slot, key.cache)
        return {**values, "cache": cache}, ()

    def _logprobs(self, key: LogprobKey, values, ids, targets, slot, starts):
        view = View.causal(slot, key.chunk, key.cache, starts)
        logits, cache = self._decoder(values).extend(ids, slot, view, values["cache"])  # [B, C, V]
        whole = ops.logsumexp(logits, axis=-1)
        chosen = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - whole
        values = {**values, "cache": cache}
        if not key.top:
            return values, (chosen,)
        likely, tokens = ops.top_k(logits, key.top)
        return values, (chosen, ops.cast(tokens, "int32"), likely - whole[..., None])

    def _next_logits(self, values, tokens, slot, starts):
        logits, cache = self._decoder(values).step(tokens, slot, starts, values["cache"])
        return {**values, "cache": cache}, logits

    def _prefill_whole(self, key: AdvanceKey, values, request: Request, ids):
        request = request.unpacked()
        scores, cache = self._checked.prefill(ids, request.starts, key.cache)
        search = self._search(key, request)
        begun = decode.begin(scores, values["tokens"], search)
        return {**values, **begun, "cache": _once_a_beam(cache, key)}, search.progress(begun["search"])

    def _advance(self, key: AdvanceKey, values, request: Request, limits):
        """Limits `[2]` int32: how many tokens there are, and how many more to make."""
        request = request.unpacked()
        search = self._search(key, request)
        return decode.advance(self._led(key, values, request), values, request, search, limits[0], limits[1])

    def _advance_continuously(self, key: ContinuousKey, values, request: Request, limits):
        """Limits `[3]` int32: see `continuous.advance`."""
        request = request.unpacked()
        search: Any = self._search(key, request)  # a `Sampling`, as always without beams
        return continuous.advance(self._decoder(values), values, request, search, *ops.unstack(limits))

    def _speculate(self, key: SpeculateKey, values, request: Request, limits, budget):
        """See `speculate.advance`.

        Limits `[5 + B]` int32: step, count, unmixed, tried, `Assistant.unread`, and which rows are stopped.
        """
        request = request.unpacked()
        search: Any = self._search(key, request)  # a `Sampling`, as always without beams
        guesser: speculate.Guesser = PromptLookup(request, key.guesses)
        if key.assistant:
            model, sizes = self._assistants[key.assistant - 1], (key.cache, chunk_size(key.cache), key.guesses)
            asked = request.starts, request.prompt_end, search, self._model.vocab_size
            guesser = Assistant(model, *asked, *sizes, unread=limits[4] > 0)
        step, count, unmixed, tried = ops.unstack(limits[:4])
        budgeted = dict(tried=tried, stopped=limits[5:] > 0, budget=budget)
        decoder = self._led(key, values, request)
        return speculate.advance(decoder, values, request, search, guesser, step, count, unmixed, **budgeted)

    def _search(self, key: AdvanceKey, request: Request) -> decode.Search:
        is_eos = processors.eos_mask(request.eos, self._model.vocab_size)
        starts = ops.repeat(request.starts, key.beams, axis=0)
        most = ops.repeat(request.max_new_tokens, key.beams, axis=0)[:, None]
        limits = most, request.min_new_tokens, request.min_length
        source = request.extras.get("source")
        source = None if source is None else ops.repeat(source, key.beams, axis=0)

        def process(scores, tokens, step):
            context = processors.Context(tokens, starts, request.prompt_end, step, is_eos, *limits, source)
            return processors.process(scores, context, request.active, request.extras, self.processors)

        if key.beams == 1:
            return Sampling(request, is_eos, process, self._processed_scores)
        return BeamSearch(request, is_eos, process, key.beams, self._processed_scores)

    def _led(self, key: AdvanceKey, values, request: Request) -> Any:
        decoder = self._decoder(values)
        return GuidedDecoder(decoder, request) if key.guided else decoder

    def _decoder(self, values) -> Any:
        return self._model.with_memory(values["memory"]) if self.has_encoder else self._checked


def _bytes_of(specs: Any) -> int:
    leaves = [x for x in keras.tree.flatten(specs) if x is not None]
    return sum(math.prod(x.shape) * np.dtype(_STORED_AS.get(x.dtype, x.dtype)).itemsize for x in leaves)


def _empty_cache(model, key: StateKey):
    return model.empty_cache(key.rows, key.cache)


def _once_a_beam(cache, key: StateKey | AdvanceKey):
    """A prompt's cache once for each beam, where they cannot share it."""
    if key.beams == 1:
        return cache
    return rows_of_cache(cache, key.batch, ops.repeat(ops.arange(key.batch, dtype="int32"), key.beams))
