"""`XLAGenerationLayer`: generation as a Keras layer."""

import functools
import inspect
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_xla import backend, config
from keras_xla.engine.prompt_cache import PromptCache
from keras_xla.generation import prompts, tokenizing
from keras_xla.generation.chat import Chat
from keras_xla.generation.defaults import SPEECH_FIELDS, known_options, resolve, stored_options
from keras_xla.generation.in_graph import host_call, output_specs
from keras_xla.generation.speech.pipeline import SpeechPipeline, generator_for, is_speech
from keras_xla.generation.speech.transcripts import Transcript
from keras_xla.generation.text_pipeline import TextPipeline
from keras_xla.models.build import build
from keras_xla.models.registry import load_model, model_config
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.live_models import as_decoder, options_of, quantized, tokenizer_of
from keras_xla.models.sources.safetensors_folder import open_tokenizer
from keras_xla.private.keras import forget


@keras.saving.register_keras_serializable(package="keras_xla")
class XLAGenerationLayer(keras.layers.Layer):
    """Text generation, compiled by XLA for a few fixed shapes, as a Keras layer.

    Prompts run in chunks over a cache that grows in a few steps, and options are tensors: once a size of the cache is
    compiled for a batch bucket, no prompt length, number of new tokens or option compiles again.

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
        batch_buckets: Batch sizes to pad to, increasing; powers of two by default.
        cache_buckets: Sizes of the cache, in tokens of prompt and completion together (with a beam search, the
            completion counts once a beam); powers of two from 128 by default. A cache that is full moves to the
            next, and what attention costs grows with it.
        source_buckets: For an encoder-decoder, lengths to pad what it reads to; powers of two from 32 by default.
        on_recompile: `"log"` (see `keras_xla.compile_log`), or `"raise"`: after the first compilation,
            another one is a `RecompileError`.
        quantization: `"int8"` stores the matrices of the model's weights in whole numbers, in a quarter of the memory;
            a product rounds its rows alike. By default weights are as they come.
        **options: Any other field of `keras_xla.config.GenerationOptions`, and for speech of
            `keras_xla.generation.speech.options.SpeechOptions`.

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
        batch_buckets: Sequence[int] | None = None,
        cache_buckets: Sequence[int] | None = None,
        source_buckets: Sequence[int] | None = None,
        on_recompile: str = "log",
        quantization: str | None = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **options: Any,
    ):
        stored = options_of(model) if generation_config is None else generation_config
        decoder, tokenizer = as_decoder(model, quantization), tokenizer_of(model) if tokenizer is None else tokenizer
        stored = known_options(stored, f"the {type(model).__name__}", is_speech(decoder))
        if max_new_tokens is not None:
            options["max_new_tokens"] = max_new_tokens
        asked = resolve(stored, options, hasattr(decoder, "encode"), is_speech(decoder))
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.options, self.tokenizer = asked.options, tokenizer
        self.sampling_rate = sampling_rate
        self.supports_jit = False  # it compiles itself, for its own shapes
        self._convert_input_args = False  # strings, chats and ragged lists come as they are
        self._allow_non_tensor_positional_args = True
        self._buckets = dict(batch_buckets=batch_buckets, cache_buckets=cache_buckets, source_buckets=source_buckets)
        self._stored = stored if asked.tokens else None
        self._generate_with(decoder, asked.tokens, asked.speech, on_recompile, return_prompt)
        self.built = True

    def _generate_with(self, decoder: Any, tokens: Any, speech: Any, on_recompile: str, return_prompt: bool) -> None:
        self.model = decoder
        self._generator = generator_for(decoder, tokens, **self._buckets, on_recompile=on_recompile, name=self.name)
        self._text = TextPipeline(self._generator, return_prompt)
        self._speech = SpeechPipeline(self._generator, tokens, speech) if tokens else None

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike,
        *,
        tokenizer: Any = None,
        dtype: Any = None,
        quantization: str | None = None,
        **kwargs: Any,
    ) -> "XLAGenerationLayer":
        """A layer from a Hugging Face folder or hub name (safetensors), or a GGUF file.

        The checkpoint's `generation_config.json` gives the defaults; arguments here come first.

        Args:
            source: Folder, `.gguf` file, or hub name.
            tokenizer: Instead of the checkpoint's own.
            dtype: Of weights and computation; Keras' default (float32) if None, `"auto"` for the checkpoint's own.
            quantization: See the class. Only a few weights are in memory in floats at a time.
            **kwargs: See the class.

        Raises:
            FileNotFoundError: if there is no such file or folder.
            ValueError: for an unknown architecture (the known are listed), and for weights that are missing,
                unexpected, truncated or of the wrong shape (all are listed at once).
        """
        checkpoint = open_checkpoint(source)
        found = model_config(checkpoint)
        speech, has_encoder = hasattr(found, "num_mel_bins"), getattr(found, "is_encoder_decoder", False)
        stored = kwargs.pop("generation_config", None)
        stored = known_options(stored_options(checkpoint, found) if stored is None else stored, checkpoint.path, speech)
        # Options are checked before the weights are read, which can take a while.
        own = set(inspect.signature(cls.__init__).parameters) - {"max_new_tokens"}
        resolve(stored, {n: v for n, v in kwargs.items() if n not in own and v is not None}, has_encoder, speech)
        model = load_model(checkpoint, dtype, quantization)
        tokenizer = checkpoint.tokenizer() if tokenizer is None else tokenizer
        dtype = model.dtype_policy if dtype == "auto" else dtype
        return cls(model, tokenizer, dtype=dtype, generation_config=stored, **kwargs)

    def call(self, inputs):
        if backend.is_traced(prompts.leaf(inputs)):
            return self._call_in_graph(inputs)
        if not self._makes_text(inputs):
            outputs = self._complete_ids(inputs)
            return {name: keras.ops.convert_to_tensor(value) for name, value in outputs.items()}
        completions = self._complete_text(inputs)
        return keras.ops.convert_to_tensor(completions) if backend.is_string(inputs) else completions

    def generate(
        self,
        inputs: Any,
        *,
        streamer: Any = None,
        cancel: threading.Event | None = None,
        reuse_prompt: bool | PromptCache = False,
        **overrides: Any,
    ) -> list[str] | list[Transcript] | dict[str, np.ndarray]:
        """Generate outside of a model, with other options for this call.

        Args:
            inputs: See the class.
            streamer: An object with `put(ids)` and `end()`, such as Hugging Face's `TextStreamer`: it is told of the
                prompts, and of every token when it is made.
            cancel: A `threading.Event` that another thread sets to end the call, which returns what there is.
            reuse_prompt: Whether the prompt's beginning need not be computed again where it is that of the last call
                with `reuse_prompt`. For one prompt, and for several that begin where those of the last call began.
            **overrides: Generation options, and those of `keras_xla.generation.text_options.TextOptions`. For speech
                also the fields of `keras_xla.generation.speech.options.SpeechOptions`, `sampling_rate` and
                `batch_size`.

        Returns:
            A list of strings for text; for ids or features the same dict as a call, as numpy arrays; for speech a list
            of `keras_xla.generation.speech.transcripts.Transcript`, whose `str` is the text.

        Example:
        ```python
        layer.generate(["Once upon a time", "The sky"], do_sample=True, temperature=0.7, seed=1)
        ```
        """
        if self._speech is not None:
            given = dict(streamer=streamer, cancel=cancel, reuse_prompt=reuse_prompt or None)
            if named := [name for name, value in given.items() if value is not None]:
                raise ValueError(f"Received {', '.join(named)} with speech; expected that with text or ids only.")
            if prompts.is_features(inputs):
                return self._speech.complete(inputs["input_features"], self.options, **overrides)
            overrides.setdefault("sampling_rate", self.sampling_rate)
            return self._speech.transcribe(inputs, self.tokenizer, self.options, **overrides)
        given = dict(reuse_prompt=reuse_prompt, cancel=cancel)
        made = self._text.completion(inputs, self.tokenizer, self.options, overrides, **given)
        return made.texts(streamer) if prompts.is_text(inputs) else made.outputs(streamer)

    def stream(
        self,
        inputs: Any,
        *,
        cancel: threading.Event | None = None,
        reuse_prompt: bool | PromptCache = False,
        **overrides: Any,
    ) -> Iterator[Any]:
        """Generate a token after the other. Closing the iterator ends the generation.

        Args:
            inputs: See the class; no speech.
            cancel: See `generate`.
            reuse_prompt: See `generate`.
            **overrides: See `generate`; no beams.

        Returns:
            For one prompt, pieces of its text, or arrays `(n,)` int32 of ids; for several, pairs of the row and such a
            piece. Joined, the pieces of a row are what `generate` returns. All is checked before the first comes.

        Example:
        ```python
        for piece in layer.stream("Once upon a time", max_new_tokens=20):
            print(piece, end="", flush=True)
        ```
        """
        if self._speech is not None:
            raise ValueError("Received speech; only text and token ids come in a stream. Use generate.")
        call = dict(reuse_prompt=reuse_prompt, cancel=cancel)
        return self._text.completion(inputs, self.tokenizer, self.options, overrides, **call).stream()

    def chat(self, system: str | None = None, messages: Sequence[Mapping[str, Any]] = (), **overrides: Any) -> Chat:
        """A conversation whose past is not computed again in every turn.

        Args:
            system: The first message, of the role `"system"`.
            messages: What was said already, in Hugging Face's format.
            **overrides: Options of every turn; see `generate`. `tools` are functions or JSON schemas that the chat
                template describes to the model.

        Raises:
            ValueError: without a tokenizer that has a chat template.

        Example:
        ```python
        chat = layer.chat(system="You answer in one sentence.")
        chat.send("What is the capital of France?")
        chat.send("And of Italy?")
        ```
        """
        first = [] if system is None else [{"role": "system", "content": system}]
        return Chat(self, self.tokenizer, [*first, *messages], overrides, self._generator.prompt_cache() or False)

    def warmup(
        self,
        batch_sizes: int | Sequence[int] = (1,),
        prompt_lengths: int | Sequence[int] = (32,),
        verbose: int | str = "auto",
        **overrides: Any,
    ) -> int:
        """Compile ahead, for every pair of a batch size and a prompt length.

        Args:
            batch_sizes: How many prompts a call will have.
            prompt_lengths: How long the longest will be; of no meaning for speech.
            verbose: 0 for silence; a progress bar otherwise.
            **overrides: Generation options that the calls will have.

        Returns:
            How many executables were compiled; the others were there already.
        """
        options = self.options.replace(**overrides)
        batches, lengths = ((sizes,) if isinstance(sizes, int) else sizes for sizes in (batch_sizes, prompt_lengths))
        pairs = [(batch, length) for batch in batches for length in (lengths if self._speech is None else lengths[:1])]
        bar = keras.utils.Progbar(len(pairs), unit_name="shape") if verbose else None
        before = self.trace_count
        for i, (batch, length) in enumerate(pairs):
            if self._speech is not None:
                self._speech.warmup(batch, options)
            else:
                self._generator.warmup([np.zeros((length,), np.int32)] * batch, options)
            if bar:
                bar.update(i + 1, finalize=i + 1 == len(pairs))
        return self.trace_count - before

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Store the matrices of the model's weights in whole numbers from now on, as Keras' own layers do.

        `mode` is `"int8"`, `config` Keras' default for it, or None; `type_check` has no meaning here. `quantize` of a
        model that holds the layer does not reach it: Keras asks layers without layers inside only.
        """
        if config is not None and config.get_config() != type(config)().get_config():
            raise ValueError(f"Received config={config!r}; expected the default of {type(config).__name__}, or None.")
        model, before, speech = quantized(self.model, mode), self._generator.executables, self._speech
        forget(self, "model")
        kept = (None, None) if speech is None else (speech.tokens, speech.defaults)
        self._generate_with(model, *kept, before.on_recompile, self._text.return_prompt)
        self.run_eagerly = before.run_eagerly

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
        text = not prompts.is_features(inputs) if self._speech else prompts.leaf(inputs).dtype == "string"
        specs = output_specs(prompts.leaf(inputs), self.options, text)
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
        buckets = {name: sizes and list(sizes) for name, sizes in self._buckets.items()}
        made = {
            **super().get_config(),
            **options,
            **buckets,
            "generation_config": self._stored or {},
            "return_prompt": self._text.return_prompt,
            "sampling_rate": self.sampling_rate,
            "on_recompile": self._generator.executables.on_recompile,
            "model": self.model.spec.to_dict(),
            "quantization": self.model.quantization,
            "dtype": keras.dtype_policies.serialize(self.model.dtype_policy),
        }
        return tokenizing.LayerConfig(made, self.tokenizer)

    @classmethod
    def from_config(cls, config: dict) -> "XLAGenerationLayer":
        dtype, quantization = config.pop("dtype", None), config.pop("quantization", None)
        dtype = keras.saving.deserialize_keras_object(dtype) if isinstance(dtype, dict) else dtype
        model = build(config["model"], dtype, quantization=quantization)
        return cls(**{**config, "model": model, "dtype": dtype}, tokenizer=getattr(config, "tokenizer", None))

    def save_assets(self, dir_path: str) -> None:
        """Write the tokenizer into a `.keras` file."""
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(dir_path)

    def load_assets(self, dir_path: str) -> None:
        """Read the tokenizer from a `.keras` file."""
        if os.path.exists(os.path.join(dir_path, "tokenizer_config.json")):
            self.tokenizer = open_tokenizer(dir_path)

    def _makes_text(self, inputs) -> bool:
        return not prompts.is_features(inputs) if self._speech is not None else prompts.is_text(inputs)

    def _complete_ids(self, inputs, goes_on: bool = False) -> dict[str, np.ndarray]:
        if self._speech is None:
            return self._text.completion(inputs, self.tokenizer, self.options, goes_on=goes_on).outputs()
        return self._speech.complete(inputs["input_features"], self.options)

    def _complete_text(self, inputs, goes_on: bool = False) -> list[str]:
        if self._speech is not None:
            made = self._speech.transcribe(inputs, self.tokenizer, self.options, sampling_rate=self.sampling_rate)
            return [str(transcript) for transcript in made]
        return self._text.completion(inputs, self.tokenizer, self.options, goes_on=goes_on).texts()

    def _call_in_graph(self, inputs):
        """A call inside a graph (`predict`, `tf.data.map`): leaves it for the executables, and comes back."""
        text = not prompts.is_features(inputs) if self._speech else backend.is_string(prompts.leaf(inputs))
        return host_call(
            functools.partial(self._complete_text if text else self._complete_ids, goes_on=True),
            inputs,
            output_specs(prompts.leaf(inputs), self.options, text),
        )
