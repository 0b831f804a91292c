"""Names of KerasHub that it does not promise."""

from typing import Any

from keras_xla.private.names import Name

_SEEN = "KerasHub 0.25 to 0.32"

BUILD_CACHE = Name(
    "keras_hub.models.CausalLM",
    "_build_cache",
    "runs a prompt and gives the cache of keys and values",
    "tasks whose layers keras_xla does not know cannot generate through it",
    _SEEN,
)
ATTENTION = Name(
    "keras_hub.layers.TransformerDecoder",
    "_self_attention_layer",
    "the attention of a block",
    "models that normalize queries and keys cannot be loaded from KerasHub",
    _SEEN,
)
QUERY_NORM = Name(
    "keras_hub.layers.Attention",
    "_query_dense_layer_norm",
    "the norm of the queries, whose epsilon is not the backbone's",
    "models that normalize queries and keys cannot be loaded from KerasHub",
    _SEEN,
)


def build_cache(task: Any, tokens: Any) -> Any:
    """The cache `[rows, layers, 2, width, heads, head size]` for a prompt `[rows, width]`."""
    _, cache = BUILD_CACHE.of(task)(tokens)
    return cache


def query_norm_epsilon(block: Any) -> float:
    """The epsilon of the norm of a block's queries."""
    return QUERY_NORM.of(ATTENTION.of(block)).epsilon
