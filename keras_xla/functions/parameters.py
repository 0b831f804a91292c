"""The parameters of a function, and how the function gets its arguments: as a caller gave them, if it may tell.

A Keras layer gets them by keyword, as layers take static values in no other way.
"""

import functools
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_xla.backend.unwrap import without_partial
from keras_xla.private.keras.call_context import call_context

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OWN = ("its own",)
_MANY = 1000  # more than that in a list are data, and not looked through
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
        self._own = self.signature = _of_layer(fn) if self._is_layer else own_signature(fn)
        inside = None if self._is_layer else _signature_inside(fn, self._own)
        # As of functools.wraps, or of jax.vmap: it may do one thing with what is positional, and another with the rest.
        self._wraps = inside is not None
        if inside is not None:
            self.signature = inside

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
            return self._own.bind(*args, **kwargs).arguments, _OWN  # the wrapper takes others than what it wraps
        given = tuple(bound.arguments)
        bound.apply_defaults()
        if self._is_layer:
            return bound.arguments, (self._says_training(given, bound.arguments),)
        by_name = tuple(name for name in given if name in kwargs)
        return bound.arguments, (given, by_name) if self._wraps else ()

    def call(self, arguments: dict[str, Any], form: _Form) -> Any:
        """Call the function with arguments that `bind` has named, in the form that it has found."""
        if self._is_layer:
            return self._call_layer(arguments, *form)
        by_name: Sequence[str] = ()
        if form and form != _OWN:
            given, by_name = form
            arguments = {name: arguments[name] for name in given}
        named = {name: arguments[name] for name in by_name}
        others = {name: value for name, value in arguments.items() if name not in by_name}
        bound = inspect.BoundArguments(self._own if form == _OWN else self.signature, others)
        return self._fn(*bound.args, **bound.kwargs, **named)

    def _says_training(self, given: Sequence[str], arguments: Mapping[str, Any]) -> bool:
        """Whether a call says more of `training` than the layers around it, and the layer's own default."""
        said = arguments.get("training")
        if "training" not in given or said is None:
            return False
        around = any(name == "training" for name, _ in call_context().told)
        return around or hasattr(said, "shape") or said != self.signature.parameters["training"].default

    def _call_layer(self, arguments: dict[str, Any], says_training: bool) -> Any:
        kinds = {key: self.signature.parameters[key].kind for key in arguments}
        several = any(kinds[key] is inspect.Parameter.VAR_POSITIONAL and arguments[key] for key in arguments)
        if not says_training and not (several and kinds.get("training") is inspect.Parameter.POSITIONAL_OR_KEYWORD):
            arguments = {key: value for key, value in arguments.items() if key != "training"}
        if several:
            bound = inspect.BoundArguments(self.signature, arguments)
            return self._fn(*bound.args, **bound.kwargs)
        positional = [value for key, value in arguments.items() if kinds[key] is inspect.Parameter.POSITIONAL_ONLY]
        named = {key: value for key, value in arguments.items() if kinds[key] in _NAMED}
        extra = [value for key, value in arguments.items() if kinds[key] is inspect.Parameter.VAR_KEYWORD]
        return self._fn(*positional, **named, **(extra[0] if extra else {}))


def owner_of(fn: Any) -> Any:
    """The object whose method a function is, or the function itself; of a `functools.partial`, of what it calls."""
    fn = without_partial(fn)
    return getattr(fn, "__self__", fn)


def seen_by(fn: Any) -> list[Any]:
    """What a function may use beside its arguments: attributes of its object, variables around it, and globals.

    What is in a list, a tuple or a dict counts, and what functions beside it use.
    """
    owner, fn = owner_of(fn), getattr(fn, "__func__", fn)
    waiting, home = [fn, *_attributes(owner)], _module_of(_code_of(without_partial(fn)))
    seen, known = list[Any](), set[int]()
    while waiting and len(known) < 10 * _MANY:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        seen.append(each)
        if isinstance(each, list | tuple | dict):
            waiting += [*(dict.values(each) if isinstance(each, dict) else each)][:_MANY]
        elif isinstance(each, functools.partial):
            waiting += [each.func, *each.args, *each.keywords.values()]
        elif each is fn or _module_of(_code_of(each)) == home:
            waiting += _variables(_code_of(each))
    return seen


def _code_of(each: Any) -> Any:
    """The function that runs where this is called: of a method, a compiled function, or an object; None for others."""
    each = each.compiled_from if hasattr(type(each), "compiled_from") else each
    if isinstance(each, types.FunctionType | types.MethodType):
        return each
    call = type(each).__call__ if callable(each) else None
    return call if isinstance(call, types.FunctionType) and not isinstance(each, keras.layers.Layer) else None


def _attributes(owner: Any) -> list[Any]:
    """Of an object whose method is called, or that is called itself; Keras looks into layers by itself."""
    known = isinstance(owner, keras.layers.Layer | type | types.ModuleType | types.FunctionType)
    try:
        return [] if known else list(vars(owner).values())
    except Exception:  # an object may have none, or say so in its own way
        return []


def _variables(fn: Any) -> list[Any]:
    try:
        found = inspect.getclosurevars(inspect.unwrap(fn))
    except (TypeError, ValueError):  # no function of Python's, or one whose variables are not there yet
        return []
    return [*found.nonlocals.values(), *found.globals.values()]


def _module_of(fn: Any) -> str | None:
    return getattr(fn, "__module__", None)


def own_signature(fn: Any) -> inspect.Signature:
    """Of a function itself: not of what it wraps, whose `__signature__` `functools.wraps` copies."""
    if isinstance(known := getattr(fn, "own_signature", None), inspect.Signature):
        return known
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, types.FunctionType):
        return inspect.signature(types.MethodType(_bare(fn.__func__), fn.__self__), follow_wrapped=False)
    try:
        return inspect.signature(_bare(fn), follow_wrapped=False)
    except (ValueError, TypeError):  # a staticmethod, say
        pass
    try:
        return inspect.signature(fn)
    except ValueError:
        raise TypeError(
            f"keras_xla.jit received {fn!r}, whose parameters Python does not know; it expects a function that was "
            "written in Python. Pass lambda x: f(x)."
        ) from None


def _signature_inside(fn: Any, own: inspect.Signature) -> inspect.Signature | None:
    """Of what a wrapper wraps, if that names more of the arguments; None for a function that is no such wrapper."""
    try:
        inside = inspect.signature(fn)
    except (ValueError, TypeError):  # a partial with an argument of the wrapper's own
        return None
    named = [name for name, x in own.parameters.items() if x.kind not in _VARIADIC]
    passes_on = len(named) < len(own.parameters) and list(inside.parameters)[: len(named)] == named
    return inside if passes_on and list(inside.parameters) != list(own.parameters) else None


def _bare(fn: Any) -> Any:
    """A wrapper without what was copied from the function inside; anything else as it is."""
    if not isinstance(fn, types.FunctionType) or not hasattr(fn, "__wrapped__"):
        return fn
    bare = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    bare.__kwdefaults__ = fn.__kwdefaults__
    return bare


def _of_layer(layer: keras.layers.Layer) -> inspect.Signature:
    """A layer takes `training` even if its `call` does not, for the layers inside of it."""
    signature = inspect.signature(layer.call)
    parameters = list(signature.parameters.values())
    if "training" in signature.parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return signature
    return signature.replace(
        parameters=[*parameters, inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=None)]
    )
