"""Who takes part: plain Keras in its usual variants, keras_xla, and keras_xla with parts of it taken away."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STEPS = 32  # of `steps_per_execution`


@dataclass(frozen=True)
class Contender:
    """One way to compile a model.

    Attributes:
        code: What a user would write, for the report.
        compile: Compiles a model with the case's arguments.
        backend: Keras' backend in the worker's process.
        ours: Whether keras_xla runs the model.
        partial: Whether it only shows where the gain, or a difference of losses, comes from; then nothing is predicted.
    """

    code: str
    compile: Callable[[Any, dict], None]
    backend: str = "tensorflow"
    ours: bool = False
    partial: bool = False


def _plain(**more) -> Callable[[Any, dict], None]:
    return lambda model, arguments: model.compile(**arguments, **more)


def _nudged(model: Any, arguments: dict) -> None:
    model.compile(**arguments)
    model.optimizer.learning_rate = float(model.optimizer.learning_rate) * (1 + 2e-7)


def _ours(model: Any, arguments: dict) -> None:
    import keras_xla

    keras_xla.compile(model, **arguments, jit_compile="auto")


def _plain_graph(model: Any, arguments: dict) -> None:
    from keras_xla.training.decide.policy import Policy

    _replace(Policy, "_auto", lambda self, new_shapes: ("graph", "the benchmark asked for it", {}))
    _ours(model, arguments)


def _one_step_a_call(model: Any, arguments: dict) -> None:
    from keras_xla.training.steps import run_ahead

    _replace(run_ahead, "MOST", 1)
    _plain_graph(model, arguments)


def _replace(owner: Any, name: str, value: Any) -> None:
    """Set what must be there already: else the benchmark would measure something else without a word."""
    if not hasattr(owner, name):
        sys.exit(f"{owner.__name__} has no {name!r} any more: say in {__file__} how this part is taken away now.")
    setattr(owner, name, value)


CONTENDERS = {
    "default": Contender("model.compile(...)", _plain()),
    "forced": Contender("model.compile(..., jit_compile=True)", _plain(jit_compile=True)),
    "spe32": Contender(f"model.compile(..., steps_per_execution={STEPS})", _plain(steps_per_execution=STEPS)),
    "spe32_forced": Contender(
        f"model.compile(..., steps_per_execution={STEPS}, jit_compile=True)",
        _plain(steps_per_execution=STEPS, jit_compile=True),
    ),
    "jax": Contender("KERAS_BACKEND=jax, model.compile(...)", _plain(), backend="jax"),
    "ours": Contender('keras_xla.compile(model, ..., jit_compile="auto")', _ours, ours=True),
    "ours_jax": Contender('KERAS_BACKEND=jax, keras_xla.compile(model, ..., jit_compile="auto")', _ours, "jax", True),
    "nudged": Contender("default, its learning rate 1 + 2e-7 times as large", _nudged, partial=True),
    "ours_graph": Contender("ours, always in the plain graph", _plain_graph, ours=True, partial=True),
    "ours_steps": Contender(
        "ours, always in the plain graph, one step a call", _one_step_a_call, ours=True, partial=True
    ),
}
PEERS = ("default", "forced", "spe32", "spe32_forced")  # the four that the goals name
LONG = (*PEERS, "ours")  # the contenders of the long fits, unless others are named
