"""Attention of a stack to itself, over a cache or not, and to another's hidden states."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_xla import backend
from keras_xla.models.layers import cache as kv
from keras_xla.models.layers.basic import Linear, Norm
from keras_xla.models.layers.blockwise_attention import attend_blockwise, scores_of, span
from keras_xla.models.layers.positions import rotate
from keras_xla.models.spec import AttentionSpec, NormSpec

# B batch, S new tokens, E hidden size, T slots, M source
# H key-value heads, G query heads a key-value head, D head size


class AttentionInputs(NamedTuple):
    """What all blocks of a stack share in one run."""

    masks: Any  # {window: [B, 1, S, T] bool}, which slots a token sees; None for all
    rotary: Any = None  # cosines and sines, see `rotary_tables`
    bias: Any = None  # [B or 1, HG, S, T], added to the scores
    source: Any = None  # [B, 1, 1, M] bool, what can be seen of an encoder's hidden states; None for all
    spans: Any = None  # {window: see `span`}; None: attention to all slots at once

    def blockwise(self, queries: int, slots: int) -> "AttentionInputs":
        """The same for `queries` a row over so many `slots`, in blocks if that pays.

        It cannot be differentiated then: the length of the loop is known only when it runs.
        """
        return self._replace(spans={window: span(mask, queries, slots) for window, mask in self.masks.items()})


def attend(q, k, v, mask, bias, scale: float, keys_transposed: bool = False):
    """Softmax attention with grouped key-value heads.

    Args:
        q: `[B, HG, S, D]`.
        k: `[BH, T, D]`, or `[BH, D, T]` with `keys_transposed`.
        v: `[BH, T, D]`.
        mask: Bool, broadcastable to `[B, HG, S, T]`; None for all.
        bias: Added to the scaled scores, broadcastable likewise; or None.
        scale: Factor on the scores.
        keys_transposed: Whether `k` is transposed, see `cache`.

    Returns:
        `[B, S, HGD]`.
    """
    (batch, heads, length, size), (rows, slots, _) = ops.shape(q), ops.shape(v)
    queries = batch * heads // rows * length
    q = ops.reshape(q, (rows, queries, size)) * scale  # [BH, GS, D]
    scores = ops.cast(scores_of(q, k, keys_transposed), "float32")
    scores = ops.reshape(scores, (batch, heads, length, slots))
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    if mask is not None:
        scores = ops.where(mask, scores, -1e9)  # finite: an unused row sees nothing
    weights = ops.cast(ops.softmax(scores, axis=-1), v.dtype)
    y = ops.matmul(ops.reshape(weights, (rows, queries, slots)), v)
    y = ops.transpose(ops.reshape(y, (batch, heads, length, size)), (0, 2, 1, 3))
    return ops.reshape(y, (batch, length, heads * size))


def _heads(x, heads: int):
    """`[B, S, heads D] -> [B, heads, S, D]`."""
    batch, length, width = ops.shape(x)
    return ops.transpose(ops.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


class Attention(keras.layers.Layer):
    """Self-attention with grouped key-value heads, over the tokens themselves or over a cache."""

    def __init__(self, hidden: int, spec: AttentionSpec, norm: NormSpec, index: int, **kwargs):
        super().__init__(**kwargs)
        self.spec, self.window = spec, spec.window(index)
        self.factor = spec.scale / (index + 1) if spec.scale_by_layer else spec.scale
        self.keys_transposed = backend.on_cpu() and spec.kv_heads < spec.heads
        dtype, width = self.dtype_policy, (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        self.qkv = Linear(hidden, width, spec.qkv_bias, dtype=dtype, name="qkv")
        self.out = Linear(spec.heads * spec.head_dim, hidden, spec.out_bias, dtype=dtype, name="out")
        if spec.qk_norm:
            head_norm = NormSpec("rms", norm.epsilon if spec.qk_norm_epsilon is None else spec.qk_norm_epsilon)
            self.q_norm = Norm(spec.head_dim, head_norm, dtype=dtype, name="q_norm")
            self.k_norm = Norm(spec.head_dim, head_norm, dtype=dtype, name="k_norm")
        self.built = True

    def call(self, x, attention_inputs: AttentionInputs, cache=None, slot=None):
        """Attend from `x [B, S, E]`; returns the output `[B, S, E]` and this layer's keys and values.

        Without a `cache` the queries see the keys of `x` itself, and keys and values are `[BH, S, D]` each; with one,
        they are written at `slot` first, and the whole updated cache is seen and returned.
        """
        s = self.spec
        heads = _heads(self.qkv(x), s.heads + 2 * s.kv_heads)  # [B, HG + 2H, S, D]
        q, k, v = ops.split(heads, (s.heads, s.heads + s.kv_heads), axis=1)
        if s.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if attention_inputs.rotary is not None:
            q, k = rotate(q, attention_inputs.rotary), rotate(k, attention_inputs.rotary)
        rows = (ops.shape(x)[0] * s.kv_heads, ops.shape(x)[1], s.head_dim)
        k, v = ops.reshape(k, rows), ops.reshape(v, rows)  # [BH, S, D]
        transposed = self.keys_transposed and cache is not None
        if cache is not None:
            k, v = kv.write(cache, k, v, slot, transposed)  # keys, perhaps transposed, and values: those of all slots
        inputs = q, k, v, attention_inputs.masks[self.window], attention_inputs.bias, self.factor
        visited = attention_inputs.spans and attention_inputs.spans[self.window]
        y = attend_blockwise(*inputs, visited, transposed) if visited else attend(*inputs, transposed)
        return self.out(y), (k, v)


class CrossAttention(keras.layers.Layer):
    """Attention to an encoder's hidden states, whose keys and values are computed once."""

    def __init__(self, hidden: int, spec: AttentionSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        self.keys_transposed = backend.on_cpu()  # beams may read each of them at every step
        dtype = self.dtype_policy
        self.q = Linear(hidden, spec.heads * spec.head_dim, spec.qkv_bias, dtype=dtype, name="q")
        self.kv = Linear(hidden, 2 * spec.kv_heads * spec.head_dim, spec.qkv_bias, dtype=dtype, name="kv")
        self.out = Linear(spec.heads * spec.head_dim, hidden, spec.out_bias, dtype=dtype, name="out")
        self.built = True

    def remember(self, hidden):
        """Keys and values of hidden states `[B, M, E]`: `[BH, M, D]` each, or keys `[BH, D, M]` if transposed."""
        s = self.spec
        heads = _heads(self.kv(hidden), 2 * s.kv_heads)  # [B, 2H, M, D]
        rows = (hidden.shape[0] * s.kv_heads, hidden.shape[1], s.head_dim)
        k, v = (ops.reshape(x, rows) for x in ops.split(heads, 2, axis=1))
        k = ops.transpose(k, (0, 2, 1)) if self.keys_transposed else k
        return k, v

    def call(self, x, attention_inputs: AttentionInputs, memory):
        """Attend from `x [B, S, E]` to what `remember` returned; all S tokens of a row share it."""
        q = _heads(self.q(x), self.spec.heads)
        k, v = memory
        y = attend(q, k, v, attention_inputs.source, None, self.spec.scale, self.keys_transposed)
        return self.out(y)
