"""Blocks one after the other, those of equal structure traced once."""

import functools

import keras

from keras_xla import backend
from keras_xla.models.layers.attention import AttentionInputs
from keras_xla.models.layers.blocks import Block

# B batch, S new tokens, E hidden size


def run_blocks(
    blocks: list[Block], x, attention_inputs: AttentionInputs, caches=None, slot=None, memories=None
) -> tuple:
    """`x [B, S, E]` -> `[B, S, E]`, and each block's keys and values; see `Block`.

    Tracing 30 blocks one by one took TensorFlow a third of a model's first call. The first of them stands for all that
    differ from it in their weights only.
    """
    traced, updated = {}, []
    nothing = [None] * len(blocks)
    for block, cache, memory in zip(blocks, caches or nothing, memories or nothing, strict=True):
        if block.structure not in traced:
            run = functools.partial(_run_block, block, attention_inputs, slot)
            traced[block.structure] = backend.trace_once(run)
        weights = backend.read_weights(block.variables)
        x, cache = traced[block.structure](weights, x, cache, memory)
        updated.append(cache)
    return x, updated


def _run_block(block: Block, attention_inputs: AttentionInputs, slot, weights: list, x, cache, memory) -> tuple:
    with keras.StatelessScope(state_mapping=list(zip(block.variables, weights, strict=True))):
        return block(x, attention_inputs, cache, slot, memory)
