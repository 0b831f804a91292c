"""The cache is updated in place: XLA's own program has no copy of it in the decode loop."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.decode import decode
from keras_xla.engine.state import Request, make_request
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax gives the compiled program as text")


@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa"])
@pytest.mark.parametrize("batch", [1, 4])
def test_no_copy_of_the_cache(variant, batch, checkpoint):
    import jax

    model = load_model(open_checkpoint(checkpoint(variant)))
    request = make_request([np.arange(3, 8, dtype="int32")] * batch, batch, 48, 4, GenerationOptions())

    def run(values, tensors):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            return decode(model, Request(*tensors), 32, False)

    tensors = tuple(map(ops.convert_to_tensor, request))
    program = jax.jit(run).lower([v.value for v in model.variables], tensors).compile().as_text()
    attention = model.spec.attention
    cache = re.escape(f"f32[{batch * attention.kv_heads},80,{attention.head_dim}]")
    assert re.search(rf"{cache}\S* dynamic-update-slice\(", program)
    assert not re.findall(rf"{cache}\S* copy\(", program)
