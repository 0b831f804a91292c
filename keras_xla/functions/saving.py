"""What Keras saves of a compiled function in a layer or a model: the function, as Keras saves it, and its options."""

from collections.abc import Callable, Sequence
from typing import Any

import keras


def to_config(compiled: Any, fn: Callable, buckets: Any, **options) -> dict[str, Any]:
    """The config, in JSON's types, of the `compiled` function that `fn` has become."""
    registered = keras.saving.get_registered_name(compiled)
    if registered == compiled.__name__:
        saved = keras.saving.serialize_keras_object(fn)
    else:  # Keras has registered what decorates the function, not the function
        saved = dict(module=compiled.__module__, class_name="function", config=registered, registered_name=registered)
    named = {argument: dict(map(_as_json, axes.items())) for argument, axes in (buckets or {}).items()}
    return dict(fn=saved, buckets=named or None, **options)


def from_config(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `jit` again. Where Keras finds `fn` by its name, it may find what decorates it."""
    buckets = {
        argument: {int(axis): sizes for axis, sizes in axes.items()}
        for argument, axes in (config["buckets"] or {}).items()
    }
    return {**config, "fn": keras.saving.deserialize_keras_object(config["fn"]), "buckets": buckets or None}


def _as_json(entry: tuple[int, Sequence[int] | str]) -> tuple[str, list[int] | str]:
    axis, sizes = entry
    return str(axis), sizes if isinstance(sizes, str) else list(sizes)
