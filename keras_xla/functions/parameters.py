"""What a function takes, and how it gets that: as it was given, or by keyword where the function is a Keras layer."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_Form = tuple  # how arguments were given, where a function may tell: a part of the key of an executable


class Parameters:
    """The parameters of a function, of a bound method or of a layer.

    Args:
        fn: The function.
        by_name: Whether the parameters are needed by their names, as for buckets.

    Attributes:
        signature: What calls may pass. A wrapper that takes anything has that of what it wraps.
    """

    def __init__(self, fn: Any, by_name: bool):
        self._fn, self._is_layer, self._by_name = fn, isinstance(fn, keras.layers.Layer), by_name
        self._own = _signature_of_layer(fn) if self._is_layer else _own_signature(fn)
        # As of functools.wraps, or of jax.vmap: it may do one thing with what is positional, and another with the rest.
        self._wraps = hasattr(fn, "__wrapped__") and all(x.kind in _VARIADIC for x in self._own.parameters.values())
        self.signature = inspect.signature(fn) if self._wraps else self._own

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], _Form]:
        """The arguments by the names of the parameters, defaults among them; and how they were given.

        Raises:
            TypeError: they do not fit.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            if self._by_name or not self._wraps:
                raise
            bound = self._own.bind(*args, **kwargs)  # the wrapper takes others than what it wraps
            return bound.arguments, ("its own",)
        given = tuple(bound.arguments)
        bound.apply_defaults()
        if self._is_layer:
            return bound.arguments, ("training" in given,)
        by_name = tuple(name for name in given if name in kwargs)
        return bound.arguments, (given, by_name) if self._wraps else ()

    def call(self, arguments: Mapping[str, Any], form: _Form) -> Any:
        """Call the function with arguments that `bind` has named, in the form that it has told."""
        if self._is_layer:
            return self._call_layer(arguments, *form)
        if form == ("its own",):
            bound = inspect.BoundArguments(self._own, arguments)
            return self._fn(*bound.args, **bound.kwargs)
        if not form:
            bound = inspect.BoundArguments(self.signature, arguments)
            return self._fn(*bound.args, **bound.kwargs)
        given, by_name = form
        named = {name: arguments[name] for name in by_name}
        bound = inspect.BoundArguments(self.signature, {x: arguments[x] for x in given if x not in by_name})
        return self._fn(*bound.args, **bound.kwargs, **named)

    def _call_layer(self, arguments: Mapping[str, Any], told: bool) -> Any:
        """By keyword where its signature allows: Keras layers take static values in no other way."""
        kinds = {key: self.signature.parameters[key].kind for key in arguments}
        if any(kinds[key] is inspect.Parameter.VAR_POSITIONAL and arguments[key] for key in arguments):
            bound = inspect.BoundArguments(self.signature, arguments)
            return self._fn(*bound.args, **bound.kwargs)
        positional = [value for key, value in arguments.items() if kinds[key] is inspect.Parameter.POSITIONAL_ONLY]
        named = {key: value for key, value in arguments.items() if kinds[key] in _NAMED}
        if not told or named.get("training", True) is None:  # it is what the layers around have been told
            named.pop("training", None)
        extra = [value for key, value in arguments.items() if kinds[key] is inspect.Parameter.VAR_KEYWORD]
        return self._fn(*positional, **named, **(extra[0] if extra else {}))


def _own_signature(fn: Any) -> inspect.Signature:
    """Not that of what it wraps, if it has one."""
    try:
        return inspect.signature(fn, follow_wrapped=False)
    except (ValueError, TypeError):  # a staticmethod, say
        return inspect.signature(fn)


def _signature_of_layer(layer: keras.layers.Layer) -> inspect.Signature:
    """A layer takes `training` even if its `call` does not, for the layers inside of it."""
    signature = inspect.signature(layer.call)
    parameters = list(signature.parameters.values())
    if "training" in signature.parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return signature
    return signature.replace(
        parameters=[*parameters, inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=None)]
    )
