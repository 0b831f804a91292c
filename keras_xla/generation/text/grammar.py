"""Answers that follow a JSON schema, a regular expression or a grammar: llguidance says which tokens may come next."""

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

MOST_KEPT = 64  # grammars that have been read
# Between two parts of JSON: nothing, a space, or a new line and its indentation. JSON may have any number of spaces
# there, but small models make them without end. The schema's own "x-guidance" goes before this.
_WHITESPACE = dict(whitespace_pattern=r"\x20|\x0A\x20{0,32}")
_STATE = re.compile(r"\s*<state>.*", re.DOTALL)  # pages of llguidance's own, in its errors


class Grammars:
    """The grammars of one tokenizer: making one takes a second, reading a grammar some milliseconds.

    Args:
        tokenizer: A Hugging Face tokenizer of the `tokenizers` package.
        vocab_size: Of the model.
        eos: The tokens that end an answer; the tokenizer's own where there are none.

    Raises:
        ImportError: without the package llguidance.
        TypeError: for another tokenizer.
        ValueError: for one whose tokens are not made of bytes.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos: tuple[int, ...]):
        try:
            import llguidance
        except ImportError as error:
            raise ImportError(
                f"json_schema, regex and grammar need the package llguidance, which cannot be imported ({error}). "
                "Run: python -m pip install 'keras-xla[grammar]'"
            ) from error
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise TypeError(
                f"Received a {type(tokenizer).__name__} for json_schema, regex or grammar; expected a fast tokenizer "
                "of Hugging Face's, such as AutoTokenizer.from_pretrained makes."
            )
        from llguidance import hf

        self._llguidance, self._words = llguidance, -(-vocab_size // 32)
        # A tokenizer may have tokens that the model has not: they are cut off from what may follow.
        size = max(vocab_size, 1 + max(tokenizer.get_vocab().values(), default=0))
        try:
            self._tokenizer = hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=list(eos) or None)
        except ValueError as error:
            raise ValueError(
                f"Received a {type(tokenizer).__name__} for json_schema, regex or grammar, whose tokens llguidance "
                f"cannot read as bytes: {error}. Expected a tokenizer with tokens of bytes, such as those of GPT-2, "
                "OPT, Llama and BART; those of T5 and mBART have none."
            ) from error
        self._matchers: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def guide(self, kind: str, value: Any) -> "GrammarGuide":
        """What leads one answer.

        Args:
            kind: `"json_schema"`, `"regex"` or `"grammar"`.
            value: The schema as a dict or a string of JSON, the expression, or the grammar in Lark's language.

        Raises:
            ValueError: for what llguidance cannot read, with its words.
        """
        text = json.dumps(dict(value)) if isinstance(value, Mapping) else value
        matcher = self._matchers.pop((kind, text), None)
        matcher = self._matcher(kind, text) if matcher is None else matcher
        self._matchers[kind, text] = matcher
        if len(self._matchers) > MOST_KEPT:
            self._matchers.popitem(last=False)
        return GrammarGuide(matcher.deep_copy(), self._words)

    def _matcher(self, kind: str, text: str) -> Any:
        from_text: Any = {
            "json_schema": self._from_json_schema,
            "regex": self._llguidance.LLMatcher.grammar_from_regex,
            "grammar": self._llguidance.LLMatcher.grammar_from_lark,
        }[kind]
        try:
            matcher = self._llguidance.LLMatcher(self._tokenizer, from_text(text), log_level=0)
        except json.JSONDecodeError as error:
            raise ValueError(f"Received json_schema={text!r}; expected a schema written in JSON: {error}") from error
        except ValueError as error:
            raise ValueError(f"Received {kind}={text!r}, which llguidance cannot read: {error}") from error
        if matcher.is_error():
            raise ValueError(f"Received {kind}={text!r}, which llguidance cannot read: {matcher.get_error()}")
        return matcher

    def _from_json_schema(self, text: str) -> str:
        schema, defaults = json.loads(text), None
        if isinstance(schema, dict):  # True and False take no options
            own = schema.get("x-guidance")
            asks = isinstance(own, dict) and own.keys() & {"whitespace_flexible", "whitespace_pattern"}
            defaults = None if asks else _WHITESPACE
        return self._llguidance.LLMatcher.grammar_from_json_schema(text, defaults=defaults)


class GrammarGuide:
    """Leads one answer; see `keras_xla.engine.runs.run.Guide`.

    Args:
        matcher: An `LLMatcher` at its beginning.
        words: Of 32 tokens each, that the vocabulary has.
    """

    def __init__(self, matcher: Any, words: int):
        self._matcher, self._words, self._seen = matcher, words, 0

    def follow(self, tokens: np.ndarray) -> None:
        """See `Guide`.

        Raises:
            ValueError: for a token that may not follow: another option forced it, or forbade all that may.
        """
        new = tokens[self._seen :].tolist()
        self._seen = len(tokens)
        if new and not self._matcher.is_stopped():
            self._matcher.consume_tokens(new)
        self._check("Does another option forbid the tokens that it allows?")

    @property
    def over(self) -> bool:
        """See `Guide`."""
        return self._matcher.is_stopped()

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_stopped() or self._matcher.is_accepting()

    def allowed(self) -> np.ndarray:
        """See `Guide`."""
        mask = np.zeros((self._words,), np.int32)
        made = self._matcher.compute_bitmask()
        self._check("Is it too large, or nested too deeply?")
        bits = np.frombuffer(made, np.int32)[: self._words]  # there may be a word more
        mask[: len(bits)] = bits
        return mask

    def _check(self, hint: str) -> None:
        if self._matcher.is_error():
            raise ValueError(
                "An answer could not go on as its json_schema, regex or grammar wants: "
                f"{_STATE.sub('', self._matcher.get_error()).strip()}. {hint}"
            )
