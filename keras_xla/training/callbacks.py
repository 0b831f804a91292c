"""XLA as a callback, for scripts that call `model.compile` themselves."""

import keras

from keras_xla.backend.keras2 import AnyKeras
from keras_xla.diagnosis.explain import refuse_layers
from keras_xla.training.attach import Attachment, attach, attachment_of, detach, reset
from keras_xla.training.compile import check_switch, require_jit
from keras_xla.training.session import Session
from keras_xla.troubleshooting import explained


@explained
class XLACompile(AnyKeras):
    """Run `fit`, `evaluate` or `predict` through XLA where that is faster, for a model compiled the plain way.

    It does for the model what `keras_xla.compile` does, and needs no change of the line that compiles it. The model
    stays that way afterwards: later calls without the callback use XLA too, and so does the validation inside `fit`.
    `XLACompile(jit_compile=False)` turns it off again.

    Args:
        jit_compile: As in `keras_xla.compile`: `"auto"` for the faster way, which is the default, `True` for XLA or an
            error, `False` for no XLA.

    Attributes:
        jit_compile: As given.

    Raises:
        XLAUnsupportedError: With True, when `fit`, `evaluate` or `predict` starts and a layer cannot be compiled.
        ValueError: `jit_compile` is none of these. Or it is True and the model runs eagerly, when a call starts.

    Example:
    ```python
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), callbacks=[keras_xla.callbacks.XLACompile()], verbose=0)
    ```
    """

    def __init__(self, jit_compile: bool | str = "auto"):
        super().__init__()
        check_switch("XLACompile", jit_compile)
        self.jit_compile = jit_compile
        self._attachment: Attachment | None = None
        self._session: Session | None = None  # of a fit that began before the model was attached
        self._first = False

    def set_model(self, model: keras.Model) -> None:
        """Switch XLA before Keras builds its step function; `on_train_begin` would be too late."""
        super().set_model(model)
        self._first = attachment_of(model) is None
        self.switch(model)
        self._attachment = attachment_of(model)

    def switch(self, model: keras.Model) -> None:
        """Switch XLA on or off; of a model that is attached already, before a call of it begins."""
        if self.jit_compile is False:
            detach(model)
            if model.jit_compile:
                model.jit_compile = False
                reset(model)
            return
        if self.jit_compile is True:
            if model.run_eagerly:
                raise ValueError(
                    f"XLACompile received the model {model.name!r}, which was compiled with run_eagerly=True; "
                    "an eager step cannot be compiled. Compile it with run_eagerly=False, or leave the callback out."
                )
            refuse_layers(model)
        attachment = attachment_of(model)
        if attachment is None or attachment.jit_compile != self.jit_compile:
            if self.jit_compile is True:
                model.jit_compile = True
            attach(model, self.jit_compile)
        if self.jit_compile is True:
            require_jit(model)

    def on_train_begin(self, logs=None) -> None:
        """Count from here, if nobody else does."""
        if self._first and self._attachment is not None:
            self._session = Session("train")
            self._session.set_params(self.params)
            self._session.on_train_begin(logs)
            self._attachment.follow(self._session)

    def on_train_end(self, logs=None) -> None:
        """Count no more."""
        if self._attachment is not None:
            self._attachment.follow(None)
        self._session = None

    def on_epoch_begin(self, epoch, logs=None) -> None:
        """Count the epoch's steps."""
        if self._session is not None:
            self._session.on_epoch_begin(epoch, logs)
