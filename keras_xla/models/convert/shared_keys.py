"""Keys of a config that transformers heeds for every architecture, where they make another model of it."""

from collections.abc import Mapping
from typing import Any

from keras_xla.models.convert.config_keys import ConfigKeys

CACHE_WINDOWS = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}  # kinds of layers
FULL_ATTENTION = "full_attention", "attention"


def check_shared_keys(values: Mapping[str, Any], keys: ConfigKeys) -> None:
    """Raise for what a config says in such keys, and no model here can do.

    Args:
        values: What `config.json` holds.
        keys: Those that the family reads itself.

    Raises:
        ValueError: naming the key, and what it would mean.
    """
    if not values.get("is_causal", True):
        raise ValueError(
            f"it has is_causal={values['is_causal']}: each token sees those behind it, so that nothing can be generated"
        )
    if values.get("per_layer_config"):
        raise ValueError("it has a per_layer_config: its layers differ from one another, which is not supported")
    for name in CACHE_WINDOWS:
        if name not in keys and values.get(name):
            raise ValueError(
                f"it has {name}={values[name]}, which transformers heeds in the cache of any model, and here only "
                "models have that are trained with it. Remove the key"
            )
    kinds = values.get("layer_types") if "layer_types" not in keys else None
    if others := sorted({*map(str, kinds or ())} - {*FULL_ATTENTION}):
        raise ValueError(
            f"layer_types has {', '.join(others)}, not supported here; expected {', '.join(FULL_ATTENTION)}"
        )
