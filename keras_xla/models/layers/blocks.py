"""The block that stacks are made of."""

from typing import Any

import keras
from keras import ops
from keras.backend import standardize_dtype

from keras_xla.models.layers.attention import Attention, AttentionInputs, CrossAttention
from keras_xla.models.layers.basic import MLP, Norm
from keras_xla.models.spec import AttentionSpec, EncoderSpec, StackSpec

# B batch, S new tokens, E hidden size

LARGEST_HALF = 64504.0  # 1000 less than float16 can hold, as in PyTorch transformers' encoders


class Block(keras.layers.Layer):
    """Attention, attention to an encoder if `cross` is given, and feed-forward, with their norms and residuals."""

    def __init__(self, spec: StackSpec, index: int, cross: AttentionSpec | None = None, **kwargs):
        super().__init__(autocast=False, **kwargs)  # the sum of the residuals may be of float32, see `MLPSpec.wide`
        self.pre = spec.norm.placement == "pre"
        self.cut = self.pre and isinstance(spec, EncoderSpec)
        dtype, size = self.dtype_policy, spec.hidden_size
        self.attention_norm = Norm(size, spec.norm, dtype=dtype, name="attention_norm")
        self.attention = Attention(size, spec.attention, spec.norm, index, dtype=dtype, name="attention")
        self.cross: Any = None  # a `CrossAttention` where there is an encoder
        if cross is not None:
            self.cross_norm = Norm(size, spec.norm, dtype=dtype, name="cross_norm")
            self.cross = CrossAttention(size, cross, dtype=dtype, name="cross")
        self.mlp_norm = Norm(size, spec.norm, dtype=dtype, name="mlp_norm")
        self.mlp = MLP(size, spec.mlp, dtype=dtype, name="mlp")
        self.built = True

    @property
    def structure(self) -> tuple:
        """What sets a block of a stack apart from others, beside the values of its weights."""
        weights = tuple((v.shape, v.dtype) for v in self.variables)
        return self.attention.window, self.attention.factor, weights

    def call(self, x, attention_inputs: AttentionInputs, cache=None, slot=None, memory=None):
        """`x [B, S, E]` -> `[B, S, E]`, and the layer's keys and values; see `Attention` and `CrossAttention`."""
        y, cache = self.attention(self._before(x, self.attention_norm), attention_inputs, cache, slot)
        x = self._after(ops.add(x, y), self.attention_norm)
        if self.cross is not None:
            y = self.cross(self._before(x, self.cross_norm), attention_inputs, memory)
            x = self._after(ops.add(x, y), self.cross_norm)
        y = self.mlp(self._before(x, self.mlp_norm))
        x = self._after(ops.add(x, y), self.mlp_norm)
        if self.cut and standardize_dtype(x.dtype) == "float16":  # as in PyTorch, where a sum may outgrow it
            x = ops.clip(x, -LARGEST_HALF, LARGEST_HALF)
        return x, cache

    def _before(self, x, norm):
        return norm(x) if self.pre else x

    def _after(self, x, norm):
        return x if self.pre else norm(x)
