"""flan-t5-small and whisper-tiny.en, the real ones, against their known outputs and PyTorch's."""

import numpy as np
import pytest
import torch

from keras_xla import XLAGenerationLayer
from tests import real_models

pytestmark = pytest.mark.slow
GERMAN = "translate English to German: The house is wonderful."
SPEECH = "And so my fellow Americans ask not what your country can do for you, ask what you can do for your country."
TEXTS = [
    GERMAN,
    "translate English to German: Where is the station?",
    "Answer the question: what is the capital of France?",
    "summarize: The tower is 324 metres tall, about the same height as an 81-storey building, and the tallest "
    "structure in Paris. Its base is square, measuring 125 metres on each side.",
]


@pytest.fixture(scope="module")
def t5():
    return XLAGenerationLayer.from_pretrained(real_models.flan_t5_small(), max_new_tokens=32)


@pytest.mark.parametrize(("beams", "texts"), [(1, [GERMAN]), (4, TEXTS)])  # beams of one text alone: the README's test
def test_flan_t5_translates(t5, beams, texts):
    assert t5.generate(texts, num_beams=beams)[0] == "Das Haus ist wunderbar."


@pytest.mark.parametrize("beams", [1, 4])
def test_flan_t5_gives_pytorchs_tokens_in_a_batch_of_mixed_lengths(t5, beams):
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(real_models.flan_t5_small(), dtype=torch.float32).eval()
    ids = [t5.tokenizer(text)["input_ids"] for text in TEXTS]
    out = t5.generate(ids, num_beams=beams)
    for i, source in enumerate(ids):
        with torch.no_grad():
            row = model.generate(torch.tensor([source]), max_new_tokens=32, num_beams=beams, do_sample=False)[0, 1:]
        assert out["sequences"][i, : out["lengths"][i]].tolist() == row.tolist()


@pytest.fixture(scope="module")
def whisper():
    return XLAGenerationLayer.from_pretrained(real_models.whisper_tiny_en())


@pytest.mark.parametrize("beams", [1, 4])
def test_whisper_transcribes(whisper, beams):
    (transcript,) = whisper.generate(str(real_models.speech()), num_beams=beams)
    assert str(transcript) == SPEECH


def pytorch_whisper(audio, **options):
    """The reference's segments of one clip."""
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder = real_models.whisper_tiny_en()
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    extract = WhisperFeatureExtractor.from_pretrained(folder)
    how = dict(truncation=False, padding="longest", return_attention_mask=True) if len(audio) > 480000 else {}
    inputs = extract(audio, sampling_rate=16000, return_tensors="pt", **how)
    with torch.no_grad():
        out = model.generate(**inputs, return_timestamps=True, return_segments=True, **options)
    return out["segments"][0]


@pytest.fixture(scope="module")
def clip():
    import soundfile

    return soundfile.read(real_models.speech(), dtype="float32")[0]


def test_whisper_hears_when_it_was_said(whisper, clip):
    (transcript,) = whisper.generate(str(real_models.speech()), return_timestamps=True)
    expected = pytorch_whisper(clip)
    made = [(round(s.start, 2), round(s.end, 2), list(s.tokens)) for s in transcript.segments]
    assert made == [(round(float(s["start"]), 2), round(float(s["end"]), 2), s["tokens"].tolist()) for s in expected]
    assert transcript.srt().startswith("1\n00:00:00,000 --> ")


def error_rate(words, reference):
    """Word error rate: edits over the reference's words."""
    row = list(range(len(reference) + 1))
    for i, word in enumerate(words, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(reference, 1):
            previous, row[j] = row[j], min(previous + (word != other), row[j] + 1, row[j - 1] + 1)
    return row[-1] / len(reference)


def test_three_minutes_are_transcribed_as_well_as_by_pytorch(whisper, clip):
    """Copies of the speech with pauses of different lengths, so that windows cut them anywhere."""
    rng = np.random.default_rng(0)
    parts = [x for i in range(16) for x in (clip, rng.normal(0, 1e-4, 1600 * (1 + i % 5)).astype("float32"))]
    audio = np.concatenate(parts)
    assert len(audio) > 180 * 16000
    (transcript,) = whisper.generate(audio, sampling_rate=16000)
    tokenizer = whisper.tokenizer
    theirs = tokenizer.decode(
        [t for s in pytorch_whisper(audio) for t in s["tokens"].tolist()], skip_special_tokens=True
    )

    def words(text):
        return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ").split()

    said = words(SPEECH) * 16
    ours, reference = error_rate(words(str(transcript)), said), error_rate(words(theirs), said)
    print(f"word error rate: {ours:.3f}, PyTorch {reference:.3f}")
    assert ours <= reference + 0.01
    ends = [segment.end for segment in transcript.segments]
    assert ends == sorted(ends) and ends[-1] <= len(audio) / 16000 + 0.02


def test_silence_has_an_empty_transcript(whisper):
    (transcript,) = whisper.generate(np.zeros(80000, "float32"), sampling_rate=16000, no_speech_threshold=0.6)
    assert str(transcript) == "" and not transcript.segments
