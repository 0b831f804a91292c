"""The cache is updated in place: XLA's own program has no copy of it, in the decode loop or around it."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.generator import Generator
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax gives the compiled program as text")


@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa"])
@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (4, 1), (1, 3), (4, 3)])
@pytest.mark.quick("4-3-llama", "1-1-gpt2")
def test_no_copy_of_the_cache(variant, batch, beams, checkpoint):
    import jax

    model = load_model(open_checkpoint(checkpoint(variant)))
    slots = 128
    generator = Generator(model, Buckets("batch"), Buckets("cache", (slots,)))
    rows = [np.arange(3, 8, dtype="int32")] * batch
    generation = generator.start(rows, GenerationOptions(max_new_tokens=32, num_beams=beams)).generation
    advance, names = generator._programs.function(generation._executable(generation._key))

    def run(weights, values, tensors):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, weights, strict=True))):
            return advance(values, *tensors)

    values = {name: generation._state.values[name] for name in names}
    tensors = generation._request, ops.convert_to_tensor(np.array([0, 8], "int32"))
    lowered = jax.jit(run, donate_argnums=1).lower([v.value for v in model.variables], values, tensors)
    program = lowered.compile().as_text()
    attention = model.spec.attention
    cache = re.escape(f"f32[{batch * attention.kv_heads},{slots},{attention.head_dim}]")
    assert re.search(rf"{cache}\S* dynamic-update-slice\(", program)
    assert not re.findall(rf"{cache}\S* copy\(", program)
