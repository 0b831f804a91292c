"""Models in which every row of a batch is on its own, as far as Keras' own layers let one know."""

from types import ModuleType

import keras

from keras_xla.private.keras.graphs import is_graph, nodes_within
from keras_xla.private.keras.layers import flat_layers, is_of_keras
from keras_xla.private.names import otherwise

_OF_USERS = ("Lambda", "JaxLayer", "FlaxLayer", "TFSMLayer", "TorchModuleWrapper")  # Keras', around any code
_ELEMENTWISE = {  # operations without a layer that look at every number alone
    *("Abs", "Absolute", "Add", "Cast", "Clip", "Divide", "Elu", "Exp", "Gelu", "HardSigmoid", "LeakyRelu", "Log"),
    *("Log1p", "Maximum", "Minimum", "Multiply", "Negative", "Power", "Relu", "Relu6", "Selu", "Sigmoid", "Sign"),
    *("Silu", "Softplus", "Sqrt", "Square", "Subtract", "Swish", "Tanh", "TrueDivide"),
}
# Layers that do so, or that give each number an axis of its own: of tensors that have the axis of the rows alone, all
# others may take it for the last one.
_OF_NUMBERS = {
    *("Average", "Discretization", "Dropout", "ELU", "Embedding", "Flatten", "Identity", "LeakyReLU", "ReLU"),
    *("Rescaling", "Reshape", *_ELEMENTWISE),
}


@otherwise(False)
def rowwise_in_inference(model: keras.Model) -> bool:
    """Whether the outputs of a row depend on no other row of its batch, when the model does not train.

    True for models of Keras' own layers and of operations on single numbers; what else there is might mix rows.
    """
    layers = flat_layers(model)
    return all(map(_known, layers)) and not any(map(_works_along_rows, layers))


def is_keras_own(thing: object, module: ModuleType) -> bool:
    """Whether the class of something is one that Keras exports there, as `keras.layers.Dense` is.

    Where a class was written does not tell: Keras' source has classes of tests and tools that do as they like.
    """
    return getattr(module, type(thing).__name__, None) is type(thing)


def _axes(layer: keras.layers.Layer) -> list[int]:
    """The axes that a layer works along; 0 is that of the rows, and so may be what counts from behind."""
    axis = getattr(layer, "axis", getattr(layer, "axes", None))
    if axis is None:
        return [0] if type(layer) is keras.layers.Softmax else []  # it works along all of them
    return list(axis) if isinstance(axis, (list, tuple)) else [axis]


def _known(layer: keras.layers.Layer) -> bool:
    kind, activation = type(layer), getattr(layer, "activation", None)
    functional = kind.__name__ == "Functional" and is_of_keras(kind)  # not exported
    operations = getattr(layer, "operations", None) or ()  # of a functional model
    return (
        (functional or kind is keras.Sequential or is_keras_own(layer, keras.layers))
        and kind.__name__ not in _OF_USERS
        and getattr(layer, "target_shape", True) != ()  # behind it, the last axis is that of the rows
        and not getattr(layer, "stateful", False)  # one row is another's past
        and all(axis == -1 or axis > 0 for axis in _axes(layer))
        and (activation is None or is_of_keras(activation))
        and all(isinstance(op, keras.layers.Layer) or type(op).__name__ in _ELEMENTWISE for op in operations)
    )


def _works_along_rows(layer: keras.layers.Layer) -> bool:
    """Whether a model hands a tensor of one axis, which is that of the rows, to what may work along it."""
    nodes = nodes_within(layer) if is_graph(layer) else ()
    of_rows = [node.operation for node in nodes if any(len(x.shape) < 2 for x in node.input_tensors)]
    return not all(is_graph(each) or _is_of_numbers(each) for each in of_rows)


def _is_of_numbers(operation: object) -> bool:
    """Whether a layer or an operation is one of `_OF_NUMBERS`: Discretization may also count those of all rows."""
    counts = getattr(operation, "output_mode", "int") not in ("int", "one_hot")
    return type(operation).__name__ in _OF_NUMBERS and not counts
