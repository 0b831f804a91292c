"""What keras_xla uses of KerasHub without a promise."""

import keras_hub
import numpy as np

from keras_xla.private import keras_hub as private_hub


def qwen():
    return keras_hub.models.Qwen3Backbone(
        vocabulary_size=9,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        hidden_dim=8,
        intermediate_dim=8,
    )


def test_the_norm_of_queries():
    (block,) = qwen().transformer_layers
    assert 0 < private_hub.query_norm_epsilon(block) < 1e-3


def test_the_cache_of_a_prompt():
    task = keras_hub.models.Qwen3CausalLM(backbone=qwen(), preprocessor=None)
    cache = private_hub.build_cache(task, np.ones((2, 3), "int32"))
    assert tuple(cache.shape) == (2, 1, 2, 3, 1, 4)
