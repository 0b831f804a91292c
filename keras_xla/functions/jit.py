"""`keras_xla.jit`: any function or bound method, compiled by XLA, with every compilation counted and explained."""

import copy
import functools
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_xla.backend import compile_log as events
from keras_xla.backend import is_traced
from keras_xla.backend.compile_log import RecompileError
from keras_xla.backend.signature import Leaf, Signature, describe
from keras_xla.backend.steps import is_in_trace, is_weak, runs_python, without_autograph
from keras_xla.diagnosis.explain import refuse_ops_in_function
from keras_xla.functions import hf_generate
from keras_xla.functions.added_losses import AddedLosses
from keras_xla.functions.argument_buckets import ArgumentBuckets, Padded
from keras_xla.functions.arrays import as_dense, attached_to, is_array, with_attached
from keras_xla.functions.call_key import CallKey
from keras_xla.functions.cut_back import Followed, cut_back, followed
from keras_xla.functions.executable import executable_of
from keras_xla.functions.methods import OfInstances
from keras_xla.functions.parameters import Parameters, owner_of, seen_by
from keras_xla.functions.refused import refuse_what_compiles_itself
from keras_xla.functions.saving import from_config, to_config
from keras_xla.functions.static_values import outdated, state_of, static_value, structure_of
from keras_xla.private.keras.call_context import call_context
from keras_xla.troubleshooting import explained

_ON_RECOMPILE = ("log", "raise")
_ADAPTERS = (hf_generate.adapt,)  # for functions that need more than padding at the end


