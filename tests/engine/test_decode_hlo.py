"""The cache is updated in place: XLA's own program has no copy of it in the decode loop."""

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
def test_no_copy_of_the_cache(variant, batch, beams, checkpoint):
    import jax

    model = load_model(open_checkpoint(checkpoint(variant)))
    generator = Generator(model, Buckets("batch"), Buckets("prompt", (48,)), Buckets("new", (32,)))
    rows = [np.arange(3, 8, dtype="int32")] * batch
    key, request, _ = generator._arrange(rows, GenerationOptions(max_new_tokens=32, num_beams=beams))
    decode = generator._build(key)

    def run(values, tensors):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return decode(*tensors)

    tensors = tuple(map(ops.convert_to_tensor, keras.tree.flatten(request)))
    program = jax.jit(run).lower([v.value for v in model.variables], tensors).compile().as_text()
    attention = model.spec.attention
    cache = re.escape(f"f32[{batch * attention.kv_heads},{48 + beams * 32},{attention.head_dim}]")
    assert re.search(rf"{cache}\S* dynamic-update-slice\(", program)
    assert not re.findall(rf"{cache}\S* copy\(", program)
