"""What of `XLAGenerationLayer` models of text can do, beside `generate`."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_xla.engine.generator import Generator
from keras_xla.engine.prompt_cache import PromptCache, SavedPrompt
from keras_xla.engine.scorer import Logprobs
from keras_xla.generation.chat import Chat


class TextMethods:
    """Streams, chats, saved prompts and scores."""

    def stream(
        self,
        inputs: Any,
        *,
        cancel: threading.Event | None = None,
        reuse_prompt: bool | SavedPrompt | PromptCache = False,
        assistant: "TextMethods | None" = None,
        negative_prompt: Any = None,
        **overrides: Any,
    ) -> Iterator[Any]:
        """Generate a token after the other. Closing the iterator ends the generation.

        Args:
            inputs: See the class; no speech.
            cancel: See `generate`.
            reuse_prompt: See `generate`.
            assistant: See `generate`.
            negative_prompt: See `generate`.
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
        call = dict(reuse_prompt=reuse_prompt, cancel=cancel, assistant=self._assistant(assistant))
        call |= dict(negative_prompt=negative_prompt)
        return self._text.completion(inputs, self.tokenizer, self.options, overrides, **call).stream()

    def _assistant(self, layer: "TextMethods | None") -> Generator | None:
        """What guesses for this layer."""
        if layer is None:
            return None
        if not isinstance(layer, TextMethods) or layer._speech is not None or self._speech is not None:
            raise TypeError(f"Received assistant={layer!r}; expected an XLAGenerationLayer of text, for one of text.")
        return self._text.assisted_by(layer._text, layer.tokenizer, self.tokenizer)

    def check(self, inputs: Any, **overrides: Any) -> None:
        """Raise what `generate` would, before it compiles or runs anything.

        Args:
            inputs: See `generate`; no speech.
            **overrides: See `generate`.
        """
        if self._speech is not None:
            raise ValueError("Received speech; only text and token ids can be checked.")
        call = dict(assistant=self._assistant(overrides.pop("assistant", None)))
        call |= dict(negative_prompt=overrides.pop("negative_prompt", None))
        self._text.completion(inputs, self.tokenizer, self.options, overrides, **call).check()

    def save_prompt(self, inputs: Any, **overrides: Any) -> SavedPrompt:
        """Run prompts that many calls begin with, such as instructions or examples, and keep them in memory.

        They are of use until a weight changes; from then on prompts run whole.

        Args:
            inputs: Text, a chat or ids; see the class. Several are one batch.
            **overrides: Options of the text; see `generate`.

        Returns:
            What calls take as `reuse_prompt`.

        Raises:
            ValueError: for a model with an encoder, or with a cache of its own; and as `generate` does.

        Example:
        ```python
        examples = "sea -> blue, grass -> green, sun -> yellow, "
        saved = layer.save_prompt(examples)
        layer.generate([examples + word for word in ("snow ->", "blood ->")], reuse_prompt=saved)
        ```
        """
        return self._text.save_prompt(inputs, self.tokenizer, self.options, overrides)

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
        """How likely the model finds texts, or answers to prompts, token by token.

        Args:
            inputs: Texts or ids, or the prompts of `answers`; see the class. An encoder-decoder reads them.
            answers: Texts or ids, one for each input. Their ids follow those of the prompts.
            top_logprobs: How many of the likeliest tokens are told beside each, at most 20.
            window: Longer texts are scored in parts of so many tokens; by default as many as the model has positions.
            stride: By how many tokens a part begins behind the one before; half a window by default. What two parts
                share is scored in the first, and stands before the rest in the second.
            **overrides: Options of the text, such as `add_special_tokens`.

        Returns:
            For each input the log-probabilities of its tokens but the first, or of its answer's. See
            `keras_xla.generation.logprobs.perplexity`.

        Raises:
            ValueError: for another number of answers, for models with a cache of their own, and as `generate` does.

        Example:
        ```python
        good, bad = layer.score(["The capital of France is"] * 2, [" Paris", " Rome"])
        print(good.logprobs.sum() > bad.logprobs.sum())
        ```
        """
        if self._speech is not None:
            raise ValueError("Received speech; only texts and token ids have scores.")
        return self._text.score(inputs, answers, self.tokenizer, self.options, overrides, top_logprobs, window, stride)

    def chat(
        self,
        system: str | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        reuse_prompt: SavedPrompt | None = None,
        **overrides: Any,
    ) -> Chat:
        """A conversation whose past is not computed again in every turn.

        Args:
            system: The first message, of the role `"system"`.
            messages: What was said already, in Hugging Face's format.
            reuse_prompt: What `save_prompt` returned, with which the first turn begins; each turn goes on from the one
                before.
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
        return Chat(self, self.tokenizer, [*first, *messages], overrides, self._text.chat_cache(reuse_prompt))
