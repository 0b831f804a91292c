"""Texts of the model that is being trained, at the end of epochs."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_xla.backend.tensorboard import Summaries
from keras_xla.engine.kept import is_of_known_layers
from keras_xla.generation.layer import XLAGenerationLayer
from keras_xla.models.sources.live import SameWeights
from keras_xla.troubleshooting import explained


@explained
class GenerateSamples(keras.callbacks.Callback):
    """Generate with the weights being trained at the end of epochs, and print or keep what comes.

    The generation compiles once, not once an epoch, and not again in a later `fit` of the same model unless that has
    other layers or weights by then. No random state that training uses is touched: with `do_sample=True` and no seed,
    the number of the epoch, counted from 0, is the seed. Where the logits are NaN, as those of a training that has
    diverged, a warning says so, the sample is None (an empty list for ids), and the training goes on. With a
    `streamer`, which may have got a part of the sample by then, they are an error.

    Args:
        prompts: A text, or a list of texts, of chats (lists of messages) or of lists of token ids (ints).
        layer: An `XLAGenerationLayer` of the model that is trained. By default one is made of that model; see the class
            for the models that it takes.
        tokenizer: A Hugging Face tokenizer for the layer that is made. Texts need one. A KerasHub model has its own.
        every: How many epochs there are from one time to the next (int); 1 by default.
        file: A file to which each time adds a line of JSON, `{"epoch": 1, "samples": [...]}` (a path). The samples are
            texts, or lists of token ids. None, the default, for no file.
        log_dir: A folder for TensorBoard (a path), which shows the samples as texts. None, the default, for none.
        verbose: 1, the default, to print the samples, 0 not to.
        **options: Options of each generation: the fields of `keras_xla.config.GenerationOptions` and, with texts, of
            `keras_xla.generation.text.options.TextOptions`; also `assistant` and `negative_prompt`, see
            `XLAGenerationLayer.generate`.

    Attributes:
        prompts: The list of prompts.
        layer: The layer that generates. Without one given, it is made when `fit` begins, or after the first epoch where
            the model is built in it, and is None before.

    Raises:
        TypeError: `prompts` is not as described. When `fit` begins: the model is none that `XLAGenerationLayer` takes,
            or there is no such option.
        ValueError: `every` is below 1, or both a layer and a tokenizer are given. When `fit` begins: prompts or options
            that `XLAGenerationLayer.generate` refuses, and a speech model. Where the model is built in `fit`, these
            errors come after the first epoch.
        ImportError: `log_dir` is given, and TensorFlow, which writes those files, is not installed.

    Example:
    ```python
    layers = [keras.layers.Embedding(50, 16), keras.layers.Dense(50)]  # from ids to logits
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = np.random.randint(0, 50, (64, 9))
    samples = keras_xla.callbacks.GenerateSamples([[5, 6, 7]], max_new_tokens=4)
    model.fit(ids[:, :-1], ids[:, 1:], callbacks=[samples], verbose=0)
    ```
    """

    def __init__(
        self,
        prompts: Sequence[Any],
        layer: XLAGenerationLayer | None = None,
        *,
        tokenizer: Any = None,
        every: int = 1,
        file: str | os.PathLike | None = None,
        log_dir: str | os.PathLike | None = None,
        verbose: int = 1,
        **options: Any,
    ):
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"Received every={every!r}; expected an int of at least 1.")
        if layer is not None and tokenizer is not None:
            raise ValueError("Received layer and tokenizer, which is for the layer that is made without one; pass one.")
        self.prompts = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(self.prompts, (list, tuple)) or any(isinstance(each, Mapping) for each in self.prompts):
            raise TypeError(f"Received prompts={prompts!r}; expected a list of texts, chats or lists of token ids.")
        self.layer, self._given, self._tokenizer, self._every = layer, layer is not None, tokenizer, every
        self._file, self._verbose, self._options = file, verbose, options
        self._made_of: _ModelOfNow | None = None
        self._summaries = None if log_dir is None else Summaries("GenerateSamples", log_dir)

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the layer, and check prompts, options and the file: an error shall not come after the first epoch."""
        if self._file is not None:
            pathlib.Path(self._file).open("a", encoding="utf-8").close()
        if not self._given:
            self.layer = self._layer_of(self.model) if self.model.built else None
        if self.layer is not None:
            self.layer.check(self.prompts, **self._options)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Generate, after each `every` epochs."""
        if (epoch + 1) % self._every:
            return
        model, layer = self.model, self.layer  # on JAX, asking for the model brings its variables up to date
        if layer is None:  # the model was built in this epoch
            layer = self.layer = self._layer_of(model)
            layer.check(self.prompts, **self._options)
        options, defaults = dict(self._options), layer.options
        if options.get("do_sample", defaults.do_sample) and options.get("seed", defaults.seed) is None:
            options["seed"] = epoch
        if options.get("streamer") is None:
            options.setdefault("on_error", "skip")  # of NaN logits: all else was refused before
        made = layer.generate(self.prompts, verbose=0, **options)
        if isinstance(made, dict):
            made = [row[:n].tolist() for row, n in zip(made["sequences"], made["lengths"], strict=True)]
        self._show(epoch, made, options.get("return_prompt", layer.return_prompt))

    def _layer_of(self, model: keras.Model) -> XLAGenerationLayer:
        """The layer that there is, if the model is what it was made of; else a new one."""
        if self.layer is not None and self._made_of is not None and self._made_of.is_still(model):
            return self.layer
        layer = XLAGenerationLayer(model, self._tokenizer)
        self._made_of = _ModelOfNow(model)
        return layer

    def _show(self, epoch: int, samples: list, whole: bool) -> None:
        copies = len(samples) // len(self.prompts)
        asked = [prompt for prompt in self.prompts for _ in range(copies)]
        shown = [
            sample if whole and isinstance(sample, str) else _joined(prompt, sample)
            for prompt, sample in zip(asked, samples, strict=True)
        ]
        if self._verbose:
            for sample in shown:
                print(f"\nSample after epoch {epoch + 1}: {sample}")
        if self._file is not None:
            with pathlib.Path(self._file).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"epoch": epoch + 1, "samples": samples}, ensure_ascii=False) + "\n")
        if self._summaries is not None:
            self._summaries.text("samples", "\n\n".join(shown), epoch)
            self._summaries.flush()


class _ModelOfNow:
    """A model as it is now."""

    def __init__(self, model: keras.Model):
        self._model, self._described, self._weights = model, _described(model), SameWeights(model)

    def is_still(self, model: keras.Model) -> bool:
        """Whether that is the same model, with the same layers and variables."""
        known = model is self._model and self._described is not None and self._weights.hold()
        return known and self._described == _described(model)


def _described(model: keras.Model) -> str | None:
    """What the model computes, as text; None if it cannot tell: code of the user's own depends on anything."""
    if not is_of_known_layers(model):
        return None
    try:
        told = _without(keras.saving.serialize_keras_object(model), ("compile_config", "trainable"))
        return json.dumps(told, sort_keys=True)
    except Exception:  # of the user's own get_config, of a class without one, or of what is no JSON
        return None


def _without(config: Any, names: Sequence[str]) -> Any:
    """A config but for some entries, at any depth."""
    if isinstance(config, Mapping):
        return {name: _without(value, names) for name, value in config.items() if name not in names}
    return [_without(each, names) for each in config] if isinstance(config, (list, tuple)) else config


def _joined(prompt: Any, sample: Any) -> str:
    return f"{prompt}{sample}" if isinstance(sample, str) and isinstance(prompt, str) else f"{prompt} -> {sample}"
