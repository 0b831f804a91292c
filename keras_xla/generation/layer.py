"""`XLAGenerationLayer`: generation as a Keras layer."""

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_xla import backend
from keras_xla.config.values import as_integers
from keras_xla.engine.generator import CACHE_BYTES
from keras_xla.engine.search.own_processors import as_functions
from keras_xla.engine.states.prompt_cache import PromptCache, SavedPrompt
from keras_xla.engine.warmup import silent
from keras_xla.generation.compiled import SavedExecutables
from keras_xla.generation.defaults import check_arguments, check_defaults, known_options, resolve, warn_of_max_length
from keras_xla.generation.in_graph import host_call, output_specs, symbolic_outputs
from keras_xla.generation.loading import FromPretrained
from keras_xla.generation.progress import CompileProgress
from keras_xla.generation.saving import SavedWithTokenizer
from keras_xla.generation.speech.pipeline import SpeechPipeline, generator_for, is_speech
from keras_xla.generation.speech.transcripts import Transcript
from keras_xla.generation.text import prompts
from keras_xla.generation.text.methods import TextMethods
from keras_xla.generation.text.pipeline import TextPipeline
from keras_xla.models.layers.matrices import check_quantization
from keras_xla.models.sources.live_models import as_decoder, options_of, quantized, tokenizer_of
from keras_xla.private.keras.graphs import outputs_of_calls
from keras_xla.private.keras.layers import forget
from keras_xla.private.keras.quantize_check import ChecksQuantizationItself
from keras_xla.private.keras.tracebacks import hide_frames
from keras_xla.private.keras.variables import stateless_scope
from keras_xla.tracebacks import FOLDER
from keras_xla.troubleshooting import explained


