"""One GGUF file as a checkpoint: Hugging Face names and layouts, float32 values."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_xla.models.sources.gguf.config import ROPE_FACTORS, gguf_config, gguf_generation_config
from keras_xla.models.sources.gguf.header import GGUFHeader
from keras_xla.models.sources.gguf.tokenizer import gguf_tokenizer

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFFile:
    """A llama.cpp file. Every quantization that the gguf package knows is read, as float32."""

    def __init__(self, path: str | Path):
        self._header = GGUFHeader(path)
        self.path = self._header.path
        self.config = gguf_config(self._header)
        self.generation_config = gguf_generation_config(self._header.fields) or None
        self.read_tokenizer: Callable[[], Any] | None = None
        if "tokenizer.ggml.tokens" in self._header.metadata:
            # Read with the first text, when the file may be another one: of what is mapped, a copy.
            told = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self._header.metadata.items()}
            self.read_tokenizer = functools.partial(gguf_tokenizer, told, self.path)
        # A tensor without a Hugging Face name keeps its own: the loader then reports it as unexpected.
        self._theirs = {hugging_face_name(name): name for name in self._header.tensors if name != ROPE_FACTORS}

    def names(self) -> set[str]:
        """The names of all tensors, as Hugging Face writes them."""
        return set(self._theirs)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return self._header.tensors[self._theirs[name]].shape

    def dtype(self) -> str:
        """The float dtype of most of its numbers; float32 for those that are quantized."""
        return self._header.dtype()

    def read(self, name: str) -> np.ndarray:
        """One tensor in float32, the rotary halves of each head in Hugging Face's order."""
        array = self._header.read(self._theirs[name])
        # llama.cpp's "llama" rotates neighbours; the Qwen architectures were stored as they were.
        if self._header.metadata["general.architecture"] != "llama":
            return array
        if ".q_proj." in name:
            return rotate_half_order(array, self.config["num_attention_heads"])
        if ".k_proj." in name:
            return rotate_half_order(array, self.config["num_key_value_heads"])
        return array


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; unknown names stay."""
    module, _, leaf = name.rpartition(".")
    if module in _TOP:
        return f"{_TOP[module]}.{leaf}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", module)
    if match and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{leaf}"
    return name


def rotate_half_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (of a weight or a bias) from x0 y0 x1 y1 ... to x0 x1 ... y0 y1 ... within each head."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
