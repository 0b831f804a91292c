"""The errors of the training side."""


class XLAUnsupportedError(ValueError):
    """Raised where XLA was asked for with `jit_compile=True`, and cannot compile a layer or an operation.

    It is a `ValueError`. The message names each layer or operation, where it is, and what to do. `keras_xla.explain`
    finds them without an error.

    Example:
    ```python
    layers = [keras.layers.Hashing(16), keras.layers.Dense(1)]  # XLA has no strings to hash
    model = keras.Sequential([keras.Input((1,), dtype="string"), *layers])
    try:
        keras_xla.compile(model, optimizer="adam", loss="mse", jit_compile=True)
    except keras_xla.XLAUnsupportedError as error:
        print(error)
    ```
    """
