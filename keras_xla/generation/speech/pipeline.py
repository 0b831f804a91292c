"""What a layer with a speech model has beside its generator: from clips or features to transcripts or tokens."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_xla.config import CONSTRAINTS, GenerationOptions
from keras_xla.config.values import as_integer
from keras_xla.engine.batches import Part
from keras_xla.engine.buckets import CACHE_BUCKETS, make_buckets
from keras_xla.engine.call import Call
from keras_xla.engine.checks import check_options, check_speech
from keras_xla.engine.generator import Generator
from keras_xla.engine.search.own_processors import check_processor_options, own_processors
from keras_xla.engine.search.processors import PROCESSORS
from keras_xla.engine.warmup import FirstCall
from keras_xla.generation.defaults import split_drawn, split_speech
from keras_xla.generation.speech import audio
from keras_xla.generation.speech.engine import EngineSpeech, check_room
from keras_xla.generation.speech.features import Features
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.timestamp_rules import timestamps_processor
from keras_xla.generation.speech.tokens import SpeechTokens
from keras_xla.generation.speech.transcriber import Transcriber
from keras_xla.generation.speech.transcription_plan import attempts_of, languages_of, task_of
from keras_xla.generation.speech.transcripts import FRAMES_PER_SECOND, Transcript
from keras_xla.models.layers.log_mel import LogMel
from keras_xla.models.sources.live import refresh

_OF_THE_MODEL = ("eos_token_id", "decoder_start_token_id")
# Options of what is written down, beside tokens.
_OF_CLIPS = {field.name for field in dataclasses.fields(SpeechOptions)} - {"language", "task", "max_new_tokens"}


def is_speech(model: Any) -> bool:
    """Whether a model's encoder reads speech."""
    encoder = getattr(getattr(model, "spec", None), "encoder", None)
    return encoder is not None and encoder.source.kind == "speech"


def generator_for(
    model: Any,
    tokens: SpeechTokens | None,
    *,
    batch_buckets: Sequence[int] | None,
    cache_buckets: Sequence[int] | None,
    source_buckets: Sequence[int] | None,
    logits_processors: Sequence[Callable],
    **more: Any,
) -> Generator:
    """The generator of a model for text, or of one for speech with these special `tokens`; `more` are its arguments."""
    kwargs: dict[str, Any] = dict(
        batch=make_buckets("batch", batch_buckets, 1),
        cache=make_buckets("cache", CACHE_BUCKETS if cache_buckets is None else cache_buckets, 1),
        source=make_buckets("source", source_buckets, 32),
        **more,
        refresh=functools.partial(refresh, model),
    )
    processors = dict(PROCESSORS)
    if tokens is not None:
        limits = (tokens.no_timestamps, tokens.eos, tokens.max_initial_timestamp_index)
        processors["timestamps"] = timestamps_processor(tokens.first_timestamp, *limits)
    processors |= own_processors(logits_processors)
    processors["allowed"] = processors.pop("allowed")  # the last: what a grammar forbids, no rule of a user's allows
    return Generator(model, **kwargs, processors=processors, processed_scores=tokens is not None)


