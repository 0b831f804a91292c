"""`keras_xla.compile`: `Model.compile` with XLA where it is faster, and every compilation in the log."""

import contextvars
import inspect
from typing import Any

import keras

from keras_xla.backend.keras2 import is_keras2, require_model
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.diagnosis.explain import refuse_layers
from keras_xla.training.attach import Attachment, attach, detach, method_of
from keras_xla.troubleshooting import explained

# The model that this thread compiles, and how: of that `keras_xla.enable` decides nothing.
being_compiled = contextvars.ContextVar[tuple[keras.Model | None, bool | str]](
    "keras_xla_being_compiled", default=(None, False)
)


@explained
def compile(model: keras.Model, *args: Any, jit_compile: bool | str = "auto", **kwargs: Any) -> keras.Model:
    """Compile a model so that `fit`, `evaluate` and `predict` run through XLA where that is faster.

    It takes the place of `model.compile`. XLA is a compiler that turns a whole training step into one program. To
    compile takes seconds, and often makes each step faster, but not always. With `"auto"` the first batches are timed,
    and XLA is tried where the steps to come can repay it; then the faster way is chosen. Trials run on copies: losses
    and weights are those of a run without them. The answer is kept on disk, so that the next run starts decided.

    Where no callback looks at every batch, several steps run at a time. The class, the configuration and saved files of
    the model stay plain Keras. `print(keras_xla.model_report(model))` tells what was measured and chosen. On the JAX
    backend nothing is measured: there, Keras compiles the steps itself.

    Args:
        model: A `keras.Model`, built or not. On TensorFlow also one of Keras 2 (`tf_keras`), as Hugging Face's
            TensorFlow classes are, whose own `compile` has its own arguments and defaults (their internal loss).
        *args: Passed to `model.compile`, in its order.
        jit_compile: `"auto"` for XLA, part of it or the plain graph, whichever is faster. `True` for XLA or an error.
            `False` for what plain Keras does without XLA. `"auto"` by default.
        **kwargs: Passed to `model.compile`: `optimizer`, `loss`, `metrics`, `steps_per_execution` and others.

    Returns:
        The same model.

    Raises:
        XLAUnsupportedError: With `jit_compile=True`, a layer cannot be compiled; nothing of the model is changed then.
            Or Keras turned XLA off, or a `tf.distribute` strategy of several replicas does not allow it. Operations
            inside layers, losses, metrics and custom steps are checked before the first step of `fit` runs, which
            raises this error then.
        ValueError: `jit_compile` is none of these, or it is True together with `run_eagerly=True`, or `model` is one
            of `tf_keras` and Keras does not run on TensorFlow.
        TypeError: `model` is not a Keras model.

    Example:
    ```python
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = keras_xla.compile(model, optimizer="adam", loss="mse")  # instead of model.compile(...)
    model.fit(np.ones((64, 4)), np.ones((64, 1)), verbose=0)
    print(keras_xla.model_report(model))
    ```
    """
    require_model("keras_xla.compile", model)
    compile_ = method_of(model, "compile")
    parameters = inspect.signature(compile_).parameters
    names, more = list(parameters), {}
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    if "jit_compile" in names[: len(args)]:  # by position
        first = names.index("jit_compile")
        args, (jit_compile, *others) = args[:first], args[first:]
        more = dict(zip(names[first + 1 :], others, strict=False))
    check_switch("keras_xla.compile", jit_compile)
    if jit_compile is True:
        if named.get("run_eagerly"):
            raise ValueError(
                "keras_xla.compile received run_eagerly=True together with jit_compile=True; an eager step cannot be "
                "compiled. Pass jit_compile=False while debugging eagerly, or leave run_eagerly out."
            )
        refuse_layers(model)
        refuse_replicas(model)  # before anything of the model has changed
    takes = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    # A compile of the user's own may not know it, or hand on what it does not name; "auto" is what Keras does without.
    takes = "jit_compile" in parameters or (takes and jit_compile != "auto")
    token = being_compiled.set((model, jit_compile))
    try:
        if not takes or (jit_compile == "auto" and is_keras2(model)):  # Keras 2 has no "auto"
            compile_(*args, **more, **kwargs)
            if jit_compile != "auto":
                model.jit_compile = jit_compile
        else:
            compile_(*args, **more, jit_compile=jit_compile, **kwargs)
    finally:
        being_compiled.reset(token)
    take_over(model, jit_compile)
    return model


def take_over(model: keras.Model, jit_compile: bool | str) -> Attachment | None:
    """Run the steps of a model that Keras has just compiled; with False, leave them to Keras.

    With True, raises `XLAUnsupportedError` where Keras turned XLA off.
    """
    if jit_compile is False:
        detach(model)
        return None
    if jit_compile is True:
        require_jit(model)
    return attach(model, jit_compile)


def check_switch(who: str, jit_compile) -> None:
    """Raise unless `jit_compile` is True, False or "auto"."""
    if jit_compile is not True and jit_compile is not False and jit_compile != "auto":
        raise ValueError(
            f'{who} received jit_compile={jit_compile!r}; it expects "auto" (the faster way), True (XLA, or an error '
            "that names what is in the way) or False (no XLA)."
        )


def require_jit(model: keras.Model) -> None:
    """Raise if Keras turned XLA off again although every layer supports it, or if it cannot work here."""
    refuse_replicas(model)
    if not model.jit_compile or model.run_eagerly:
        raise XLAUnsupportedError(
            f"Keras turned XLA off for {model.name!r}: jit_compile is {model.jit_compile!r}, run_eagerly is "
            f"{model.run_eagerly!r}. XLA needs run_eagerly=False, and TensorFlow's op determinism must be off "
            "(tf.config.experimental.enable_op_determinism was called, or this is a Mac with a GPU)."
        )


def refuse_replicas(model: keras.Model) -> None:
    """Raise `XLAUnsupportedError` for a model whose steps run in several replicas."""
    strategy = getattr(model, "distribute_strategy", None)  # on TensorFlow
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise XLAUnsupportedError(
            f"{model.name!r} belongs to a tf.distribute strategy of {strategy.num_replicas_in_sync} replicas, "
            f"{type(strategy).__name__}. Gradients are summed over the replicas outside of "
            'XLA, so XLA cannot compile the step. Use jit_compile="auto" (the plain graph, here), or '
            "keras.distribution.DataParallel on the JAX backend, where XLA divides the work itself."
        )
