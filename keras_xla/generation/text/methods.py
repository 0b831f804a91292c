"""What of `XLAGenerationLayer` models of text can do, beside `generate`."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.generator import Generator
from keras_xla.engine.scorer import Logprobs
from keras_xla.engine.states.prompt_cache import PromptCache, SavedPrompt
from keras_xla.generation.text.chat import Chat, listed
from keras_xla.generation.text.pipeline import TextPipeline
from keras_xla.generation.text.prompts import refuse_none
from keras_xla.generation.text.skipping import Sifted, check_on_error
from keras_xla.generation.tokenizer import LazyTokenizer
from keras_xla.troubleshooting import explained

# Arguments of `generate` that are no options.
_OF_A_CALL = ("cancel", "reuse_prompt", "output_logprobs", "top_logprobs", "negative_prompt", "verbose")


@explained
class TextMethods:
    """The methods of `XLAGenerationLayer` for models of text: streams, chats, saved prompts and scores."""

    # What the layer has.
    options: GenerationOptions
    _tokenizer: LazyTokenizer | None
    _text: TextPipeline
    _speech: Any  # a `SpeechPipeline`, or None

    def stream(
        self,
        inputs: Any = None,
        *,
        cancel: threading.Event | None = None,
        reuse_prompt: bool | SavedPrompt | PromptCache = False,
        assistant: "TextMethods | None" = None,
        negative_prompt: Any = None,
        **overrides: Any,
    ) -> Iterator[Any]:
        """Generate, and return the pieces of text or ids as they are made.

        The first token comes alone. From then on a piece has one token, or as many as are made in a tenth of a second.
        Closing the iterator ends the generation. A stream compiles nothing of its own: it uses the executables of
        `generate`.

        Args:
            inputs: Text, chats or ids, as for `generate`; no speech.
            cancel: A `threading.Event` that another thread sets to end the stream. By default nobody does.
            reuse_prompt: What `save_prompt` returned, or True; see `generate`.
            assistant: A layer with a smaller model that guesses tokens; see `generate`.
            negative_prompt: What completions are led away from; see `generate`.
            **overrides: The fields of `keras_xla.config.GenerationOptions` but for beams, and with text those of
                `keras_xla.generation.text.options.TextOptions`.

        Returns:
            An iterator. For one completion it gives pieces of its text (str), or of its ids: arrays `(n,)` int32. For
            several it gives pairs of the row (int, as in the outputs of `generate`) and such a piece; the rows that run
            together take turns. Joined, the pieces of a row are what `generate` returns.

        Raises:
            ValueError: Prompts or options that `generate` refuses, beams, or speech. All is checked here, before the
                first piece is asked for.
            TypeError: There is no such option, or an argument has another type.
            RecompileError: While the stream goes on: this would compile, and `on_recompile` is `"raise"`.

        Example:
        ```python
        for piece in layer.stream("Once upon a time", max_new_tokens=8):
            print(piece, end="", flush=True)
        ```
        """
        refuse_none("stream", inputs, overrides)
        if self._speech is not None:
            raise ValueError("Received speech; only text and token ids come in a stream. Use generate.")
        call = dict(reuse_prompt=reuse_prompt, cancel=cancel, assistant=self._assistant(assistant))
        call |= dict(negative_prompt=negative_prompt)
        return _passed_on(self._text.completion(inputs, self._tokenizer, self.options, overrides, **call).stream())

    def _generate_text(
        self, inputs: Any, overrides: Mapping[str, Any], streamer: Any, negative_prompt: Any, on_error: str, **call: Any
    ) -> list | dict[str, np.ndarray]:
        """`generate` for models of text."""
        check_on_error(on_error, streamer)
        asked = inputs, self._tokenizer, self.options, overrides
        call |= dict(negative_prompt=negative_prompt, skip_broken=on_error == "skip")
        if on_error == "skip":
            return Sifted(self._text, self._text.asked(*asked, **call)).answers()
        made = self._text.completion(*asked, **call)
        return made.outputs(streamer) if made.text is None else made.texts(streamer)

    def _assistant(self, layer: "TextMethods | None") -> Generator | None:
        """What guesses for this layer."""
        if layer is None:
            return None
        if not isinstance(layer, TextMethods) or layer._speech is not None or self._speech is not None:
            raise TypeError(f"Received assistant={layer!r}; expected an XLAGenerationLayer of text, for one of text.")
        return self._text.assisted_by(layer._text, layer._tokenizer, self._tokenizer)

    def check(self, inputs: Any, **overrides: Any) -> None:
        """Raise the errors that `generate` would raise for these prompts and options, and run nothing.

        Args:
            inputs: Text, chats or ids, as for `generate`; no speech.
            **overrides: All other arguments of `generate`.

        Raises:
            ValueError: A prompt or an option that the model cannot run, or speech.
            TypeError: There is no such option, or a value has another type.
            ImportError: `json_schema`, `regex` or `grammar` without the package llguidance.

        Example:
        ```python
        layer.check(["Once upon a time", "The sky"], max_new_tokens=8)
        try:
            layer.check("Once upon a time", max_new_tokens=100_000)
        except ValueError as error:
            print(error)  # how many positions the model has
        ```
        """
        if self._speech is not None:
            raise ValueError("Received speech; only text and token ids can be checked.")
        given = {name: overrides.pop(name) for name in _OF_A_CALL if name in overrides}
        given |= dict(assistant=self._assistant(overrides.pop("assistant", None)))
        streamer = overrides.pop("streamer", None)
        on_error = overrides.pop("on_error", "raise")
        check_on_error(on_error, streamer)
        if on_error == "skip":
            Sifted(self._text, self._text.asked(inputs, self._tokenizer, self.options, overrides, **given)).check()
            return
        self._text.completion(inputs, self._tokenizer, self.options, overrides, **given).check(streamer)

    def save_prompt(self, inputs: Any, **overrides: Any) -> SavedPrompt:
        """Run prompts that many calls begin with, such as instructions or examples, and keep them in memory.

        They are of use until a weight changes. From then on prompts run whole, without an error. On TensorFlow with a
        GPU they always do.

        Args:
            inputs: Text, a chat or ids, as for `generate`. Several prompts are one batch; there may be as many as the
                layer runs at once.
            **overrides: The fields of `keras_xla.generation.text.options.TextOptions`, such as `add_special_tokens`.

        Returns:
            A `SavedPrompt`, which `generate`, `stream` and `chat` take as `reuse_prompt`.

        Raises:
            ValueError: The model has an encoder, or runs prompts whole (a Keras model from ids to logits, some KerasHub
                tasks, a `Decoder` that is no `ChunkDecoder`). Or there are too many prompts, or bad ones.
            TypeError: An option of another kind, such as `temperature`.

        Example:
        ```python
        examples = "sea -> blue, grass -> green, sun -> yellow, "
        saved = layer.save_prompt(examples)
        layer.generate([examples + word for word in ("snow ->", "blood ->")], reuse_prompt=saved)
        ```
        """
        return self._text.save_prompt(inputs, self._tokenizer, self.options, overrides)

    def score(
        self,
        inputs: Any,
        answers: Any = None,
        *,
        top_logprobs: int = 0,
        window: int | None = None,
        stride: int | None = None,
        **overrides: Any,
    ) -> list[Logprobs]:
        """Tell how likely the model finds texts, or answers to prompts, token by token; nothing is generated.

        The log-probabilities are those of the model itself, before any processor or temperature. Long texts are scored
        in parts that overlap, as in Hugging Face's guide to the perplexity of models of a fixed length.

        Args:
            inputs: Texts, chats or ids, as for `generate`. With `answers` they are the prompts; an encoder-decoder
                reads them, and needs answers.
            answers: Texts or ids, one for each input. Their ids follow those of the prompts. A text behind a text has
                the tokens that it has there, where those of the prompt stay what they are. None, the default, scores
                the inputs themselves.
            top_logprobs: How many of the likeliest tokens are told beside each token (int, 0 to 20); 0 by default.
            window: Texts that are longer than this are scored in parts of so many tokens (int, 2 or more). By default
                as many as the model has positions. Not with answers.
            stride: By how many tokens each part begins behind the one before (int, 1 or more, less than `window`); half
                a window by default. What two parts share is scored in the first, and stands before the rest in the
                second. Not with answers.
            **overrides: The fields of `keras_xla.generation.text.options.TextOptions`, such as `add_special_tokens`.

        Returns:
            A list of `keras_xla.engine.scorer.Logprobs`, one for each input: of its tokens but the first, or of the
            tokens of its answer. `keras_xla.generation.text.logprobs.perplexity` makes one number of the list.

        Raises:
            ValueError: Another number of answers than of inputs, `window`, `stride` or `top_logprobs` out of range, a
                model that runs prompts whole (see `save_prompt`), speech, or logits that are NaN; and texts that
                `generate` refuses.
            TypeError: An option of another kind, such as `temperature`.

        Example:
        ```python
        good, bad = layer.score(["The capital of France is"] * 2, [" Paris", " Rome"])
        print(good.logprobs.sum() > bad.logprobs.sum())
        ```
        """
        if self._speech is not None:
            raise ValueError("Received speech; only texts and token ids have scores.")
        return self._text.score(inputs, answers, self._tokenizer, self.options, overrides, top_logprobs, window, stride)

    def chat(
        self,
        system: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        reuse_prompt: SavedPrompt | None = None,
        **overrides: Any,
    ) -> Chat:
        """Begin a conversation, whose past is not computed again in every turn.

        Args:
            system: The text of a first message of the role `"system"` (str). None, the default, for no such message.
            messages: What was said already, in Hugging Face's format: dicts with `"role"` and `"content"`.
            reuse_prompt: What `save_prompt` returned, with which the first turn begins. Each later turn goes on from
                the one before anyway.
            **overrides: Options of every turn, as for `Chat.send`. `tools` are functions or JSON schemas that the chat
                template describes to the model.

        Returns:
            A `keras_xla.generation.text.chat.Chat` with the methods `send` and `stream`, and the list `messages`.

        Raises:
            ValueError: There is no tokenizer with a chat template, and no `chat_template=...`. Or another layer saved
                the prompt.
            TypeError: `reuse_prompt` is not what `save_prompt` returned, or `messages` are no dicts.

        Example:
        ```python
        chat = layer.chat(system="You answer in one sentence.")
        print(chat.send("What is the capital of France?"))
        print(chat.send("And of Italy?"))  # runs only what is new
        print(chat.messages[-1])
        ```
        """
        first = [] if system is None else [{"role": "system", "content": system}]
        layer: Any = self  # an `XLAGenerationLayer`
        return Chat(layer, layer.tokenizer, [*first, *listed(messages)], overrides, self._text.chat_cache(reuse_prompt))


@explained
def _passed_on(pieces: Iterator[Any]) -> Iterator[Any]:
    yield from pieces
