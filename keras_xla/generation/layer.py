"""`XLAGenerationLayer`: generation as a Keras layer."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_xla import backend, config
from keras_xla.engine.buckets import make
from keras_xla.engine.generator import Generator
from keras_xla.generation import prompts, tokenizing
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.spec import DecoderSpec
from keras_xla.models.transformer import Transformer


@keras.saving.register_keras_serializable(package="keras_xla")
class XLAGenerationLayer(keras.layers.Layer):
    """Text generation, compiled by XLA for a few fixed shapes, as a Keras layer.

    Prompts are padded to buckets, and options are tensors: after the first call of a bucket, no other
    prompt length, batch size or option in it compiles again.

    Args:
        model: A `Decoder` (see `keras_xla.models.interface`), such as `Transformer`.
        tokenizer: A Hugging Face tokenizer; needed for text.
        max_new_tokens: Tokens to make at most.
        return_prompt: Whether text outputs begin with the prompt.
        prompt_buckets: Prompt lengths to pad to, increasing; powers of two from 32 by default.
        batch_buckets: Batch sizes to pad to; powers of two by default.
        new_token_buckets: Room for new tokens; powers of two from 32 by default.
        on_recompile: `"log"` (see `keras_xla.compile_log`), or `"raise"`: after the first compilation,
            another one is a `RecompileError`.
        **generation_options: Any other field of `keras_xla.config.GenerationOptions`.

    Call arguments:
        inputs: Ids `(batch, length)`, a ragged tensor, a list of lists of ints, or
            `{"input_ids", "attention_mask"}`; or strings `(batch,)`, a chat or a list of chats. Padding
            may be on either side; without a mask, `pad_token_id` at either end is padding, if that was
            given and is no `eos_token_id`.

    Returns:
        For ids `{"sequences": (batch * num_return_sequences, max_new_tokens) int32, "lengths": (...,) int32,
        "scores": (...,) float32}`: new tokens only, right-padded with `pad_token_id`; the tokens made, with
        the end-of-sequence token; the sum of their log-probabilities under the model. For text, the
        completions: a list of strings, or a string tensor for a string tensor.

    Raises:
        TypeError, ValueError: for bad options or inputs, before anything compiles.

    Example:
    ```python
    layer = keras_xla.XLAGenerationLayer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    layer.generate("The capital of France is", max_new_tokens=8)
    model = keras.Sequential([keras.Input((), dtype="string"), layer])
    model.predict(tf.constant(["Once upon a time", "The sky is"]))
    ```
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        max_new_tokens: int = 64,
        *,
        return_prompt: bool = False,
        prompt_buckets: Sequence[int] | None = None,
        batch_buckets: Sequence[int] | None = None,
        new_token_buckets: Sequence[int] | None = None,
        on_recompile: str = "log",
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **generation_options: Any,
    ):
        self.options = config.GenerationOptions().replace(max_new_tokens=max_new_tokens, **generation_options)
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.model, self.tokenizer, self.return_prompt = model, tokenizer, return_prompt
        self.supports_jit = False  # it compiles itself, for its own shapes
        self._convert_input_args = False  # strings, chats and ragged lists come as they are
        self._allow_non_tensor_positional_args = True
        buckets = dict(batch=batch_buckets, prompt=prompt_buckets, new_tokens=new_token_buckets)
        self._buckets = {name: sizes and list(sizes) for name, sizes in buckets.items()}
        self._generator = Generator(
            model,
            batch=make("batch", batch_buckets, 1),
            prompt=make("prompt", prompt_buckets, 32),
            new_tokens=make("max_new_tokens", new_token_buckets, 32),
            on_recompile=on_recompile,
            name=self.name,
        )
        self.built = True

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike,
        *,
        tokenizer: Any = None,
        dtype: Any = None,
        max_new_tokens: int | None = None,
        **kwargs: Any,
    ) -> "XLAGenerationLayer":
        """A layer from a Hugging Face folder or hub name (safetensors), or a GGUF file.

        The checkpoint's `generation_config.json` gives the defaults; arguments here come first.

        Args:
            source: Folder, `.gguf` file, or hub name.
            tokenizer: Instead of the checkpoint's own.
            dtype: Of weights and computation; Keras' default (float32) if None.
            max_new_tokens: See the class; the checkpoint's, or else 64.
            **kwargs: See the class.

        Raises:
            FileNotFoundError: if there is no such file or folder.
            ValueError: for an unknown architecture (the known are listed), and for weights that are missing,
                unexpected, truncated or of the wrong shape (all are listed at once).
        """
        checkpoint = open_checkpoint(source)
        ends = {name: checkpoint.config.get(name) for name in ("eos_token_id", "pad_token_id")}
        known, ignored = config.checkpoint_defaults({**ends, **checkpoint.generation_config})
        asked = kwargs if max_new_tokens is None else {"max_new_tokens": max_new_tokens, **kwargs}
        if ignored:
            warnings.warn(
                f"{checkpoint.path}: its generation_config.json sets {ignored}, which keras_xla does not "
                "implement: completions will differ from Hugging Face's.",
                stacklevel=2,
            )
        sampling = {**known, **asked}.get("do_sample", False)
        if not sampling:  # many checkpoints tune sampling without asking for it
            known = {name: value for name, value in known.items() if name not in config.SAMPLING}
        # Options are checked before the weights are read, which can take a while.
        fields = config.GenerationOptions.__dataclass_fields__
        config.GenerationOptions().replace(**known).replace(**{k: v for k, v in asked.items() if k in fields})
        model = load_model(checkpoint, dtype=dtype)
        tokenizer = checkpoint.tokenizer() if tokenizer is None else tokenizer
        return cls(model, tokenizer, dtype=dtype, **{**known, **asked})

    def call(self, inputs):
        if backend.is_traced(_leaf(inputs)):
            return self._call_in_graph(inputs)
        if not prompts.is_text(inputs):
            outputs = self._generator(prompts.rows(inputs, self._padding), self.options)
            return {name: keras.ops.convert_to_tensor(value) for name, value in outputs.items()}
        completions = self._complete_text(inputs, self.options, self.return_prompt)
        return keras.ops.convert_to_tensor(completions) if backend.is_string(inputs) else completions

    def generate(self, inputs: Any, **overrides: Any) -> list[str] | dict[str, np.ndarray]:
        """Generate outside of a model, with other options for this call.

        Args:
            inputs: See the class.
            **overrides: Generation options, and `return_prompt`.

        Returns:
            A list of strings for text; for ids the same dict as a call, as numpy arrays.

        Example:
        ```python
        layer.generate(["Once upon a time", "The sky"], do_sample=True, temperature=0.7, seed=1)
        ```
        """
        return_prompt = overrides.pop("return_prompt", self.return_prompt)
        options = self.options.replace(**overrides)
        if prompts.is_text(inputs):
            return self._complete_text(inputs, options, return_prompt)
        return self._generator(prompts.rows(inputs, self._padding), options)

    def warmup(
        self,
        batch_sizes: Sequence[int] = (1,),
        prompt_lengths: Sequence[int] = (32,),
        verbose: int | str = "auto",
        **overrides: Any,
    ) -> int:
        """Compile ahead, for every pair of a batch size and a prompt length.

        Args:
            batch_sizes: How many prompts a call will have.
            prompt_lengths: How long the longest will be.
            verbose: 0 for silence; a progress bar otherwise.
            **overrides: Generation options that the calls will have.

        Returns:
            How many executables were compiled; the others were there already.
        """
        options = self.options.replace(**overrides)
        pairs = [(batch, length) for batch in batch_sizes for length in prompt_lengths]
        bar = keras.utils.Progbar(len(pairs), unit_name="shape") if verbose else None
        compiled = 0
        for i, (batch, length) in enumerate(pairs):
            compiled += self._generator.warmup(batch * options.num_return_sequences, length, options)
            if bar:
                bar.update(i + 1, finalize=i + 1 == len(pairs))
        return compiled

    @property
    def trace_count(self) -> int:
        """Executables compiled so far."""
        return self._generator.executables.trace_count

    @property
    def run_eagerly(self) -> bool:
        """Whether to run op by op instead of compiled, for debugging; may be set, like that of a model."""
        return self._generator.executables.run_eagerly

    @run_eagerly.setter
    def run_eagerly(self, value: bool):
        self._generator.executables.run_eagerly = bool(value)

    def compute_output_spec(self, inputs):
        specs = self._output_specs(inputs, _leaf(inputs).dtype == "string")
        outputs = {name: keras.KerasTensor(shape, dtype=dtype) for name, (shape, dtype) in specs.items()}
        return outputs.get("text", outputs)

    def get_config(self) -> dict:
        if not isinstance(self.model, Transformer):
            raise ValueError(
                f"The layer {self.name!r} holds a {type(self.model).__name__}, which has no spec to save; "
                "only a Transformer can be saved."
            )
        options = {f: getattr(self.options, f) for f in config.GenerationOptions.__dataclass_fields__}
        if not self.options.do_sample:
            options = {name: value for name, value in options.items() if name not in config.SAMPLING}
        buckets = {f"{'new_token' if n == 'new_tokens' else n}_buckets": s for n, s in self._buckets.items()}
        return {
            **super().get_config(),
            **options,
            **buckets,
            "return_prompt": self.return_prompt,
            "on_recompile": self._generator.executables.on_recompile,
            "model": self.model.spec.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict) -> "XLAGenerationLayer":
        spec, dtype = DecoderSpec.from_dict(config["model"]), config.pop("dtype", None)
        if isinstance(dtype, dict):
            dtype = keras.saving.deserialize_keras_object(dtype)
        return cls(**{**config, "model": Transformer(spec, dtype=dtype), "dtype": dtype})

    def save_assets(self, dir_path: str) -> None:
        """Write the tokenizer into a `.keras` file."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(dir_path)

    def load_assets(self, dir_path: str) -> None:
        """Read the tokenizer from a `.keras` file."""
        if os.path.exists(os.path.join(dir_path, "tokenizer_config.json")):
            from transformers import AutoTokenizer  # late: it takes a second

            self.tokenizer = AutoTokenizer.from_pretrained(dir_path, local_files_only=True)

    @property
    def _padding(self) -> int | None:
        """The token that is padding even without a mask, if there is one."""
        pad = self.options.pad_token_id
        return None if pad in self.options.eos_token_id else pad

    def _complete_text(self, inputs, options, return_prompt: bool) -> list[str]:
        rows = tokenizing.encode(self.tokenizer, prompts.texts(inputs))
        out = self._generator(rows, options)
        rows = [row for row in rows for _ in range(options.num_return_sequences)]
        made = [sequence[:length] for sequence, length in zip(out["sequences"], out["lengths"], strict=True)]
        return [tokenizing.decode(self.tokenizer, *pair, return_prompt) for pair in zip(rows, made, strict=True)]

    def _output_specs(self, inputs, text: bool) -> dict[str, tuple[tuple, str]]:
        """Shape and dtype of each output; a single one, `"text"`, for text."""
        batch = _leaf(inputs).shape[0]
        rows = None if batch is None else batch * self.options.num_return_sequences
        if text:
            return {"text": ((rows,), "string")}
        return {
            "sequences": ((rows, self.options.max_new_tokens), "int32"),
            "lengths": ((rows,), "int32"),
            "scores": ((rows,), "float32"),
        }

    def _call_in_graph(self, inputs):
        """A call inside a graph (`predict`, `tf.data.map`): leaves it for the executables, and comes back."""
        text = backend.is_string(_leaf(inputs))
        specs = self._output_specs(inputs, text)

        def run(arrays):
            if text:
                return np.array(self._complete_text(arrays, self.options, self.return_prompt), object)
            outputs = self._generator(prompts.rows(arrays, self._padding), self.options)
            return [outputs[name] for name in specs]

        outputs = dict(zip(specs, backend.host_call(run, inputs, list(specs.values())), strict=True))
        return outputs.get("text", outputs)


def _leaf(inputs):
    """The tensor whose kind and batch size speak for all of the inputs."""
    return inputs["input_ids"] if isinstance(inputs, dict) and "input_ids" in inputs else inputs
