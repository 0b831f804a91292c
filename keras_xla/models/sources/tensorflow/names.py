"""Hugging Face's TensorFlow models in PyTorch's terms: names of weights, layouts, and what their config means."""

import re
from collections.abc import Iterable
from typing import Any

_LEAVES = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}
_HEADS = ("lm_head.weight", "proj_out.weight")

# Options that these classes ignore, as the value that they compute with.
_AS_COMPUTED: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    "marian": {"share_encoder_decoder_embeddings": True, "learned_positions": True},
    "mistral": {"sliding_window": None, "rope_scaling": None, "rope_parameters": None, "head_dim": None},
    "opt": {"enable_bias": True, "layer_norm_elementwise_affine": True},
}


def as_pytorch(name: str, shape: Iterable[int]) -> tuple[str, tuple[int, ...] | None]:
    """A weight's PyTorch name, and the axes that transpose it to PyTorch's layout (None: as it is).

    Args:
        name: `"model/scope/.../leaf:0"`; the first scope is the model's, and dropped.
        shape: The weight's shape there.

    Example:
    ```python
    as_pytorch("tfopt_for_causal_lm/model/decoder/layers.0/fc1/kernel:0", (32, 64))
    # ("model.decoder.layers.0.fc1.weight", (1, 0))
    as_pytorch("t5/encoder/block_._0/layer_._1/layer_norm/weight:0", (32,))
    # ("encoder.block.0.layer.1.layer_norm.weight", None)
    ```
    """
    path = re.sub(r"/[^/]*___([^/]*)/", r"/\1/", name.removesuffix(":0")).replace("_._", "/")
    scopes = [scope for scope in path.split("/") if scope]
    *owners, leaf = scopes[1:] or scopes or [name]
    axes = _AXES.get(len(tuple(shape))) if leaf == "kernel" else None  # the loader tells of other shapes
    return ".".join([*owners, _LEAVES.get(leaf, leaf)]), axes


def flat(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape in PyTorch's layout: GPT-2's biases are `(1, n)` there."""
    return shape[1:] if name.endswith(".bias") and len(shape) == 2 and shape[0] == 1 else shape


def config_as_computed(config: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The config that describes what the TensorFlow class computes with the weights `names` (PyTorch's)."""
    tied = not any(name in _HEADS for name in names)  # there is a head or not, whatever the config says
    computed = dict(_AS_COMPUTED.get(config["model_type"], {}), tie_word_embeddings=tied)
    if config["model_type"] in ("t5", "mt5"):
        computed["scale_decoder_outputs"] = tied
    return {**config, **computed}
