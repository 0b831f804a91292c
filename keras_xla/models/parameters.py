"""The variables and matrices of a model, by the attributes that lead to them."""

import keras

from keras_xla.models.layers.matrices import Matrix
from keras_xla.private.keras.variables import set_path


def parameters(model: keras.layers.Layer) -> dict[str, keras.Variable | Matrix]:
    """Every variable and matrix of a model by the attributes that lead to it, `blocks.0.attention.qkv.kernel`."""
    found = {}
    for name, part in vars(model).items():
        if name.startswith("_"):
            continue
        parts = {f"{name}.{i}": x for i, x in enumerate(part)} if isinstance(part, list) else {name: part}
        for path, x in parts.items():
            if isinstance(x, (keras.Variable, Matrix)):
                found[path] = x
            elif isinstance(x, keras.layers.Layer):
                found |= {f"{path}.{rest}": variable for rest, variable in parameters(x).items()}
    return found


def give_paths(model: keras.layers.Layer) -> None:
    """Give each variable of a model a path of its own, by which Keras' `get_state_tree` and HDF5 files keep it."""
    for where, part in parameters(model).items():
        path = [model.name, *where.split(".")]
        if isinstance(part, Matrix):
            for variable in part.variables:
                set_path(variable, "/".join([*path, variable.name]))
        else:
            set_path(part, "/".join(path))
