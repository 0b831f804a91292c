"""The keys of a `config.json` that a family reads: what each may hold, and what holds where a file does not have it."""

import math
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class ConfigKey:
    """One key.

    Attributes:
        default: Its value in a file without it, which is that of transformers.
        fits: Whether a value can be one of this key.
        expected: What can, for a message.
        also: Other names that files have for it.
        inside: The keys of its value, where that is an object.
    """

    default: Any
    fits: Callable[[Any], bool]
    expected: str
    also: tuple[str, ...] = ()
    inside: "ConfigKeys | None" = None


ConfigKeys = Mapping[str, ConfigKey]


class ModelConfig(SimpleNamespace):
    """What a config says, by attributes: a value for every key of its family.

    Attributes:
        given: The keys that the file has, and that are not null there.
    """

    given: frozenset[str]


_TOLD_BY_NO_WEIGHT = ("num_attention_heads", "head_dim")  # other names; a stale one would mean other tokens
MOST_COMPUTED = 2**20  # rows of a table that is computed, which no weight has the size of


def whole(default: int | None, *also: str, least: int = 1, most: float = math.inf) -> ConfigKey:
    """An int of at least `least` and at most `most`; null where that is the default."""
    expected = f"a whole number of at least {least}" + ("" if most == math.inf else f" and at most {most}")
    return _key(default, also, lambda x: _is_int(x) and least <= x <= most, expected)


def number(default: float | None, *also: str, zero: bool = False) -> ConfigKey:
    """A finite number above 0, or also 0 itself; null where that is the default."""

    def fits(x: Any) -> bool:
        if not (_is_int(x) or isinstance(x, float)) or abs(x) > sys.float_info.max:
            return False
        return math.isfinite(x) and (x > 0 or (zero and x == 0))

    return _key(default, also, fits, f"a finite number {'of at least' if zero else 'above'} 0")


def flag(default: bool | None, *also: str) -> ConfigKey:
    """True or False; null where that is the default."""
    return _key(default, also, lambda x: isinstance(x, bool), "true or false")


def text(default: str | None, *also: str) -> ConfigKey:
    """A string; null where that is the default."""
    return _key(default, also, lambda x: isinstance(x, str), "a string")


def list_of(key: ConfigKey) -> ConfigKey:
    """A list of values that one key could have, or null."""
    return _key(None, (), lambda x: isinstance(x, list) and all(map(key.fits, x)), f"a list, each {key.expected}")


def token_ids(default: Any) -> ConfigKey:
    """A token id, several, or null. Which ids there are is checked where options are."""

    def fits(x: Any) -> bool:
        return _is_int(x) or (isinstance(x, (list, tuple)) and all(map(_is_int, x)))

    return or_null(ConfigKey(default, fits, "a token id, or a list of them"))


def parts(inside: ConfigKeys) -> ConfigKey:
    """An object with keys of its own, or null."""
    return replace(_key(None, (), lambda x: isinstance(x, Mapping), "an object"), inside=inside)


def or_null(key: ConfigKey) -> ConfigKey:
    """The same key, whose value may be null."""
    return replace(key, fits=lambda x: x is None or key.fits(x), expected=f"{key.expected}, or null")


def generation_keys(
    eos: int | None, pad: int | None = None, start: int | None = None, encoder: bool = False
) -> ConfigKeys:
    """What a config says to generation: the tokens for end, padding and start, and whether there is an encoder."""
    ids = {"eos_token_id": eos, "pad_token_id": pad, "decoder_start_token_id": start}
    return {"is_encoder_decoder": flag(encoder), **{name: token_ids(default) for name, default in ids.items()}}


def read_config(values: Mapping[str, Any], keys: ConfigKeys, where: str) -> ModelConfig:
    """The values of `keys` in a config. What else it holds is of no meaning.

    Args:
        values: What `config.json` holds.
        keys: Those of the family.
        where: The file, for a message.

    Raises:
        ValueError: naming all values that do not fit, and what was expected.
    """
    if wrong := list(_wrong(values, keys)):
        raise ValueError(f"{where} has {'; '.join(wrong)}. The file is damaged or was edited. Download it again.")
    read = {name: key.default for name, key in keys.items()}
    read |= {name: values[stored] for name, stored in _stored(values, keys)}
    given = frozenset(name for name, stored in _stored(values, keys) if values[stored] is not None)
    return ModelConfig(**read, given=given)


def _stored(values: Mapping[str, Any], keys: ConfigKeys) -> Iterator[tuple[str, str]]:
    """Each key that a config has, and its name there."""
    for name, key in keys.items():
        if (stored := next((each for each in (name, *key.also) if each in values), None)) is not None:
            yield name, stored


def _wrong(values: Mapping[str, Any], keys: ConfigKeys, outer: str = "") -> Iterator[str]:
    for name, stored in _stored(values, keys):
        key, value = keys[name], values[stored]
        told = [each for each in (name, *key.also) if each == name or each in _TOLD_BY_NO_WEIGHT]
        named = {each: values[each] for each in told if values.get(each) is not None}
        if len({repr(each) for each in named.values()}) > 1:  # of which transformers takes the other name's
            yield " and ".join(f"{outer}{each}={reprlib.repr(x)}" for each, x in named.items()) + ", expected one value"
        if not key.fits(value):
            yield f"{outer}{stored}={reprlib.repr(value)}, expected {key.expected}"
        elif key.inside is not None and value is not None:
            yield from _wrong(value, key.inside, f"{outer}{stored}.")


def _key(default: Any, also: tuple[str, ...], fits: Callable[[Any], bool], expected: str) -> ConfigKey:
    key = ConfigKey(default, fits, expected, also)
    return or_null(key) if default is None else key


def _is_int(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)
