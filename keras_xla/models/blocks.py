"""The layers of a transformer, shaped by the parts of a spec."""

import keras
from keras import ops

from keras_xla import backend
from keras_xla.models import cache as kv
from keras_xla.models.positions import rotate
from keras_xla.models.spec import AttentionSpec, DecoderSpec, MLPSpec, NormSpec

# B batch, S new tokens, E hidden size, H key-value heads, G query heads a key-value head, T slots, D head size


class Linear(keras.layers.Layer):
    """`x [..., in] -> [..., out]`, the kernel stored `[out, in]` as XLA on CPU reads it fastest."""

    def __init__(self, inputs: int, outputs: int, bias: bool, **kwargs):
        super().__init__(**kwargs)
        self.kernel = self.add_weight((outputs, inputs), name="kernel")
        self.bias = self.add_weight((outputs,), initializer="zeros", name="bias") if bias else None
        self.built = True

    def call(self, x, one):
        """`one`: a scalar that is 1 but that the compiler cannot know to be.

        XLA on CPU fuses a dot with an addition behind it into a loop 1.5 times slower than its
        matrix-vector product; the multiplication in between keeps them apart.
        """
        y = backend.matmul_transposed(x, ops.convert_to_tensor(self.kernel)) * one
        return y if self.bias is None else y + self.bias


class Norm(keras.layers.Layer):
    """Layer or RMS normalization over the last axis, computed in float32."""

    def __init__(self, size: int, spec: NormSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        layer = spec.kind == "layer"
        self.scale = self.add_weight((size,), initializer="ones", name="scale") if spec.affine else None
        self.bias = self.add_weight((size,), initializer="zeros", name="bias") if spec.affine and layer else None
        self.built = True

    def call(self, x):
        y = ops.cast(x, "float32")
        if self.spec.kind == "layer":
            y = y - ops.mean(y, axis=-1, keepdims=True)
        y = y * ops.rsqrt(ops.mean(ops.square(y), axis=-1, keepdims=True) + self.spec.epsilon)
        y = ops.cast(y, x.dtype)
        if self.scale is not None:
            y = y * self.scale
        return y if self.bias is None else y + self.bias


class Attention(keras.layers.Layer):
    """Causal self-attention with grouped key-value heads, over the prompt itself or over a cache."""

    def __init__(self, hidden: int, spec: AttentionSpec, norm: NormSpec, index: int, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        self.factor = spec.scale / (index + 1) if spec.scale_by_layer else spec.scale
        dtype, width = self.dtype_policy, (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        self.qkv = Linear(hidden, width, spec.qkv_bias, dtype=dtype, name="qkv")
        self.out = Linear(spec.heads * spec.head_dim, hidden, spec.out_bias, dtype=dtype, name="out")
        if spec.qk_norm:
            head_norm = NormSpec("rms", norm.epsilon)
            self.q_norm = Norm(spec.head_dim, head_norm, dtype=dtype, name="q_norm")
            self.k_norm = Norm(spec.head_dim, head_norm, dtype=dtype, name="k_norm")
        self.built = True

    def call(self, x, one, mask, tables, cache=None, slot=None):
        """Attend from `x [B, S, E]`; returns the output `[B, S, E]` and this layer's keys and values.

        Without a `cache` the queries see the keys of `x` itself; with one, `x`'s keys and values are
        written at `slot` first, and the whole updated cache is seen and returned.
        """
        s = self.spec
        batch, length = x.shape[0], x.shape[1]
        heads = self.qkv(x, one)  # [B, S, (HG + 2H) D]
        heads = ops.reshape(heads, (batch, length, s.heads + 2 * s.kv_heads, s.head_dim))
        heads = ops.transpose(heads, (0, 2, 1, 3))
        q, k, v = ops.split(heads, (s.heads, s.heads + s.kv_heads), axis=1)
        if s.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if tables is not None:
            q, k = rotate(q, tables), rotate(k, tables)
        rows = batch * s.kv_heads
        k = ops.reshape(k, (rows, length, s.head_dim))  # [BH, S, D]
        v = ops.reshape(v, (rows, length, s.head_dim))
        if cache is not None:
            k, v = kv.write(cache, k, v, slot)  # [BH, T, D]
        slots, queries = k.shape[1], s.heads // s.kv_heads * length
        q = ops.reshape(q, (rows, queries, s.head_dim)) * self.factor  # [BH, GS, D]
        scores = ops.cast(ops.einsum("nqd,ntd->nqt", q, k), "float32")
        scores = ops.reshape(scores, (batch, s.heads, length, slots))
        scores = ops.where(mask, scores, -1e9)  # finite: an unused row sees nothing
        weights = ops.cast(ops.softmax(scores, axis=-1), x.dtype)
        y = ops.einsum("nqt,ntd->nqd", ops.reshape(weights, (rows, queries, slots)), v)
        y = ops.transpose(ops.reshape(y, (batch, s.heads, length, s.head_dim)), (0, 2, 1, 3))
        return self.out(ops.reshape(y, (batch, length, s.heads * s.head_dim)), one), (k, v)


class MLP(keras.layers.Layer):
    """The feed-forward sublayer; gate and up projections are one kernel, gate first."""

    def __init__(self, hidden: int, spec: MLPSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        self.activation = _ACTIVATIONS[spec.activation]
        dtype = self.dtype_policy
        self.up = Linear(hidden, spec.size * (2 if spec.gated else 1), spec.bias, dtype=dtype, name="up")
        self.down = Linear(spec.size, hidden, spec.bias, dtype=dtype, name="down")
        self.built = True

    def call(self, x, one):
        y = self.up(x, one)
        if self.spec.gated:
            gate, y = ops.split(y, 2, axis=-1)
            y = self.activation(gate) * y
        else:
            y = self.activation(y)
        return self.down(y, one)


class Block(keras.layers.Layer):
    """Attention and feed-forward with their norms and residuals."""

    def __init__(self, spec: DecoderSpec, index: int, **kwargs):
        super().__init__(**kwargs)
        self.pre = spec.norm.placement == "pre"
        self.window = spec.attention.windows[index]
        dtype, size = self.dtype_policy, spec.hidden_size
        self.attention_norm = Norm(size, spec.norm, dtype=dtype, name="attention_norm")
        self.attention = Attention(size, spec.attention, spec.norm, index, dtype=dtype, name="attention")
        self.mlp_norm = Norm(size, spec.norm, dtype=dtype, name="mlp_norm")
        self.mlp = MLP(size, spec.mlp, dtype=dtype, name="mlp")
        self.built = True

    def call(self, x, one, masks, tables, cache=None, slot=None):
        """`x [B, S, E]` -> `[B, S, E]`, and the layer's keys and values; `masks` by window."""
        mask = masks[self.window]
        y = self.attention_norm(x) if self.pre else x
        y, cache = self.attention(y, one, mask, tables, cache, slot)
        x = x + y
        x = x if self.pre else self.attention_norm(x)
        y = self.mlp(self.mlp_norm(x) if self.pre else x, one)
        x = x + y
        return (x if self.pre else self.mlp_norm(x)), cache


_ACTIVATIONS = {
    "relu": ops.relu,
    "silu": ops.silu,
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
}