@keras.saving.register_keras_serializable(package="keras_xla")
@explained
class XLAGenerationLayer(TextMethods, ChecksQuantizationItself, SavedWithTokenizer, SavedExecutables, FromPretrained):
    """A Keras layer that generates text or transcribes speech, compiled by XLA for a few fixed shapes.

    XLA compiles an executable for each set of shapes, which takes seconds. So the layer pads what it gets to a few
    sizes, the buckets. Prompts run in chunks over a cache that grows in a few steps, and options are tensors: once a
    size of the cache is compiled for a batch bucket, no prompt length and no number of new tokens compiles again, and
    hardly an option (`keras_xla.config.GenerationOptions` names them). For a checkpoint use `from_pretrained`.

    Args:
        model: A live model: a KerasHub `CausalLM` or `Seq2SeqLM`, any Keras model from ids `(batch, length)` to logits
            `(batch, length, vocab)`, a TensorFlow model of transformers 4, or a `Decoder` or `EncoderDecoder` (see
            `keras_xla.models.interface`). Its weights are those at the time of each call.
        tokenizer: A Hugging Face tokenizer. Text needs one. A KerasHub model has its own.
        max_new_tokens: The most tokens to make (int); the model's own default, or else 64 (transcripts: all that fit).
        generation_config: Defaults of all options (dict), as in `generation_config.json`; a live model's by default.
        return_prompt: Whether text outputs begin with the prompt; False by default.
        sampling_rate: The sampling rate of speech that comes as an array, in hertz (int). By default each call says it.
        batch_buckets: Batch sizes to pad to (ints), increasing; powers of two by default.
        cache_buckets: Sizes of the cache in tokens (ints), of a prompt and its completion, this once for each beam;
            powers of two from 128 by default. A full cache moves to the next, and what attention costs grows with it.
        source_buckets: For an encoder-decoder, lengths to pad what it reads to; powers of two from 32 by default.
        logits_processors: Functions `(tokens, logits, step) -> logits` of `keras.ops`, compiled in behind all others,
            before the mask of a grammar and the temperature. `tokens (rows, slots)` int32 are prompts and completions,
            -1 elsewhere; `logits (rows, vocab_size)` float32, for beams log-probabilities; `step (rows, 1)` int32 is 0
            for the first new token. Keyword-only arguments are tensors like their defaults, see `processor_options`.
        cache_bytes: The most bytes that the caches of prompts which run at once may take, 2 GiB by default. It holds
            for decoder-only models of keras_xla's; one prompt may take more. While a cache grows, the smaller one is
            there, too, and an assistant's cache comes on top.
            More prompts, and more than 64 or the largest batch bucket, run in several batches, those of like length
            together. All that chats and `reuse_prompt=True` keep between calls takes at most as much again, or what
            the latest takes.
        on_recompile: `"log"` notes what compiles in `keras_xla.compile_log`. With `"raise"`, what would compile again
            after the first compilation is a `RecompileError`.
        quantization: `"int8"` stores the matrices of the model's weights in whole numbers, in a quarter of the memory.
            `"int4"` stores numbers from 0 to 15, with a step and a start for each 32 of them, in a seventh; the
            matrices of the vocabulary stay in int8. On a CPU a product rounds its inputs to about 15 bits. By default
            weights are as they come.
        name: The name of the layer (str), also in the compile log.
        dtype: The dtype policy of the layer itself. Its model computes in its own.
        trainable: As for any Keras layer. False freezes the model, also where it is used elsewhere.
        **options: Any other field of `keras_xla.config.GenerationOptions`, and for speech of
            `keras_xla.generation.speech.options.SpeechOptions`.

    Attributes:
        model: The decoder that generates: `model` itself, or what was made of it.
        tokenizer: The tokenizer, or None. It may be set. That of a checkpoint is read when it is first needed.
        options: The `GenerationOptions` that hold where a call says nothing else.

    Call arguments:
        inputs: Ids `(batch, length)`, a ragged tensor, a list of lists of ints, or `{"input_ids", "attention_mask"}`;
            or strings `(batch,)`, a chat or a list of chats. Padding may be on either side; without a mask it is
            `pad_token_id` at either end, if given and no `eos_token_id`. Beside them, encoder-decoders take
            `decoder_input_ids`. Speech: files, arrays `(batch, samples)`, `{"input_features": (batch, bins, frames)}`.

    Call returns:
        For ids `{"sequences": (batch * num_return_sequences, max_new_tokens) int32, "lengths": (...,) int32,
        "scores": (...,) float32}`: new tokens only, right-padded with `pad_token_id`; the tokens made, with
        the end-of-sequence token; the sum of their log-probabilities under the model (or a beam's score). For text
        and speech, the completions: a list of strings, or a string tensor in a graph and for a string tensor.

    Raises:
        TypeError: The layer cannot use such a model, there is no such option, or a value has another type.
        ValueError: A bad option or input. All of these come before anything compiles.
        NotImplementedError: `quantization` for a model that is not mapped onto one of keras_xla's.

    Example:
    ```python
    layers = [keras.layers.Embedding(50, 16), keras.layers.GRU(16, return_sequences=True), keras.layers.Dense(50)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])  # from ids to logits
    generator = keras_xla.XLAGenerationLayer(model, max_new_tokens=8)
    print(generator.generate([[5, 6, 7], [8]])["sequences"].shape)  # (2, 8)
    pipeline = keras.Sequential([keras.Input((3,), dtype="int32"), generator])
    print(pipeline.predict(np.array([[5, 6, 7]]), verbose=0)["lengths"])
    ```
    """

    compiles_itself = True  # so that `keras_xla.jit` refuses it

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
        logits_processors: Sequence[Callable] | None = (),
        cache_bytes: int = CACHE_BYTES,
        on_recompile: str = "log",
        quantization: str | None = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **options: Any,
    ):
        hide_frames(FOLDER)
        buckets = dict(batch_buckets=batch_buckets, cache_buckets=cache_buckets, source_buckets=source_buckets)
        check_arguments(cache_bytes=cache_bytes, on_recompile=on_recompile, **buckets)
        stored = options_of(model) if generation_config is None else generation_config
        decoder, tokenizer = as_decoder(model, quantization), tokenizer_of(model) if tokenizer is None else tokenizer
        if max_new_tokens is not None:
            options["max_new_tokens"] = max_new_tokens
        warn_of_max_length(generation_config, options, hasattr(decoder, "encode"))
        stored = known_options(stored, f"the {type(model).__name__}", is_speech(decoder))
        positions: Any = decoder.max_positions if is_speech(decoder) else None
        asked = resolve(stored, options, hasattr(decoder, "encode"), positions)
        check_defaults(asked.options)
        super().__init__(name=name, dtype=dtype)
        self.options, self.tokenizer = asked.options, tokenizer
        self.sampling_rate = sampling_rate
        self.supports_jit = False  # it compiles itself, for its own shapes
        self._convert_input_args = False  # strings, chats and ragged lists come as they are
        self._allow_non_tensor_positional_args = True
        self._buckets = buckets
        self._stored, self._cache_bytes = stored if asked.tokens else None, cache_bytes
        self._processors = as_functions(logits_processors)
        self._generate_with(decoder, asked.tokens, asked.speech, on_recompile, return_prompt)
        self.built = True
        if not trainable:
            self.trainable = False  # here, where Keras knows the model, which is to be frozen, too

    def _generate_with(self, decoder: Any, tokens: Any, speech: Any, on_recompile: str, return_prompt: bool) -> None:
        self.model = decoder
        made: dict[str, Any] = {**self._buckets, "cache_bytes": self._cache_bytes, "on_recompile": on_recompile}
        self._generator = generator_for(decoder, tokens, **made, logits_processors=self._processors, name=self.name)
        self._text = TextPipeline(self._generator, return_prompt)
        self._speech = SpeechPipeline(self._generator, tokens, speech) if tokens else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)  # here, as all that is public here is `explained`

    def call(self, inputs):
        """Generate with the options of the layer; see the class for inputs and outputs."""
        if backend.is_traced(prompts.leaf(inputs)):
            return self._call_in_graph(inputs)
        if not self._makes_text(inputs):
            outputs = self._complete_ids(inputs, stateless_scope() is not None)  # a batch of a `predict` on JAX
            return {name: keras.ops.convert_to_tensor(value) for name, value in outputs.items()}
        completions = self._complete_text(inputs, stateless_scope() is not None)
        return keras.ops.convert_to_tensor(completions) if backend.is_string(inputs) else completions

    def generate(
        self,
        inputs: Any = None,
        *,
        streamer: Any = None,
        cancel: threading.Event | None = None,
        reuse_prompt: bool | SavedPrompt | PromptCache = False,
        output_logprobs: bool = False,
        top_logprobs: int = 0,
        assistant: "XLAGenerationLayer | None" = None,
        negative_prompt: Any = None,
        verbose: int | str = "auto",
        on_error: str = "raise",
        **overrides: Any,
    ) -> list[str | None] | list[Transcript] | dict[str, np.ndarray]:
        """Generate outside of a model, with other options for this call.

        Args:
            inputs: As for a call of the layer, see the class. Also a `tf.data.Dataset`, whose prompts are one list:
                strings or ids, batched or not, pairs of a prompt and a label, or dicts with one feature of strings.
            streamer: An object with `put(ids)` and `end()`, such as Hugging Face's `TextStreamer`: it is told of the
                prompts, and of every token when it is made. It serves one batch of prompts, without beams.
            cancel: A `threading.Event` that another thread sets to end the call, which returns what there is.
            reuse_prompt: What `save_prompt` returned: prompts that begin as those do are computed from there on. True
                for those of the last call with `reuse_prompt=True`, its completions included.
            output_logprobs: Whether the log-probability of each new token is told: what the model itself says, before
                any processor or temperature.
            top_logprobs: How many of the likeliest tokens are told beside each (int), at most 20.
            assistant: A layer with a smaller model and the same tokenizer. It guesses `num_assistant_tokens` tokens
                ahead, which this layer's model checks at once; what is made stays the same, but for rounding.
            negative_prompt: With `guidance_scale`, what completions are led away from: text or ids as the inputs are,
                one for each of them or one for all; by default the last token of each prompt.
            verbose: 0 for silence, 1 for a progress bar, `"auto"` for one where prompts run in several batches.
            on_error: With `"skip"`, a prompt that cannot be run costs no other its answer. Its own is None (for ids no
                tokens, and NaN as the score), and a warning says why. By default any bad prompt is an error.
            **overrides: Fields of `GenerationOptions`; with text of `keras_xla.generation.text.options.TextOptions`;
                with speech of `SpeechOptions`, `sampling_rate` and `batch_size` (windows that run at once, 8 by
                default). Speech takes none of the arguments before these but `inputs`.

        Returns:
            A list of strings for text; for ids or features the same dict as a call, as NumPy arrays; for speech a list
            of `keras_xla.generation.speech.transcripts.Transcript`, whose `str` is the text. With `output_logprobs` the
            strings are `keras_xla.generation.text.logprobs.ScoredText`, and the dict holds `"logprobs"` of the shape of
            `"sequences"`, 0 behind each end, and `"top_tokens"` and `"top_logprobs"` with an axis more.

        Raises:
            ValueError: Prompts or options that the model cannot run, before anything compiles; or logits that are NaN.
            TypeError: There is no such option, or a value has another type.
            RecompileError: This would compile again, and `on_recompile` is `"raise"`.
            ImportError: A grammar needs llguidance, or audio the extra `audio`, and it is not installed.
            FileNotFoundError: There is no such audio file.

        Example:
        ```python
        layer.generate(["Once upon a time", "The sky"], do_sample=True, temperature=0.7, seed=1)
        ```
        """
        prompts.refuse_none("generate", inputs, overrides)
        if self._speech is not None:
            given = dict(streamer=streamer, cancel=cancel, reuse_prompt=reuse_prompt or None)
            given |= dict(output_logprobs=output_logprobs or None, top_logprobs=top_logprobs or None)
            given |= dict(assistant=assistant, negative_prompt=negative_prompt)
            given |= dict(on_error=None if on_error == "raise" else on_error)
            given |= dict(verbose=None if verbose == "auto" else verbose or None)
            if named := [name for name, value in given.items() if value is not None]:
                raise ValueError(f"Received {', '.join(named)} with speech; expected that with text or ids only.")
            if prompts.is_features(inputs):
                return self._speech.complete(prompts.features(inputs), self.options, **overrides)
            overrides.setdefault("sampling_rate", self.sampling_rate)
            return self._speech.transcribe(inputs, self.tokenizer, self.options, **overrides)
        call = dict(reuse_prompt=reuse_prompt, cancel=cancel, verbose=verbose, assistant=self._assistant(assistant))
        call |= dict(output_logprobs=output_logprobs, top_logprobs=top_logprobs)
        return self._generate_text(inputs, overrides, streamer, negative_prompt, on_error, **call)

    def warmup(
        self,
        batch_sizes: int | Sequence[int] = (1,),
        prompt_lengths: int | Sequence[int] = (32,),
        verbose: int | str = "auto",
        **overrides: Any,
    ) -> int:
        """Compile ahead what calls will need, for every pair of a batch size and a prompt length.

        It covers calls with these options that make `max_new_tokens` tokens or fewer.

        It compiles as many executables side by side as this process may use cores, 8 at most. Each needs a cache of its
        size meanwhile; what runs at once holds at most `cache_bytes`, or else one runs alone.

        Args:
            batch_sizes: How many prompts a call will have (int, or several); 1 by default.
            prompt_lengths: How many tokens the longest will have (int, or several), 32 by default; not for speech.
            verbose: 0 for silence; otherwise a progress bar, and a line for each executable.
            **overrides: Generation options that the calls will have; `output_logprobs`, `top_logprobs` and `assistant`
                for text. With guesses, give the number of them that the calls will have.

        Returns:
            How many executables were compiled (int), whatever `on_recompile` says; the others were there already.

        Raises:
            ValueError: Sizes or options that the model cannot run, or lists of values; before anything compiles.
            TypeError: There is no such option, or a value has another type.

        Example:
        ```python
        layer.warmup(batch_sizes=[1, 4], prompt_lengths=24)
        ```
        """
        for name in ("batch_size", "prompt_length"):
            if name in overrides:
                raise TypeError(f"warmup received {name}; expected {name}s, an int or several.")
        batches, lengths = as_integers("batch_sizes", batch_sizes, 1), as_integers("prompt_lengths", prompt_lengths, 1)
        pipeline: Any = self._text if self._speech is None else self._speech
        if self._speech is None:
            overrides["assistant"] = self._assistant(overrides.get("assistant"))
        shapes = itertools.product(*([batches, lengths] if self._speech is None else [batches]))
        calls = (call for shape in shapes for call in pipeline.first_calls(*shape, self.options, **overrides))
        before = self.trace_count
        self._generator.warm_up(calls, CompileProgress if verbose else silent)
        return self.trace_count - before

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Store the matrices of the model's weights in whole numbers from now on, as Keras' own layers do.

        All compiles anew. `quantize` of a model around it does not reach it: Keras asks layers without layers only.

        Args:
            mode: `"int8"` or `"int4"`, see `quantization` of the class.
            type_check: Of no meaning here.
            config: Keras' default configuration for the mode, or None.

        Raises:
            ValueError: Another mode or configuration, or a model that is live or quantized already.
            NotImplementedError: A model that is not one of keras_xla's.

        Example:
        ```python
        small = keras_xla.XLAGenerationLayer.from_pretrained("openai-community/gpt2")
        small.quantize("int8")
        ```
        """
        check_quantization(mode)
        if config is not None and config.get_config() != type(config)().get_config():
            raise ValueError(f"Received config={config!r}; expected the default of {type(config).__name__}, or None.")
        model, before, speech = quantized(self.model, mode), self._generator.executables, self._speech
        self._generator.pool.drop_kept(lambda kept: True)  # by chats, of the model as it was
        forget(self, "model")
        tokens, defaults = (None, None) if speech is None else (speech.tokens, speech.defaults)
        self._generate_with(model, tokens, defaults, before.on_recompile, self._text.return_prompt)
        self.run_eagerly = before.run_eagerly

    @property
    def trace_count(self) -> int:
        """How many executables have been compiled so far (int); 0 after `quantize`."""
        return sum(each.trace_count for each in self._executables())

    @property
    def return_prompt(self) -> bool:
        """Whether text outputs begin with the prompt, unless a call says otherwise (bool)."""
        return self._text.return_prompt

    @property
    def run_eagerly(self) -> bool:
        """Whether to run op by op instead of compiled (bool), for debugging; may be set, like that of a model."""
        return self._generator.executables.run_eagerly

    @run_eagerly.setter
    def run_eagerly(self, value: bool):
        self._generator.executables.run_eagerly = bool(value)

    def compute_output_spec(self, inputs):
        """Return the shapes and dtypes of the outputs for symbolic inputs; Keras calls it."""
        leaf = prompts.leaf(inputs)
        text = not prompts.is_features(inputs) if self._speech else getattr(leaf, "dtype", None) == "string"
        if not (text or self._speech):
            prompts.require_integers(leaf)
        return symbolic_outputs(leaf, self.options, text, self._is_one_clip(inputs))

    @property
    def output(self):
        """The outputs of the first symbolic call; where texts came first, then ids, those of the ids."""
        most = max(outputs_of_calls(self), key=len, default=[])  # Keras connects no later call's outputs beyond these
        return most if len(most) > 1 else super().output

    def _is_one_clip(self, inputs) -> bool:
        """Whether a tensor in a graph is a clip of speech, `(samples,)` or `(samples, channels)`: see `audio.clips`."""
        shape = tuple(getattr(inputs, "shape", ()))  # features come in a dict
        if self._speech is None or keras.backend.standardize_dtype(getattr(inputs, "dtype", "string")) == "string":
            return False
        return len(shape) == 1 or (len(shape) == 2 and shape[1] in (1, 2))

    def _makes_text(self, inputs) -> bool:
        return not prompts.is_features(inputs) if self._speech is not None else prompts.is_text(inputs)

    def _complete_ids(self, inputs, goes_on: bool = False) -> dict[str, np.ndarray]:
        if self._speech is None:
            return self._text.completion(inputs, self._tokenizer, self.options, goes_on=goes_on).outputs()
        return self._speech.complete(prompts.features(inputs), self.options, goes_on)

    def _complete_text(self, inputs, goes_on: bool = False) -> list:
        if self._speech is not None:
            how = dict(sampling_rate=self.sampling_rate, goes_on=goes_on)
            made = self._speech.transcribe(inputs, self.tokenizer, self.options, **how)
            return [str(transcript) for transcript in made]
        return self._text.completion(inputs, self._tokenizer, self.options, goes_on=goes_on).texts()

    def _call_in_graph(self, inputs):
        """A call inside a graph (`predict`, `tf.data.map`): leaves it for the executables, and comes back."""
        text = not prompts.is_features(inputs) if self._speech else backend.is_string(prompts.leaf(inputs))
        complete = functools.partial(self._complete_text if text else self._complete_ids, goes_on=True)
        specs = output_specs(prompts.leaf(inputs), self.options, text, self._is_one_clip(inputs))
        return host_call(complete, inputs, specs)
