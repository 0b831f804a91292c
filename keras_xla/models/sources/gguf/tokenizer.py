"""The tokenizer inside a GGUF file, as a transformers tokenizer.

transformers reads these too, but cuts text by GPT-2's rule where it does not know the file's own
(SmolLM's single digits, for one), without a word: the ids are then not those of the training.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_xla.backend.requirements import require
from keras_xla.models.sources.gguf.config import known_ends, token_ids
from keras_xla.models.sources.gguf.fields import Fields, shown
from keras_xla.private.triton import refuse_triton
from keras_xla.troubleshooting import warn

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# How text is cut before merging, by `tokenizer.ggml.pre`: a pattern, or one of the two rules below.
_GPT2, _DIGITS = "GPT-2's", "GPT-2's after single digits"
_RULES = {
    **dict.fromkeys(("gpt-2", "phi-2", "default"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}
# Their reference tokenizers take a word that is in the vocabulary whole, and begin every text with BOS.
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"


def gguf_tokenizer(metadata: Mapping[str, Any], path: str) -> Any:
    """A `PreTrainedTokenizerFast` with the file's vocabulary, special tokens and chat template.

    Raises:
        ValueError: for a kind of tokenizer, or a rule for cutting text, that is not known; and for entries that are
            damaged.
    """
    require("transformers", "Reading a tokenizer")
    refuse_triton()
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    fields = Fields(metadata, path)
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(fields.texts("tokenizer.ggml.tokens"))]
    kinds = fields.numbers("tokenizer.ggml.token_type")
    kinds = kinds if len(kinds) else np.full(len(tokens), _NORMAL)
    if not len(tokens) == len(set(tokens)) == len(kinds):
        raise ValueError(
            f"{path}: received {len(tokens)} tokens, {len(set(tokens))} of them different, and {len(kinds)} "
            "token types; expected as many of each. Convert the model to GGUF again."
        )
    kinds = kinds.tolist()
    model, pre = fields.text("tokenizer.ggml.model", None), fields.text("tokenizer.ggml.pre", None)
    if model == "gpt2":
        backend = _byte_level(fields, tokens, pre, path)
    elif model == "llama":
        backend = _sentencepiece(fields, tokens, kinds, path)
    else:
        raise ValueError(
            f"{path}: received tokenizer.ggml.model {shown(model)}; expected 'gpt2' (byte-level BPE) or 'llama' "
            "(sentencepiece). Give the tokenizer of the original model."
        )
    ends = {tokens[i] for i in known_ends(fields)}  # no part of a text
    # These are found in the text before anything is cut; all are in the vocabulary, so no id changes.
    added = {
        kind: [
            AddedToken(t, special=kind != _USER_DEFINED or t in ends, normalized=False)
            for t in _of_kind(tokens, kinds, kind)
        ]
        for kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    }
    backend.add_special_tokens(added[_UNKNOWN] + added[_CONTROL] + [t for t in added[_USER_DEFINED] if t.special])
    backend.add_tokens([t for t in added[_USER_DEFINED] if not t.special])
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {names[k]: i for k, i in token_ids(fields).items() if k in names and i < len(tokens)}
    bos_by_default = model == "llama" or pre in _WHOLE_WORDS
    add_bos = bool(fields.flag("tokenizer.ggml.add_bos_token", bos_by_default)) and "bos_token" in ids
    add_eos = bool(fields.flag("tokenizer.ggml.add_eos_token", False)) and "eos_token" in ids
    # transformers 5 does so by itself, because of the two arguments; transformers 4 ignores those.
    backend.post_processor = _ends(tokens, ids["bos_token"] if add_bos else None, ids["eos_token"] if add_eos else None)
    length = fields.whole(f"{fields.text('general.architecture', None)}.context_length", 0)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{name: tokens[i] for name, i in ids.items()},
        add_bos_token=add_bos,
        add_eos_token=add_eos,
        **({"model_max_length": length} if length else {}),
        **({"chat_template": template} if (template := _chat_template(metadata, fields)) else {}),
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _ends(tokens: list[str], bos: int | None, eos: int | None) -> Any:
    """What puts BOS before and EOS behind every text, where they are wanted."""
    from tokenizers import processors

    # By names of our own: a token's text may hold the colon of this notation.
    special = {name: i for name, i in (("BOS", bos), ("EOS", eos)) if i is not None}
    first, second = (
        [f"{name}:{k}" for name in ("BOS", f"${text}", "EOS") if name in special or name[0] == "$"]
        for k, text in enumerate("AB")
    )
    known = [{"id": name, "ids": [i], "tokens": [tokens[i]]} for name, i in special.items()]
    return processors.TemplateProcessing(single=first, pair=first + second, special_tokens=known)


def _of_kind(tokens: list[str], kinds: list[int], kind: int) -> list[str]:
    return [token for token, other in zip(tokens, kinds, strict=True) if other == kind]


def _byte_level(fields: Fields, tokens: list[str], pre: str | None, path: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if pre not in _RULES:
        raise ValueError(
            f"{path}: received tokenizer.ggml.pre {shown(pre)}; expected one of {', '.join(_RULES)}. "
            "The wrong one gives wrong ids: give the tokenizer of the original model."
        )
    if pre == "default":
        warn(
            f"{path} does not say how its tokenizer cuts text (tokenizer.ggml.pre is 'default'): using "
            "GPT-2's way. If the model was trained with another, convert it to GGUF again."
        )
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in fields.texts("tokenizer.ggml.merges", ())]
    if not merges or any(len(pair) != 2 or not vocab.keys() >= {*pair, "".join(pair)} for pair in merges):
        raise ValueError(
            f"{path}: received {len(merges)} merges, expected pairs of tokens that make a token. "
            "Convert the model to GGUF again."
        )
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    rule = _RULES[pre]
    if rule in (_GPT2, _DIGITS):
        first = [pre_tokenizers.Digits(individual_digits=True)] if rule == _DIGITS else []
        steps = [*first, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        split = pre_tokenizers.Split(Regex(rule), behavior="isolated")
        steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule == _QWEN2:  # GGUF does not store it; the reference tokenizers of Qwen have it
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: Fields, tokens: list[str], kinds: list[int], path: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = fields.numbers("tokenizer.ggml.scores")
    if not len(scores):
        raise ValueError(f"{path} has a sentencepiece vocabulary but no scores. Convert the model to GGUF again.")
    if len(scores) != len(tokens):
        raise ValueError(
            f"{path}: received {len(scores)} scores for {len(tokens)} tokens; expected one for each. Convert the model "
            "to GGUF again."
        )
    vocab = {token: i for i, token in enumerate(tokens)}
    pieces = [i for i, kind in enumerate(kinds) if kind not in (_UNKNOWN, _CONTROL, _BYTE)]
    unknown = token_ids(fields).get("unknown", len(tokens))
    bpe = models.BPE(
        vocab=vocab,
        merges=_merges({tokens[i]: i for i in pieces}, scores.tolist()),
        unk_token=tokens[unknown] if unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=_BYTE in kinds,
    )
    backend = Tokenizer(bpe)
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    strip: list[Any] = []
    if fields.flag("tokenizer.ggml.add_space_prefix", True):
        spaces, strip = [normalizers.Prepend(_SPACE), *spaces], [decoders.Strip(" ", 1, 0)]
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges(vocab: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """The merges that make sentencepiece's choices: best score of the result first.

    Pairs with the same result are ordered as transformers orders them when it converts such a vocabulary.
    """
    found = []
    for token, i in vocab.items():
        pairs = [(token[:k], token[k:]) for k in range(1, len(token))]
        ranked = sorted((vocab[a], vocab[b], a, b) for a, b in pairs if a in vocab and b in vocab)
        found += [(-scores[i], -len(a), -len(b), a, b) for *_, a, b in ranked]
    found.sort(key=lambda merge: merge[:3])
    return [(a, b) for *_, a, b in found]


def _chat_template(metadata: Mapping[str, Any], fields: Fields) -> str | dict[str, str] | None:
    """The chat template; a dict by name where the file holds several."""
    prefix = "tokenizer.chat_template."
    named = {key.removeprefix(prefix): fields.text(key) for key in metadata if key.startswith(prefix)}
    default = fields.text("tokenizer.chat_template", None)
    if named and default:
        return {"default": default} | named
    return default or named or None
