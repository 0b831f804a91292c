"""The engine transcribes like a loop in NumPy and like transformers, and compiles once a mode."""

import numpy as np
import pytest
import torch
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.generator import Generator
from keras_xla.engine.search.processors import PROCESSORS
from keras_xla.generation.speech import transcriber as speech_module
from keras_xla.generation.speech.engine import EngineSpeech
from keras_xla.generation.speech.features import Features
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.timestamp_rules import timestamps_processor
from keras_xla.generation.speech.tokens import SpeechTokens
from keras_xla.generation.speech.transcriber import Transcriber
from keras_xla.models.layers.log_mel import LogMel
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import speech_reference as reference
from tests.speech_reference import EOS, FIRST, NO_TIMESTAMPS, POSITIONS, START, VOCAB, TorchSpeech, sound

TOKENS = SpeechTokens.from_checkpoint(reference.GENERATION)
RNG = np.random.default_rng(1)
EAR = RNG.normal(size=(80 * 100, 6)).astype("float32") / 40
MOUTH = RNG.normal(size=(6, VOCAB)).astype("float32")
TABLE = RNG.normal(size=(VOCAB, VOCAB)).astype("float32") * 2
TABLE[:, EOS] += 2.0


class Parrot:
    """An encoder-decoder: the next token follows from the last one and from all that is heard."""

    vocab_size, max_positions, max_source, variables = VOCAB, POSITIONS, None, ()

    def encode(self, features, mask):
        return ops.matmul(ops.reshape(features, (features.shape[0], -1)), ops.convert_to_tensor(EAR))[:, None]

    def remember(self, hidden, mask):
        return hidden

    def with_memory(self, memory):
        return _Speaking(memory)


class _Speaking:
    vocab_size, max_positions, variables = VOCAB, POSITIONS, ()

    def __init__(self, hidden):
        self.heard = ops.matmul(hidden[:, 0], ops.convert_to_tensor(MOUTH))

    def empty_cache(self, batch, slots):
        return [(ops.zeros((batch, slots)), ops.zeros((batch, slots)))]

    def extend(self, tokens, slot, view, cache):
        return self._next(tokens), cache

    def step(self, tokens, slot, starts, cache):
        return self._next(tokens[:, None])[:, 0], cache

    def _next(self, tokens):
        return self.heard[:, None] + ops.take(ops.convert_to_tensor(TABLE), tokens, axis=0)


class NumpyParrot(TorchSpeech):
    """The same by hand, with the reference's logits processors."""

    def encode(self, features):
        return (features.reshape(len(features), -1) @ EAR)[:, None]

    def _logits(self, prompt, hidden):
        last = prompt[-1] if len(prompt) else START
        return torch.tensor(hidden[:, 0] @ MOUTH + TABLE[last])


def generator_of(model, **options):
    rules = timestamps_processor(FIRST, NO_TIMESTAMPS, EOS, reference.GENERATION["max_initial_timestamp_index"])
    buckets = dict(batch=Buckets("batch"), cache=Buckets("cache", None, 64))
    return Generator(model, **buckets, processors={**PROCESSORS, "timestamps": rules}, **options)


@pytest.fixture(scope="module")
def generator():
    """One for all tests that do not count what it compiles."""
    return generator_of(Parrot())


def transcriber(model, batch_size=4):
    features = Features(LogMel(chunk_length=1))
    return Transcriber(
        model, TOKENS, features, lambda text: [7, 8], lambda ids: "".join(f" {i}" for i in ids), batch_size
    )


def options():
    suppress = {name: tuple(reference.GENERATION[name]) for name in ("suppress_tokens", "begin_suppress_tokens")}
    return GenerationOptions(**suppress)


CLIPS = [sound(seconds, i) for i, seconds in enumerate([3.2, 0.5, 2.2, 1.0, 4.1, 0.7])]


@pytest.mark.parametrize(
    "speech",
    [
        SpeechOptions(max_new_tokens=8),
        SpeechOptions(max_new_tokens=8, language="de", task="translate", return_timestamps=True),
        SpeechOptions(max_new_tokens=8, language="en", no_speech_threshold=0.02),
        SpeechOptions(max_new_tokens=8, language="en", condition_on_prev_tokens=True, initial_prompt="x"),
    ],
    ids=["detect", "translate", "silence", "conditioned"],
)
@pytest.mark.quick("translate", "silence", "conditioned")
def test_the_engine_says_what_a_plain_loop_says(generator, speech):
    expected = transcriber(NumpyParrot(reference.torch_model())).transcribe(CLIPS, speech, options())
    made = transcriber(EngineSpeech(generator)).transcribe(CLIPS, speech, options())
    assert made == expected
    assert len({transcript.text for transcript in made}) > 2


