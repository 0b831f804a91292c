"""The model that an `EncoderDecoderSpec` describes: it reads a source once, then decodes."""

from typing import Any

import keras

from keras_xla.models.encoder import Encoder
from keras_xla.models.interface import Cache, View
from keras_xla.models.parameters import give_paths
from keras_xla.models.saved_spec import SavedSpec
from keras_xla.models.spec import EncoderDecoderSpec, TextSource
from keras_xla.models.transformer import EncoderMemory, Transformer


@keras.saving.register_keras_serializable(package="keras_xla")
class EncoderDecoderModel(SavedSpec, keras.layers.Layer):
    """An encoder-decoder for text or speech; implements the `EncoderDecoder` protocol.

    Args:
        spec: `EncoderDecoderSpec`.

    Call arguments:
        source: What the encoder reads, see `Encoder`.
        ids: `(batch, length)` int32, what the decoder has said, without padding.
        source_mask: `(batch, source length)` bool, the real tokens of `source`; None for all.

    Returns:
        Logits `(batch, length, vocab_size)` float32 of the token after each one.

    Example:
    ```python
    model = EncoderDecoderModel(spec)
    logits = model(source=np.zeros((1, 12), "int32"), ids=np.zeros((1, 8), "int32"))
    ```
    """

    def __init__(self, spec: EncoderDecoderSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        self.generation_config: dict[str, Any] = {}
        self.encoder = Encoder(spec.encoder, dtype=self.dtype_policy, name="encoder")
        self.decoder = Transformer(spec.decoder, dtype=self.dtype_policy, name="decoder")
        self.vocab_size, self.max_positions = self.decoder.vocab_size, self.decoder.max_positions
        self.max_source = spec.encoder.position.max_positions
        if isinstance(spec.encoder.source, TextSource):
            self.source_vocab_size = spec.encoder.source.vocab_size
        self.built = True
        give_paths(self)

    @property
    def quantization(self) -> str | None:
        """How its matrices are stored, see `matrices.stored_as`."""
        return self.decoder.quantization

    def call(self, source, ids, source_mask=None):
        hidden = self.encoder(source, source_mask, embedding=self._shared)
        memory = self.decoder.remember(hidden, source_mask)
        return self.decoder(ids, memory)

    def encode(self, source, mask=None):
        """See `interface.EncoderDecoder.encode`."""
        return self.encoder.encode(source, mask, embedding=self._shared)

    @property
    def _shared(self) -> Any:
        """The embedding that the encoder shares with the decoder, if it does."""
        source = self.spec.encoder.source
        return self.decoder.embedding if source.kind == "text" and source.shared else None

    def remember(self, hidden, mask=None) -> EncoderMemory:
        """See `interface.EncoderDecoder.remember`."""
        return self.decoder.remember(hidden, mask)

    def with_memory(self, memory: EncoderMemory) -> "DecoderWithMemory":
        """See `interface.EncoderDecoder.with_memory`."""
        return DecoderWithMemory(self.decoder, memory)


class DecoderWithMemory:
    """A decoder with what it remembers of one source; implements the `ChunkDecoder` protocol."""

    def __init__(self, decoder: Transformer, memory: EncoderMemory):
        self._decoder, self._memory = decoder, memory
        self.vocab_size, self.max_positions = decoder.vocab_size, decoder.max_positions

    @property
    def variables(self) -> list:
        """Those of the decoder."""
        return self._decoder.variables

    def prefill(self, ids, starts, slots: int) -> tuple[Any, Cache]:
        """See `Decoder.prefill`."""
        return self._decoder.prefill(ids, starts, slots, self._memory)

    def step(self, tokens, slot, starts, cache: Cache) -> tuple[Any, Cache]:
        """See `Decoder.step`."""
        return self._decoder.step(tokens, slot, starts, cache, self._memory)

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """See `ChunkDecoder.empty_cache`."""
        return self._decoder.empty_cache(batch, slots)

    def extend(self, tokens, slot, view: View, cache: Cache) -> tuple[Any, Cache]:
        """See `ChunkDecoder.extend`."""
        return self._decoder.extend(tokens, slot, view, cache, self._memory)
