"""A tiny random Whisper of one-second windows, made and run by PyTorch transformers, which we did not write."""

import functools

import numpy as np
import torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.generation import logits_process as rules
from transformers.modeling_outputs import BaseModelOutput

RATE = 16000
EOS, START, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = 40, 41, 48, 49, 50
FIRST, VOCAB, POSITIONS = NO_TIMESTAMPS + 1, 102, 40
GENERATION = dict(
    eos_token_id=EOS,
    bos_token_id=EOS,
    pad_token_id=EOS,
    decoder_start_token_id=START,
    max_length=POSITIONS,
    lang_to_id={"<|en|>": 42, "<|de|>": 43, "<|fr|>": 44},
    task_to_id={"translate": 45, "transcribe": 46},
    is_multilingual=True,
    no_timestamps_token_id=NO_TIMESTAMPS,
    prev_sot_token_id=PREVIOUS,
    suppress_tokens=[3, *range(START, NO_TIMESTAMPS)],
    begin_suppress_tokens=[5, EOS],
    max_initial_timestamp_index=10,
    return_timestamps=False,
    forced_decoder_ids=[[1, None], [2, 46]],
)


def config() -> WhisperConfig:
    return WhisperConfig(
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=50,
        max_target_positions=POSITIONS,
        num_mel_bins=80,
        eos_token_id=EOS,
        bos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


@functools.cache
def torch_model(seed: int = 3, spread: float = 0.2) -> WhisperForConditionalGeneration:
    """Random weights, large enough that what is said depends on what is heard and said before."""
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config()).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * spread)
    model.generation_config = GenerationConfig(**GENERATION)
    return model


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """A voice that glides and pauses, `(samples,)` float32."""
    time = np.arange(int(seconds * RATE)) / RATE
    rng = np.random.default_rng(seed)
    speed = rng.uniform(1, 4)
    voice = np.sin(2 * np.pi * (200 + 300 * np.sin(speed * time)) * time) * np.abs(np.sin(rng.uniform(1, 5) * time))
    return (0.5 * voice + 0.01 * rng.normal(size=time.size)).astype("float32")


def segments(model, clip: np.ndarray, **options) -> list[tuple[float, float, tuple[int, ...]]]:
    """The reference's segments of one clip longer than a window: start, end, tokens."""
    extractor = WhisperFeatureExtractor(chunk_length=1)
    inputs = extractor(
        clip,
        sampling_rate=RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    with torch.no_grad():
        out = model.generate(**inputs, return_timestamps=True, return_segments=True, **options)
    return [(float(s["start"]), float(s["end"]), tuple(s["tokens"].tolist())) for s in out["segments"][0]]


class TorchSpeech:
    """A `SpeechModel` on the reference: its encoder and decoder, its logits processors, and greedy search."""

    vocab_size, max_positions = VOCAB, POSITIONS

    def __init__(self, model):
        self.model, self.windows = model, []

    def check(self, prompt, options):
        assert len(prompt) + options.max_new_tokens <= POSITIONS

    def encode(self, features):
        self.windows.append(features.shape)
        with torch.no_grad():
            return self.model.model.encoder(torch.tensor(features)).last_hidden_state

    def logits(self, prompts, hidden):
        return np.stack([self._logits(prompt, hidden[i : i + 1])[0].numpy() for i, prompt in enumerate(prompts)])

    def decode(self, prompts, hidden, options, timestamps, numbers=()):
        sequences = np.full((len(prompts), options.max_new_tokens), EOS, "int32")
        lengths, scores = np.zeros(len(prompts), "int32"), np.zeros(len(prompts), "float32")
        for i, prompt in enumerate(prompts):
            made, total = self._greedy(prompt, hidden[i : i + 1], options, timestamps) if len(prompt) else ([], 0)
            sequences[i, : len(made)], lengths[i], scores[i] = made, len(made), total
        return {"sequences": sequences, "lengths": lengths, "scores": scores}

    def _logits(self, prompt, hidden):
        ids = torch.tensor(prompt[None] if len(prompt) else [[START]], dtype=torch.long)
        with torch.no_grad():
            return self.model(encoder_outputs=BaseModelOutput(hidden), decoder_input_ids=ids).logits[:, -1]

    def _greedy(self, prompt, hidden, options, timestamps):
        chain = rules.LogitsProcessorList()
        chain.append(rules.SuppressTokensAtBeginLogitsProcessor(GENERATION["begin_suppress_tokens"], len(prompt)))
        chain.append(rules.SuppressTokensLogitsProcessor(GENERATION["suppress_tokens"]))
        if timestamps:
            chain.append(rules.WhisperTimeStampLogitsProcessor(self.model.generation_config, len(prompt)))
        made, total = [], 0.0
        while len(made) < options.max_new_tokens and made[-1:] != [EOS]:
            ids = np.concatenate([prompt, np.array(made, prompt.dtype)])
            scores = chain(torch.tensor(ids[None], dtype=torch.long), self._logits(ids, hidden))[0]
            token = int(scores.argmax())
            total += float(torch.log_softmax(scores, -1)[token])
            made.append(token)
        return made, total
