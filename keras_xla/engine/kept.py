"""Executables that another process has traced and compiled: where they are found again, and where they are put."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend.executable_cache.cache import ExecutableCache, executable_cache
from keras_xla.backend.executable_cache.source import SOURCE_DIGEST
from keras_xla.engine.search.own_processors import OwnProcessor
from keras_xla.engine.search.processors import Processor
from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.transformer import Transformer
from keras_xla.private.keras.layers import flat_layers, package_of


def what_is_computed(model: Any, processors: Mapping[str, Processor], processed_scores: bool) -> str | None:
    """All that the functions of a model depend on beside their keys, but for its weights' values; None if unknown.

    It is unknown where code has a part in it that is not ours, and may be another tomorrow: a user's model, layers or
    logits processors.
    """
    if type(model) not in (Transformer, EncoderDecoderModel):
        return None
    if any(isinstance(processor, OwnProcessor) for processor in processors.values()):
        return None
    if not is_of_known_layers(model):
        return None
    layers = [(type(each).__module__, type(each).__qualname__, each.dtype_policy.name) for each in flat_layers(model)]
    content = {
        "spec": model.spec.to_dict(),
        "quantization": model.quantization,
        "layers": layers,
        "weights": [(list(v.shape), v.dtype) for v in model.variables],
        "processors": [(name, processor.names) for name, processor in processors.items()],
        "processed_scores": processed_scores,
    }
    return json.dumps(content, sort_keys=True)


def is_of_known_layers(model: keras.Model) -> bool:
    """Whether all layers of a model, and what these call, are Keras' or ours: code of others may change.

    What the model itself was compiled with, such as a loss, does not count.
    """
    layers = flat_layers(model)
    called = [x for each in layers if each is not model for x in vars(each).values() if callable(x)]
    return all(map(_is_known, [*layers, *called]))


def _is_known(called: Any) -> bool:
    """Whether a function, or the class of an object, is Keras' or ours."""
    return package_of(called) in ("keras", "keras_xla")


def computed_with() -> dict[str, str]:
    """What else every executable depends on: by name, as people read it.

    Raises:
        OSError: if XLA_FLAGS names a file that cannot be read.
    """
    config = keras.config
    settings = config.floatx(), config.epsilon(), config.image_data_format()
    return {
        "backend": backend.name,
        **backend.compiled_for(),
        "keras_xla": SOURCE_DIGEST,
        "Keras' settings": repr(settings),
    }


class KeptExecutables:
    """The executables of one model on disk: those of the cache of executables, and of a bundle.

    Args:
        computes: A function that returns what `what_is_computed` does.
        variables: What the executables read.

    Attributes:
        computes: As given.
        bundle: A cache to read from first; None for none.
    """

    def __init__(self, computes: Callable[[], str | None], variables: Sequence[keras.Variable]):
        self.computes, self._variables = computes, variables
        self.bundle: ExecutableCache | None = None
        self._broken: set[Any] = set()  # keys of what was read and cannot run

    def read(self, key: Any, names: tuple[str, ...]) -> Any | None:
        """The executable of a key, which works on these `names` of a state; None if none is kept."""
        found = (backend.read_on_state(name, cache, self._variables, names) for name, cache in self._places(key))
        return next((each for each in found if each is not None), None)

    def holds(self, key: Any) -> bool:
        """Whether an executable of a key is kept, as far as the names of files tell."""
        return any(cache.holds(name) for name, cache in self._places(key))

    def refuse(self, key: Any) -> None:
        """Never read the executable of a key again: it was read, and failed. The next one is made anew."""
        for name, cache in self._places(key):
            cache.drop(name)
        self._broken.add(key)

    def keeps(self, key: Any) -> bool:
        """Whether `keep` puts an executable of this key into the cache of executables."""
        return executable_cache() is not None and self._name(key) is not None

    def keep(self, key: Any, compiled: Any) -> None:
        """Put what was compiled for a key into the cache of executables, if that is on."""
        cache = executable_cache()
        if cache is not None and (name := self._name(key)) is not None:
            compiled.keep(name, cache)

    def save(self, compiled: Mapping[Any, Any], cache: ExecutableCache) -> dict[Any, bool]:
        """Put executables into a cache by their keys; returns for each whether it is there now."""
        names = {key: self._name(key) for key in compiled}
        return {key: name is not None and compiled[key].keep(name, cache) for key, name in names.items()}

    def _places(self, key: Any) -> list[tuple[str, ExecutableCache]]:
        """Where an executable of a key may stand: its name, and a cache."""
        caches = [cache for cache in (self.bundle, executable_cache()) if cache is not None]
        name = self._name(key) if caches and key not in self._broken else None
        return [] if name is None else [(name, cache) for cache in caches]

    def _name(self, key: Any) -> str | None:
        if getattr(key, "assistant", 0):  # another model's weights and sizes
            return None
        computes = self.computes()
        if computes is None or not SOURCE_DIGEST:
            return None
        try:
            content = repr((computes, sorted(computed_with().items()), key))
        except OSError:
            return None
        return hashlib.sha256(content.encode()).hexdigest()[:32]
