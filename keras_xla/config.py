"""Generation options: frozen, checked once, before anything compiles. Standard library only."""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
"""Options that mean nothing to greedy search."""


@dataclass(frozen=True)
class GenerationOptions:
    """Options of one generation, named as in Hugging Face's `GenerationConfig`.

    Attributes:
        max_new_tokens: Tokens to make at most; at least 1.
        min_new_tokens: Tokens before which no end-of-sequence token is made.
        do_sample: Draw from the distribution, rather than take the most likely token (greedy).
        temperature: Divides the logits; above 0.
        top_k: Draw among this many most likely tokens; 0 for all.
        top_p: Draw among the fewest most likely tokens that have this much probability together.
        min_p: Draw among tokens at least this fraction as likely as the most likely one.
        seed: For equal draws in every call, on every backend and at every batch size; None draws one.
        num_return_sequences: Completions a prompt; more than 1 needs `do_sample`.
        eos_token_id: Token, or several, that end a sequence; None for no end but `max_new_tokens`.
        pad_token_id: Fills the rest of a finished row; None takes the first `eos_token_id`, or 0.

    Raises:
        ValueError: for a value out of range, naming the option, the value and the range.
        TypeError: for a value of the wrong type.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    num_return_sequences: int = 1
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        if not isinstance(self.do_sample, bool):
            raise TypeError(f"Received do_sample={self.do_sample!r}; expected True or False.")
        put("top_k", 0 if self.top_k is None else self.top_k)
        put("top_p", 1.0 if self.top_p is None else self.top_p)
        put("min_p", 0.0 if self.min_p is None else self.min_p)
        put("min_new_tokens", self.min_new_tokens or 0)
        put("max_new_tokens", _integer("max_new_tokens", self.max_new_tokens, 1))
        put("min_new_tokens", _integer("min_new_tokens", self.min_new_tokens, 0))
        put("num_return_sequences", _integer("num_return_sequences", self.num_return_sequences, 1))
        put("top_k", _integer("top_k", self.top_k, 0))
        put("temperature", _number("temperature", self.temperature, lambda v: v > 0, "above 0"))
        put("top_p", _number("top_p", self.top_p, lambda v: 0 < v <= 1, "above 0 and at most 1"))
        put("min_p", _number("min_p", self.min_p, lambda v: 0 <= v < 1, "at least 0 and below 1"))
        if self.seed is not None:
            put("seed", _integer("seed", self.seed, 0, 2**63 - 1))
        eos = self.eos_token_id
        eos = () if eos is None else tuple(eos) if isinstance(eos, (tuple, list)) else (eos,)
        put("eos_token_id", tuple(_integer("eos_token_id", token, 0) for token in eos))
        if self.pad_token_id is not None:
            put("pad_token_id", _integer("pad_token_id", self.pad_token_id, 0))
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"Received min_new_tokens={self.min_new_tokens}, which is more than "
                f"max_new_tokens={self.max_new_tokens}. Raise the latter, or lower the former."
            )
        if self.num_return_sequences > 1 and not self.do_sample:
            raise ValueError(
                f"Received num_return_sequences={self.num_return_sequences} with do_sample=False: greedy "
                "search has one answer a prompt. Pass do_sample=True."
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
        idle = [name for name in SAMPLING if overrides.get(name) is not None]
        if idle and not changed.do_sample:
            raise ValueError(
                f"Received {', '.join(f'{n}={overrides[n]!r}' for n in idle)} with do_sample=False: greedy "
                "search would ignore that. Pass do_sample=True, or leave it out."
            )
        return changed


def checkpoint_defaults(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a `generation_config.json` into the options known here and what would change the output but is not.

    Returns:
        The known options, and `{name: value}` of those that are set but have no counterpart.
    """
    known = {f.name for f in dataclasses.fields(GenerationOptions)}
    harmless = {"bos_token_id", "decoder_start_token_id", "transformers_version", "use_cache", "max_length"}
    harmless |= {"cache_implementation", "output_attentions", "output_hidden_states", "return_dict_in_generate"}
    harmless |= {"output_scores", "output_logits", "renormalize_logits"}
    off = {"num_beams": 1, "repetition_penalty": 1.0, "length_penalty": 1.0, "typical_p": 1.0, "num_beam_groups": 1}
    options = {name: value for name, value in values.items() if name in known and value is not None}
    unknown = {
        name: value
        for name, value in values.items()
        if name not in known | harmless and not name.startswith("_") and value not in (None, 0, False, off.get(name))
    }
    return options, unknown


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
