"""The rotary part of a config, whichever generation of transformers wrote it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_xla.models.convert.config_keys import ConfigKeys, flag, list_of, number, parts, read_config, text
from keras_xla.models.layers.positions import inverse_frequencies
from keras_xla.models.spec import RotaryPositions

_ROPE_KEYS: ConfigKeys = {
    **dict.fromkeys(("rope_type", "type"), text(None)),
    **dict.fromkeys(("rope_theta", "factor", "low_freq_factor", "high_freq_factor"), number(None)),
    **dict.fromkeys(("original_max_position_embeddings", "attention_factor"), number(None)),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), number(None, zero=True)),
    "truncate": flag(None),
}
ROTARY_KEYS: ConfigKeys = {
    "rope_theta": number(10000.0),
    "rope_scaling": parts(_ROPE_KEYS),  # before transformers 5
    "rope_parameters": parts(_ROPE_KEYS),
    "original_max_position_embeddings": number(None),
    "rope_freq_factors": list_of(number(1.0)),  # a key of ours, for GGUF files
}
_MOST = int(np.iinfo(np.int32).max)  # positions are of that dtype
_NEEDED = {
    **dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def rotary(config, head_dim: int) -> RotaryPositions:
    """The rotary part of a config, whichever generation of transformers wrote it."""
    given = _of_all_layers(config.rope_scaling or config.rope_parameters or {})
    rope = {name: value for name, value in given.items() if value is not None}
    if "truncate" in given:
        rope["truncate"] = bool(given["truncate"])  # to transformers, null is no word for the default here
    kind = rope.setdefault("rope_type", rope.get("type", "default"))  # the key's name before transformers 4.43
    rope.setdefault("rope_theta", config.rope_theta)
    # As in transformers, the key beside the others comes first.
    trained = config.original_max_position_embeddings or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = trained or config.max_position_embeddings
    if kind == "yarn" and trained:
        rope.setdefault("factor", config.max_position_embeddings / trained)
    if missing := [name for name in _NEEDED.get(kind, ()) if name not in rope]:
        raise ValueError(f"rope_type={kind!r} needs {', '.join(missing)}, which the config does not have")
    rope["frequency_factors"] = config.rope_freq_factors
    frequencies, factor = inverse_frequencies(rope, head_dim)
    most = config.max_position_embeddings
    if kind == "yarn":  # a config may name the positions of the training alone, and how many times as many there are
        most = max(most, int(rope["original_max_position_embeddings"] * rope["factor"]))
    elif kind == "linear":  # the config has the positions of the training, which were moved closer together
        most = max(most, int(min(most * rope["factor"], _MOST)))
    return RotaryPositions(min(most, _MOST), frequencies, factor)


def _of_all_layers(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary parameters, of which transformers 5 may keep one set for each kind of layer: here all have the same."""
    sets = [value for value in given.values() if isinstance(value, Mapping)]
    if not sets:
        return given
    if any(each not in (None, sets[0]) for each in given.values()):
        raise ValueError("its rope_parameters differ between kinds of layers, which is not supported")
    read_config(sets[0], _ROPE_KEYS, "rope_parameters")  # whether they are what they can be
    return sets[0]
