"""Whether a config's sizes are those of its weights, before anything is made of that size."""

import math
from collections.abc import Iterable
from typing import Any

from keras_xla.models.convert.config_keys import ModelConfig


def check_sizes(checkpoint: Any, config: ModelConfig, needed: Iterable[str]) -> None:
    """Raise for a config without its sizes, or with sizes that its weights cannot have.

    Args:
        checkpoint: What `open_checkpoint` returned.
        config: Its config.
        needed: Keys that are sizes; or products of such, `"vocab_size*hidden_size"`, of which there is a tensor. One
            that begins with `?` need not be there.

    Raises:
        ValueError: naming the keys, what they are, and what was expected.
    """
    names = checkpoint.names()
    stored = sum(math.prod(checkpoint.shape(name)) for name in names)
    for product in needed:
        keys = product.removeprefix("?").split("*")
        missing = [key for key in keys if key not in config.given]
        if missing and product.startswith("?"):
            continue
        if missing:
            raise ValueError(f"{checkpoint.path}: its config has no {', '.join(missing)}. Download it again.")
        sizes = [getattr(config, key) for key in keys]
        most = len(names) if "layer" in product else stored
        most = math.inf if keys == ["max_position_embeddings"] else most  # rotations need no table
        if math.prod(sizes) > most:
            given = ", ".join(f"{key}={size}" for key, size in zip(keys, sizes, strict=True))
            raise ValueError(
                f"{checkpoint.path}: its config has {given}; expected sizes that fit its {len(names)} tensors of "
                f"{stored:,} values together. The file is damaged, or belongs to another checkpoint."
            )
