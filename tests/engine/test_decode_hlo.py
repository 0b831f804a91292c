"""The cache is updated in place: XLA's own program has no copy of it, in the decode loop or around it."""

import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla import backend
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.generator import Generator
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint

SLOTS = 128
on_tensorflow = keras.backend.backend() == "tensorflow"


def started(checkpoint, variant, batch, beams):
    """A generator, and a generation of it that has made no token yet."""
    model = load_model(open_checkpoint(checkpoint(variant)))
    generator = Generator(model, Buckets("batch"), Buckets("cache", (SLOTS,)))
    rows = [np.arange(3, 8, dtype="int32")] * batch
    return generator, generator.start(rows, GenerationOptions(max_new_tokens=32, num_beams=beams)).generation


def program_on_jax(generator, generation):
    """XLA's program of `advance`, as text."""
    import jax

    variables = generator.model.variables
    advance, names = generator._programs.function(generation._executable(generation._key))

    def run(weights, values, tensors):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            return advance(values, *tensors)

    values = {name: generation._state.values[name] for name in names}
    tensors = generation._request, ops.convert_to_tensor(np.array([0, 8], "int32"))
    lowered = jax.jit(run, donate_argnums=1).lower([v.value for v in variables], values, tensors)
    return lowered.compile().as_text()


def program_on_tensorflow(generator, generation):
    """XLA's program of `advance`, as text."""
    import tensorflow as tf

    advance, names = generator._programs.function(generation._executable(generation._key))
    state = generation._state
    run = functools.partial(
        backend.jit_on_state(advance, generator.model.variables, names)._traced, state.structure(names)
    )
    function = tf.function(run, jit_compile=True, autograph=False)
    tensors = generation._request, backend.to_device(np.array([0, 8], "int32"))
    return function.experimental_get_compiler_ir(state.handles(names), generation.weights, tensors)("optimized_hlo")


@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa"])
@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (4, 1), (1, 3), (4, 3)])
@pytest.mark.quick("4-3-llama", "1-1-gpt2")
def test_no_copy_of_the_cache(variant, batch, beams, checkpoint):
    generator, generation = started(checkpoint, variant, batch, beams)
    program = (program_on_tensorflow if on_tensorflow else program_on_jax)(generator, generation)
    attention = generator.model.spec.attention
    cache = re.escape(f"f32[{batch * attention.kv_heads},{SLOTS},{attention.head_dim}]")
    assert re.search(rf"{cache}\S* dynamic-update-slice\(", program)
    assert not re.findall(rf"{cache}\S* copy\(", program)


@pytest.mark.skipif(not on_tensorflow, reason="where an array stands is TensorFlow's to show")
@pytest.mark.parametrize("beams", [1, 3])
def test_the_cache_stays_where_it_is(beams, checkpoint):
    _, generation = started(checkpoint, "llama-tied-gqa", 2, beams)

    def places():
        return [np.asarray(leaf).ctypes.data for leaf in keras.tree.flatten(generation._state["cache"])]  # views

    before, step = places(), generation.step
    for _ in range(4):
        generation.advance(1)
    assert generation.step == step + 4
    assert places() == before and len(set(before)) == len(before)
