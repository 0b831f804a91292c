"""What XLA's own programs hold: no copy of a cache, in the decode loop or around it, and no scores of all with all."""

import functools
import math
import re

import keras
import numpy as np
import pytest

from keras_xla import backend
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.generator import Generator
from keras_xla.engine.keys import PrefillKey
from keras_xla.engine.padding import chunk_size
from keras_xla.models.layers.blockwise_attention import BLOCK_ON_CPU
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint

SLOTS = 128
on_tensorflow = keras.backend.backend() == "tensorflow"


def started(checkpoint, variant, batch, beams, length=5, slots=SLOTS):
    """A generator, and a generation of it that has made no token yet."""
    model = load_model(open_checkpoint(checkpoint(variant)))
    generator = Generator(model, Buckets("batch"), Buckets("cache", (slots,)))
    rows = [np.arange(length, dtype="int32") % 60 + 3] * batch
    return generator, generator.start(Call(rows, GenerationOptions(max_new_tokens=32, num_beams=beams))).generation


def advancing(generation):
    """The key of what makes the next tokens, and what it takes beside the state."""
    return generation._executable(generation._key), (generation._request, np.array([0, 8], "int32"))


def program(generator, generation, key, tensors):
    """XLA's program of the executable of a key, as text."""
    function, names = generator._programs.function(key)
    tensors = keras.tree.map_structure(backend.to_device, tensors)
    return (_on_tensorflow if on_tensorflow else _on_jax)(generator, generation._state, function, names, tensors)


def _on_jax(generator, state, function, names, tensors):
    import jax

    variables = generator.model.variables

    def run(weights, values, tensors):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            return function(values, *tensors)

    values = {name: state.values[name] for name in names}
    lowered = jax.jit(run, donate_argnums=1).lower([v.value for v in variables], values, tensors)
    return lowered.compile().as_text()


def _on_tensorflow(generator, state, function, names, tensors):
    import tensorflow as tf

    variables = generator.model.variables
    run = functools.partial(backend.jit_on_state(function, variables, names)._traced, state.structure(names))
    compiled = tf.function(run, jit_compile=True, autograph=False)
    weights = generator.executables.read_weights()
    return compiled.experimental_get_compiler_ir(state.handles(names), weights, tensors)("optimized_hlo")


@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa"])
@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (4, 1), (1, 3), (4, 3)])
@pytest.mark.slow
def test_no_copy_of_the_cache(variant, batch, beams, checkpoint):
    generator, generation = started(checkpoint, variant, batch, beams)
    shapes = {tuple(leaf.shape) for leaf in keras.tree.flatten(generation._state["cache"])}
    text = program(generator, generation, *advancing(generation))
    for shape in shapes:  # of keys and of values
        cache = re.escape(f"f32[{','.join(map(str, shape))}]")
        assert re.search(rf"{cache}\S* dynamic-update-slice\(", text)
        assert not re.findall(rf"{cache}\S* (copy|transpose)\(", text)


@pytest.mark.skipif(not on_tensorflow, reason="where an array stands is TensorFlow's to show")
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.quick("1")
def test_the_cache_stays_where_it_is(beams, checkpoint):
    _, generation = started(checkpoint, "llama-tied-gqa", 2, beams)

    def places():
        return [np.asarray(leaf).ctypes.data for leaf in keras.tree.flatten(generation._state["cache"])]  # views

    before, step = places(), generation.step
    for _ in range(4):
        generation.advance(1)
    assert generation.step == step + 4
    assert places() == before and len(set(before)) == len(before)


@pytest.mark.parametrize("variant", ["llama-long", "mistral-long"])
@pytest.mark.quick("llama")
def test_scores_of_a_chunk_with_the_whole_cache_never_exist(variant, checkpoint):
    slots = 1024
    generator, generation = started(checkpoint, variant, 2, 1, length=800, slots=slots)
    key = PrefillKey(2, slots, chunk_size(slots), 0)
    tensors = np.zeros((2, key.chunk), "int32"), np.zeros((2,), "int32"), np.int32(256)
    text = program(generator, generation, key, tensors)
    floats = {tuple(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", text)}
    cache, heads = 2 * slots * generator.model.spec.hidden_size, generator.model.spec.attention.heads
    assert any(shape[-1] == BLOCK_ON_CPU for shape in floats)  # scores of a block
    largest = max(math.prod(shape) for shape in floats if shape[-1] == slots or slots in shape[1:])
    assert largest <= cache < 2 * heads * key.chunk * slots  # which all scores would take
