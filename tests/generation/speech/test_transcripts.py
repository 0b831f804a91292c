"""Segments are cut as transformers cuts them; subtitles are written to the letter."""

import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from keras_xla.generation.speech.transcripts import Segment, Transcript, compression_ratio, split, to_srt, to_vtt

T = 1000  # <|0.00|>
SEGMENTS = (
    Segment(0.0, 2.5, " And so, my fellow Americans,"),
    Segment(2.5, 3599.9996, " ask <not> what --> your country\n can do & for you --->"),
    Segment(3600.0, 360061.25, "  "),
    Segment(3600.0, 360061.25, " Fin."),
)


def test_srt():
    assert to_srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:02,500\nAnd so, my fellow Americans,\n\n"
        "2\n00:00:02,500 --> 01:00:00,000\nask <not> what -> your country can do & for you ->\n\n"
        "3\n01:00:00,000 --> 100:01:01,250\nFin.\n\n"
    )


def test_vtt():
    assert to_vtt(SEGMENTS) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:02.500\nAnd so, my fellow Americans,\n\n"
        "00:00:02.500 --> 01:00:00.000\nask &lt;not&gt; what --&gt; your country can do &amp; for you ---&gt;\n\n"
        "01:00:00.000 --> 100:01:01.250\nFin.\n\n"
    )


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4), st.text()), max_size=4))
def test_any_text_makes_well_formed_subtitles(parts):
    segments = [Segment(start, start + length, text) for start, length, text in parts]
    spoken = [s for s in segments if any(line.strip() for line in s.text.splitlines())]
    clock = r"(\d\d+):([0-5]\d):([0-5]\d)[,.](\d{3})"
    for made, head in ((to_srt(segments), r"\d+\n"), (to_vtt(segments).removeprefix("WEBVTT\n\n"), "")):
        cues = re.findall(rf"{head}{clock} --> {clock}\n[^\n]+\n\n", made)
        assert len(cues) == len(spoken) == made.count("-->") == made.count("\n\n")
        for cue, segment in zip(cues, spoken, strict=True):
            start, end = (int(h) * 3600 + int(m) * 60 + int(s) + int(ms) / 1000 for h, m, s, ms in (cue[:4], cue[4:]))
            assert (start, end) == (pytest.approx(segment.start, abs=6e-4), pytest.approx(segment.end, abs=6e-4))


def test_a_transcript_is_its_text_and_its_subtitles():
    transcript = Transcript("And so", SEGMENTS, "en")
    assert str(transcript) == f"{transcript}" == "And so"
    assert (transcript.srt(), transcript.vtt()) == (to_srt(SEGMENTS), to_vtt(SEGMENTS))
    assert Transcript("", ()).srt() == "" and Transcript("", ()).vtt() == "WEBVTT\n\n"
    for made in (Transcript("And so").srt, Transcript("And so").vtt):
        with pytest.raises(ValueError, match="return_timestamps=True"):
            made()


def reference(tokens, seek, frames):
    """The reference's segments and offset."""
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[{}],
        time_offset=torch.tensor([seek], dtype=torch.float64) * 0.02 / 2,
        timestamp_begin=T,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros((1, 3), dtype=torch.long),
    )
    return [(float(s["start"]), float(s["end"]), tuple(s["tokens"].tolist())) for s in segments], int(offset)


@given(
    tokens=st.lists(st.one_of(st.integers(0, 50), st.integers(T, T + 1500)), min_size=1, max_size=12),
    seek=st.integers(0, 10**6),
    frames=st.integers(1, 3000),
)
@example([T, 1, 2, T + 100], 0, 3000)  # one sentence, and silence
@example([T, 1, T + 100, T + 120, 2, T + 200], 7, 3000)  # two
@example([T, 1, T + 100, T + 120, 2, T + 200, T + 200], 7, 3000)  # two, and the start of a third
@example([T, 1, T + 100, T + 120, 2, 3], 7, 3000)  # an unfinished second
@example([1, 2, 3], 7, 2999)  # no timestamps
@example([T, 1], 7, 501)  # only <|0.00|>
@example([T + 5, 1, T], 7, 501)
def test_segments_and_the_next_window_are_the_references(tokens, seek, frames):
    pieces, advance = split(tokens, T, seek, frames)
    expected, offset = reference(tokens, seek, frames)
    assert [piece.tokens for piece in pieces] == [tokens for *_, tokens in expected]
    for piece, (start, end, _) in zip(pieces, expected, strict=True):
        # Where no timestamp says it, the reference rounds the window's end down to one, and its division is not exact.
        said = [token for token in piece.tokens if token >= T][-1:] > [T]
        slack = 1e-6 if said else 0.041
        assert (piece.start, piece.end) == (pytest.approx(start), pytest.approx(end, abs=slack))
    assert advance == offset


def test_times_are_exact_to_the_hundredth():
    (piece,), _ = split([T, 1, T + 15], T, 3, 3000)
    assert (piece.start, piece.end) == (0.03, 0.33)


def test_no_tokens_are_no_segment():
    assert split([], T, 100, 3000) == ([], 3000)


@given(st.lists(st.integers(0, 51864), min_size=1), st.sampled_from([100, 256, 51865]))
def test_the_compression_ratio_is_the_references(tokens, vocab_size):
    tokens = [token % vocab_size for token in tokens]
    expected = WhisperGenerationMixin._retrieve_compression_ratio(torch.tensor(tokens), vocab_size)
    assert compression_ratio(tokens, vocab_size) == expected


def test_repetition_compresses():
    assert compression_ratio([7, 8, 9] * 60, 51865) > 1.35 > compression_ratio([*range(40)], 51865)
    assert compression_ratio([], 51865) == 0
