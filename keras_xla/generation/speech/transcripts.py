"""What a transcription is: text and timed segments; from tokens, and to subtitles. No model."""

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

FRAMES_PER_SECOND = 100
FRAMES_PER_TIMESTAMP = 2
"""Feature frames are 10 ms; timestamp tokens count in steps of 20 ms."""


@dataclass(frozen=True)
class Segment:
    """What was said in one stretch of a clip.

    Attributes:
        start: Where it begins, in seconds of the clip (float).
        end: Where it ends, in seconds of the clip (float).
        text: What was said, as the tokenizer decodes it, a leading space included: joined, the texts of the segments
            are the whole.
        tokens: The ids of its tokens (ints), timestamps included.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """The transcription of one clip, as `XLAGenerationLayer.generate` returns it; `str(transcript)` is its text.

    Attributes:
        text: All that was said.
        segments: What was said when: a `Segment` for each stretch of the clip, in order. None if it was made without
            timestamps.
        language: The code of the language spoken, such as `"en"`. None if the model knows only one.
    """

    text: str
    segments: tuple[Segment, ...] | None = None
    language: str | None = None

    def __str__(self):
        return self.text

    def srt(self) -> str:
        """Write it as SubRip subtitles.

        Returns:
            The content of a `.srt` file: numbered cues with times such as `00:01:02,345`.

        Raises:
            ValueError: The transcript has no timestamps. Pass `return_timestamps=True` to `generate`.
        """
        return to_srt(self._timed())

    def vtt(self) -> str:
        """Write it as WebVTT subtitles (https://www.w3.org/TR/webvtt1/).

        Returns:
            The content of a `.vtt` file: cues with times such as `00:01:02.345`; `&`, `<` and `>` are escaped.

        Raises:
            ValueError: The transcript has no timestamps. Pass `return_timestamps=True` to `generate`.
        """
        return to_vtt(self._timed())

    def _timed(self) -> tuple[Segment, ...]:
        if self.segments is None:
            raise ValueError("This transcript has no timestamps, which subtitles need. Pass return_timestamps=True.")
        return self.segments


def to_srt(segments: Iterable[Segment]) -> str:
    """SubRip: numbered cues, times as `00:01:02,345`."""
    # The arrow of the time line, inside a text, would begin a cue.
    cues = [(s, re.sub("-{2,}>", "->", text)) for s, text in _cues(segments)]
    return "".join(
        f"{number}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{text}\n\n"
        for number, (s, text) in enumerate(cues, 1)
    )


def to_vtt(segments: Iterable[Segment]) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/): times as `00:01:02.345`; `&`, `<` and `>` are escaped."""
    escapes = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    return "WEBVTT\n\n" + "".join(
        f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{text.translate(escapes)}\n\n" for s, text in _cues(segments)
    )


def _cues(segments):
    """Segments that say something, with their text on one line."""
    for segment in segments:
        if text := " ".join(line.strip() for line in segment.text.splitlines() if line.strip()):
            yield segment, text


def _clock(seconds: float, point: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{milliseconds:03}"


class Piece(NamedTuple):
    """The tokens of one segment, and its time in seconds of the clip."""

    start: float
    end: float
    tokens: tuple[int, ...]


def split(tokens: Sequence[int], first_timestamp: int, seek: int, frames: int) -> tuple[list[Piece], int]:
    """Cut what was made for one window at its timestamps, and say where the next window begins.

    Two timestamps in a row, the end of one segment and the start of the next, are a cut. What follows the last cut
    may go on behind the window: it is thrown away, and the next window begins there; unless a timestamp
    ends it, behind which nothing more is said in this window (Whisper, section 3.8, and its reference code).

    Args:
        tokens: What was made, without the end-of-sequence token.
        first_timestamp: Id of `<|0.00|>`.
        seek: Where the window begins, in feature frames of the clip.
        frames: How many feature frames of the clip the window has, padding excluded.

    Returns:
        The pieces, and how many frames after `seek` the next window begins.
    """
    tokens = tuple(tokens)
    if not tokens:
        return [], frames

    def seconds(timestamp: int) -> float:
        return (seek + FRAMES_PER_TIMESTAMP * (timestamp - first_timestamp)) / FRAMES_PER_SECOND

    timed = [token >= first_timestamp for token in tokens]
    cuts = [i for i in range(1, len(tokens)) if timed[i - 1] and timed[i]]
    if not cuts:
        last: Any = max((i for i in range(len(tokens)) if timed[i]), default=None)
        known = last is not None and tokens[last] != first_timestamp
        end = seconds(tokens[last]) if known else (seek + frames) / FRAMES_PER_SECOND
        return [Piece(seek / FRAMES_PER_SECOND, end, tokens)], frames
    ended = timed[-1] and not timed[-2]
    # An unfinished rest is dropped, but the second timestamp of the last pair stays, to tell the two cases apart.
    bounds = [0, *cuts, len(tokens)] if ended else [0, *cuts[:-1], cuts[-1] + 1]
    parts = [tokens[a:b] for a, b in itertools.pairwise(bounds)]
    ends = [part[-1] for part in parts]
    if not ended:
        ends[-1] = parts[-1][-2]
    pieces = [Piece(seconds(part[0]), seconds(end), part) for part, end in zip(parts, ends, strict=True)]
    return pieces, frames if ended else FRAMES_PER_TIMESTAMP * (ends[-1] - first_timestamp)


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """How much shorter zlib makes the tokens: above 1.35 or so they repeat themselves.

    Over token ids in little-endian bytes, as Hugging Face's `compression_ratio_threshold` means it (OpenAI's own
    compresses the text). 0 for no tokens.
    """
    if not tokens:
        return 0.0
    width = int(math.log2(vocab_size) / 8) + 1
    raw = b"".join(int(token).to_bytes(width, "little") for token in tokens)
    return len(raw) / len(zlib.compress(raw))
