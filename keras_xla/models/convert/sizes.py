"""Whether a config's sizes are those of its weights, before anything is made of that size."""

import math
from collections.abc import Iterable
from typing import Any


def check_sizes(checkpoint: Any, needed: Iterable[str]) -> None:
    """Raise for a config without its sizes, or with sizes that its weights cannot have.

    Args:
        checkpoint: What `open_checkpoint` returned.
        needed: Keys of `config.json` that are sizes; or products of such, `"vocab_size*hidden_size"`, of which there is
            a tensor. One that begins with `?` need not be there.

    Raises:
        ValueError: naming the keys, what they are, and what was expected.
    """
    config, names = checkpoint.config, checkpoint.names()
    stored = sum(math.prod(checkpoint.shape(name)) for name in names)
    for product in needed:
        keys = product.removeprefix("?").split("*")
        if product.startswith("?") and any(config.get(key) is None for key in keys):
            continue
        if missing := [key for key in keys if config.get(key) is None]:
            raise ValueError(f"{checkpoint.path}: its config has no {', '.join(missing)}. Download it again.")
        sizes = [config[key] for key in keys]
        most = len(names) if "layer" in product else stored
        most = math.inf if product == "max_position_embeddings" else most  # rotations need no table
        whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
        if not whole or math.prod(sizes) > most:
            given = ", ".join(f"{key}={size!r}" for key, size in zip(keys, sizes, strict=True))
            raise ValueError(
                f"{checkpoint.path}: its config has {given}; expected ints above 0 that fit its {len(names)} tensors "
                f"of {stored:,} values together. The file is damaged, or belongs to another checkpoint."
            )
