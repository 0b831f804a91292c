"""One description for every decoder: a frozen dataclass made of small parts."""

import dataclasses
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention.

    Attributes:
        heads: Query heads.
        kv_heads: Key and value heads; fewer than `heads` is grouped-query attention.
        head_dim: Size of a head.
        qkv_bias: Whether the query, key and value projections have a bias.
        out_bias: Whether the output projection has a bias.
        qk_norm: Whether each query and key head is RMS-normed before the rotation (Qwen3).
        scale: Factor on the scores.
        scale_by_layer: Whether layer `i`'s scores are also divided by `i + 1` (a GPT-2 option).
        windows: For each layer, how many positions back it sees (itself included), or None for all.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool
    out_bias: bool
    scale: float
    windows: tuple[int | None, ...]
    qk_norm: bool = False
    scale_by_layer: bool = False


@dataclass(frozen=True)
class LearnedPositions:
    """A table of learned position embeddings, added to the token embeddings.

    Attributes:
        max_positions: Positions a token can have.
        offset: Row of position 0 in the table (OPT: 2).
    """

    max_positions: int
    offset: int = 0
    kind: Literal["learned"] = "learned"


@dataclass(frozen=True)
class RotaryPositions:
    """Rotary embeddings (https://arxiv.org/abs/2104.09864) in rotate-half order.

    Attributes:
        max_positions: Positions a token can have.
        inverse_frequencies: `head_dim / 2` angles per position, scaling (linear, llama3, yarn) included.
        attention_factor: Factor on the cosines and sines (yarn).
    """

    max_positions: int
    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    kind: Literal["rotary"] = "rotary"


@dataclass(frozen=True)
class NormSpec:
    """Normalization.

    Attributes:
        kind: `"layer"` (mean and variance, scale and bias) or `"rms"` (scale only).
        epsilon: Added to the variance.
        placement: `"pre"` (before each sublayer) or `"post"` (after each residual addition).
        affine: Whether there are a scale and a bias.
    """

    kind: Literal["layer", "rms"]
    epsilon: float
    placement: Literal["pre", "post"] = "pre"
    affine: bool = True


@dataclass(frozen=True)
class MLPSpec:
    """The feed-forward sublayer: `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` when gated."""

    size: int
    activation: str
    gated: bool
    bias: bool


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder-only transformer.

    Attributes:
        embedding_size: Size of the token embeddings; where it differs from `hidden_size`, projections
            stand between them (OPT-350m).
        final_norm: Whether a norm stands before the head.
        tied: Whether the head is the token embedding.
        position: `LearnedPositions` or `RotaryPositions`.
    """

    vocab_size: int
    hidden_size: int
    embedding_size: int
    layers: int
    attention: AttentionSpec
    position: LearnedPositions | RotaryPositions
    norm: NormSpec
    mlp: MLPSpec
    final_norm: bool
    tied: bool

    def to_dict(self) -> dict:
        """The spec as plain lists, numbers and strings, for `get_config`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "DecoderSpec":
        """The spec that `to_dict` wrote (through JSON or not)."""
        position = dict(values["position"])
        kinds = {"learned": LearnedPositions, "rotary": RotaryPositions}
        if "inverse_frequencies" in position:
            position["inverse_frequencies"] = tuple(position["inverse_frequencies"])
        attention = {**values["attention"], "windows": tuple(values["attention"]["windows"])}
        parts = {
            "attention": AttentionSpec(**attention),
            "position": kinds[position["kind"]](**position),
            "norm": NormSpec(**values["norm"]),
            "mlp": MLPSpec(**values["mlp"]),
        }
        return cls(**{**values, **parts})
