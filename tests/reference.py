"""Tiny random checkpoints of every architecture, made and run by PyTorch transformers, which we did not write."""

import functools
import pathlib

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

VOCAB = 97
_LLAMA = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_GPT2 = dict(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)
_OPT = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    ffn_dim=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=128,
    word_embed_proj_dim=32,
)


def _rope(**parameters):
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
    "qwen2": ("Qwen2", {**_LLAMA, "num_key_value_heads": 2}),
    "qwen2-window": (
        "Qwen2",
        {**_LLAMA, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**_LLAMA, "num_key_value_heads": 2, "head_dim": 16}),
}


@functools.cache
def torch_model(variant: str, seed: int = 0) -> torch.nn.Module:
    """The reference model, float32, with weights large enough for distinct logits."""
    family, config = VARIANTS[variant]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        getattr(transformers, f"{family}Config")(**config), attn_implementation="eager"
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Small initial weights make every norm and bias nearly a no-op; these do not.
            weight.add_(torch.randn_like(weight) * (0.15 if "norm" in name or "ln_" in name else 0.1))
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
