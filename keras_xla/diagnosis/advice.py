"""What to do about layers and operations that XLA cannot compile."""

import keras

from keras_xla import backend
from keras_xla.private.keras.layers import is_of_keras

_PIPELINE = (
    "map it over the tf.data pipeline before the model (preprocess, rest = keras_xla.move_to_pipeline(model)), or "
    'compile with jit_compile="auto"'
)
_LAYERS = {
    "StringLookup": ("it looks up strings in a table, and XLA has no strings", _PIPELINE),
    "TextVectorization": (
        "it splits strings and looks them up in a table, and XLA has no strings",
        _PIPELINE,
    ),
    "Hashing": ("it hashes strings, and XLA has no strings", _PIPELINE),
    "HashedCrossing": ("it joins and hashes strings, and XLA has no strings", _PIPELINE),
    "IntegerLookup": ("it looks up values in a hash table, which XLA does not have", _PIPELINE),
    "XLAGenerationLayer": (
        "it compiles itself, for shapes of its own",
        "compile the model around it with jit_compile=False; generation stays compiled",
    ),
    "LSTM": ("it uses the cuDNN kernel, which XLA cannot call", "pass use_cudnn=False to the layer"),
    "GRU": ("it uses the cuDNN kernel, which XLA cannot call", "pass use_cudnn=False to the layer"),
}
_SAYS_NO = "its class says supports_jit=False"
# Keras' layers of image transformations say that on every backend. Only on TensorFlow it is known why.
_IMAGE = ("its image transformation has no XLA kernel" if backend.name == "tensorflow" else _SAYS_NO, _PIPELINE)
_UNKNOWN = (_SAYS_NO, 'compile with jit_compile="auto", or split the model before this layer')


def _known(layer: keras.layers.Layer) -> tuple[str, str]:
    for kind in type(layer).__mro__:
        if kind.__name__ in _LAYERS:
            return _LAYERS[kind.__name__]
        if kind.__name__.startswith("Random") and is_of_keras(kind):
            return _IMAGE
    return _UNKNOWN


def reason_for_layer(layer: keras.layers.Layer) -> str:
    """Why a layer with `supports_jit = False` cannot be compiled."""
    return _known(layer)[0]


def fix_for_layer(layer: keras.layers.Layer) -> str:
    """What to do about a layer with `supports_jit = False`."""
    return _known(layer)[1]


def fix_for_op(op: str, layer: keras.layers.Layer | None = None) -> str:
    """What to do about an operation of a model, given its type and the layer that it is in."""
    if layer is not None and not getattr(layer, "supports_jit", True):
        return fix_for_layer(layer)
    return _fix(op, "map this over the tf.data pipeline before the model", 'compile with jit_compile="auto"')


def fix_in_function(op: str, layer: keras.layers.Layer | None = None) -> str:
    """What to do about an operation of a function that is compiled by itself, or of a `layer` in it."""
    return _fix(op, "do this before the call", "leave this function out of keras_xla.jit")


def _fix(op: str, before: str, without: str) -> str:
    if "PyFunc" in op:
        return f"Python code cannot be compiled: write it with keras.ops, {before}, or {without}"
    if op.startswith("Print"):
        return f"remove tf.print, or {without}"
    if op.startswith(("String", "string", "AsString", "Substr", "RegexReplace", "StaticRegex", "UnicodeDecode")):
        return f"XLA has no strings: {before}"
    if op.startswith("TensorList"):
        return "give the tf.TensorArray the size that it needs, and leave dynamic_size=True out"
    if op.startswith(("Where", "Unique", "DynamicPartition", "NonMaxSuppression")):
        return (
            "keep all rows, and give those that do not count a weight of 0, as keras.ops.where(mask, x, 0.0) does; or "
            + without
        )
    if "Lookup" in op or "HashTable" in op:
        return f"XLA has no hash tables: {before}"
    if op in ("ImageProjectiveTransformV3", "ImageProjectiveTransformV2", "CropAndResize", "DecodeImage"):
        return f"{before}, as far as it transforms images"
    return f"write it with keras.ops if they have it, or {without}"
