"""A user's own function on logits as a processor: compiled in, its tensors arguments of the executable."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.search.processors import PROCESSORS, Context, Processor, is_real
from keras_xla.engine.search.samplers import FORBIDDEN

# R rows (batch times beams), T slots, V vocabulary


RESERVED = ("timestamps",)  # the name of Whisper's rules


class OwnProcessor(Processor):
    """One of `own_processors`."""


def as_functions(given: Iterable[Callable] | None) -> tuple[Callable, ...]:
    """What a user passed as `logits_processors`; None is none.

    Raises:
        TypeError: for one function by itself, and for what holds none.
    """
    if isinstance(given, str) or not isinstance(given, (Iterable, types.NoneType)):
        raise TypeError(f"Received logits_processors={given!r}; expected a list of functions (tokens, logits, step).")
    return tuple(given or ())


def own_processors(functions: Sequence[Callable]) -> dict[str, Processor]:
    """Processors by the names of their functions; see `XLAGenerationLayer`.

    Raises:
        TypeError: for what is no function of tokens, logits and step whose other arguments are keywords with defaults.
        ValueError: for two functions of one name, or the name of a processor that there is.
    """
    made: dict[str, Processor] = {}
    for function in functions:
        name = getattr(function, "__name__", type(function).__name__)
        if name in made or name in (*PROCESSORS, *RESERVED):
            raise ValueError(f"Received two logits processors called {name!r}. Give one of them another name.")
        made[name] = _processor(name, function)
    return made


def check_processor_options(processors: Mapping[str, Processor], options: GenerationOptions, vocab_size: int) -> None:
    """Raise for `processor_options` that name no processor or tensor, or are of another shape.

    Raises:
        ValueError: naming what there is.
    """
    own = [name for name, processor in processors.items() if isinstance(processor, OwnProcessor)]
    if unknown := ", ".join(str(name) for name in options.processor_options if name not in own):
        known = ", ".join(own) or "none"
        raise ValueError(f"Received processor_options for {unknown}; the layer's logits_processors: {known}.")
    for name in options.processor_options:
        processors[name].tensors(options, vocab_size)


def _processor(name: str, function: Callable) -> Processor:
    defaults = _defaults(name, function)

    def tensors(options: GenerationOptions, vocab_size: int) -> list[np.ndarray]:
        given = options.processor_options.get(name) or {}
        if unknown := [str(key) for key in given if key not in defaults]:
            raise ValueError(
                f"Received {', '.join(unknown)} for the logits processor {name!r}; its tensors: "
                f"{', '.join(defaults) or 'none'}."
            )
        return [_like(f"{name}.{key}", default, given.get(key, default)) for key, default in defaults.items()]

    def apply(scores: Any, context: Context, extras: dict[str, Any]) -> Any:
        tokens = ops.where(is_real(context), context.tokens, -1)
        step = ops.broadcast_to(context.step, (scores.shape[0], 1))
        processed = function(tokens, scores, step, **{key: extras[f"{name}.{key}"] for key in defaults})
        processed = ops.cast(processed, scores.dtype)
        if tuple(processed.shape) != tuple(scores.shape):
            raise ValueError(
                f"The logits processor {name!r} returned the shape {tuple(processed.shape)}; expected that of the "
                f"logits, {tuple(scores.shape)}."
            )
        broken = ops.any(ops.isnan(processed), axis=-1, keepdims=True)
        return ops.where(broken, np.nan, ops.maximum(processed, FORBIDDEN))  # -inf is off; a NaN is all its row's

    def wanted(options: GenerationOptions) -> bool:
        return options.processor_options.get(name, {}) is not None

    return OwnProcessor(wanted, tuple(f"{name}.{key}" for key in defaults), tensors, apply)


def _defaults(name: str, function: Callable) -> dict[str, np.ndarray]:
    """The tensors of a function, by name."""
    expected = "expected a function (tokens, logits, step), with defaults for its tensors behind a *"
    if not callable(function):
        raise TypeError(f"Received the logits processor {function!r}; {expected}.")
    parameters = inspect.signature(function).parameters
    places = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = {key: p.default for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    without = [key for key, default in keywords.items() if default is inspect.Parameter.empty]
    if len(places) != 3 or len(places) + len(keywords) != len(parameters) or without:
        raise TypeError(f"Received the logits processor {name}{inspect.signature(function)}; {expected}.")
    return {key: _numbers(f"{name}.{key}", default) for key, default in keywords.items()}


def _numbers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"Received {name}={value!r} for a logits processor; expected a number or an array of numbers.")
    limits = np.iinfo(np.int32)
    if array.dtype.kind in "iu" and array.size and (array.min() < limits.min or array.max() > limits.max):
        raise ValueError(f"Received {name}={value!r} for a logits processor; expected integers that fit into int32.")
    return array.astype({"i": np.int32, "u": np.int32, "f": np.float32, "b": bool}[array.dtype.kind])


def _like(name: str, default: np.ndarray, value: Any) -> np.ndarray:
    array = _numbers(name, value)
    if array.shape != default.shape:
        raise ValueError(
            f"Received {name} of shape {array.shape} for a logits processor; expected that of its default, "
            f"{default.shape}: another one would compile."
        )
    if not np.can_cast(array.dtype, default.dtype, "same_kind"):
        raise TypeError(f"Received {name} of dtype {array.dtype}; expected that of its default, {default.dtype}.")
    return array.astype(default.dtype)
