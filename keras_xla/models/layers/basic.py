"""The layers that every sublayer is made of."""

import keras
from keras import ops

from keras_xla.models.layers.matrices import make_matrix
from keras_xla.models.spec import MLPSpec, NormSpec
from keras_xla.models.weights import WeightedLayer


class Linear(WeightedLayer):
    """`x [..., in] -> [..., out]`."""

    def __init__(self, inputs: int, outputs: int, bias: bool, **kwargs):
        super().__init__(**kwargs)
        self.kernel = make_matrix(outputs, inputs, dtype=self.dtype_policy, name="kernel")
        self.bias = self.add_weight((outputs,), initializer="zeros", name="bias") if bias else None
        self.built = True

    def call(self, x):
        y = self.kernel.product(x)
        return y if self.bias is None else y + self.bias


class Norm(WeightedLayer):
    """Layer or RMS normalization over the last axis, computed in float32."""

    def __init__(self, size: int, spec: NormSpec, **kwargs):
        super().__init__(autocast=False, **kwargs)  # what comes may be of float32, see `MLPSpec.wide`
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
        y = ops.cast(y, self.compute_dtype)
        if self.scale is not None:
            y = y * ops.cast(self.scale, y.dtype)
        return y if self.bias is None else y + ops.cast(self.bias, y.dtype)


class MLP(keras.layers.Layer):
    """The feed-forward sublayer; gate and up projections are one kernel, gate first."""

    def __init__(self, hidden: int, spec: MLPSpec, **kwargs):
        super().__init__(**kwargs)
        self.spec = spec
        self.activation = ACTIVATIONS[spec.activation]
        dtype = self.dtype_policy
        self.up = Linear(hidden, spec.size * (2 if spec.gated else 1), spec.bias, dtype=dtype, name="up")
        down = "float32" if spec.wide and self.compute_dtype == "float16" else dtype
        self.down = Linear(spec.size, hidden, spec.bias, dtype=down, name="down")
        self.built = True

    def call(self, x):
        y = self.up(x)
        if self.spec.gated:
            gate, y = ops.split(y, 2, axis=-1)
            y = self.activation(gate) * y
        else:
            y = self.activation(y)
        return self.down(y)


class Convolution(WeightedLayer):
    """`x [B, F, in] -> [B, F / stride, out]` with kernels 3 wide and one frame of zeros at each end.

    The kernel is stored `[out, in, 3]`, as PyTorch does.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, **kwargs):
        super().__init__(**kwargs)
        self.stride = stride
        self.kernel = self.add_weight((outputs, inputs, 3), name="kernel")
        self.bias = self.add_weight((outputs,), initializer="zeros", name="bias")
        self.built = True

    def call(self, x):
        x = ops.pad(x, ((0, 0), (1, 1), (0, 0)))
        kernel = ops.transpose(self.kernel, (2, 1, 0))
        return ops.conv(x, kernel, strides=self.stride, padding="valid", data_format="channels_last") + self.bias


def gelu(x):
    """The exact GELU, with the error function."""
    return ops.gelu(x, approximate=False)


ACTIVATIONS = {
    "relu": ops.relu,
    "silu": ops.silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
}
