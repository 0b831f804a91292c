"""A layer's config, and the files beside it: from which it is made again."""

import os
from typing import Any

import keras

from keras_xla import config
from keras_xla.generation.defaults import SPEECH_FIELDS
from keras_xla.generation.tokenizer import LazyTokenizer, lazy
from keras_xla.models.sources.live import refresh
from keras_xla.models.sources.safetensors_folder import open_tokenizer
from keras_xla.troubleshooting import explained, warn


class LayerConfig(dict):
    """A layer's config, and its tokenizer: a clone gets it, a file does not, for it is no JSON."""

    def __init__(self, config: dict, tokenizer: LazyTokenizer | None):
        super().__init__(config)
        self.tokenizer = tokenizer


@explained
class SavedWithTokenizer(keras.layers.Layer):
    """The tokenizer of `XLAGenerationLayer`, and the methods with which Keras saves it and makes it again."""

    _tokenizer: LazyTokenizer | None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, or None; it may be set. That of a checkpoint is read when it is first asked for."""
        return None if self._tokenizer is None else self._tokenizer.get()

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = lazy(tokenizer)

    def __setattr__(self, name: str, value: Any) -> None:
        """As Keras' own, which for the tokenizer would read the old one, to compare it with the new one."""
        if name == "tokenizer":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def get_config(self) -> dict:
        """Return what Keras saves of the layer: its options, and the sizes of its model.

        Weights are saved beside it, and so is the tokenizer, in a `.keras` file.

        Returns:
            A dict that `from_config` takes.

        Raises:
            ValueError: The layer shares the weights of a live model, or its model is not one of keras_xla's own. Save
                that model, and make the layer of it again.
        """
        if not hasattr(self.model, "spec") or self._follows:
            raise ValueError(
                f"The layer {self.name!r} holds {'a live model' if hasattr(self.model, 'spec') else 'a model'} of its "
                "own making, which cannot be saved with it. Save that model, and make the layer of it again."
            )
        fields = set(config.GenerationOptions.__dataclass_fields__) - {"processor_options"}
        values = {f: getattr(self.options, f) for f in fields}
        options = config.without_idle(values)
        plain = config.GenerationOptions()  # what a checkpoint has tuned for modes that are off goes back where it was
        idle = {f: value for f, value in values.items() if f not in options and value != getattr(plain, f)}
        if self._speech is not None:
            speech = {name: getattr(self._speech.defaults, name) for name in SPEECH_FIELDS}
            # None, too: else transcripts would get the max_new_tokens of features, and thresholds that are off would be
            # the checkpoint's again. Only a temperature of None leaves room for that of do_sample.
            options |= {name: value for name, value in speech.items() if name != "temperature" or value is not None}
        buckets = {name: sizes and list(sizes) for name, sizes in self._buckets.items()}
        made = {
            **super().get_config(),
            **options,
            **buckets,
            "generation_config": {**(self._stored or {}), **idle},
            "return_prompt": self._text.return_prompt,
            "sampling_rate": self.sampling_rate,
            "cache_bytes": self._cache_bytes,
            "logits_processors": [keras.saving.serialize_keras_object(each) for each in self._processors],
            "on_recompile": self._generator.executables.on_recompile,
            # By the id, Keras makes one model again of one that two layers share.
            "model": {**keras.saving.serialize_keras_object(self.model), "shared_object_id": id(self.model)},
            "dtype": keras.dtype_policies.serialize(self.model.dtype_policy),
        }
        return LayerConfig(made, self._tokenizer)

    @classmethod
    def from_config(cls, config: dict) -> "SavedWithTokenizer":
        """Make a layer from what `get_config` returned, with random weights.

        Args:
            config: What `get_config` returned, as it is or read from a file. As it is, it brings the tokenizer along.

        Returns:
            An `XLAGenerationLayer`. Its weights are set by Keras, or by `set_weights`.
        """
        rest = dict(config)  # whoever passes it may use it again
        dtype = rest.pop("dtype", None)
        dtype = keras.saving.deserialize_keras_object(dtype) if isinstance(dtype, dict) else dtype
        own = [keras.saving.deserialize_keras_object(each) for each in rest.pop("logits_processors", ())]
        model = keras.saving.deserialize_keras_object(rest["model"])
        made = {**rest, "model": model, "dtype": dtype, "logits_processors": own}
        return cls(**made, tokenizer=getattr(config, "tokenizer", None))

    @property
    def _follows(self) -> bool:
        """Whether the model has its weights from a live one."""
        return getattr(self.model, "follower", None) is not None

    def save_own_variables(self, store: Any) -> None:
        """Bring weights up to date before Keras writes a file of weights; Keras calls it.

        Args:
            store: What Keras writes to.
        """
        refresh(self.model)
        super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Warn of weights that Keras does not read from a file of weights; Keras calls it.

        Args:
            store: What Keras reads from.
        """
        super().load_own_variables(store)
        if self._follows or (self.model.variables and not isinstance(self.model, keras.layers.Layer)):
            warn(
                f"The layer {self.name!r} generates with a model of its own making, whose weights are no part of what "
                "the layer reads from a file. Load them into that model, unless the file has been read into it, too."
            )

    def save_assets(self, dir_path: str) -> None:
        """Write the tokenizer into a `.keras` file; Keras calls it.

        Args:
            dir_path: A folder that Keras puts into the file.

        Raises:
            ValueError: The tokenizer is KerasHub's, which cannot be saved. Set `layer.tokenizer = None` before.
        """
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(dir_path)

    def load_assets(self, dir_path: str | None) -> None:
        """Read the tokenizer from a `.keras` file; Keras calls it.

        Args:
            dir_path: The folder that `save_assets` wrote into; None where it wrote nothing.

        Raises:
            ValueError: The files of the tokenizer cannot be read.
        """
        # Keras has no folder here where nothing was written into it, and other layers have assets.
        if dir_path is not None and os.path.exists(os.path.join(dir_path, "tokenizer_config.json")):
            self.tokenizer = open_tokenizer(dir_path)