def test_batches_that_thin_out_compile_nothing_again():
    generator = generator_of(Parrot())
    ours = transcriber(EngineSpeech(generator))
    speech = SpeechOptions(return_timestamps=True, max_new_tokens=8)
    ours.transcribe(CLIPS[:4], speech, options())
    compiled = generator.executables.trace_count
    assert compiled == 5  # encode, what the decoder keeps of it, the language, the prompts, and the tokens
    ours.transcribe(CLIPS, speech, options())
    assert generator.executables.trace_count == compiled
    ours.transcribe(CLIPS, speech.replace(return_timestamps=None), options())
    assert generator.executables.trace_count == compiled


@pytest.fixture(scope="class")
def whisper(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    reference.torch_model().save_pretrained(path)
    return load_model(open_checkpoint(str(path)))


class TestWhisper:
    """The whole chain, weights and all, against PyTorch."""

    @pytest.fixture(autouse=True)
    def as_the_reference(self, monkeypatch):
        """Which transcribes every rest; and is faster without the threads that a tiny model has no work for."""
        monkeypatch.setattr(speech_module, "_SHORTEST", 1)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    @pytest.mark.parametrize(
        "asked",
        [
            dict(),
            dict(language="de", task="translate", no_speech_threshold=0.5),
            dict(language="en", condition_on_prev_tokens=True, prompt_ids=[7, 8, 9]),
        ],
        ids=["detect", "translate", "conditioned"],
    )
    @pytest.mark.slow
    def test_long_clips(self, whisper, asked):
        clips = [sound(4.3, seed=3), sound(1.7, seed=1), sound(2.9, seed=2)]
        theirs = {name: value for name, value in asked.items() if name != "no_speech_threshold"}
        if "prompt_ids" in theirs:
            theirs["prompt_ids"] = torch.tensor([reference.PREVIOUS, *theirs["prompt_ids"]])
        made = transcriber(EngineSpeech(generator_of(whisper))).transcribe(
            clips, SpeechOptions(max_new_tokens=10, **asked), options()
        )
        for clip, transcript in zip(clips, made, strict=True):
            expected = reference.segments(reference.torch_model(), clip, max_new_tokens=10, **theirs)
            expected = [tokens for *_, tokens in expected if any(token < EOS for token in tokens)]
            assert [segment.tokens for segment in transcript.segments] == expected


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
@pytest.mark.quick("0.0-False")
def test_beams_are_scored_by_what_the_processors_left(generator, cut_off, length_penalty):
    """So are those that the thresholds look at in Hugging Face's and in OpenAI's Whisper; the beams stay the same."""
    by_hand, heard = NumpyParrot(reference.torch_model()), RNG.normal(size=(2, 80, 100)).astype("float32")
    prompts = [np.array([START, 5], np.int32)] * 2
    values = dict(reference.GENERATION, num_beams=3, max_new_tokens=4 if cut_off else 30, length_penalty=length_penalty)
    values["suppress_tokens"] = [*values["suppress_tokens"], *range(0, EOS, 2)]  # which hold much of the mass
    named = ("suppress_tokens", "begin_suppress_tokens", "num_beams", "max_new_tokens", "length_penalty")
    options = GenerationOptions(**{name: values[name] for name in named}, eos_token_id=EOS)
    of_the_model, processed = (
        each(Call([], options, prompts, each.encode(heard)))
        for each in (generator, generator_of(Parrot(), processed_scores=True))
    )
    for name in ("sequences", "lengths"):
        np.testing.assert_array_equal(processed[name], of_the_model[name])
    assert processed["scores"].dtype == of_the_model["scores"].dtype == np.float32
    hidden = by_hand.encode(heard)
    for row, (tokens, length) in enumerate(zip(processed["sequences"], processed["lengths"], strict=True)):
        total = 0.0
        for i, token in enumerate(tokens[:length]):
            logits = by_hand._logits(np.concatenate([prompts[row], tokens[:i]]), hidden[row : row + 1])[0]
            logits[[*options.suppress_tokens, *(options.begin_suppress_tokens if i == 0 else ())]] = -np.inf
            total += float(torch.log_softmax(logits, -1)[token])
        assert processed["scores"][row] == pytest.approx(total / length**length_penalty, rel=1e-4, abs=1e-5)
    assert (processed["scores"] - of_the_model["scores"]).max() > 0.001
