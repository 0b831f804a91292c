"""Generation options: frozen, checked once, before anything compiles. Standard library only."""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
"""Options that mean nothing without `do_sample`."""
BEAMS = ("length_penalty", "early_stopping")
"""Options that mean nothing without `num_beams`."""


@dataclass(frozen=True)
class GenerationOptions:
    """Options of one generation, named as in Hugging Face's `GenerationConfig`.

    Attributes:
        max_new_tokens: Tokens to make at most; at least 1.
        min_new_tokens: Tokens before which no end-of-sequence token is made.
        min_length: The same, counted with the prompt (an encoder-decoder's prompt is its start token).
        num_beams: Width of the beam search; 1 is no beam search.
        length_penalty: A beam's score is its log-probability divided by its length to this power.
        early_stopping: When a beam search ends: True, as soon as there are `num_beams` finished beams; False, when
            no better one is likely; `"never"`, when no better one is possible.
        do_sample: Draw from the distribution, rather than take the most likely token (greedy).
        temperature: Divides the logits; above 0.
        top_k: Draw among this many most likely tokens; 0 for all.
        top_p: Draw among the fewest most likely tokens that have this much probability together.
        min_p: Draw among tokens at least this fraction as likely as the most likely one.
        seed: For equal draws in every call, on every backend and at every batch size; None draws one. In graphs, such
            as in `predict`, each batch draws on from the one before, for as long as the layer lives.
        num_return_sequences: Completions a prompt; more than 1 needs `do_sample`, or as many `num_beams`.
        repetition_penalty: Divides the positive and multiplies the negative logits of tokens in prompt or completion.
        no_repeat_ngram_size: No sequence of this many tokens occurs twice; 0 is off.
        bad_words_ids: Token sequences that are never completed.
        forced_bos_token_id: The token after a prompt of one token (an encoder-decoder's start token).
        forced_eos_token_id: Token, or several, one of which is the last of `max_new_tokens`.
        suppress_tokens: Tokens that are never made.
        begin_suppress_tokens: Tokens that are not made first.
        decoder_start_token_id: An encoder-decoder's prompt; the checkpoint's by default.
        stop_strings: Texts that end a completion, which includes them: it ends with the token that completes one.
        max_time: Seconds after which a call makes no more tokens; it returns those that there are.
        eos_token_id: Token, or several, that end a sequence; None for no end but `max_new_tokens`.
        pad_token_id: Fills the rest of a finished row; None takes the first `eos_token_id`, or 0.

    Raises:
        ValueError: for a value out of range, naming the option, the value and the range.
        TypeError: for a value of the wrong type.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    min_length: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    stop_strings: tuple[str, ...] = ()
    max_time: float | None = None

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        if not isinstance(self.do_sample, bool):
            raise TypeError(f"Received do_sample={self.do_sample!r}; expected True or False.")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f'Received early_stopping={self.early_stopping!r}; expected True, False or "never".')
        for name, off in _OFF.items():
            if getattr(self, name) is None:
                put(name, off)
        for name, low in _INTEGERS.items():
            put(name, _integer(name, getattr(self, name), low))
        put("temperature", _number("temperature", self.temperature, lambda v: v > 0, "above 0"))
        put("top_p", _number("top_p", self.top_p, lambda v: 0 < v <= 1, "above 0 and at most 1"))
        put("min_p", _number("min_p", self.min_p, lambda v: 0 <= v < 1, "at least 0 and below 1"))
        put("repetition_penalty", _number("repetition_penalty", self.repetition_penalty, lambda v: v > 0, "above 0"))
        put("length_penalty", _number("length_penalty", self.length_penalty, math.isfinite, "that is finite"))
        if self.seed is not None:
            put("seed", _integer("seed", self.seed, 0, 2**63 - 1))
        for name in _TOKENS:
            put(name, _tokens(name, getattr(self, name)))
        for name in _TOKEN:
            if getattr(self, name) is not None:
                put(name, _integer(name, getattr(self, name), 0))
        put("bad_words_ids", _words(self.bad_words_ids))
        put("stop_strings", _strings(self.stop_strings))
        if self.max_time is not None:
            put("max_time", _number("max_time", self.max_time, lambda v: v > 0, "above 0, in seconds"))
        self._check_together()

    def _check_together(self):
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"Received min_new_tokens={self.min_new_tokens}, which is more than "
                f"max_new_tokens={self.max_new_tokens}. Raise the latter, or lower the former."
            )
        if self.stop_strings and self.num_beams > 1:
            raise ValueError(
                f"Received stop_strings={list(self.stop_strings)} with num_beams={self.num_beams}; they end "
                "completions without beams only. Pass num_beams=1, or leave them out."
            )
        copies = self.num_return_sequences
        if self.num_beams > 1 and copies > self.num_beams:
            raise ValueError(
                f"Received num_return_sequences={copies} with num_beams={self.num_beams}: a beam search has "
                f"num_beams answers. Pass num_beams={copies} or more."
            )
        if copies > 1 and self.num_beams == 1 and not self.do_sample:
            raise ValueError(
                f"Received num_return_sequences={copies} with do_sample=False: greedy search has one answer a prompt. "
                f"Pass do_sample=True, or num_beams={copies}."
            )

    @property
    def fill(self) -> int:
        """The token that fills finished rows."""
        return (*self.eos_token_id, 0)[0] if self.pad_token_id is None else self.pad_token_id

    def replace(self, **overrides: Any) -> "GenerationOptions":
        """These options with some of them changed.

        Raises:
            TypeError: for an unknown option, naming the nearest known one.
            ValueError: for a sampling option without `do_sample=True`, and as the class does.
        """
        known = [f.name for f in dataclasses.fields(self)]
        for name in overrides:
            if name not in known:
                raise TypeError(f"Received the unknown generation option {name!r}.{_hint(name, known)}")
        changed = dataclasses.replace(self, **overrides)
        for names, used, fix in (
            (SAMPLING, changed.do_sample, "do_sample=True"),
            (BEAMS, changed.num_beams > 1, "num_beams=2 or more"),
        ):
            idle = [name for name in names if overrides.get(name) is not None]
            if idle and not used:
                without = "do_sample=False" if names is SAMPLING else "num_beams=1"
                raise ValueError(
                    f"Received {', '.join(f'{n}={overrides[n]!r}' for n in idle)} with {without}, which would ignore "
                    f"that. Pass {fix}, or leave it out."
                )
        return changed


def without_idle(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that the others make meaningless: many checkpoints tune modes that are off."""
    idle = () if options.get("do_sample") else SAMPLING
    idle += () if (options.get("num_beams") or 1) > 1 else BEAMS
    return {name: value for name, value in options.items() if name not in idle}


