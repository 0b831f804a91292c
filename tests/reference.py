"""Tiny random checkpoints of every architecture, made and run by PyTorch transformers, which we did not write."""

import functools
import pathlib

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

VOCAB = 97
_LLAMA = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_GPT2 = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)
_OPT = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    ffn_dim=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    word_embed_proj_dim=32,
)


def _rope(**parameters):
    if transformers.__version__.startswith("4."):
        return dict(rope_theta=500.0, rope_scaling=parameters)
    return dict(rope_parameters={"rope_theta": 500.0, **parameters})


VARIANTS = {
    "gpt2": ("GPT2", _GPT2),
    "gpt2-untied-inverse-layer-scale": (
        "GPT2",
        {**_GPT2, "tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True, "n_inner": 40},
    ),
    "opt-125m": ("OPT", _OPT),
    "opt-350m": ("OPT", {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "opt-no-bias": ("OPT", {**_OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "llama2": ("Llama", _LLAMA),
    "llama-tied-gqa": ("Llama", {**_LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 2}),
    "llama-bias-head-dim": ("Llama", {**_LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama-linear": ("Llama", {**_LLAMA, **_rope(rope_type="linear", factor=2.0)}),
    "llama3": (
        "Llama",
        {
            **_LLAMA,
            **_rope(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
    ),
    "llama-yarn": (
        "Llama",
        {**_LLAMA, **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)},
    ),
    "mistral": ("Mistral", {**_LLAMA, "num_key_value_heads": 2, "sliding_window": 7}),
    "ministral": (
        "Ministral",
        {**_LLAMA, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 7}  # transformers needs the head_dim
        | {"layer_types": ["full_attention", "sliding_attention"]},
    ),
    "qwen2": ("Qwen2", {**_LLAMA, "num_key_value_heads": 2}),
    "qwen2-window": (
        "Qwen2",
        {**_LLAMA, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**_LLAMA, "num_key_value_heads": 2, "head_dim": 16}),
}


_TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=3)
_T5 = dict(
    vocab_size=VOCAB,
    d_model=32,
    d_kv=12,
    d_ff=48,
    num_layers=2,
    num_decoder_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=20,
    **_TOKENS,
)
_BART = dict(
    vocab_size=VOCAB,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=2,
    encoder_ffn_dim=48,
    decoder_ffn_dim=40,
    max_position_embeddings=64,
    forced_eos_token_id=None,
    **_TOKENS,
)
SEQ2SEQ = {
    "t5": ("T5", _T5),
    "t5-gated": ("T5", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5", {**_T5, "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("Bart", _BART),
    "bart-untied": ("Bart", {**_BART, "decoder_layers": 3, "scale_embedding": True, "tie_word_embeddings": False}),
    "mbart": ("MBart", {**_BART, "scale_embedding": True}),
    "marian": ("Marian", {**_BART, "scale_embedding": True, "activation_function": "swish"}),
    "marian-two-vocabularies": (
        "Marian",
        {**_BART, "share_encoder_decoder_embeddings": False, "vocab_size": 120, "decoder_vocab_size": VOCAB},
    ),
}
MEL, FRAMES = 6, 40
SPEECH = {
    "whisper": (
        "Whisper",
        {
            **_BART,
            "num_mel_bins": MEL,
            "max_source_positions": FRAMES // 2,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    )
}

# With room for prompts and sources that attention goes over in blocks.
_LONG = dict(max_position_embeddings=1100)
LONG = {
    "gpt2-long": ("GPT2", {**_GPT2, "n_positions": 1100}),
    "llama-long": ("Llama", {**_LLAMA, **_LONG, "tie_word_embeddings": True, "num_key_value_heads": 2}),
    "mistral-long": ("Mistral", {**_LLAMA, **_LONG, "num_key_value_heads": 2, "sliding_window": 300}),
}
LONG_SEQ2SEQ = {
    "t5-long": ("T5", {**_T5, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 600}),
    "bart-long": ("Bart", {**_BART, **_LONG}),
}
LONG_FRAMES = 1240
LONG_SPEECH = {
    "whisper-long": ("Whisper", {**SPEECH["whisper"][1], "max_source_positions": LONG_FRAMES // 2}),
}
_ALL_SEQ2SEQ, _ALL_SPEECH = SEQ2SEQ | LONG_SEQ2SEQ, SPEECH | LONG_SPEECH


@functools.cache
def torch_model(variant: str, seed: int = 0) -> torch.nn.Module:
    """The reference model, float32, with weights large enough for distinct logits."""
    if variant == "opt-no-bias" and transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 cannot build OPT with norms that have no weights")
    if variant == "marian-two-vocabularies" and transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 gives Marian's decoder the vocabulary of the encoder")
    if variant == "ministral" and not hasattr(transformers, "MinistralConfig"):
        pytest.skip("this version of transformers has no Ministral")
    family, values = {**VARIANTS, **LONG, **_ALL_SEQ2SEQ, **_ALL_SPEECH}[variant]
    kind = dict.fromkeys(_ALL_SEQ2SEQ, AutoModelForSeq2SeqLM) | dict.fromkeys(_ALL_SPEECH, AutoModelForSpeechSeq2Seq)
    config = getattr(transformers, f"{family}Config")(**values)
    torch.manual_seed(seed)
    model = kind.get(variant, AutoModelForCausalLM).from_config(config, attn_implementation="eager")
    if values.get("tie_word_embeddings") is False:  # transformers 5 ties that of T5 whatever its config says
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if family == "Marian" and "embed_positions" in name:
                continue  # these are sinusoids, and not stored
            # Small initial weights make every norm and bias nearly a no-op; these do not.
            weight.add_(torch.randn_like(weight) * (0.15 if "norm" in name or "ln_" in name else 0.1))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_()
    return model.float().eval()


def folder(variant: str, root: pathlib.Path) -> str:
    """A Hugging Face folder of the reference model, without a tokenizer."""
    path = root / variant
    if not path.exists():
        torch_model(variant).save_pretrained(path)
    return str(path)


def logits(variant: str, ids: np.ndarray) -> np.ndarray:
    """The reference's logits `(batch, length, vocab)` for unpadded ids."""
    with torch.no_grad():
        return torch_model(variant)(torch.tensor(ids)).logits.numpy()


def generate(variant: str, prompt: list[int], **options) -> list[int]:
    """The reference's new tokens for one prompt alone, greedy unless told otherwise."""
    model = torch_model(variant)
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return out[0, len(prompt) :].tolist()


def seq2seq_logits(variant: str, source: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The reference's logits `(batch, length, vocab)` for unpadded sources (ids, or features) and decoder ids."""
    name = "input_features" if variant in _ALL_SPEECH else "input_ids"
    with torch.no_grad():
        return torch_model(variant)(**{name: torch.tensor(source)}, decoder_input_ids=torch.tensor(ids)).logits.numpy()


def generate_seq2seq(variant: str, source: list[int], **options) -> list[int]:
    """The reference's new tokens for one source alone, without the start token; greedy unless told otherwise."""
    options = {"do_sample": False, "eos_token_id": None, "forced_eos_token_id": None, **options}
    with torch.no_grad():
        return torch_model(variant).generate(torch.tensor([source]), **options)[0, 1:].tolist()


def generated(variant: str, row: list[int], **options) -> list[list[int]]:
    """The new tokens of each of PyTorch's answers, up to its end."""
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    if variant not in VARIANTS:
        options |= dict(decoder_start_token_id=3, forced_eos_token_id=None, use_cache=False)
    ids = torch.tensor([row])
    with torch.no_grad():
        out = torch_model(variant).generate(ids, attention_mask=torch.ones_like(ids), **options)
    ends = options["eos_token_id"] or []
    rows = out[:, len(row) if variant in VARIANTS else 1 :].tolist()
    return [row[: next((i + 1 for i, t in enumerate(row) if t in ends), len(row))] for row in rows]
