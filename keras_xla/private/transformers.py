"""Names of transformers that it does not promise."""

from typing import Any

from keras_xla.private.names import Name

_TENSORFLOW = "transformers 4.57, the last with TensorFlow"
_NO_GENERATE = "models of transformers 4 cannot generate through keras_xla"

FROM_MODEL = Name(
    "transformers.GenerationConfig",
    "_from_model_config",
    "whether it was made from the model's config",
    _NO_GENERATE,
    _TENSORFLOW,
)
AS_MADE = Name(
    "transformers.GenerationConfig",
    "_original_object_hash",
    "its hash when it was made, which tells whether anybody changed it",
    _NO_GENERATE,
    _TENSORFLOW,
)


def generation_config(model: Any) -> Any:
    """What a model's own `generate` would go by."""
    config = model.generation_config
    # Nobody changed it since it was made from the model's config: then changes to that one count.
    if FROM_MODEL.of(config) and AS_MADE.of(config) == hash(config):
        return type(config).from_model_config(model.config)
    return config
