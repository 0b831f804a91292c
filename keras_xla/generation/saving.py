"""A layer's config, and the files beside it: from which it is made again."""

import os
from typing import Any

import keras

from keras_xla import config
from keras_xla.generation.defaults import SPEECH_FIELDS
from keras_xla.models.build import build
from keras_xla.models.sources.safetensors_folder import open_tokenizer


class LayerConfig(dict):
    """A layer's config, and its tokenizer: a clone gets it, a file does not, for it is no JSON."""

    def __init__(self, config: dict, tokenizer: Any):
        super().__init__(config)
        self.tokenizer = tokenizer


class SavedWithTokenizer(keras.layers.Layer):
    """What of `XLAGenerationLayer` saves it and makes it again."""

    def get_config(self) -> dict:
        if not hasattr(self.model, "spec") or getattr(self.model, "follower", None) is not None:
            raise ValueError(
                f"The layer {self.name!r} holds {'a live model' if hasattr(self.model, 'spec') else 'a model'} of its "
                "own making, which cannot be saved with it. Save that model, and make the layer of it again."
            )
        fields = set(config.GenerationOptions.__dataclass_fields__) - {"processor_options"}
        options = {f: getattr(self.options, f) for f in fields}
        options = config.without_idle(options)
        if self._speech is not None:
            speech = {name: getattr(self._speech.defaults, name) for name in SPEECH_FIELDS}
            options |= {name: value for name, value in speech.items() if value is not None and value != ()}
        buckets = {name: sizes and list(sizes) for name, sizes in self._buckets.items()}
        made = {
            **super().get_config(),
            **options,
            **buckets,
            "generation_config": self._stored or {},
            "return_prompt": self._text.return_prompt,
            "sampling_rate": self.sampling_rate,
            "cache_bytes": self._cache_bytes,
            "logits_processors": [keras.saving.serialize_keras_object(each) for each in self._processors],
            "on_recompile": self._generator.executables.on_recompile,
            "model": self.model.spec.to_dict(),
            "quantization": self.model.quantization,
            "dtype": keras.dtype_policies.serialize(self.model.dtype_policy),
        }
        return LayerConfig(made, self.tokenizer)

    @classmethod
    def from_config(cls, config: dict) -> "SavedWithTokenizer":
        dtype, quantization = config.pop("dtype", None), config.pop("quantization", None)
        dtype = keras.saving.deserialize_keras_object(dtype) if isinstance(dtype, dict) else dtype
        own = [keras.saving.deserialize_keras_object(each) for each in config.pop("logits_processors", ())]
        model = build(config["model"], dtype, quantization=quantization)
        made = {**config, "model": model, "dtype": dtype, "logits_processors": own}
        return cls(**made, tokenizer=getattr(config, "tokenizer", None))

    def save_assets(self, dir_path: str) -> None:
        """Write the tokenizer into a `.keras` file."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(dir_path)

    def load_assets(self, dir_path: str) -> None:
        """Read the tokenizer from a `.keras` file."""
        if os.path.exists(os.path.join(dir_path, "tokenizer_config.json")):
            self.tokenizer = open_tokenizer(dir_path)
