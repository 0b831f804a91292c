"""Tiny random TensorFlow models of transformers 4; their own eager `generate` is the reference."""

import numpy as np
import transformers

VOCAB = 97
_OPT = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    ffn_dim=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    word_embed_proj_dim=32,
)
_T5 = dict(vocab_size=VOCAB, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0)
_BART = dict(
    vocab_size=VOCAB,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
)
_WHISPER = dict(num_mel_bins=8, max_source_positions=50, max_target_positions=64, suppress_tokens=None)
_WHISPER |= {k: v for k, v in _BART.items() if k != "max_position_embeddings"} | {"begin_suppress_tokens": None}
VARIANTS = {
    "gpt2": ("GPT2", "LMHeadModel", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)),
    # The TensorFlow class ignores these two, and ties its head.
    "gpt2-ignored-options": (
        "GPT2",
        "LMHeadModel",
        dict(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            scale_attn_by_inverse_layer_idx=True,
            tie_word_embeddings=False,
        ),
    ),
    "opt": ("OPT", "ForCausalLM", _OPT),
    "opt-post-norm": ("OPT", "ForCausalLM", {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "mistral": (
        "Mistral",
        "ForCausalLM",
        dict(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        ),
    ),
    "t5": ("T5", "ForConditionalGeneration", _T5),
    "t5-gated-untied": (
        "T5",
        "ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5", "ForConditionalGeneration", _T5),
    "mt5-tied": ("MT5", "ForConditionalGeneration", {**_T5, "tie_word_embeddings": True}),
    "bart": ("Bart", "ForConditionalGeneration", _BART),
    "mbart": ("MBart", "ForConditionalGeneration", {**_BART, "scale_embedding": True}),
    "marian": ("Marian", "MTModel", _BART),
    "whisper": ("Whisper", "ForConditionalGeneration", _WHISPER),
}
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15]]


def live(variant: str = "gpt2", seed: int = 0, **options):
    """A new random model whose weights are large enough for distinct logits."""
    import tf_keras

    tf_keras.utils.set_random_seed(seed)
    family, head, config = VARIANTS[variant]
    config = {**config, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **options}
    model = getattr(transformers, f"TF{family}{head}")(getattr(transformers, f"{family}Config")(**config))
    model.build_in_name_scope()
    if variant == "whisper":
        model.generation_config.no_timestamps_token_id = 95
        model.generation_config.forced_decoder_ids = [[1, 95]]  # what transformers 5 puts into the prompt
    shake(model, seed)
    return model


def shake(model, seed: int = 1) -> None:
    """Other weights, as after training."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign_add(rng.normal(size=variable.shape).astype("float32") * 0.15)


def speech(rows: int = 2) -> np.ndarray:
    """Features for the tiny Whisper, `(rows, 8, 100)`."""
    return np.random.default_rng(0).normal(size=(rows, 8, 100)).astype("float32")


def theirs(model, prompts=PROMPTS, new: int = 6, **options) -> list[list[int]]:
    """The new tokens of each prompt (or each row of features) alone, greedy, by the model's own eager `generate`."""
    made, options = [], {"max_new_tokens": new, "do_sample": False, **options}
    for prompt in prompts:
        if isinstance(prompt, np.ndarray):
            out, begin = model.generate(prompt[None], **options), 1
        else:
            ids = np.array([prompt], "int32")
            out = model.generate(ids, attention_mask=np.ones_like(ids), **options)
            begin = 1 if model.config.is_encoder_decoder else len(prompt)
        row = out.numpy()[0, begin:].tolist()
        made.append(row + [0] * (new - len(row)))
    return made
