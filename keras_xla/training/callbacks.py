"""XLA as a callback, for scripts that call `model.compile` themselves."""

import keras

from keras_xla.training.compile import check_switch, require_jit
from keras_xla.training.explain import refuse_layers
from keras_xla.training.keras2 import AnyKeras
from keras_xla.training.steps import install, observer_of, reset


class XLACompile(AnyKeras):
    """Runs `fit`, `evaluate` or `predict` through XLA, for a model that was compiled the plain way.

    The model stays that way afterwards: later calls without the callback use XLA too, and validation inside
    `fit` does. `XLACompile(jit_compile=False)` turns it off again.

    Args:
        jit_compile: `True` (XLA or an error) or `False` (no XLA).

    Raises:
        XLAUnsupportedError: When `fit`, `evaluate` or `predict` starts and a layer cannot be compiled.
        ValueError: `jit_compile` is neither True nor False, or the model runs eagerly.

    Example:
    ```python
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.fit(np.ones((32, 4)), np.ones((32, 1)), callbacks=[keras_xla.callbacks.XLACompile()], verbose=0)
    ```
    """

    def __init__(self, jit_compile: bool = True):
        super().__init__()
        check_switch("XLACompile", jit_compile)
        self.jit_compile = jit_compile

    def set_model(self, model: keras.Model) -> None:
        """Switch XLA before Keras builds its step function; `on_train_begin` would be too late."""
        super().set_model(model)
        if not self.jit_compile:
            if model.jit_compile:
                model.jit_compile = False
                reset(model)
            return
        if model.run_eagerly:
            raise ValueError(
                f"XLACompile received the model {model.name!r}, which was compiled with run_eagerly=True; "
                "an eager step cannot be compiled. Compile it with run_eagerly=False, or leave the callback out."
            )
        refuse_layers(model)
        if model.jit_compile and observer_of(model) is not None:
            return  # built functions are kept, so that a second fit compiles nothing
        model.jit_compile = True
        require_jit(model)
        install(model)
