"""`XLAGenerationLayer`: generation as a Keras layer."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_xla import backend, config
from keras_xla.engine.buckets import make
from keras_xla.generation import prompts, tokenizing
from keras_xla.generation.defaults import SPEECH_FIELDS, known_options, resolve, stored_options
from keras_xla.generation.speech_pipeline import SpeechPipeline, generator_for, hears
from keras_xla.generation.transcripts import Transcript
from keras_xla.models.build import build
from keras_xla.models.registry import load_model, model_config
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.live_models import as_decoder, options_of, tokenizer_of


@keras.saving.register_keras_serializable(package="keras_xla")
class XLAGenerationLayer(keras.layers.Layer):
    """Text generation, compiled by XLA for a few fixed shapes, as a Keras layer.

    Prompts are padded to buckets, and options are tensors: after the first call of a bucket, no other
    prompt length, batch size or option in it compiles again.

    Args:
        model: A live model: a KerasHub `CausalLM` or `Seq2SeqLM`, any Keras model from ids to logits, a TensorFlow
            model of transformers 4, or a `Decoder` or `EncoderDecoder` (see `keras_xla.models.interface`). Its
            weights are those at the time of each call.
        tokenizer: A Hugging Face tokenizer; needed for text.
        max_new_tokens: Tokens to make at most; the model's own default, or else 64.
        generation_config: Defaults of all options, as in a checkpoint's `generation_config.json`; a live model's own
            by default.
        return_prompt: Whether text outputs begin with the prompt.
        sampling_rate: Of speech that comes as an array, in hertz.
        prompt_buckets: Prompt lengths to pad to, increasing; powers of two from 32 by default. For an
            encoder-decoder, of what it reads.
        batch_buckets: Batch sizes to pad to; powers of two by default.
        new_token_buckets: Room for new tokens; powers of two from 32 by default.
        on_recompile: `"log"` (see `keras_xla.compile_log`), or `"raise"`: after the first compilation,
            another one is a `RecompileError`.
        **options: Any other field of `keras_xla.config.GenerationOptions`, and for speech of
            `keras_xla.generation.speech_options.SpeechOptions`.

    Call arguments:
        inputs: Ids `(batch, length)`, a ragged tensor, a list of lists of ints, or
            `{"input_ids", "attention_mask"}`; or strings `(batch,)`, a chat or a list of chats. Padding
            may be on either side; without a mask, `pad_token_id` at either end is padding, if that was
            given and is no `eos_token_id`. An encoder-decoder reads them, and takes `decoder_input_ids` beside them.
            For speech: files, arrays `(batch, samples)`, or `{"input_features": (batch, mel bins, frames)}`.

    Returns:
        For ids `{"sequences": (batch * num_return_sequences, max_new_tokens) int32, "lengths": (...,) int32,
        "scores": (...,) float32}`: new tokens only, right-padded with `pad_token_id`; the tokens made, with
        the end-of-sequence token; the sum of their log-probabilities under the model (or a beam's score). For text
        and speech, the completions: a list of strings, or a string tensor in a graph and for a string tensor.

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
        max_new_tokens: int | None = None,
        *,
        generation_config: Mapping[str, Any] | None = None,
        return_prompt: bool = False,
        sampling_rate: int | None = None,
        prompt_buckets: Sequence[int] | None = None,
        batch_buckets: Sequence[int] | None = None,
        new_token_buckets: Sequence[int] | None = None,
        on_recompile: str = "log",
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **options: Any,
    ):
        stored = options_of(model) if generation_config is None else generation_config
        decoder, tokenizer = as_decoder(model), tokenizer_of(model) if tokenizer is None else tokenizer
        stored = known_options(stored, f"the {type(model).__name__}", hears(decoder))
        if max_new_tokens is not None:
            options["max_new_tokens"] = max_new_tokens
        asked = resolve(stored, options, hasattr(decoder, "condition"), hears(decoder))
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.options, self.model, self.tokenizer, self.return_prompt = asked.options, decoder, tokenizer, return_prompt
        self.sampling_rate = sampling_rate
        self.supports_jit = False  # it compiles itself, for its own shapes
        self._convert_input_args = False  # strings, chats and ragged lists come as they are
        self._allow_non_tensor_positional_args = True
        buckets = dict(batch=batch_buckets, prompt=prompt_buckets, new_tokens=new_token_buckets)
        self._buckets = {name: sizes and list(sizes) for name, sizes in buckets.items()}
        self._generator = generator_for(
            decoder,
            asked.tokens,
            batch=make("batch", batch_buckets, 1),
            prompt=make("prompt", prompt_buckets, 32),
            new_tokens=make("max_new_tokens", new_token_buckets, 32),
            on_recompile=on_recompile,
            name=self.name,
        )
        self._stored = stored if asked.tokens else None
        self._speech = SpeechPipeline(self._generator, asked.tokens, asked.speech) if asked.tokens else None
        self.built = True

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike, *, tokenizer: Any = None, dtype: Any = None, **kwargs: Any
    ) -> "XLAGenerationLayer":
        """A layer from a Hugging Face folder or hub name (safetensors), or a GGUF file.

        The checkpoint's `generation_config.json` gives the defaults; arguments here come first.

        Args:
            source: Folder, `.gguf` file, or hub name.
            tokenizer: Instead of the checkpoint's own.
            dtype: Of weights and computation; Keras' default (float32) if None.
            **kwargs: See the class.

        Raises:
            FileNotFoundError: if there is no such file or folder.
            ValueError: for an unknown architecture (the known are listed), and for weights that are missing,
                unexpected, truncated or of the wrong shape (all are listed at once).
        """
        checkpoint = open_checkpoint(source)
        found = model_config(checkpoint)
        speech, has_encoder = hasattr(found, "num_mel_bins"), getattr(found, "is_encoder_decoder", False)
        stored = known_options(stored_options(checkpoint, found), checkpoint.path, speech)
        # Options are checked before the weights are read, which can take a while.
        own = set(inspect.signature(cls.__init__).parameters) - {"max_new_tokens"}
        resolve(stored, {n: v for n, v in kwargs.items() if n not in own and v is not None}, has_encoder, speech)
        model = load_model(checkpoint, dtype=dtype)
        tokenizer = checkpoint.tokenizer() if tokenizer is None else tokenizer
        return cls(model, tokenizer, dtype=dtype, generation_config=stored, **kwargs)

    def call(self, inputs):
        if backend.is_traced(_leaf(inputs)):
            return self._call_in_graph(inputs)
        if not self._makes_text(inputs):
            outputs = self._complete_ids(inputs, self.options)
            return {name: keras.ops.convert_to_tensor(value) for name, value in outputs.items()}
        completions = self._complete_text(inputs, self.options, self.return_prompt)
        return keras.ops.convert_to_tensor(completions) if backend.is_string(inputs) else completions

    def generate(self, inputs: Any, **overrides: Any) -> list[str] | list[Transcript] | dict[str, np.ndarray]:
        """Generate outside of a model, with other options for this call.

        Args:
            inputs: See the class.
            **overrides: Generation options, and `return_prompt`. For speech also the fields of
                `keras_xla.generation.speech_options.SpeechOptions`, `sampling_rate` and `batch_size`.

        Returns:
            A list of strings for text; for ids or features the same dict as a call, as numpy arrays; for speech a list
            of `keras_xla.generation.transcripts.Transcript`, whose `str` is the text.

        Example:
        ```python
        layer.generate(["Once upon a time", "The sky"], do_sample=True, temperature=0.7, seed=1)
        ```
        """
        if self._speech is not None:
            if _is_features(inputs):
                return self._speech.complete(inputs["input_features"], self.options, **overrides)
            overrides.setdefault("sampling_rate", self.sampling_rate)
            return self._speech.transcribe(inputs, self.tokenizer, self.options, **overrides)
        return_prompt = overrides.pop("return_prompt", self.return_prompt)
        options = self.options.replace(**overrides)
        if prompts.is_text(inputs):
            return self._complete_text(inputs, options, return_prompt)
        return self._complete_ids(inputs, options)

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
            compiled += self._generator.warmup(batch, length, options)
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
        text = not _is_features(inputs) if self._speech else _leaf(inputs).dtype == "string"
        specs = self._output_specs(inputs, text)
        outputs = {name: keras.KerasTensor(shape, dtype=dtype) for name, (shape, dtype) in specs.items()}
        return outputs.get("text", outputs)

    def get_config(self) -> dict:
        if not hasattr(self.model, "spec") or getattr(self.model, "follower", None) is not None:
            raise ValueError(
                f"The layer {self.name!r} holds {'a live model' if hasattr(self.model, 'spec') else 'a model'} of its "
                "own making, which cannot be saved with it. Save that model, and make the layer of it again."
            )
        options = {f: getattr(self.options, f) for f in config.GenerationOptions.__dataclass_fields__}
        options = config.without_idle(options)
        if self._speech is not None:
            speech = {name: getattr(self._speech.defaults, name) for name in SPEECH_FIELDS}
            options |= {name: value for name, value in speech.items() if value is not None and value != ()}
        buckets = {f"{'new_token' if n == 'new_tokens' else n}_buckets": s for n, s in self._buckets.items()}
        return {
            **super().get_config(),
            **options,
            **buckets,
            "generation_config": self._stored or {},
            "return_prompt": self.return_prompt,
            "sampling_rate": self.sampling_rate,
            "on_recompile": self._generator.executables.on_recompile,
            "model": self.model.spec.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict) -> "XLAGenerationLayer":
        dtype = config.pop("dtype", None)
        if isinstance(dtype, dict):
            dtype = keras.saving.deserialize_keras_object(dtype)
        return cls(**{**config, "model": build(config["model"], dtype=dtype), "dtype": dtype})

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

    def _makes_text(self, inputs) -> bool:
        return not _is_features(inputs) if self._speech is not None else prompts.is_text(inputs)

    def _complete_ids(self, inputs, options) -> dict[str, np.ndarray]:
        if self._speech is not None:
            return self._speech.complete(inputs["input_features"], options)
        decoder = None
        if self._generator.has_encoder:
            inputs, decoder = prompts.split_decoder(inputs)
        if decoder is not None:
            decoder = prompts.decoder_rows(decoder, options.decoder_start_token_id)
        return self._generator(prompts.rows(inputs, self._padding), options, decoder)

    def _complete_text(self, inputs, options, return_prompt: bool) -> list[str]:
        if self._speech is not None:
            made = self._speech.transcribe(inputs, self.tokenizer, options, sampling_rate=self.sampling_rate)
            return [str(transcript) for transcript in made]
        rows = tokenizing.encode(self.tokenizer, prompts.texts(inputs))
        if return_prompt and self._generator.has_encoder:
            raise ValueError("Received return_prompt=True; an encoder-decoder's text does not go on from its prompt.")
        out = self._generator(rows, options)
        # An encoder-decoder's completion stands alone.
        rows = [row[:0] if self._generator.has_encoder else row for row in rows]
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
        text = not _is_features(inputs) if self._speech else backend.is_string(_leaf(inputs))
        specs = self._output_specs(inputs, text)

        def run(arrays):
            if text:
                return np.array(self._complete_text(arrays, self.options, self.return_prompt), object)
            outputs = self._complete_ids(arrays, self.options)
            return [outputs[name] for name in specs]

        outputs = dict(zip(specs, backend.host_call(run, inputs, list(specs.values())), strict=True))
        return outputs.get("text", outputs)


def _leaf(inputs):
    """The tensor whose kind and batch size speak for all of the inputs."""
    if isinstance(inputs, dict):
        return next((inputs[name] for name in ("input_ids", "input_features") if name in inputs), inputs)
    return inputs


def _is_features(inputs) -> bool:
    return isinstance(inputs, Mapping) and "input_features" in inputs
