"""From ragged rows of ids to completions: checks, buckets, the right executable, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine import processors as logits
from keras_xla.engine.beam_search import BeamSearch
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.checks import check
from keras_xla.engine.compiled import EncodeKey, Executables, Key, ScoreKey
from keras_xla.engine.decode import decode
from keras_xla.engine.single import Single
from keras_xla.engine.state import Request, Result, make_request, pad_source
from keras_xla.models.interface import Decoder, EncoderDecoder
from keras_xla.models.sources.live import refresh

Rows = Sequence[np.ndarray]


class Generator:
    """Runs the decode loop of one model, padded to buckets.

    Args:
        model: A `Decoder` or an `EncoderDecoder`.
        batch: Buckets of the batch size.
        prompt: Buckets of the prompt length; of the source length for an encoder-decoder.
        new_tokens: Buckets of `max_new_tokens`.
        on_recompile: `"log"` or `"raise"`, see `Executables`.
        name: For the compile log.
        processors: The logits processors there are, by name.
        processed_scores: Whether scores are of the processed distribution (before the temperature) rather than the
            model's own; a beam's always is.
        decoder_prompt: Buckets of the length of an encoder-decoder's prompts; powers of two by default.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        batch: Buckets,
        prompt: Buckets,
        new_tokens: Buckets,
        on_recompile: str = "log",
        name: str = "generate",
        processors: Mapping[str, logits.Processor] = logits.PROCESSORS,
        processed_scores: bool = False,
        decoder_prompt: Buckets | None = None,
    ):
        self.model, self.processors, self._processed_scores = model, dict(processors), processed_scores
        self.has_encoder = hasattr(model, "condition")
        self._batch, self._new_tokens = batch, new_tokens
        self._source = prompt
        self._prompt = (decoder_prompt or Buckets("decoder prompt", None, 2)) if self.has_encoder else prompt
        self.executables = Executables(name, self._build, model.variables, on_recompile)

    def __call__(
        self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None, hidden: Any = None
    ) -> dict[str, np.ndarray]:
        """Complete each row.

        Args:
            rows: 1-D int32 arrays, no padding: prompts, or what an encoder-decoder reads.
            options: What to generate.
            prompts: What an encoder-decoder's completions begin with; `options.decoder_start_token_id` by default.
            hidden: Instead of `rows`, what `encode` returned; a row with an empty prompt then is idle.

        Returns:
            `sequences (rows * num_return_sequences, max_new_tokens)` int32, new tokens only,
            right-padded; `lengths` int32, tokens made, an end-of-sequence token included; `scores`
            float32: the sum of their log-probabilities under the model, or a beam's score.

        Raises:
            ValueError: for what `checks.check` refuses; before anything compiles. Also if the model's
                logits are NaN.
        """
        key, request, count = self._arrange(rows, options, prompts, hidden)
        result: Result = self._run(key, request)
        result = Result(*(ops.convert_to_numpy(x)[:count] for x in result))
        bad = np.isnan(result.scores[:, 0]) | (result.scores[:, 0] < -1e8)
        bad &= request.starts[:count] < key.prompt  # idle rows find nothing
        if bad.any():
            raise ValueError(
                f"The model's logits are NaN for rows {np.flatnonzero(bad).tolist()}; "
                "its weights hold NaN or infinity, or its dtype overflows. Check the weights."
            )
        wanted = options.num_return_sequences if key.num_beams > 1 else 1
        sequences, lengths, scores = (x[:, :wanted].reshape(count * wanted, *x.shape[2:]) for x in result)
        return {"sequences": sequences[:, : options.max_new_tokens], "lengths": lengths, "scores": scores}

    def warmup(self, batch: int, prompt: int, options: GenerationOptions) -> bool:
        """Compile for the buckets of this size, if need be; returns whether it was."""
        before = self.executables.trace_count
        key, request, _ = self._arrange([np.zeros((prompt,), np.int32)] * batch, options)
        # One token is enough to run it once.
        request = request._replace(max_new_tokens=np.int32(1))
        self._run(key, request)
        return self.executables.trace_count > before

    def encode(self, features: np.ndarray) -> Any:
        """An encoder's hidden states `(batch bucket, length, hidden)` of speech `features (rows, mel, frames)`."""
        batch = self._batch.fit(len(features))
        padded = np.zeros((batch, *features.shape[1:]), np.float32)
        padded[: len(features)] = features
        return self._run(EncodeKey(batch, features.shape[1:]), padded)

    def score(self, prompts: Rows, hidden: Any) -> np.ndarray:
        """Logits `(rows, vocab_size)` of the token after each decoder prompt; nothing is generated."""
        check(self.model, [prompt for prompt in prompts if len(prompt)], GenerationOptions(max_new_tokens=1))
        key = ScoreKey(hidden.shape[0], self._prompt.fit(max(map(len, prompts))), hidden.shape[1])
        padded = make_request(prompts, key.batch, key.prompt, 1, GenerationOptions(), {}, {})
        return ops.convert_to_numpy(self._run(key, (padded.ids, padded.starts, hidden)))[: len(prompts)]

    def _run(self, key, tensors) -> Any:
        """Run the executable of `key`, with the weights of a live model as they are now."""
        refresh(self.model)
        return self.executables(key, *map(ops.convert_to_tensor, keras.tree.flatten(tensors)))

    def _arrange(self, rows, options, prompts=None, hidden=None) -> tuple[Key, Request, int]:
        """The bucket of a request, the request padded to it, and how many of its rows are real."""
        # Sampling without beams, copies of a row are rows; a beam search finds them by itself.
        copies = options.num_return_sequences if options.num_beams == 1 else 1
        source, length = {}, 0
        if not self.has_encoder:
            prompts, reads = rows, None
        else:
            prompts, reads = self._decoder_prompts(rows, options, prompts), (rows if hidden is None else None)
        busy = prompts if hidden is None else [prompt for prompt in prompts if len(prompt)]
        check(self.model, busy, options, reads)
        prompts = [row for row in prompts for _ in range(copies)]
        batch = self._batch.fit(len(prompts))
        if hidden is not None:
            source, length = {"hidden": _repeat(hidden, copies, batch)}, hidden.shape[1]
        elif reads is not None:
            reads = [row for row in reads for _ in range(copies)]
            length = self._source.fit(max(map(len, reads)))
            limit = self.model.max_source
            length = length if limit is None else min(length, limit)
            source = pad_source(reads, batch, length)
        names = [n for n, p in self.processors.items() if n != "min_length" and p.wanted(options)]
        extras = {}
        for name in names:
            values = self.processors[name].tensors(options, self.model.vocab_size)
            extras |= dict(zip(self.processors[name].names, values, strict=True))
        eos = len(options.eos_token_id) or 1
        key = Key(
            batch=batch,
            prompt=self._prompt.fit(max(map(len, prompts))),
            new_tokens=self._new_tokens.fit(options.max_new_tokens),
            source=length,
            encoded=hidden is not None,
            num_beams=options.num_beams,
            do_sample=options.do_sample,
            eos_slots=(_EOS if options.num_beams == 1 else _BEAM_EOS).fit(eos),
            processors=tuple(names),
            words=extras["words"].shape if "words" in extras else (),
        )
        request = make_request(prompts, batch, key.prompt, key.eos_slots, options, source, extras)
        return key, request, len(prompts)

    def _decoder_prompts(self, rows, options, prompts) -> Rows:
        if prompts is not None:
            return prompts
        start = options.decoder_start_token_id
        if start is None:
            raise ValueError(
                "Received no decoder_start_token_id, which an encoder-decoder's completions begin with. Pass it; the "
                "model's config.json or generation_config.json names it."
            )
        return [np.array([start], np.int32)] * len(rows)

    def _build(self, key):
        if isinstance(key, EncodeKey):
            return lambda features: self.model.encode(features, None)
        if isinstance(key, ScoreKey):
            return self._score
        names = (*key.processors, "min_length")
        template = Request(*[0] * len(Request._fields))._replace(
            source={"hidden": 0} if key.encoded else {"ids": 0, "mask": 0} if key.source else {},
            extras={tensor: 0 for name in names for tensor in self.processors[name].names},
        )
        return lambda *tensors: self._generate(key, names, keras.tree.pack_sequence_as(template, list(tensors)))

    def _generate(self, key: Key, names: Sequence[str], request: Request) -> Result:
        ends = logits.eos_mask(request.eos, self.model.vocab_size)
        width = key.num_beams
        prompt, starts = (ops.repeat(x, width, axis=0) for x in (request.ids, request.starts))

        def process(scores, made, step):
            limits = (request.max_new_tokens, request.min_new_tokens, request.min_length)
            context = logits.Context(prompt, starts, made, step, ends, *limits)
            return logits.process(scores, context, names, request.extras, self.processors)

        common = (request, key.new_tokens, ends, process, key.do_sample)
        search = Single(*common, self._processed_scores) if width == 1 else BeamSearch(*common, width)
        return decode(self._decoder(key, request), request, search, key.new_tokens)

    def _decoder(self, key: Key, request: Request) -> Decoder:
        if not key.source:
            return self.model
        if key.encoded:
            return self.model.condition(request.source["hidden"], None)
        ids, mask = request.source["ids"], request.source["mask"]
        return self.model.condition(self.model.encode(ids, mask), mask)

    def _score(self, ids, starts, hidden):
        return self.model.condition(hidden, None).prefill(ids, starts, ids.shape[1])[0]


_EOS = Buckets("number of eos ids", None, 4)
_BEAM_EOS = Buckets("number of eos ids", None, 1)  # each one costs a beam search candidates


def _repeat(hidden, copies: int, batch: int):
    """Each row of `hidden` `copies` times, `batch` rows in all."""
    if copies == 1 and hidden.shape[0] == batch:
        return hidden
    rows = np.minimum(np.arange(batch) // copies, hidden.shape[0] - 1)
    return ops.take(hidden, rows.astype("int32"), axis=0)
