"""Answers that follow a JSON schema, a regular expression or a grammar: llguidance says which tokens may come next."""

import copy
import functools
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_KEPT = 64  # grammars that have been read
# Between two parts of JSON: nothing, a space, or a new line and its indentation. JSON may have any number of spaces
# there, but small models make them without end. The schema's own "x-guidance" goes before this.
_WHITESPACE = dict(whitespace_pattern=r"\x20|\x0A\x20{0,32}")
_NO_TEXT = "\ue000"  # for private use: no text has it
_TAG = re.compile(r"<.*>", re.DOTALL)  # what llguidance takes for a special token
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_VERBOSE = re.compile(r"(?<!\\)\(\?[a-zA-Z]*x[a-zA-Z]*(-[a-zA-Z]+)?[:)]")
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
                "Install the extra grammar: python -m pip install 'llguidance>=1.8,<2'"
            ) from error
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise TypeError(
                f"Received a {type(tokenizer).__name__} for json_schema, regex or grammar; expected a fast tokenizer "
                "of Hugging Face's, such as AutoTokenizer.from_pretrained makes."
            )
        self._llguidance, self._words = llguidance, -(-vocab_size // 32)
        # A tokenizer may have tokens that the model has not: they are cut off from what may follow.
        size = max(vocab_size, 1 + max(tokenizer.get_vocab().values(), default=0))
        known: Any = getattr(tokenizer, "added_tokens_decoder", {})
        # Other ends are text, which has to follow.
        hidden = [end for end in eos if end in known and (known[end].special or _TAG.fullmatch(str(known[end])))]
        own = getattr(tokenizer, "eos_token_id", None)
        ends: Any = hidden or ([own] if own is not None else list(eos)) or None
        self._backend = tokenizer.backend_tokenizer
        self._read = functools.partial(llguidance.LLTokenizer, n_vocab=size, eos_token=ends)
        try:
            self._tokenizer = self._read(_written(self._backend) if ends is None else as_text(self._backend, hidden))
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
        if kind == "regex" and _VERBOSE.search(text):
            raise ValueError(
                f"Received regex={text!r}, whose flag x (verbose) llguidance reads otherwise than Python. Write the "
                "expression on one line, without the flag, spaces and comments."
            )
        try:
            tokenizer = self._of_lark if kind == "grammar" else self._tokenizer
            matcher = self._llguidance.LLMatcher(tokenizer, from_text(text), log_level=0)
        except json.JSONDecodeError as error:
            raise ValueError(f"Received json_schema={text!r}; expected a schema written in JSON: {error}") from error
        except ValueError as error:
            raise ValueError(f"Received {kind}={text!r}, which llguidance cannot read: {error}") from error
        if matcher.is_error():
            raise ValueError(f"Received {kind}={text!r}, which llguidance cannot read: {matcher.get_error()}")
        return matcher

    @functools.cached_property
    def _of_lark(self) -> Any:
        """The tokenizer for grammars in Lark's language, which may name special tokens."""
        return self._read(_written(self._backend))

    def _from_json_schema(self, text: str) -> str:
        schema, defaults = json.loads(text), None
        if isinstance(schema, dict):  # True and False take no options
            own = schema.get("x-guidance")
            asks = isinstance(own, dict) and own.keys() & {"whitespace_flexible", "whitespace_pattern"}
            defaults = None if asks else _WHITESPACE
        return self._llguidance.LLMatcher.grammar_from_json_schema(text, defaults=defaults)


def as_text(tokenizer: Any, ends: Sequence[int] = ()) -> str:
    """A tokenizer, written as JSON, for which no text is one of its special tokens, nor one of the `ends`.

    llguidance tokenizes what has to follow. It takes all added tokens of the form `<...>` for special ones, which
    stand for no text, and then refuses them there. Here special tokens get names that no text has. Other added tokens
    become ordinary ones, whose text may follow; what has to follow is spelled without them.
    """
    content = json.loads(_written(tokenizer))
    model, added, names = content["model"], [], {}
    if not isinstance(model.get("vocab"), dict):
        return json.dumps(content)  # nothing can be done for Unigram
    # What tokens are made of keeps its name.
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges") or ()]
    parts = {part for pair in pairs for part in (*pair, "".join(pair))}
    for token in content.get("added_tokens") or ():
        text, number = token["content"], token["id"]
        if (token["special"] or number in ends) and len(text) > 1 and text not in parts and not _BYTE.fullmatch(text):
            names[text] = f"<{_NO_TEXT}{number}>"
            added.append({**token, "content": names[text]})
        # Other characters are written otherwise in a vocabulary.
        elif token["special"] or not re.fullmatch(r"<[!-~]*>", text):
            added.append(token)
        model["vocab"].setdefault(text, number)  # ids are counted on otherwise
    model["vocab"] = {names.get(text, text): number for text, number in model["vocab"].items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps({**content, "added_tokens": added}, ensure_ascii=False)


def _written(tokenizer: Any) -> str:
    """A tokenizer of the `tokenizers` package as JSON, which neither pads nor cuts."""
    tokenizer = copy.copy(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer.to_str()


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
