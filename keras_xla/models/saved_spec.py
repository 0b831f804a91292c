"""A model in the config of a layer, or of a Keras model, that has it inside."""

from typing import Any

from keras_xla.models.layers.matrices import stored_as
from keras_xla.models.spec import spec_from_dict
from keras_xla.private.keras.layers import flat_layers


class SavedSpec:
    """Comes before `keras.layers.Layer` in the bases of a model that is made of a `spec`.

    Attributes:
        generation_config: What a checkpoint says about generation, by its Hugging Face names.
    """

    generation_config: dict[str, Any]

    def get_config(self) -> dict:
        """Return what Keras saves of the model beside its weights.

        Returns:
            A dict that `from_config` takes.
        """
        model: Any = self
        frozen = [i for i, each in enumerate(flat_layers(self)) if not each.trainable]
        made = dict(spec=model.spec.to_dict(), quantization=model.quantization, frozen=frozen)
        made |= dict(generation_config=dict(model.generation_config))
        return {**super().get_config(), **made}  # type: ignore[misc]  # of the layer behind this in the bases

    @classmethod
    def from_config(cls, config: dict) -> "SavedSpec":
        """Make a model from what `get_config` returned, with random weights.

        Args:
            config: What `get_config` returned, as it is or read from a file.

        Returns:
            The model. What was frozen is.
        """
        rest = dict(config)
        spec, quantization, frozen = (rest.pop(name) for name in ("spec", "quantization", "frozen"))
        generation_config = rest.pop("generation_config")
        with stored_as(quantization):
            made = cls(spec_from_dict(spec), **rest)  # type: ignore[call-arg]  # a layer takes these
        made.generation_config = dict(generation_config)
        for i, each in enumerate(flat_layers(made)):  # outer ones first: they freeze those inside of them
            each.trainable = i not in frozen
        return made