@explained
def jit(
    fn: Callable | None = None,
    *,
    buckets: Mapping[str, Mapping[int, Sequence[int] | str]] | None = None,
    pad_value: float = 0,
    name: str | None = None,
    on_recompile: str = "log",
) -> Any:
    """Compile a function, a bound method or a layer with XLA.

    XLA compiles at the first call, which takes a moment. The program that it makes, the executable, serves all later
    calls whose arguments have the same shapes and dtypes.

    - Tensors and arrays, in any structure, may change their values freely. New shapes or dtypes compile again.
    - Everything else (int, float, bool, str, None, objects) is static: it is part of the executable, and a new value
      compiles again. Pass `np.float32(x)` to keep a number a tensor. But pass sizes and axes as Python ints: on
      TensorFlow, an integer tensor that becomes a shape compiles for every value, and nothing here can see that.
    - Keras variables that `fn` reads or assigns have their current values. On JAX this does not hold for those that are
      read inside of a `keras.StatelessScope` of its own which leaves them out: they stay as they were.
    - What else `fn` reads, such as an attribute or a global, stays what it was at the first call. On JAX that call runs
      the Python code of `fn` twice: what `fn` does the first time alone is lost.
    - Keras' masks go in with the tensors that they are on, and come out with those that `fn` returns.
    - `layer.losses` has what a call has added, where the layer is `fn`, has it as a method, is an argument, or is a
      variable that `fn` uses; but not what was added inside of a loop or a branch.
    - Layers, metrics and random generators are made outside of `fn`. A layer that `fn` is, or calls, is also kept where
      Keras looks for layers, such as in an attribute of a model: else it is neither trained nor saved.
    - Conditions and loops over tensors are those of `keras.ops`: a Python `if` of a tensor raises. On TensorFlow
      `tf.random.set_seed` does nothing inside, and `keras.random` draws other numbers than without XLA.
    - As everywhere in XLA, nothing checks the values inside. An index out of range or an assertion that fails raises no
      error. On TensorFlow, the first call for gradients compiles two more programs, which `compile_log` does not have.
    - Inside another compiled function, the call becomes a part of that one, and with a `keras.Input`, of the model. In
      `jax.grad` and `jax.vmap` nothing is compiled: write `keras_xla.jit(jax.grad(fn))`. Nor is anything with
      `tf.config.run_functions_eagerly(True)` or `jax.disable_jit()`.

    The `generate` of a TensorFlow model of transformers 4 gets buckets for its prompts, see
    `keras_xla.functions.hf_generate.CompiledGenerate`.

    Args:
        fn: What to compile: a function, a bound method or a Keras layer or model. Left out, the result is a decorator.
        buckets: The sizes that an argument is padded to, so that few shapes compile. A dict from the name of an
            argument to a dict from an axis (int, 0 or more) to its sizes: a list of ints, or `"pow2"` for the powers of
            two. The argument is padded at the end of the axis up to the next size. Outputs whose size follows from it
            are cut back to the real one: to find them, `fn` is traced with a larger and a smaller size, too. With the
            padding it has to give the same answer, so a reduction over that axis has to mask it. By default nothing is
            padded.
        pad_value: The number to pad with, in the dtype of the argument; 0 by default.
        name: The name in the compile log (str); that of `fn` by default.
        on_recompile: `"log"` compiles whatever is new, and notes it in `keras_xla.compile_log`. With `"raise"`,
            arguments that would compile again after the first compilation raise `RecompileError`.

    Returns:
        A `CompiledFunction`, which is called as `fn` is. Without `fn` it is a decorator that makes one. For the
        `generate` of a TensorFlow model of transformers 4 it is a `CompiledGenerate`.

    Raises:
        TypeError: `fn` is not callable, or compiles by itself: an `XLAGenerationLayer`, or `fit` of a model.
        ValueError: `on_recompile`, `buckets` or `pad_value` are not as described. Or `fn` is the `generate` of a
            TensorFlow model, and Keras does not run on TensorFlow.

    Example:
    ```python
    @keras_xla.jit(buckets={"x": {0: (8, 64)}})
    def scale(x, factor=2.0):
        return keras.ops.tanh(x) * factor

    scale(np.ones((5, 3)))          # padded to 8 rows, cut back to 5
    scale(np.ones((7, 3)))          # the same executable
    print(scale.trace_count)        # 1
    ```
    """
    if fn is None:
        return functools.partial(jit, buckets=buckets, pad_value=pad_value, name=name, on_recompile=on_recompile)
    if not callable(fn):
        raise TypeError(f"keras_xla.jit received {type(fn).__name__}; it expects a function, bound method or layer.")
    refuse_what_compiles_itself(fn)
    if isinstance(pad_value, str | None) or np.ndim(pad_value):
        raise ValueError(f"keras_xla.jit received pad_value={pad_value!r}; it expects a number.")
    if on_recompile not in _ON_RECOMPILE:
        raise ValueError(f'keras_xla.jit received on_recompile={on_recompile!r}; it expects "log" or "raise".')

    def make_compiled(inner, default_name):
        return CompiledFunction(inner, None, pad_value, name or default_name, on_recompile)

    adapted = (adapt(fn, buckets, make_compiled) for adapt in _ADAPTERS)
    special = next((found for found in adapted if found is not None), None)
    return special or CompiledFunction(fn, buckets, pad_value, name, on_recompile)


