"""The encoder that an `EncoderSpec` describes, for text or speech."""

from keras import ops

from keras_xla.models.layers.attention import AttentionInputs
from keras_xla.models.layers.basic import Convolution, Norm, gelu
from keras_xla.models.layers.blocks import Block
from keras_xla.models.layers.embedding import PositionEmbedding
from keras_xla.models.layers.matrices import make_matrix
from keras_xla.models.layers.stack import run_blocks
from keras_xla.models.spec import EncoderSpec
from keras_xla.models.weights import WeightedLayer

# B batch, L source length, F frames, E hidden size


class Encoder(WeightedLayer):
    """A transformer encoder.

    Args:
        spec: `EncoderSpec`.

    Call arguments:
        source: Token ids `(batch, length)` int32, right-padded; or speech features `(batch, mel bins, frames)`
            float, with exactly two frames a position.
        real: `(batch, length)` bool, the real tokens; None for all, and for speech.
        embedding: The decoder's `Matrix` of `(vocab_size, hidden)`, if the two share it.

    Returns:
        Hidden states `(batch, length, hidden)`; `(batch, frames / 2, hidden)` of speech.

    Raises:
        ValueError: for features of another shape, or more tokens than there are positions.
    """

    def __init__(self, spec: EncoderSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        dtype, size = self.dtype_policy, spec.hidden_size
        if spec.source.kind == "speech":
            self.front = [
                Convolution(spec.source.mel_bins, size, stride=1, dtype=dtype, name="front_0"),
                Convolution(size, size, stride=2, dtype=dtype, name="front_1"),
            ]
        elif not spec.source.shared:
            self.embedding = make_matrix(spec.source.vocab_size, size, by_row=True, dtype=dtype, name="embedding")
        self.positions = PositionEmbedding(spec, both_ways=True, dtype=dtype, name="positions")
        if spec.embedding_norm:
            self.embedding_norm = Norm(size, spec.norm, dtype=dtype, name="embedding_norm")
        self.blocks = [Block(spec, i, dtype=dtype, name=f"block_{i}") for i in range(spec.layers)]
        if spec.final_norm:
            self.final_norm = Norm(size, spec.norm, dtype=dtype, name="final_norm")
        self.built = True

    def call(self, source, real=None, embedding=None):
        return self._run(source, real, embedding)

    def encode(self, source, real=None, embedding=None):
        """What a call returns, without gradients: long sources take less time and memory."""
        return self._run(source, real, embedding, blockwise=True)

    def _run(self, source, real, embedding, blockwise: bool = False):
        spec = self.spec
        x = self._listen(source) if spec.source.kind == "speech" else self._embed(source, embedding)
        positions = ops.arange(x.shape[1], dtype="int32")[None]  # [1, L]
        added = self.positions.added(positions)
        x = x if added is None else x + ops.cast(added, x.dtype)
        x = self.embedding_norm(x) if spec.embedding_norm else x
        attention_inputs = AttentionInputs(
            masks={None: None if real is None else real[:, None, None, :]},
            rotary=self.positions.rotary(positions),
            bias=self.positions.bias(positions, positions),
        )
        if blockwise:
            attention_inputs = attention_inputs.blockwise(x.shape[1], x.shape[1])
        x, _ = run_blocks(self.blocks, x, attention_inputs)
        return self.final_norm(x) if spec.final_norm else x

    def _embed(self, ids, embedding):
        limit = self.spec.position.max_positions
        if limit is not None and ids.shape[1] > limit:
            raise ValueError(
                f"Received a source of {ids.shape[1]} tokens; the encoder has {limit} positions. Shorten it."
            )
        x = (embedding if self.spec.source.shared else self.embedding).rows(ids)  # [B, L, E]
        return x if self.spec.embedding_scale == 1.0 else x * self.spec.embedding_scale

    def _listen(self, features):
        expected = (self.spec.source.mel_bins, 2 * self.spec.position.max_positions)
        if tuple(features.shape[1:]) != expected:
            raise ValueError(
                f"Received speech features of shape {tuple(features.shape)}; expected (batch, {expected[0]}, "
                f"{expected[1]}). Pad the audio with silence, or cut it, to {expected[1]} frames."
            )
        x = ops.transpose(features, (0, 2, 1))  # [B, F, mel]
        for convolution in self.front:
            x = gelu(convolution(x))
        return x  # [B, F / 2, E]