def checkpoint_defaults(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a `generation_config.json` into the options known here and what would change the output but is not.

    Returns:
        The known options, and `{name: value}` of those that are set but have no counterpart.
    """
    known = {f.name for f in dataclasses.fields(GenerationOptions)}
    harmless = {"bos_token_id", "transformers_version", "use_cache", "max_length"}
    harmless |= {"cache_implementation", "output_attentions", "output_hidden_states", "return_dict_in_generate"}
    harmless |= {"output_scores", "output_logits", "renormalize_logits"}
    off = {"typical_p": 1.0, "num_beam_groups": 1, "diversity_penalty": 0.0, "encoder_repetition_penalty": 1.0}
    options = {name: value for name, value in values.items() if name in known and value is not None}
    unknown = {
        name: value
        for name, value in values.items()
        if name not in known | harmless and not name.startswith("_") and value not in (None, 0, False, off.get(name))
    }
    return options, unknown


_OFF = {  # what None means, as generation_config.json writes it
    "min_new_tokens": 0,
    "min_length": 0,
    "num_beams": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": (),
    "stop_strings": (),
}
_INTEGERS = {  # smallest values
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "min_length": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "top_k": 0,
    "no_repeat_ngram_size": 0,
}
_TOKENS = ("eos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")
_TOKEN = ("pad_token_id", "forced_bos_token_id", "decoder_start_token_id")


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    value = () if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(_integer(name, token, 0) for token in value)


def _words(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (tuple, list)) or not all(isinstance(word, (tuple, list)) and word for word in value):
        raise TypeError(
            f"Received bad_words_ids={value!r}; expected a list of lists of token ids, each of at least one. For "
            "text pass tokenizer(words, add_special_tokens=False)['input_ids']."
        )
    return tuple(_tokens("bad_words_ids", word) for word in value)


def _strings(value: Any) -> tuple[str, ...]:
    value = (value,) if isinstance(value, str) else value
    if not isinstance(value, (tuple, list)) or not all(isinstance(text, str) and text for text in value):
        raise TypeError(f"Received stop_strings={value!r}; expected a string or a list of strings, none of them empty.")
    return tuple(value)


def _integer(name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"Received {name}={value!r} of type {type(value).__name__}; expected an int.")
    if not low <= value <= high:
        bound = f"at least {low}" if value < low else f"at most {high}"
        raise ValueError(f"Received {name}={value}; expected an int of {bound}.")
    return int(value)


def _number(name: str, value: Any, fits, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"Received {name}={value!r} of type {type(value).__name__}; expected a float.")
    if not fits(value):
        hint = " For greedy search pass do_sample=False." if name == "temperature" else ""
        raise ValueError(f"Received {name}={value}; expected a float {expected}.{hint}")
    return float(value)


def _hint(name: str, known: list[str]) -> str:
    if name == "max_length":
        return " Use max_new_tokens: it does not count the prompt."
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]!r}?" if near else f" The known ones: {', '.join(known)}."