@explained
@keras.saving.register_keras_serializable(package="keras_xla")
class CompiledFunction:
    """A function with one XLA executable for each set of shapes, dtypes and static values; made by `keras_xla.jit`.

    Calls from several threads are safe. Used as a decorator inside a class, it makes a method: each instance has
    executables of its own, which go with the instance. (Instances that their class calls equal share executables, and
    are kept.) A layer or a bound method gets no instance there.

    A layer, a model or a method of one compiles again after it got other weights (`enable_lora`, `quantize`), or where
    other layers of it are trainable; so does a function with a layer among its arguments, which it keeps alive.

    Attributes:
        __name__: That of the function, or `name`: Keras shows a metric under it.
        __doc__: That of the function.
    """

    def __init__(self, fn: Any, buckets: Any, pad_value: Any, name: Any, on_recompile: str):
        self._fn, self._pad_value, self._on_recompile, self._forgotten = fn, pad_value, on_recompile, 0
        self._options = buckets, pad_value, name, on_recompile
        self._name: str = name or getattr(fn, "__qualname__", "") or getattr(fn, "name", type(fn).__name__)
        self._parameters = Parameters(fn, by_name=bool(buckets))
        self._buckets = ArgumentBuckets(buckets, list(self._parameters.signature.parameters), self._name)
        self._executables: dict[CallKey, tuple[Callable, Followed]] = {}
        self._follows: dict[tuple, Followed] = {}
        self._last: CallKey | None = None
        self._held: dict[tuple, list] = {}  # the variables whose ids are in keys, so that no other gets their ids
        self._lock = threading.RLock()
        self._owners: tuple[type, ...] = ()  # classes of which it is a method
        self._methods = OfInstances(
            fn, lambda method: CompiledFunction(method, buckets, pad_value, self._name, on_recompile)
        )
        self.__doc__ = getattr(fn, "__doc__", None)
        self.__module__ = getattr(fn, "__module__", None) or type(self).__module__
        self.__name__ = name or getattr(fn, "__name__", self._name)
        self.__qualname__ = getattr(fn, "__qualname__", self.__name__)
        if isinstance(fn, types.FunctionType):  # what has been put on it, as functools.wraps does
            vars(self).update(
                (key, value) for key, value in vars(fn).items() if key not in {"__wrapped__", *vars(self)}
            )
        self.__signature__ = self._parameters.signature  # what inspect.signature and help tell

    compiled_from = property(lambda self: self._fn, doc="The function, method or layer that it compiles.")

    @property
    def trace_count(self) -> int:
        """How many XLA executables have been compiled so far (int)."""
        return len(self._executables) + self._forgotten + self._methods.trace_count

    def __repr__(self):
        return f"<keras_xla.jit {self._name}, {self.trace_count} executables>"

    def __deepcopy__(self, memo):
        fn = copy.deepcopy(self._fn, memo)  # the same one of a function, another of a layer or a bound method
        return self if fn is self._fn else CompiledFunction(fn, *self._options)

    def __reduce__(self):
        module, name = self.__module__, self._fn.__qualname__ if hasattr(self._fn, "__qualname__") else ""
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        # By name, as the function that it decorates would be.
        return name if found is self else (CompiledFunction, (self._fn, *self._options))

    def get_config(self) -> dict[str, Any]:
        """What Keras saves of it in a layer or a model: the function, as Keras does, and the options of `jit`."""
        buckets, pad_value, name, on_recompile = self._options
        return to_config(self, self._fn, buckets, pad_value=pad_value, name=name, on_recompile=on_recompile)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CompiledFunction":
        """That of `get_config`, or the function itself where Keras finds it by its name."""
        made = from_config(config)
        return made["fn"] if isinstance(made["fn"], cls) else cls(**made)

    @property
    def _layer(self) -> Any:
        """The layer or model that is called, or whose method this is; something else for other functions."""
        return owner_of(self._fn)

    @property
    def _binds(self) -> bool:
        return hasattr(self._fn, "__get__") and not isinstance(self._fn, (types.MethodType, staticmethod))

    def __set_name__(self, owner, name):
        if self._binds:
            self._owners += (owner,)
        if self._binds and getattr(self._fn, "__qualname__", "").startswith(f"{owner.__qualname__}."):
            self.__name__ = name  # by which a method of an instance is pickled

    def __get__(self, instance, owner=None):
        if not self._binds or instance is None:
            return self
        if not isinstance(instance, self._owners):  # it was put on a class that was there
            self._owners += (owner or type(instance),)
        return types.MethodType(self, instance)

    @without_autograph
    def __call__(self, /, *args, **kwargs):
        """Call the function, through the executable for these arguments; a first call with new shapes compiles.

        Args:
            *args: As the function takes them. Arrays, NumPy numbers and tensors may change their values freely.
            **kwargs: As the function takes them.

        Returns:
            What the function returns, in the same structure: its tensors and arrays as tensors of the backend, and
            Python's numbers and strings as they are.

        Raises:
            RecompileError: this would compile again, and `on_recompile` is `"raise"`.
            XLAUnsupportedError: on TensorFlow, an operation of the function that XLA cannot compile. Nothing has run.
            TypeError: an argument is neither a tensor, nor an array, nor a structure of them, and has no hash; or the
                function returns an object that the backend does not know, such as a generator.
            ValueError: an argument is larger than its largest bucket or lacks the axis that has buckets, or two
                arguments of different sizes go into one bucket; or the padding is in an output in such a way that it
                cannot be cut off.
        """
        flat = keras.tree.flatten((args, kwargs))
        if is_in_trace() or runs_python() or any(is_traced(x) or isinstance(x, keras.KerasTensor) for x in flat):
            return self._fn(*args, **kwargs)  # also a part of another compiled function, or of a functional model
        if args and isinstance(args[0], self._owners) and (method := self._methods.of(args[0])) is not None:
            return method(*args[1:], **kwargs)
        arguments, form = self._parameters.bind(args, kwargs)
        arguments, padded = self._buckets.pad(arguments, self._pad_value)
        own = args[0] if args and isinstance(args[0], self._owners) else None
        leaves, tensors, owners = self._leaves(arguments, own)
        key = CallKey(leaves, tuple(map(structure_of, arguments.values())), form, state_of(self._layer), call_context())
        compiled = self._executables.get(key)
        if compiled is None:
            key, outputs, follows = self._compile(key, arguments, tensors, owners, padded)
        else:
            self._last = key
            executable, follows = compiled
            outputs = executable(tensors)
        varied = [entry for entry in padded if entry.size != entry.real]
        if not varied:
            return outputs
        if len(varied) < len(padded) and any(isinstance(each, str) for each in follows):
            follows = self._followed(key, arguments, tensors, owners, varied, outputs)
        return cut_back(self._name, outputs, padded, follows)

    def _followed(
        self,
        key: CallKey,
        arguments: dict[str, Any],
        tensors: list,
        owners: list[str],
        padded: list[Padded],
        outputs: Any,
    ) -> Followed:
        """See `followed`: of some of the axes that have buckets, where others are of a bucket's size already."""
        some = key, tuple(entry[:2] for entry in padded)
        if some not in self._follows:
            with self._lock:
                call = self._caller(key, arguments)
                self._follows[some] = self._follow(key, call, tensors, owners, padded, outputs)
        return self._follows[some]

    def _follow(
        self, key: CallKey, call: Callable, tensors: list, owners: list[str], padded: list[Padded], outputs: Any
    ) -> Followed:
        losses = AddedLosses(*self._layers_of(key))

        def outputs_alone(tensors):
            return losses.collected(call, tensors)[0]

        return followed(outputs_alone, tensors, owners, self._buckets, padded, outputs)

    def _leaves(self, arguments: dict[str, Any], own: Any) -> tuple[Signature, list, list[str]]:
        """What the arguments are; the tensors in them, with their masks; and of which argument each is.

        `own` is the instance whose method this is, where it is one of the arguments.
        """
        leaves, tensors, owners = [], [], list[str]()
        for argument, value in arguments.items():
            for path, x in keras.tree.flatten_with_path(value):
                name = argument + "".join(f"[{key!r}]" for key in path)
                if is_array(x):
                    tensor = as_dense(self._name, name, x)
                    tensors.append(tensor)
                    dtype = f"{'weak ' if is_weak(tensor) else ''}{tensor.dtype.name}"  # Keras does not know all dtypes
                    leaves.append(Leaf(name, tuple(tensor.shape), dtype))
                    for what, attached in attached_to(x).items():
                        tensors.append(attached)
                        leaves.append(Leaf(f"the {what} of {name}", tuple(attached.shape), attached.dtype.name))
                    owners += [argument] * (len(tensors) - len(owners))
                else:
                    value = static_value(self._name, name, x, checked=x is not own)
                    leaves.append(Leaf(name, None, type(x).__name__, value))
        return tuple(leaves), tensors, owners

    def _as_built(self, key: CallKey) -> CallKey:
        """The key with the weights that layers have by now."""
        leaves = [
            leaf._replace(value=static_value(self._name, leaf.name, leaf.value.value, checked=False))
            if leaf.shape is None
            else leaf
            for leaf in key.leaves
        ]
        return key._replace(leaves=tuple(leaves), layer=state_of(self._layer))

    def _compile(
        self, key: CallKey, arguments: dict[str, Any], tensors: list, owners: list[str], padded: list[Padded]
    ) -> tuple[CallKey, Any, Followed]:
        with self._lock:
            key = self._as_built(key)  # another thread may have built a layer
            if key in self._executables:  # another thread was faster
                executable, follows = self._executables[key]
                return key, executable(tensors), follows
            cause = key.cause(self._last)
            if self._last is not None and self._on_recompile == "raise":
                raise RecompileError(
                    f'{self._name} would compile again: {cause}. It was made with on_recompile="raise"; keep the '
                    f"arguments as they were ({describe(self._last.leaves)}), or give it buckets."
                )
            start = time.perf_counter()
            call, losses = self._caller(key, arguments), AddedLosses(*self._layers_of(key))
            executable = executable_of(self._name, call, tensors, self._refuse, losses)
            outputs = executable(tensors)
            follows = self._follow(key, call, tensors, owners, padded, outputs) if padded else []
            events.record(self._name, "function", describe(key.leaves), cause, time.perf_counter() - start)
            key = self._as_built(key)  # by now layers are built
            self._let_go(key)
            self._held[key.layer] = self._layer.weights if key.layer else []
            self._last = key
            self._executables[key] = executable, follows
        return key, outputs, follows

    def _let_go(self, new: CallKey) -> None:
        """Forget executables for weights and layers that the layer has no longer, and those weights."""
        gone = outdated([key.layer for key in self._executables], new.layer)
        for key in [key for key in self._executables if key.layer in gone]:
            del self._executables[key]
            self._held.pop(key.layer, None)
            self._follows = {some: follows for some, follows in self._follows.items() if some[0] != key}
            self._forgotten += 1

    def _caller(self, key: CallKey, arguments: dict[str, Any]) -> Callable:
        """What calls `fn` with a list of tensors in the places of those in `arguments`."""
        values = list(arguments.values())  # not the dict itself, whose keys a tree sorts
        flat = keras.tree.flatten(values)
        is_tensor = list(map(is_array, flat))
        attached = [list(attached_to(x)) if dynamic else [] for dynamic, x in zip(is_tensor, flat, strict=True)]
        paths = [(name, *path) for name, x in arguments.items() for path, _ in keras.tree.flatten_with_path(x)]
        is_layer = isinstance(self._fn, keras.layers.Layer)  # which makes a tensor of a bool of NumPy's
        statics = [
            None if dynamic else bool(x) if isinstance(x, np.bool_) and (is_layer or "training" in path) else x
            for path, x, dynamic in zip(paths, flat, is_tensor, strict=True)
        ]
        structure = keras.tree.map_structure(lambda _: 0, values)
        names = list(arguments)

        def call(tensors):
            tensors = iter(tensors)
            restored = []
            for x, dynamic, kinds in zip(statics, is_tensor, attached, strict=True):
                x = next(tensors) if dynamic else x
                restored.append(with_attached(x, {kind: next(tensors) for kind in kinds}))
            restored = keras.tree.pack_sequence_as(structure, restored)
            return self._parameters.call(dict(zip(names, restored, strict=True)), key.form)

        return call

    def _layers_of(self, key: CallKey) -> tuple[keras.layers.Layer | None, list[keras.layers.Layer]]:
        """The layer that is called itself, if it is one; and others that a call may call."""
        given = [leaf.value.value for leaf in key.leaves if leaf.shape is None]
        known = [x for x in (self._layer, *given, *seen_by(self._fn)) if isinstance(x, keras.layers.Layer)]
        return (self._fn if isinstance(self._fn, keras.layers.Layer) else None), known

    def _refuse(self, blockers):
        refuse_ops_in_function(self._name, self._layer, blockers)
