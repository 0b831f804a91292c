"""Values of options, checked: what was received, what was expected, what to do. Standard library only."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

LARGEST_FLOAT = (2 - 2**-23) * 2.0**127  # of float32


def as_tokens(name: str, value: Any) -> tuple[int, ...]:
    """Token ids of an int, several (an array, too), or None."""
    value = value.tolist() if hasattr(value, "tolist") else value
    value = () if value is None else tuple(value) if isinstance(value, (tuple, list, range)) else (value,)
    return tuple(as_integer(name, token, 0) for token in value)


def as_words(value: Any) -> tuple[tuple[int, ...], ...]:
    """Sequences of token ids."""
    if not isinstance(value, (tuple, list)) or not all(isinstance(word, (tuple, list)) and word for word in value):
        raise TypeError(
            f"Received bad_words_ids={value!r}; expected a list of lists of token ids, each of at least one. For "
            "text pass tokenizer(words, add_special_tokens=False)['input_ids']."
        )
    return tuple(as_tokens("bad_words_ids", word) for word in value)


def as_biases(value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Pairs of a sequence of token ids and what is added for it."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    fits = isinstance(pairs, (tuple, list)) and all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], (tuple, list)) and pair[0]
        for pair in pairs
    )
    if not fits:
        raise TypeError(
            f"Received sequence_bias={value!r}; expected a dict such as {{(5, 6): -2.0}}, from a tuple of at least one "
            "token id to what is added, or a list such as [[[5, 6], -2.0]]."
        )
    made = {
        as_tokens("sequence_bias", tokens): as_number("sequence_bias", bias, lambda v: v < math.inf, "below infinity")
        for tokens, bias in pairs
    }
    return tuple(made.items())


def as_decay(value: Any) -> tuple[int, float]:
    """A start and a factor."""
    name = "exponential_decay_length_penalty"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"Received {name}={value!r}; expected a pair, such as (20, 1.05).")
    return as_integer(name, value[0], 0), as_number(name, value[1], lambda v: v > 0, "above 0")


def as_stop_strings(value: Any) -> tuple:
    """Texts for all prompts, or a tuple of them for each."""
    if isinstance(value, (tuple, list)) and any(row is None or isinstance(row, (tuple, list)) for row in value):
        return tuple(as_strings(() if row is None else row) for row in value)
    return as_strings(value)


def is_per_row(stop_strings: tuple) -> bool:
    """Whether there is a tuple of stop strings for each prompt."""
    return any(isinstance(row, tuple) for row in stop_strings)


def as_constraint(name: str, value: Any) -> Any:
    """What an answer has to follow, or a tuple of that for each prompt."""
    if isinstance(value, (tuple, list)):
        if not value:
            raise ValueError(f"Received {name}={value!r}; expected a value, or one for each prompt.")
        return tuple(_one_constraint(name, each) for each in value)
    return _one_constraint(name, value)


def _one_constraint(name: str, value: Any) -> Any:
    if name == "json_schema" and callable(schema := getattr(value, "model_json_schema", None)):  # a class of Pydantic's
        value = schema()
    wanted = (str, Mapping) if name == "json_schema" else str
    if value is not None and not isinstance(value, wanted):
        kind = "a dict, a string of JSON or a class of Pydantic's" if name == "json_schema" else "a string"
        raise TypeError(f"Received {name}={value!r}; expected {kind}.")
    if isinstance(value, Mapping):
        try:
            json.dumps(dict(value))
        except (TypeError, ValueError) as error:  # a ValueError for what holds itself
            raise type(error)(f"Received {name}={value!r}, which JSON cannot hold: {error}") from error
    return value


def as_strings(value: Any) -> tuple[str, ...]:
    """One text or several."""
    value = (value,) if isinstance(value, str) else value
    if not isinstance(value, (tuple, list)) or not all(isinstance(text, str) and text for text in value):
        raise TypeError(f"Received stop_strings={value!r}; expected a string or a list of strings, none of them empty.")
    return tuple(value)


def as_each(name: str, value: Any, check: Callable[[Any], Any], off: Any = None) -> Any:
    """A checked value, or a tuple of one for each prompt, in which None is `off`."""
    if getattr(value, "ndim", 0) == 1:
        value = (value if hasattr(value, "tolist") else value.numpy()).tolist()
    if not isinstance(value, (tuple, list)):
        return check(value)
    if not value:
        raise ValueError(f"Received {name}={value!r}; expected a value, or one for each prompt.")
    return tuple(check(off if each is None else each) for each in value)


def all_values(value: Any) -> tuple:
    """Those of all prompts."""
    return value if isinstance(value, tuple) else (value,)


def is_bool(value: Any) -> bool:
    """Whether it is a bool, of Python or of NumPy, whose class is called `bool_` before 2.0."""
    return type(value).__name__ in ("bool", "bool_")


def as_bool(name: str, value: Any) -> bool:
    """A bool, of Python or of NumPy."""
    if not is_bool(value):
        raise TypeError(f"Received {name}={value!r}; expected True or False.")
    return bool(value)


def as_integer(name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    """An int within limits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"Received {name}={value!r} of type {type(value).__name__}; expected an int.")
    number = int(value)
    if not low <= number <= high:
        bound = f"at least {low}" if number < low else f"at most {high}"
        raise ValueError(f"Received {name}={value}; expected an int of {bound}.")
    return number


def as_integers(name: str, value: Any, low: int) -> list[int]:
    """Ints within limits: several of them, or one."""
    if not isinstance(value, (Integral, Iterable)):
        raise TypeError(f"Received {name}={value!r}; expected an int, or a list of ints.")
    return [as_integer(name, each, low) for each in ([value] if isinstance(value, Integral) else value)]


def as_number(name: str, value: Any, fits, expected: str) -> float:
    """A float that `fits`, which `expected` says in words."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"Received {name}={value!r} of type {type(value).__name__}; expected a float.")
    size: Any = abs(value)
    if LARGEST_FLOAT < size < math.inf:
        raise ValueError(f"Received {name}={value}; expected a float within {LARGEST_FLOAT:.3g}, as float32 holds it.")
    if not fits(value):
        hint = " For greedy search pass do_sample=False." if name == "temperature" else ""
        raise ValueError(f"Received {name}={value}; expected a float {expected}.{hint}")
    return float(value)
