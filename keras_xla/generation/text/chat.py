"""A conversation, whose past stays in the model's cache."""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_xla.config.other_names import OF_CALLS, OF_GENERATE
from keras_xla.generation.text.options import TextOptions, split_text
from keras_xla.troubleshooting import explained

if TYPE_CHECKING:
    from keras_xla.generation.layer import XLAGenerationLayer

Message = Mapping[str, Any]


@explained
class Chat:
    """A conversation with a layer's model; `XLAGenerationLayer.chat` makes it.

    Every turn is rendered by the tokenizer's chat template, from the first message on. What then begins as the turn
    before did is not computed again, so that a turn of a long conversation runs only what is new. (A model that runs
    prompts whole, see `XLAGenerationLayer.save_prompt`, and TensorFlow on a GPU compute all of it in every turn.) A
    chat whose cache was given up for other chats, see `cache_bytes` of the layer, does so in its next turn. A chat
    answers one message at a time. Several chats with one layer may go on at the same time, in several threads too.

    Attributes:
        messages: The conversation so far, in Hugging Face's format: a list of dicts with `"role"` (`"system"`,
            `"user"`, `"assistant"` or such as `"tool"`) and `"content"`. It may be changed between turns. What follows
            the first change is computed again.

    Example:
    ```python
    chat = layer.chat(max_new_tokens=4)
    chat.send("Hello")
    chat.messages[0]["content"] = "Good morning"  # said otherwise,
    del chat.messages[1:]  # without the answer,
    answer = chat.send()  # and answered anew
    ```
    """

    def __init__(
        self,
        layer: "XLAGenerationLayer",
        tokenizer: Any,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        reuse: Any,
    ):
        if getattr(tokenizer, "chat_template", None) is None and "chat_template" not in options:
            raise ValueError("The layer has no tokenizer with a chat template. Pass chat_template=... to the chat.")
        self.messages: list[Message] = [dict(message) for message in listed(messages)]
        self._layer, self._options, self._reuse = layer, dict(options), reuse
        self._turn = threading.Lock()
        own, others = split_text(options)
        others = {name: value for name, value in others.items() if name not in (*OF_CALLS, *OF_GENERATE)}
        with contextlib.suppress(ValueError):  # options that contradict each other: those of a turn may complete them
            TextOptions(**own)
            layer.options.replace(**others)

    def send(self, content: str | None = None, *, role: str = "user", **overrides: Any) -> str:
        """Add a message, and return the answer, which is added to the messages, too.

        Args:
            content: The text of the message (str). None, the default, to answer the messages as they are.
            role: Whose message it is (str): `"user"` by default, or such as `"tool"`.
            **overrides: Options for this turn alone, which come before those of the chat. They are those of
                `XLAGenerationLayer.generate` but for `reuse_prompt`, `return_prompt`, `num_return_sequences` and
                `output_logprobs`. `continue_final_message=True` lets the last message go on instead of adding one.

        Returns:
            The answer (str), without special tokens unless `skip_special_tokens=False`.

        Raises:
            ValueError: There is no message, or `generate` refuses the conversation or an option. The messages are then
                those from before.
            TypeError: There is no such option, or a message has another type.
            RuntimeError: The chat is answering another message.

        Example:
        ```python
        chat = layer.chat()
        answer = chat.send("Hello", max_new_tokens=4)
        ```
        """
        return "".join(self._answered(content, role, overrides, self._whole))

    def stream(self, content: str | None = None, *, role: str = "user", **overrides: Any) -> Iterator[str]:
        """Add a message, and yield the answer in pieces as they are made; the pieces joined are what `send` returns.

        The answer is added to the messages when the stream ends. A stream that is closed before leaves the answer as
        far as it came. Nothing runs, and nothing is checked, before the first piece is asked for.

        Args:
            content: The text of the message (str). None, the default, to answer the messages as they are.
            role: Whose message it is (str): `"user"` by default, or such as `"tool"`.
            **overrides: Options for this turn alone, as in `send`; those of `XLAGenerationLayer.stream`. No beams.

        Yields:
            Pieces of the answer (str).

        Raises:
            ValueError: As `send` does, when the first piece is asked for.
            TypeError: As `send` does, when the first piece is asked for.
            RuntimeError: The chat is answering another message, when the first piece is asked for.

        Example:
        ```python
        chat = layer.chat()
        for piece in chat.stream("Hello", max_new_tokens=4):
            print(piece, end="", flush=True)
        ```
        """
        return self._answered(content, role, overrides, self._pieces)

    def _answered(self, content, role, overrides, make) -> Iterator[str]:
        if not self._turn.acquire(blocking=False):
            raise RuntimeError("Received a message while the chat is answering one. Wait for that answer, or close it.")
        try:
            asked = listed(self.messages)
            if content is not None:
                asked.append({"role": role, "content": content})
            if not asked:
                raise ValueError("Received no message; expected a text for the first turn.")
            options = self._checked({**self._options, **overrides})
            answer, goes_on = [], options.get("continue_final_message", False)
            try:
                for piece in make(asked, options):
                    answer.append(piece)
                    yield piece
            except GeneratorExit:
                self._add(asked, self._told(answer, options), goes_on)
                raise
            self._add(asked, self._told(answer, options), goes_on)
        finally:
            self._turn.release()

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a turn, as `generate` takes them.

        Raises:
            ValueError, TypeError: for those that a turn cannot have.
        """
        if "reuse_prompt" in options:
            raise ValueError("Received reuse_prompt for a turn; a chat goes on from the turn before. Leave it out.")
        if options.get("return_prompt"):
            raise ValueError("Received return_prompt=True in a chat, whose messages have all turns. Leave it out.")
        copies = options.get("num_return_sequences", self._layer.options.num_return_sequences)
        if copies not in (None, 1):
            raise ValueError(f"Received num_return_sequences={copies}; a chat goes on with one answer. Pass 1.")
        if options.get("output_logprobs") or options.get("top_logprobs"):
            raise ValueError("Received output_logprobs in a chat, whose answers are plain texts. Use generate.")
        if options.get("on_error", "raise") != "raise":
            raise ValueError("Received on_error in a chat, which goes on with its answer. Leave it out.")
        return {**options, "return_prompt": False}

    def _told(self, answer: Sequence[str], options: Mapping[str, Any]) -> str:
        """The answer as the chat's template takes it: without the token that ended it, which the template adds."""
        text, tokenizer = "".join(answer), self._layer.tokenizer
        if options.get("skip_special_tokens", True):
            return text
        ends = options.get("eos_token_id", self._layer.options.eos_token_id) or ()
        known: Any = getattr(tokenizer, "added_tokens_decoder", {})
        special = [known[end] for end in np.ravel(ends).tolist() if end in known and known[end].special]
        return next((text.removesuffix(str(end)) for end in special if text.endswith(str(end))), text)

    def _add(self, asked: Sequence[Message], text: str, goes_on: bool) -> None:
        if goes_on:
            begun = asked[-1]["content"]
            whole = begun + text if isinstance(begun, str) else [*(begun or ()), {"type": "text", "text": text}]
            self.messages = [*asked[:-1], {**asked[-1], "content": whole}]
        else:
            self.messages = [*asked, {"role": "assistant", "content": text}]

    def _whole(self, messages, options) -> Iterator[str]:
        answer: Any = self._layer.generate(messages, reuse_prompt=self._reuse, **options)
        yield from answer

    def _pieces(self, messages, options) -> Iterator[str]:
        options = {name: value for name, value in options.items() if name not in OF_GENERATE or name == "streamer"}
        return self._layer.stream(messages, reuse_prompt=self._reuse, **options)


def listed(messages: Any) -> list[Message]:
    """The messages of a conversation.

    Raises:
        TypeError: for anything but several dicts.
    """
    several = isinstance(messages, Iterable) and not isinstance(messages, (str, bytes, Mapping))
    made: list[Any] = list(messages) if several else [None]
    if not all(isinstance(message, Mapping) for message in made):
        raise TypeError(f"Received messages={messages!r}; expected a list of dicts with 'role' and 'content'.")
    return made
