"""From a checkpoint to a layer."""

import inspect
import itertools
import os
import pathlib
import sys
import time
from typing import Any, Self

import keras

from keras_xla.engine.search.own_processors import as_functions, own_processors
from keras_xla.generation.compiled import prepare
from keras_xla.generation.defaults import (
    as_saved,
    check_arguments,
    check_defaults,
    known_options,
    resolve,
    stored_options,
    warn_of_max_length,
)
from keras_xla.generation.progress import ProgressBar
from keras_xla.generation.speech.front_end import check_front_end
from keras_xla.generation.tokenizer import LazyTokenizer
from keras_xla.models.registry import load_model, model_config
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.troubleshooting import explained

_SHORT = 2.0  # seconds of reading without a progress bar
_MB = 10**6
_CHECKED = ("batch_buckets", "cache_buckets", "source_buckets", "cache_bytes", "on_recompile")


@explained
class FromPretrained(keras.layers.Layer):
    """The method of `XLAGenerationLayer` that loads one."""

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike,
        *,
        tokenizer: Any = None,
        dtype: Any = None,
        quantization: str | None = None,
        compiled: str | os.PathLike | None = None,
        verbose: int | str = "auto",
        **kwargs: Any,
    ) -> Self:
        """Load an `XLAGenerationLayer` from a Hugging Face folder or hub name (safetensors), or from a GGUF file.

        The checkpoint's `generation_config.json` gives the defaults; arguments here come first. Nothing is unpickled.
        The tokenizer is read when it is first needed: for a text, or when `layer.tokenizer` is asked for.

        Args:
            source: The path of a folder or of a `.gguf` file, or a hub name.
            tokenizer: A Hugging Face tokenizer in place of the checkpoint's own.
            dtype: Of weights and computation; Keras' default (float32) if None, `"auto"` for the checkpoint's own.
            quantization: `"int8"` or `"int4"`, see the class. Only a few weights are in memory in floats at a time.
            compiled: A folder with executables, as `save_compiled` makes it. By default all is compiled when needed.
            verbose: 0 for silence, 1 for a progress bar, which counts the megabytes of the weights. `"auto"`, the
                default, shows one in a terminal or a notebook if reading them takes more than two seconds.
            **kwargs: The other arguments of the class.

        Returns:
            The layer.

        Raises:
            OSError: There is no such file or folder (a `FileNotFoundError`), or the hub gave no such model.
            ValueError: An unknown architecture (the known are listed), a config with wrong values, or weights that are
                missing, unexpected, truncated or of the wrong shape (all are listed at once); and bad options, as the
                class. For a tokenizer that cannot be read, it comes when that is first needed. Or a bundle of
                executables that cannot be read, or was saved for another model.
            TypeError: There is no such option, or a value has another type.

        Example:
        ```python
        gpt2 = keras_xla.XLAGenerationLayer.from_pretrained("openai-community/gpt2", max_new_tokens=8)
        print(gpt2.generate("The capital of France is"))
        ```
        """
        if compiled is not None:
            prepare(pathlib.Path(compiled))  # before the weights, with which TensorFlow would start
        checkpoint = open_checkpoint(source)
        found = model_config(checkpoint)
        speech, has_encoder = hasattr(found, "num_mel_bins"), found.is_encoder_decoder
        if speech:
            check_front_end(checkpoint.path)
        stored = kwargs.pop("generation_config", None)
        warn_of_max_length(stored, kwargs, has_encoder)
        stored = known_options(stored_options(checkpoint, found) if stored is None else stored, checkpoint.path, speech)
        # Options are checked before the weights are read, which can take a while.
        if "logits_processors" in kwargs:
            kwargs["logits_processors"] = as_functions(kwargs["logits_processors"])
            own_processors(kwargs["logits_processors"])
        kinds = itertools.takewhile(lambda kind: kind is not FromPretrained, cls.__mro__)  # a subclass hands on
        made = [inspect.signature(vars(kind)["__init__"]).parameters for kind in kinds if "__init__" in vars(kind)]
        own = set().union(*made) - {"max_new_tokens"}
        its = set().union(*made[:-1])  # what a subclass takes may have another meaning
        given = {n: v for n, v in kwargs.items() if n not in own and v is not None}
        asked = resolve(stored, given, has_encoder, found.max_target_positions if speech else None)
        check_defaults(asked.options)
        check_arguments(**{name: kwargs[name] for name in _CHECKED if name in kwargs and name not in its})
        model = load_model(checkpoint, dtype, quantization, _progress(verbose))
        model.generation_config = as_saved(stored)
        if tokenizer is None and checkpoint.read_tokenizer is not None:
            tokenizer = LazyTokenizer(checkpoint.read_tokenizer)
        dtype = model.dtype_policy if dtype == "auto" else dtype
        if not has_encoder:  # where the length in a file, which counts the prompt, is not used
            stored = {name: value for name, value in stored.items() if name != "max_length"}
        layer: Any = cls(model, tokenizer, dtype=dtype, generation_config=stored, **kwargs)
        if compiled is not None:
            layer.load_compiled(compiled)
        return layer


def _progress(verbose: int | str) -> ProgressBar:
    """A bar that counts megabytes. `"auto"` shows none where nobody watches it: a log would be full of it."""
    start = time.monotonic()
    seen = getattr(sys.stdout, "isatty", bool)() or "ipykernel" in sys.modules

    def worth_it(done: int, whole: int) -> bool:
        return seen and done < whole and time.monotonic() - start > _SHORT

    return ProgressBar("MB", verbose, worth_it, scale=_MB)
