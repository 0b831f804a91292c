"""One description for every model: frozen dataclasses made of small parts."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class AttentionSpec:
    """Attention, to the stack's own tokens or to another's.

    Attributes:
        heads: Query heads.
        kv_heads: Key and value heads; fewer than `heads` is grouped-query attention.
        head_dim: Size of a head.
        qkv_bias: Whether the query, key and value projections have a bias.
        out_bias: Whether the output projection has a bias.
        scale: Factor on the scores.
        windows: For each layer, how many positions back it sees (itself included), or None for all;
            empty where no layer has a window.
        qk_norm: Whether each query and key head is RMS-normed before the rotation (Qwen3).
        qk_norm_epsilon: Added to the variance in it; that of the stack's other norms if None.
        scale_by_layer: Whether layer `i`'s scores are also divided by `i + 1` (a GPT-2 option).
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool
    out_bias: bool
    scale: float
    windows: tuple[int | None, ...] = ()
    qk_norm: bool = False
    qk_norm_epsilon: float | None = None
    scale_by_layer: bool = False

    def window(self, layer: int) -> int | None:
        """The window of one layer."""
        return self.windows[layer] if self.windows else None


@dataclass(frozen=True)
class LearnedPositions:
    """A table of learned position embeddings, added to the token embeddings.

    Attributes:
        max_positions: Positions a token can have.
        offset: Row of position 0 in the table (OPT, BART: 2).
    """

    max_positions: int
    offset: int = 0
    kind: Literal["learned"] = "learned"


@dataclass(frozen=True)
class SinusoidalPositions:
    """Sines, then cosines, of the position, added to the token embeddings (https://arxiv.org/abs/1706.03762)."""

    max_positions: int
    kind: Literal["sinusoidal"] = "sinusoidal"


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
class RelativePositions:
    """A learned bias on the scores for each head and distance, the same in every layer (T5, https://arxiv.org/abs/1910.10683).

    Attributes:
        buckets: Distances that are told apart; far ones share a bucket.
        max_distance: From here on all distances share one.
        max_positions: None: there is no limit.
    """

    buckets: int
    max_distance: int
    max_positions: None = None
    kind: Literal["relative"] = "relative"


Positions = LearnedPositions | SinusoidalPositions | RotaryPositions | RelativePositions


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
    """The feed-forward sublayer: `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` when gated.

    Attributes:
        wide: Whether `down` is of float32 where the model is of float16, and with it the sum of a stack's residuals.
    """

    size: int
    activation: str
    gated: bool
    bias: bool
    wide: bool = False


@dataclass(frozen=True)
class TextSource:
    """An encoder reads token ids.

    Attributes:
        vocab_size: Token ids there are.
        shared: Whether they are embedded with the decoder's table.
    """

    vocab_size: int
    shared: bool
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class SpeechSource:
    """An encoder reads mel features through two convolutions, the second of which halves the frames (Whisper)."""

    mel_bins: int
    kind: Literal["speech"] = "speech"


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """What encoders and decoders have in common: a stack of blocks.

    Attributes:
        hidden_size: Size of the hidden states.
        layers: Blocks.
        attention: Of the stack to itself.
        position: How the stack knows where its tokens stand.
        norm: Every norm in it.
        mlp: The feed-forward sublayer.
        final_norm: Whether a norm stands behind the last block.
        embedding_scale: Factor on the token embeddings.
        embedding_norm: Whether a norm stands before the first block.
    """

    hidden_size: int
    layers: int
    attention: AttentionSpec
    position: Positions
    norm: NormSpec
    mlp: MLPSpec
    final_norm: bool
    embedding_scale: float = 1.0
    embedding_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(StackSpec):
    """A transformer encoder: every token sees all of them.

    Attributes:
        source: `TextSource` or `SpeechSource`.
    """

    source: TextSource | SpeechSource


@dataclass(frozen=True, kw_only=True)
class DecoderSpec(StackSpec):
    """A transformer decoder: every token sees those before it.

    Attributes:
        vocab_size: Token ids there are.
        embedding_size: Size of the token embeddings; where it differs from `hidden_size`, projections
            stand between them (OPT-350m).
        tied: Whether the head is the token embedding.
        head_scale: Factor on the hidden states before the head (T5 v1.0).
        head_bias: Whether the logits have a bias (BART, Marian).
        cross_attention: Attention to an encoder's hidden states; None in a decoder that stands alone.
    """

    vocab_size: int
    embedding_size: int
    tied: bool
    head_scale: float = 1.0
    head_bias: bool = False
    cross_attention: AttentionSpec | None = None

    def to_dict(self) -> dict:
        """The spec as plain lists, numbers and strings, for `get_config`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "DecoderSpec":
        """The spec that `to_dict` wrote (through JSON or not)."""
        return cls(**_parts(values))


@dataclass(frozen=True)
class EncoderDecoderSpec:
    """An encoder, and a decoder that attends to what it gives."""

    encoder: EncoderSpec
    decoder: DecoderSpec

    def to_dict(self) -> dict:
        """The spec as plain lists, numbers and strings, for `get_config`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "EncoderDecoderSpec":
        """The spec that `to_dict` wrote (through JSON or not)."""
        return cls(EncoderSpec(**_parts(values["encoder"])), DecoderSpec.from_dict(values["decoder"]))


ModelSpec = DecoderSpec | EncoderDecoderSpec


def spec_from_dict(values: dict) -> ModelSpec:
    """The spec that `to_dict` of either kind wrote (through JSON or not)."""
    return EncoderDecoderSpec.from_dict(values) if "encoder" in values else DecoderSpec.from_dict(values)


_TYPES = {"attention": AttentionSpec, "cross_attention": AttentionSpec, "norm": NormSpec, "mlp": MLPSpec}
_KINDS = (LearnedPositions, SinusoidalPositions, RotaryPositions, RelativePositions, TextSource, SpeechSource)
_BY_KIND = {part.kind: part for part in _KINDS}


def _parts(values: dict) -> dict[str, Any]:
    """A stack's fields, with its parts made of dicts again."""
    made = dict(values)
    for name, part in values.items():
        if isinstance(part, dict):
            part = {key: tuple(x) if isinstance(x, list) else x for key, x in part.items()}
            made[name] = (_TYPES.get(name) or _BY_KIND[part["kind"]])(**part)
    return made