class SpeechPipeline:
    """Transcription with a generator.

    Args:
        generator: What `generator_for` returned.
        tokens: The model's special tokens.
        defaults: What is asked for unless told otherwise.

    Raises:
        ValueError: for a model that does not hear whole seconds.
    """

    def __init__(self, generator: Generator, tokens: SpeechTokens, defaults: SpeechOptions):
        model: Any = generator.model  # one of ours, of speech
        encoder = model.spec.encoder
        self.generator, self.tokens, self.defaults = generator, tokens, defaults
        frames = 2 * encoder.position.max_positions
        if not frames or frames % FRAMES_PER_SECOND:
            raise ValueError(
                f"Received a model of speech with max_source_positions={frames // 2}; expected a multiple of "
                f"{FRAMES_PER_SECOND // 2}, which are whole seconds."
            )
        self.shape = (encoder.source.mel_bins, frames)
        self.features = Features(LogMel(encoder.source.mel_bins, chunk_length=frames // FRAMES_PER_SECOND))

    def transcribe(
        self,
        inputs: Any,
        tokenizer: Any,
        options: GenerationOptions,
        sampling_rate: int | None = None,
        batch_size: int = 8,
        goes_on: bool = False,
        **overrides: Any,
    ) -> list[Transcript]:
        """The transcript of each clip.

        Args:
            inputs: See `audio.clips`.
            tokenizer: A Hugging Face tokenizer.
            options: How to decode.
            sampling_rate: Of arrays, in hertz.
            batch_size: Windows of 30 s to run at once at most; no more than the largest batch bucket.
            goes_on: Whether a seed draws on from the call before.
            **overrides: Fields of `SpeechOptions` and `GenerationOptions`.

        Raises:
            ValueError, TypeError: for bad audio or options; before anything compiles.
        """
        if tokenizer is None:
            raise ValueError("Received speech, but the layer has no tokenizer to write it down. Pass tokenizer=...")
        batch_size = as_integer("batch_size", batch_size, 1)
        speech, options = self._options(options, overrides, self.defaults)
        batch_size = min(batch_size, max(self.generator.limits.batch.sizes or (batch_size,)))
        clips = audio.clips(inputs, sampling_rate, self.features.log_mel.sampling_rate)
        transcriber = Transcriber(
            EngineSpeech(self.generator),
            self.tokens,
            self.features,
            lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            batch_size,
        )
        first_clip = self.generator.number_rows(len(clips)) if goes_on else 0
        return transcriber.transcribe(clips, speech, options, first_clip)

    def complete(
        self, features: Any, options: GenerationOptions, goes_on: bool = False, **overrides: Any
    ) -> dict[str, np.ndarray]:
        """The tokens of features `(batch, mel bins, frames)`, without timestamps; as `Generator` returns them.

        `goes_on` tells whether a seed draws on from the call before.
        """
        of_speech, _ = split_speech(overrides)
        if given := [name for name, value in of_speech.items() if name in _OF_CLIPS and value is not None]:
            raise ValueError(
                f"Received {', '.join(given)} with input_features, whose tokens come as they are. Pass the audio "
                "itself, or leave it out."
            )
        features = np.asarray(features)
        if features.dtype.name == "bfloat16":  # no float to NumPy
            features = features.astype(np.float32)
        if features.ndim != 3 or features.shape[1:] != self.shape or not len(features):
            raise ValueError(
                f"Received input_features of shape {features.shape}; expected (batch, {self.shape[0]}, "
                f"{self.shape[1]}). For raw audio pass the array itself, with its sampling_rate."
            )
        if not np.issubdtype(features.dtype, np.floating) or not np.isfinite(features).all():
            raise ValueError(
                f"Received input_features of {features.dtype} that are no floats, or of which some are NaN or "
                "infinite; expected log-mel features. Pass the audio itself, or what transformers' "
                "WhisperFeatureExtractor makes."
            )
        speech, options = self._options(options, overrides, self.defaults.replace(temperature=None))
        (options,) = attempts_of(speech, options.replace(eos_token_id=self.tokens.eos))
        task = task_of(speech, self.tokens)
        self.tokens.check_task(task)
        names = languages_of(speech, self.tokens, len(features))
        parts = self.generator.parts(Call(features, options))  # in order: all features are of one length
        prompt = np.array(self.tokens.prompt(self.tokens.any_language, task, timestamps=False), np.int32)
        check_room(self.generator, prompt, options)
        self.generator.limits.batch.fit(max(part.room for part in parts))
        first_row = self.generator.number_rows(len(features) * options.num_return_sequences) if goes_on else 0
        made = [self._complete_part(part, features, names, task, first_row) for part in parts]
        return {name: np.concatenate([outputs[name] for outputs in made]) for name in made[0]}

    def _complete_part(
        self, part: Part, features: np.ndarray, names: Sequence[str | None], task: str | None, first_row: int
    ) -> dict[str, np.ndarray]:
        """What `complete` returns of features that run together; the last of several parts has idle rows."""
        idle = part.room_for - len(part.prompts)
        hidden = self.generator.encode(np.pad(features[part.prompts], ((0, idle), (0, 0), (0, 0))))
        spoken: Sequence[str | None] = [*part.of(names), *[names[0]] * idle]
        if self.tokens.languages and None in spoken:
            spoken = self._detect(spoken, hidden)
        begun = [np.array(self.tokens.prompt(name, task, timestamps=False), np.int32) for name in spoken]
        prompts = [*begun[: len(part.prompts)], *[begun[0][:0]] * idle]
        numbers = first_row + np.pad(part.rows, (0, idle * part.copies))
        outputs = self.generator(Call([], part.options, prompts, hidden, numbers=numbers))
        return {name: values[: len(part.answers)] for name, values in outputs.items()}

    def first_calls(self, batch: int, options: GenerationOptions, **overrides: Any) -> Iterator[FirstCall]:
        """Of what `batch` windows at once need, with the options as for `transcribe`."""
        speech, options = self._options(options, overrides, self.defaults)
        runner, shape = self.generator.prompt_runner, (batch, *self.shape)
        yield runner.first_encoding(shape)
        yield self.features.first_call()
        task = task_of(speech, self.tokens)
        prompt = np.array(self.tokens.prompt(self.tokens.any_language, task, timestamps=False), np.int32)
        lengths, silence = self._prompt_lengths(len(prompt), speech), speech.no_speech_threshold is not None
        hidden = runner.blank_encoding(shape)
        for length in [1, *(lengths if silence else ())]:  # behind one token the language is asked for
            begun = [np.full((length,), self.tokens.start, np.int32)] * batch
            yield from self.generator.prompt_runner.first_logits(begun, hidden)
        model: Any = self.generator.model
        for length in lengths:
            room = model.max_positions - length
            most = speech.max_new_tokens or room
            most = most if length == lengths[0] else min(most, room)  # too many are an error
            prompts = [np.resize(prompt, length)] * batch
            asked = options.replace(max_new_tokens=most, eos_token_id=self.tokens.eos)
            attempts = {each.num_beams: each for each in attempts_of(speech, asked)}
            for attempt in attempts.values():
                yield from self.generator.first_calls(Call([], attempt, prompts, hidden))

    def _prompt_lengths(self, shortest: int, speech: SpeechOptions) -> list[int]:
        """Of prompts that begin in caches of different sizes; text before the prompt makes it longer."""
        before = speech.condition_on_prev_tokens or speech.initial_prompt or speech.prompt_ids
        model: Any = self.generator.model
        lengths, longest = [shortest], model.max_positions // 2 + 2 if before else 0
        caches = self.generator.limits.cache
        while (size := caches.fit(lengths[-1] + 1)) < longest and caches.holds(size + 1):
            lengths.append(size)
        return lengths

    def _detect(self, names, hidden) -> list[str]:
        codes, ids = zip(*self.tokens.languages.items(), strict=True)
        start = np.array([self.tokens.start], np.int32)
        best = self.generator.prompt_runner.logits([start] * len(names), hidden)[:, list(ids)].argmax(axis=1)
        return [codes[i] if name is None else name for name, i in zip(names, best, strict=True)]

    def _options(
        self, options: GenerationOptions, overrides: Mapping[str, Any], defaults: SpeechOptions
    ) -> tuple[SpeechOptions, GenerationOptions]:
        asked, rest = split_speech(overrides)
        if named := [name for name in _OF_THE_MODEL if rest.get(name) is not None]:
            raise ValueError(
                f"Received {', '.join(named)} with speech, which begins and ends as its model was trained to. Leave it "
                "out."
            )
        if rest.get("do_sample") is not None:  # it comes before the temperatures of the layer
            asked.setdefault("temperature", None)
        speech = defaults.replace(**asked)
        if rest.get("do_sample") is False and any(speech.temperatures):
            raise ValueError(
                f"Received do_sample=False with temperature={asked['temperature']!r}; above 0, tokens are drawn. Leave "
                "one of them out."
            )
        rest, drawn = split_drawn(speech, rest)
        options = dataclasses.replace(options.replace(**rest), **drawn)
        for name, off in (("stop_strings", ()), ("max_time", None)):
            if (value := getattr(options, name)) != off:
                raise ValueError(
                    f"Received {name}={value!r} with speech; a transcript ends with its clip. Leave it out."
                )
        if named := [*options.per_row, *(name for name in CONSTRAINTS if getattr(options, name) is not None)]:
            raise ValueError(
                f"Received {', '.join(named)} with speech, where it has no meaning, or not as a list. "
                "Leave it out, or pass one value."
            )
        check_options(self.generator.model, options)  # the generator would, but after the encoder has run
        check_speech(options)
        check_processor_options(self.generator.processors, options, self.generator.model.vocab_size)
        return speech, options
