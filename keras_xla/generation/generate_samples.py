"""Texts of the model that is being trained, at the end of epochs."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_xla.backend.tensorboard import Summaries
from keras_xla.generation.layer import XLAGenerationLayer


class GenerateSamples(keras.callbacks.Callback):
    """Generates with the weights being trained, and shows, or keeps, what comes.

    The model compiles for it once. No random state that training uses is touched: with `do_sample=True` and no seed,
    the epoch's number is the seed.

    Args:
        prompts: Texts, or lists of token ids.
        layer: An `XLAGenerationLayer` of the model that is trained; by default one is made of it, see that class for
            the models it takes.
        tokenizer: For the layer that is made; a KerasHub model has its own.
        every: Epochs from one time to the next.
        file: Where each time adds a line of JSON: `{"epoch", "samples"}`.
        log_dir: A folder of TensorBoard's, whose texts the samples become.
        verbose: Whether to print them.
        **options: Generation options, as for `XLAGenerationLayer.generate`.

    Raises:
        TypeError, ValueError: as `XLAGenerationLayer` and its `generate` do: when `fit` begins, or after the first
            epoch where the model is built in it.

    Example:
    ```python
    samples = keras_xla.callbacks.GenerateSamples(["Once upon a time"], max_new_tokens=20, do_sample=True)
    model.fit(dataset, epochs=3, callbacks=[samples])
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
        self.prompts = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(self.prompts, (list, tuple)) or any(isinstance(each, Mapping) for each in self.prompts):
            raise TypeError(f"Received prompts={prompts!r}; expected a list of texts, chats or lists of token ids.")
        self.layer, self._given, self._tokenizer, self._every = layer, layer is not None, tokenizer, every
        self._file, self._verbose, self._options = file, verbose, options
        self._summaries = None if log_dir is None else Summaries("GenerateSamples", log_dir)

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the layer, and check prompts and options: an error shall not come after the first epoch."""
        if not self._given:
            self.layer = XLAGenerationLayer(self.model, self._tokenizer) if self.model.built else None
        if self.layer is not None:
            self.layer.check(self.prompts, **self._options)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Generate, after each `every` epochs."""
        if (epoch + 1) % self._every:
            return
        model = self.model  # on JAX, asking for it brings its variables up to date
        if self.layer is None:
            self.layer = XLAGenerationLayer(model, self._tokenizer)
        options, defaults = dict(self._options), self.layer.options
        if options.get("do_sample", defaults.do_sample) and options.get("seed", defaults.seed) is None:
            options["seed"] = epoch
        made = self.layer.generate(self.prompts, verbose=0, **options)
        if isinstance(made, dict):
            made = [row[:n].tolist() for row, n in zip(made["sequences"], made["lengths"], strict=True)]
        self._show(epoch, made)

    def _show(self, epoch: int, samples: list) -> None:
        copies = len(samples) // len(self.prompts)
        asked = [prompt for prompt in self.prompts for _ in range(copies)]
        if self._verbose:
            for prompt, sample in zip(asked, samples, strict=True):
                print(f"\nSample after epoch {epoch + 1}: {_joined(prompt, sample)}")
        if self._file is not None:
            with pathlib.Path(self._file).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"epoch": epoch + 1, "samples": samples}, ensure_ascii=False) + "\n")
        if self._summaries is not None:
            text = "\n\n".join(_joined(prompt, sample) for prompt, sample in zip(asked, samples, strict=True))
            self._summaries.text("samples", text, epoch)
            self._summaries.flush()


def _joined(prompt: Any, sample: Any) -> str:
    return f"{prompt}{sample}" if isinstance(sample, str) and isinstance(prompt, str) else f"{prompt} -> {sample}"
