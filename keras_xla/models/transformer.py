"""The decoder-only transformer that a `DecoderSpec` describes."""

import keras
from keras import ops

from keras_xla import backend
from keras_xla.models import cache as kv
from keras_xla.models.blocks import Block, Linear, Norm
from keras_xla.models.interface import Cache
from keras_xla.models.positions import rotary_tables
from keras_xla.models.spec import DecoderSpec

# B batch, S new tokens, T slots, E hidden size, V vocabulary


class Transformer(keras.layers.Layer):
    """A decoder-only language model; implements the `Decoder` protocol.

    Args:
        spec: `DecoderSpec`.

    Call arguments:
        ids: `(batch, length)` int32 token ids, without padding.

    Returns:
        Logits `(batch, length, vocab_size)` float32.

    Example:
    ```python
    model = Transformer(spec)
    logits = model(np.zeros((1, 8), "int32"))
    ```
    """

    def __init__(self, spec: DecoderSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        self.vocab_size, self.max_positions = spec.vocab_size, spec.position.max_positions
        dtype, wide, size = self.dtype_policy, spec.hidden_size, spec.embedding_size
        self.embedding = self.add_weight((spec.vocab_size, size), name="embedding")
        if spec.position.kind == "learned":
            rows = spec.position.max_positions + spec.position.offset
            self.positions = self.add_weight((rows, wide), name="positions")
        if size != wide:
            self.project_in = Linear(size, wide, False, dtype=dtype, name="project_in")
            self.project_out = Linear(wide, size, False, dtype=dtype, name="project_out")
        self.blocks = [Block(spec, i, dtype=dtype, name=f"block_{i}") for i in range(spec.layers)]
        if spec.final_norm:
            self.final_norm = Norm(wide, spec.norm, dtype=dtype, name="final_norm")
        if not spec.tied:
            self.head = self.add_weight((spec.vocab_size, size), name="head")
        self.built = True

    def call(self, ids):
        ids = ops.cast(ids, "int32")
        starts = ops.zeros((ids.shape[0],), "int32")
        return self._logits(self._prompt(ids, starts)[0])

    def prefill(self, ids, starts, slots: int) -> tuple:
        """See `Decoder.prefill`."""
        x, prompt = self._prompt(ids, starts)
        a, batch = self.spec.attention, ids.shape[0]
        rows = batch * a.kv_heads
        cache: Cache = [kv.write(kv.empty(rows, slots, a.head_dim, x.dtype), k, v, 0) for k, v in prompt]
        return self._logits(x[:, -1]), cache

    def step(self, tokens, slot, starts, cache: Cache) -> tuple:
        """See `Decoder.step`."""
        queries = ops.reshape(slot, (1,))
        x, tables, one = self._embed(tokens[:, None], queries, starts)
        masks = self._masks(queries, cache[0][0].shape[1], starts)
        updated = []
        for block, layer_cache in zip(self.blocks, cache, strict=True):
            x, layer_cache = block(x, one, masks, tables, layer_cache, slot)
            updated.append(layer_cache)
        return self._logits(x[:, 0]), updated

    def _prompt(self, ids, starts):
        """Hidden states `[B, S, E]` of a prompt, and each layer's keys and values over it."""
        queries = ops.arange(ids.shape[1], dtype="int32")
        x, tables, one = self._embed(ids, queries, starts)
        masks = self._masks(queries, ids.shape[1], starts)
        caches = []
        for block in self.blocks:
            x, layer_cache = block(x, one, masks, tables)
            caches.append(layer_cache)
        return x, caches

    def _embed(self, ids, queries, starts):
        """`ids [B, S]` at the slots `queries [S]` -> `[B, S, E]`, rotary tables or None, and `Linear`'s `one`."""
        positions = ops.maximum(queries[None, :] - starts[:, None], 0)  # [B, S]; padding counts as 0
        x = ops.take(self.embedding, ids, axis=0)
        one = ops.cast(starts[0] >= 0, x.dtype)  # always 1, but nothing tells the compiler so
        position = self.spec.position
        if self.spec.embedding_size != self.spec.hidden_size:
            x = self.project_in(x, one)
        if position.kind == "rotary":
            return x, rotary_tables(positions, position.inverse_frequencies, position.attention_factor), one
        return x + ops.take(self.positions, positions + position.offset, axis=0), None, one

    def _masks(self, queries, slots, starts):
        """The attention mask of each window that the layers use."""
        windows = set(self.spec.attention.windows)
        return {window: kv.visible(queries, slots, starts, window) for window in windows}

    def _logits(self, x):
        """`x [..., E]` -> `[..., V]` float32."""
        if self.spec.final_norm:
            x = self.final_norm(x)
        if self.spec.embedding_size != self.spec.hidden_size:
            x = self.project_out(x, ops.ones((), x.dtype))
        head = self.embedding if self.spec.tied else self.head
        return ops.cast(backend.matmul_transposed(x, ops.convert_to_tensor(head)), "float32")
