"""Blocks one after the other: what they compute is what each computes, and those alike are traced once."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla import backend
from keras_xla.models.layers.attention import AttentionInputs
from keras_xla.models.layers.blocks import Block
from keras_xla.models.layers.stack import run_blocks
from keras_xla.models.spec import AttentionSpec, LearnedPositions, MLPSpec, NormSpec, StackSpec

LAYERS, SIZE = 6, 8
X = np.random.default_rng(0).normal(size=(2, 3, SIZE)).astype("float32")


class Counted(Block):
    """A block that counts how often Python runs it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = 0

    def call(self, *args, **kwargs):
        self.calls += 1
        return super().call(*args, **kwargs)


def make_blocks(**attention) -> list[Block]:
    spec = StackSpec(
        hidden_size=SIZE,
        layers=LAYERS,
        attention=AttentionSpec(heads=2, kv_heads=1, head_dim=4, qkv_bias=True, out_bias=False, scale=0.5, **attention),
        mlp=MLPSpec(size=16, activation="relu", gated=False, bias=True),
        norm=NormSpec("rms", 1e-6),
        position=LearnedPositions(8),
        final_norm=False,
    )
    return [Counted(spec, i) for i in range(LAYERS)]


def inputs(blocks, x) -> AttentionInputs:
    return AttentionInputs({block.attention.window: None for block in blocks})


def one_by_one(blocks, x):
    for block in blocks:
        x, _ = block(x, inputs(blocks, x))
    return x


def compiled(blocks):
    variables = [v for block in blocks for v in block.variables]
    return backend.jit(lambda x: run_blocks(blocks, x, inputs(blocks, x)), variables)


def calls(blocks) -> int:
    return sum(block.calls for block in blocks)


def test_blocks_that_differ_in_weights_only_are_traced_once():
    blocks = make_blocks()
    x, updated = compiled(blocks)(ops.convert_to_tensor(X))
    assert calls(blocks) == 1
    assert len(updated) == LAYERS
    np.testing.assert_allclose(x, one_by_one(blocks, X), atol=1e-5)


@pytest.mark.parametrize(
    ("attention", "kinds"), [({"windows": (2, None) * 3}, 2), ({"scale_by_layer": True}, LAYERS)], ids=str
)
def test_what_is_no_weight_sets_blocks_apart(attention, kinds):
    blocks = make_blocks(**attention)
    x, _ = compiled(blocks)(ops.convert_to_tensor(X))
    assert calls(blocks) == kinds
    np.testing.assert_allclose(x, one_by_one(blocks, X), atol=1e-5)


def test_outside_of_a_graph_python_runs_each_time():
    blocks = make_blocks()
    x, _ = run_blocks(blocks, ops.convert_to_tensor(X), inputs(blocks, X))
    assert calls(blocks) == LAYERS
    np.testing.assert_allclose(x, one_by_one(blocks, X), atol=1e-6)


class Stack(keras.Model):
    """A model whose call is `run`."""

    def __init__(self, blocks, run):
        super().__init__()
        self.blocks, self.run = blocks, run

    def call(self, x):
        return self.run(self.blocks, x)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.quick("float32-False")
def test_training_through_them_is_as_through_each(jit_compile, dtype):
    def trained(run):
        keras.utils.set_random_seed(0)
        previous = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype)
        try:
            model = Stack(make_blocks(), run)
        finally:
            keras.config.set_dtype_policy(previous)
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit_compile)
        losses = model.fit(X, X[:, ::-1], epochs=2, verbose=0).history["loss"]
        return losses, model.get_weights()

    losses, weights = trained(lambda blocks, x: run_blocks(blocks, x, inputs(blocks, x))[0])
    expected, expected_weights = trained(one_by_one)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    for mine, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(mine, other, atol=tolerance)
    assert losses[-1] < losses[0]
