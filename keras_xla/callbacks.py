"""Keras callbacks that bring XLA, report on it, and show what a model writes while it learns.

`XLACompile` does what `keras_xla.compile` does, for a model that is compiled elsewhere. `CompileReport` tells what was
compiled and what it brought. `GenerateSamples` lets a language model write after each epoch.

Example:
```python
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
callbacks = [keras_xla.callbacks.XLACompile(), keras_xla.callbacks.CompileReport()]
model.fit(np.ones((64, 4)), np.ones((64, 1)), callbacks=callbacks, verbose=0)
```
"""

from typing import TYPE_CHECKING, Any

from keras_xla.training.callbacks import XLACompile
from keras_xla.training.reports.compile_report import CompileReport

if TYPE_CHECKING:
    from keras_xla.generation.generate_samples import GenerateSamples

__all__ = ["CompileReport", "GenerateSamples", "XLACompile"]


def __getattr__(name: str) -> Any:
    if name != "GenerateSamples":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_xla.generation.generate_samples import GenerateSamples  # late: who trains need not import generation

    return GenerateSamples
