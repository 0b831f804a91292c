"""Transcription of clips of any length, window after window. Knows a model by three functions.

The algorithm is that of Whisper (Radford et al., 2022, section 3.8), with the options and defaults of Hugging Face's
`WhisperForConditionalGeneration.generate`. It differs from the latter in that a clip ends with its samples,
not with the silence that pads it to a window, and in that each clip of a batch is transcribed as if it were alone.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.generation.speech.features import ClipFeatures, Features
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.tokens import SpeechTokens
from keras_xla.generation.speech.transcription_plan import TranscriptionPlan, make_plan
from keras_xla.generation.speech.transcripts import (
    FRAMES_PER_SECOND,
    Piece,
    Segment,
    Transcript,
    compression_ratio,
    split,
)

_SHORTEST = FRAMES_PER_SECOND // 10  # no word is shorter: a rest of a clip below this is not transcribed
_WARM = 0.5  # what was made at this temperature or above is no context for what follows
_IDLE = np.zeros((0,), np.int32)
_TIMESTAMPS = 1501  # tokens: from 0.00 to 30.00 seconds
_CLIPS = 2**16  # that draw apart


class SpeechModel(Protocol):
    """What transcription needs of a model.

    R rows. A row with nothing to do has an empty prompt; what comes out of it is not looked at.
    """

    vocab_size: int
    max_positions: int

    def check(self, prompt: np.ndarray, options: GenerationOptions) -> None:
        """Raise what `decode` would raise for a prompt (1-D int32) that has no room; nothing runs."""

    def encode(self, features: np.ndarray) -> Any:
        """Hidden states of at least R rows, from `(R, mel bins, frames)` float32."""

    def logits(self, prompts: Sequence[np.ndarray], hidden: Any) -> np.ndarray:
        """`(R, vocab_size)` float32, of the token after each of R prompts (1-D int32)."""

    def decode(
        self,
        prompts: Sequence[np.ndarray],
        hidden: Any,
        options: GenerationOptions,
        timestamps: bool,
        numbers: Sequence[int],
    ) -> Mapping[str, np.ndarray]:
        """Complete R prompts.

        Args:
            prompts: 1-D int32 arrays.
            hidden: What `encode` returned.
            options: What to generate; `num_return_sequences` is 1.
            timestamps: Whether `timestamp_rules.timestamp_rules` apply.
            numbers: R numbers, on which what is drawn for each row depends; see `draw_number`.

        Returns:
            `sequences (R, options.max_new_tokens)` int32, right-padded; `lengths (R,)`, an end-of-sequence token
            included; `scores (R,)` float32, the sum of the tokens' log-probabilities after all rules and
            before the temperature, or a beam's score.
        """


@dataclass
class _Track:
    """How far the transcription of one clip has come."""

    clip: int
    features: ClipFeatures
    language: str | None
    history: list[int]  # all that was made so far
    seek: int = 0  # in frames
    windows: int = 0  # that are done
    remembers: bool = True  # whether the history may be shown to the model

    @property
    def done(self) -> bool:
        left = self.features.frames - self.seek
        return left <= 0 or (self.seek > 0 and left < _SHORTEST)


@dataclass(frozen=True)
class _Attempt:
    """What became of one window: tokens without the end, whether it may be context, and whether it is silence."""

    tokens: tuple[int, ...]
    remembers: bool
    silent: bool


class Transcriber:
    """Transcribes clips, the windows of several as one batch.

    Args:
        model: See `SpeechModel`.
        tokens: Its special tokens.
        features: What it hears of a clip.
        encode: From text to token ids, no special ones added.
        decode: From token ids to text.
        batch_size: Windows to run at once at most. As clips end, others take their rows; the size stays the same.
    """

    def __init__(
        self,
        model: SpeechModel,
        tokens: SpeechTokens,
        features: Features,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[list[int]], str],
        batch_size: int = 8,
    ):
        self.model, self.tokens, self.features, self.batch_size = model, tokens, features, batch_size
        self._encode, self._decode = encode, decode

    def transcribe(
        self,
        clips: Sequence[np.ndarray],
        speech: SpeechOptions | None = None,
        options: GenerationOptions | None = None,
        first_clip: int = 0,
    ) -> list[Transcript]:
        """The transcript of each clip.

        Args:
            clips: `(samples,)` float32 each, of the model's sampling rate.
            speech: What is asked for.
            options: How to decode, but for `max_new_tokens`, which `speech` has.
            first_clip: The number of the first clip. What is drawn for a clip depends on its number.

        Raises:
            TypeError, ValueError: for options that do not fit the model or each other; before anything compiles.
        """
        plans = self._plans(clips, speech or SpeechOptions(), options or GenerationOptions())
        transcripts: dict[int, Transcript] = {}
        for which, plan in plans:
            made: dict[int, list[Segment]] = {clip: [] for clip in which}
            spoken: dict[int, str | None] = {}
            for track, segments in self._run(clips, which, plan, first_clip):
                made[track.clip] += segments
                spoken[track.clip] = track.language
            for clip, segments in made.items():
                text = "".join(segment.text for segment in segments).strip()
                timed = tuple(segments) if plan.timestamps else None
                transcripts[clip] = Transcript(text, timed, spoken[clip])
        return [transcripts[clip] for clip in range(len(clips))]

    def _plans(self, clips, speech, options) -> list[tuple[list[int], TranscriptionPlan]]:
        """The clips without timestamps and those with, each with a plan: long ones need them."""
        if not len(clips):
            raise ValueError("Received no clips; expected at least one.")
        long = [i for i, clip in enumerate(clips) if self.features.frames_of(clip) > self.features.frames]
        if long and speech.return_timestamps is False:
            seconds = self.features.frames / FRAMES_PER_SECOND
            raise ValueError(
                f"Clip {long[0]} is longer than the {seconds:g} s that the model hears at once; timestamps tell where "
                "the next part begins. Leave return_timestamps=False out, or cut the clip."
            )
        timed = set(range(len(clips)) if speech.return_timestamps else long)
        limits = (self.tokens, self.model.max_positions, self._encode, len(clips))
        groups = {t: [i for i in range(len(clips)) if (i in timed) == t] for t in (False, True)}
        plans = [(which, make_plan(speech, options, *limits, t)) for t, which in groups.items() if which]
        for _, plan in plans:
            prompt = self._prompt(self.tokens.any_language, plan.prompt if plan.prompt_leads else (), plan)
            prompts = [prompt]
            if plan.history:  # later windows are told of those before
                prompts.append(self._prompt(self.tokens.any_language, [self.tokens.eos] * plan.history, plan))
            for attempt in plan.attempts:
                for prompt in prompts:
                    self.model.check(prompt, attempt)
        return plans

    def _run(
        self, clips, which: list[int], plan: TranscriptionPlan, first_clip: int = 0
    ) -> Iterator[tuple[_Track, list[Segment]]]:
        """A clip and the new segments in it, window after window."""
        waiting = deque(which)
        rows: list[_Track | None] = [None] * min(len(which), self.batch_size)
        while True:
            for i, track in enumerate(rows):
                if track is None or track.done:
                    rows[i] = self._begin(clips, waiting.popleft(), plan) if waiting else None
            if not any(rows):
                return
            hidden = self._hear(rows)
            self._detect(rows, hidden)
            prompts = [
                _IDLE if t is None else self._prompt(t.language, t.history if t.remembers else None, plan) for t in rows
            ]
            silence = self._silence(rows, prompts, hidden, plan)
            numbers = [(0, 0) if track is None else (first_clip + track.clip, track.windows) for track in rows]
            attempts: list[Any] = self._attempt(prompts, hidden, silence, plan, numbers)
            for track, attempt in zip(rows, attempts, strict=True):
                if track is not None:
                    yield track, self._advance(track, attempt, plan)

    def _begin(self, clips, clip: int, plan: TranscriptionPlan) -> _Track:
        history = list(plan.prompt) if plan.prompt_leads else []
        return _Track(clip, self.features(clips[clip]), plan.languages[clip], history)

    def _hear(self, rows) -> Any:
        """What the encoder makes of the rows' windows."""
        bins = next(track.features.values.shape[0] for track in rows if track is not None)
        features = np.zeros((len(rows), bins, self.features.frames), np.float32)
        for i, track in enumerate(rows):
            if track is not None:
                features[i] = track.features.window(track.seek, self.features.frames)
        return self.model.encode(features)

    def _detect(self, rows, hidden) -> None:
        """Fill in the languages that are neither given nor found yet."""
        unknown = [None if track is None or track.language is not None else track for track in rows]
        if not self.tokens.languages or not any(unknown):
            return
        codes, ids = zip(*self.tokens.languages.items(), strict=True)
        start = np.array([self.tokens.start], np.int32)
        logits = self.model.logits([_IDLE if track is None else start for track in unknown], hidden)
        for track, row in zip(unknown, logits, strict=True):
            if track is not None:
                track.language = codes[row[list(ids)].argmax()]

    def _prompt(self, language: str | None, history: Sequence[int] | None, plan: TranscriptionPlan) -> np.ndarray:
        """What was said before, as far as it goes, and the beginning of the transcription; None forgets that."""
        before = () if plan.prompt_leads else plan.prompt
        if plan.speech.condition_on_prev_tokens and history is not None and plan.history:
            before = (*before, *history[-plan.history :])
        elif plan.prompt_leads:
            before = plan.prompt
        head = [self.tokens.previous, *before] if before else []
        return np.array([*head, *self.tokens.prompt(language, plan.task, plan.timestamps)], np.int32)

    def _silence(self, rows, prompts, hidden, plan: TranscriptionPlan) -> np.ndarray:
        """How likely each row holds no speech; 0 where nobody asks."""
        if plan.speech.no_speech_threshold is None:
            return np.zeros(len(rows))
        # The chance is that of the token after <|startoftranscript|>, whatever comes before.
        last = [len(p) - p[::-1].tolist().index(self.tokens.start) if len(p) else 0 for p in prompts]
        logits = self.model.logits([p[:n] for p, n in zip(prompts, last, strict=True)], hidden)
        return np.array([_softmax(row)[self.tokens.no_speech] for row in logits])

    def _attempt(self, prompts, hidden, silence, plan: TranscriptionPlan, numbers: list) -> list[_Attempt | None]:
        """Decode; again, and warmer, the rows that the thresholds reject. `numbers` are those of clips and windows."""
        made: list[_Attempt | None] = [None] * len(prompts)
        open_rows = [i for i, prompt in enumerate(prompts) if len(prompt)]
        for attempt, options in enumerate(plan.attempts):
            drawn = [draw_number(clip, window, attempt) for clip, window in numbers]
            asked = [prompt if i in open_rows else _IDLE for i, prompt in enumerate(prompts)]
            out = self.model.decode(asked, hidden, options, plan.timestamps, drawn)
            rejected = []
            for i in open_rows:
                tokens = tuple(out["sequences"][i, : out["lengths"][i]].tolist())
                # A beam's score is divided by its length already, to the power of `length_penalty`.
                power = 1.0 if options.num_beams == 1 else 1.0 - options.length_penalty
                score = float(out["scores"][i]) / max(len(tokens), 1) ** power
                bad, silent = self._judge(tokens, score, float(silence[i]), plan.speech)
                tokens = tokens[:-1] if tokens[-1:] == (self.tokens.eos,) else tokens
                temperature: Any = options.temperature  # one for all
                made[i] = _Attempt(tokens, not (options.do_sample and temperature >= _WARM), silent)
                if bad:
                    rejected.append(i)
            open_rows = rejected
            if not open_rows:
                break
        return made

    def _judge(self, tokens, score: float, silence: float, speech: SpeechOptions) -> tuple[bool, bool]:
        """Whether to try again, and whether this is silence."""
        unlikely = speech.logprob_threshold is not None and score < speech.logprob_threshold
        quiet = speech.no_speech_threshold is not None and silence > speech.no_speech_threshold
        if quiet and (unlikely or speech.logprob_threshold is None):
            return False, True
        most = speech.compression_ratio_threshold
        repeats = most is not None and compression_ratio(tokens, self.model.vocab_size) > most
        return unlikely or repeats, False

    def _advance(self, track: _Track, attempt: _Attempt, plan: TranscriptionPlan) -> list[Segment]:
        """Take a window's tokens, move on to the next window, and return the segments that say something."""
        frames = min(track.features.frames - track.seek, self.features.frames)
        if not plan.timestamps:
            pieces, advance = [Piece(0.0, frames / FRAMES_PER_SECOND, attempt.tokens)], frames
        else:
            pieces, advance = split(attempt.tokens, self.tokens.first_timestamp, track.seek, frames)
        track.remembers, track.windows = attempt.remembers, track.windows + 1
        if attempt.silent:
            pieces, advance = [], frames
        track.seek += advance if advance > 0 else frames  # it must end, whatever was made
        segments = []
        for piece in pieces:
            track.history += self._context(piece.tokens)
            behind = self.tokens.first_timestamp + _TIMESTAMPS  # where added tokens are, which may be text
            words = [token for token in piece.tokens if token < self.tokens.eos or token >= behind]
            if words:
                segments.append(Segment(piece.start, piece.end, self._decode(words), piece.tokens))
        return segments

    def _context(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """What the next window is told of a piece: a double timestamp at its end only once."""
        return tokens[:-1] if len(tokens) > 2 and tokens[-2] >= self.tokens.first_timestamp else tokens


def draw_number(clip: int, window: int, attempt: int) -> int:
    """On which what is drawn depends: each window of a clip, and each attempt at it, draws anew."""
    return clip % _CLIPS + _CLIPS * (window % 2**11) + 2**27 * (attempt % 2**4)


def clip_of(numbers: np.ndarray) -> np.ndarray:
    """The clips of `draw_number`s."""
    return numbers % _CLIPS


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()
