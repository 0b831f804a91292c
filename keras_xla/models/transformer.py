"""The decoder that a `DecoderSpec` describes, alone or behind an encoder."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_xla.models.interface import Cache, View
from keras_xla.models.layers import cache as kv
from keras_xla.models.layers.attention import AttentionInputs
from keras_xla.models.layers.basic import Linear, Norm
from keras_xla.models.layers.blocks import Block
from keras_xla.models.layers.embedding import PositionEmbedding
from keras_xla.models.layers.matrices import make_matrix, quantization_here
from keras_xla.models.layers.stack import run_blocks
from keras_xla.models.parameters import give_paths
from keras_xla.models.saved_spec import SavedSpec
from keras_xla.models.spec import DecoderSpec
from keras_xla.models.weights import WeightedLayer

# B batch, S new tokens, T slots, M source, E hidden size, V vocabulary


class EncoderMemory(NamedTuple):
    """What a decoder keeps of an encoder's hidden states."""

    layers: list  # keys and values of each, see `CrossAttention.remember`
    seen: Any  # [B, 1, 1, M] bool; None for all


@keras.saving.register_keras_serializable(package="keras_xla")
class Transformer(SavedSpec, WeightedLayer):
    """A language model of the decoder kind; implements the `ChunkDecoder` protocol.

    With cross-attention in its spec, every method needs the `memory` that `remember` makes.

    Args:
        spec: `DecoderSpec`.

    Call arguments:
        ids: `(batch, length)` int32 token ids, without padding.

    Returns:
        Logits `(batch, length, vocab_size)` float32.

    Raises:
        ValueError: for more tokens a row than the model has positions.

    Example:
    ```python
    model = Transformer(spec)
    logits = model(np.zeros((1, 8), "int32"))
    ```
    """

    def __init__(self, spec: DecoderSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec, self.quantization = spec, quantization_here()
        self.generation_config: dict[str, Any] = {}
        self.vocab_size, self.max_positions = spec.vocab_size, spec.position.max_positions
        dtype, wide, size = self.dtype_policy, spec.hidden_size, spec.embedding_size
        self.embedding = make_matrix(spec.vocab_size, size, by_row=True, dtype=dtype, name="embedding")
        self.positions = PositionEmbedding(spec, both_ways=False, dtype=dtype, name="positions")
        if size != wide:
            self.project_in = Linear(size, wide, False, dtype=dtype, name="project_in")
            self.project_out = Linear(wide, size, False, dtype=dtype, name="project_out")
        if spec.embedding_norm:
            self.embedding_norm = Norm(wide, spec.norm, dtype=dtype, name="embedding_norm")
        cross = spec.cross_attention
        self.blocks = [Block(spec, i, cross, dtype=dtype, name=f"block_{i}") for i in range(spec.layers)]
        if spec.final_norm:
            self.final_norm = Norm(wide, spec.norm, dtype=dtype, name="final_norm")
        if not spec.tied:
            self.head = make_matrix(spec.vocab_size, size, of_tokens=True, dtype=dtype, name="head")
        if spec.head_bias:
            self.head_bias = self.add_weight((1, spec.vocab_size), initializer="zeros", name="head_bias")
        self.built = True
        give_paths(self)

    def call(self, ids, memory: EncoderMemory | None = None):
        length, most = ids.shape[1], self.max_positions
        if isinstance(length, int) and most is not None and length > most:  # no int while Keras on JAX looks for shapes
            raise ValueError(f"Received {length} tokens a row; the model has {most} positions. Shorten them.")
        ids = ops.cast(ids, "int32")
        starts = ops.zeros_like(ids[:, 0])
        return self._logits(self._prompt(ids, starts, memory)[0])

    def remember(self, hidden, mask=None) -> EncoderMemory:
        """The memory of an encoder's `hidden [B, M, E]`, of which `mask [B, M]` bool can be seen (None: all)."""
        seen = None if mask is None else mask[:, None, None, :]
        return EncoderMemory([block.cross.remember(hidden) for block in self.blocks], seen)

    def prefill(self, ids, starts, slots: int, memory: EncoderMemory | None = None) -> tuple:
        """See `Decoder.prefill`."""
        x, prompt = self._prompt(ids, starts, memory)
        empty = self.empty_cache(ids.shape[0], slots)
        transposed = self._keys_transposed
        cache: Cache = [kv.write(each, k, v, 0, transposed) for each, (k, v) in zip(empty, prompt, strict=True)]
        return self._logits(x[:, -1]), cache

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """See `ChunkDecoder.empty_cache`."""
        a, transposed = self.spec.attention, self._keys_transposed
        return [kv.empty(batch * a.kv_heads, slots, a.head_dim, self.compute_dtype, transposed) for _ in self.blocks]

    def step(self, tokens, slot, starts, cache: Cache, memory: EncoderMemory | None = None) -> tuple:
        """See `Decoder.step`."""
        view = View.causal(slot, 1, cache[0][1].shape[1], starts)
        x, cache = self._run(tokens[:, None], view, memory, cache, slot)
        return self._logits(x[:, 0]), cache

    def extend(self, tokens, slot, view: View, cache: Cache, memory: EncoderMemory | None = None) -> tuple:
        """See `ChunkDecoder.extend`."""
        x, cache = self._run(tokens, view, memory, cache, slot)
        return self._logits(x), cache

    @property
    def _keys_transposed(self) -> bool:
        return self.blocks[0].attention.keys_transposed

    def _prompt(self, ids, starts, memory):
        """Hidden states `[B, S, E]` of a prompt, and each layer's keys and values over it."""
        length = ops.shape(ids)[1]
        return self._run(ids, View.causal(0, length, length, starts), memory)

    def _run(self, ids, view: View, memory: EncoderMemory | None, cache: Cache | None = None, slot=None):
        """Hidden states `[B, S, E]` of `ids [B, S]`, and the updated cache; without one, their keys and values."""
        spec = self.spec
        positions = ops.maximum(view.positions, 0)  # padding counts as 0
        if cache is not None and self.max_positions is not None:  # of what fills a prompt's last chunk
            positions = ops.minimum(positions, self.max_positions - 1)
        x = self._embed(ids, positions)
        attention_inputs = AttentionInputs(
            masks={
                window: kv.within(view, window) for window in {spec.attention.window(i) for i in range(spec.layers)}
            },
            rotary=self.positions.rotary(positions),
            bias=self.positions.bias(view.positions, view.slot_positions),
            source=None if memory is None else memory.seen,
        )
        if cache is not None:
            attention_inputs = attention_inputs.blockwise(ids.shape[1], view.seen.shape[2])
        memories = None if memory is None else memory.layers
        return run_blocks(self.blocks, x, attention_inputs, cache, slot, memories)

    def _embed(self, ids, positions):
        """`ids [B, S]` at `positions [B, S]` -> `[B, S, E]`."""
        spec = self.spec
        x = self.embedding.rows(ids)
        if spec.embedding_scale != 1.0:
            x = x * spec.embedding_scale
        if spec.embedding_size != spec.hidden_size:
            x = self.project_in(x)
        added = self.positions.added(positions)
        x = x if added is None else x + ops.cast(added, x.dtype)
        return self.embedding_norm(x) if spec.embedding_norm else x

    def _logits(self, x):
        """`x [..., E]` -> `[..., V]` float32."""
        spec = self.spec
        if spec.final_norm:
            x = self.final_norm(x)
        if spec.embedding_size != spec.hidden_size:
            x = self.project_out(x)
        if spec.head_scale != 1.0:
            x = x * spec.head_scale
        logits = ops.cast((self.embedding if spec.tied else self.head).product(x), "float32")
        return logits + ops.cast(self.head_bias, "float32") if spec.head_bias else logits
