"""`keras_xla.enable`: every model that a script compiles, and its functions, run through XLA where that is faster."""

import contextvars
import functools
import inspect
import weakref
from dataclasses import dataclass, field

import keras

from keras_xla.backend.steps import replace_functions, restore_functions
from keras_xla.diagnosis.explain import refuse_layers
from keras_xla.training.compile import being_compiled, check_switch, take_over
from keras_xla.training.decide.decisions import decisions
from keras_xla.training.decide.functions import FunctionPolicy
from keras_xla.training.reports.journal import Journal
from keras_xla.troubleshooting import explained

_OWNER = next(
    kind for kind in keras.Model.__mro__ if "compile" in vars(kind)
)  # a class below Model, which is all of it
_COMPILE, _FROM_CONFIG = vars(_OWNER)["compile"], vars(_OWNER)["compile_from_config"]
_SIGNATURE = inspect.signature(_COMPILE)
_loading = contextvars.ContextVar("keras_xla_loading", default=False)


@dataclass(frozen=True)
class SeenModel:
    """A model that was compiled while `enable` was on."""

    name: str
    jit_compile: bool | str  # what it was compiled with: True, False or `"auto"`
    run_eagerly: bool
    note: str  # why it is as plain Keras makes it; empty if `keras_xla` runs its steps
    journal: Journal  # how it ran; empty if it is as plain Keras makes it
    model: weakref.ref  # as long as somebody else needs it


@dataclass
class _State:
    jit_compile: bool | str | None = None  # None while it is off
    models: list[SeenModel] = field(default_factory=list)
    functions: list[FunctionPolicy] = field(default_factory=list)


_STATE = _State()


@explained
def enable(jit_compile: bool | str = "auto") -> None:
    """Let every `model.compile(...)` from now on do what `keras_xla.compile(model, ...)` does.

    That holds for all Keras models, those of `tf.keras` too, whatever compiles them: a script, a class's own `compile`,
    `keras.saving.load_model`. Models that were compiled before stay as they are. What a script asks for itself is left
    to Keras: `jit_compile=True` or `False` and `run_eagerly=True`. (A file does not tell whether its `jit_compile` was
    asked for, so that a loaded model gets what is given here.)

    On the TensorFlow backend, functions that the script decorates with `tf.function`, without `jit_compile`, run
    through XLA too, if they are called often, and XLA turns out to be faster in some calls that are timed. Those of
    installed packages are left alone, and so are those called within a graph, under a `GradientTape` or a
    `tf.distribute` strategy. `from tensorflow import function`, before this, is not seen.

    `python -m keras_xla script.py` does this for a script as it is. `keras_xla.disable` undoes it.

    Args:
        jit_compile: `"auto"` for the faster way, which is the default. `True` for XLA: a model raises where it is not
            possible, and a decorated function runs plainly then. `False` for no XLA.

    Raises:
        ValueError: `jit_compile` is none of these.

    Example:
    ```python
    keras_xla.enable()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), verbose=0)
    print(keras_xla.model_report(model))
    keras_xla.disable()
    ```
    """
    check_switch("keras_xla.enable", jit_compile)
    _STATE.jit_compile = jit_compile
    _OWNER.compile, _OWNER.compile_from_config = _compile, _compile_from_config
    if jit_compile is False:
        restore_functions()
    else:
        replace_functions(_policy_of)


@explained
def disable() -> None:
    """Undo `keras_xla.enable`: from now on plain Keras compiles models again.

    Models that were compiled in between stay as they are, until they are compiled again. Functions that are decorated
    with `tf.function` run plainly from now on. Nothing happens if `enable` was not called.

    Example:
    ```python
    keras_xla.enable()
    keras_xla.disable()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")  # plain Keras
    ```
    """
    _STATE.jit_compile = None
    _OWNER.compile, _OWNER.compile_from_config = _COMPILE, _FROM_CONFIG
    restore_functions()


def seen() -> tuple[list[SeenModel], list[FunctionPolicy]]:
    """The models that were compiled while `enable` was on, and the decorated functions that were called."""
    return list(_STATE.models), list(_STATE.functions)


@explained
@functools.wraps(_COMPILE)
def _compile(self, *args, **kwargs):
    try:
        bound = _SIGNATURE.bind(self, *args, **kwargs)
    except TypeError:
        return _COMPILE(self, *args, **kwargs)  # which says what is wrong
    given, wanted = bound.arguments, _STATE.jit_compile
    model, asked = being_compiled.get()
    if wanted is not None and model is self:  # by `keras_xla.compile`, which has the last word
        _COMPILE(*bound.args, **bound.kwargs)
        attachment = take_over(self, asked)
        if attachment is None:
            return _note(self, False, "the script says jit_compile=False, and plain Keras does it")
        return _note(self, asked, "", attachment.journal)
    if _loading.get():
        given.pop("jit_compile", None)
    own = given.get("jit_compile", "auto")
    if wanted is None or own != "auto" or given.get("run_eagerly"):
        _COMPILE(*bound.args, **bound.kwargs)
        what = "run_eagerly=True" if given.get("run_eagerly") else f"jit_compile={own!r}"
        return _note(self, own, f"the script says {what}, and plain Keras does it")
    if wanted is True:
        refuse_layers(self)
    given.pop("jit_compile", None)  # a file that the model is saved to has what plain Keras would write
    _COMPILE(*bound.args, **bound.kwargs)
    if wanted != "auto":
        self.jit_compile = wanted
    attachment = take_over(self, wanted)
    if attachment is None:
        return _note(self, False, "enabled with jit_compile=False, and plain Keras does it")
    attachment.enabled = True
    return _note(self, wanted, "", attachment.journal)


vars(_compile)["attaches"] = True  # an attachment leaves it to this


@functools.wraps(_FROM_CONFIG)
def _compile_from_config(self, config):
    token = _loading.set(True)
    try:
        return _FROM_CONFIG(self, config)
    finally:
        _loading.reset(token)


def _note(model: keras.Model, jit_compile: bool | str, note: str, journal: Journal | None = None) -> None:
    if any(known.model() is model and known.journal is journal for known in _STATE.models):
        return
    _STATE.models.append(
        SeenModel(model.name, jit_compile, bool(model.run_eagerly), note, journal or Journal(), weakref.ref(model))
    )


def _policy_of(name: str) -> FunctionPolicy:
    wanted = _STATE.jit_compile
    policy = FunctionPolicy(name, "auto" if wanted is None else wanted, decisions())  # None: off since a moment ago
    _STATE.functions.append(policy)
    return policy
