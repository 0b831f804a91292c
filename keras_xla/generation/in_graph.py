"""A layer that is called inside a graph: its outputs' shapes, and the way out to the executables and back."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_xla import backend
from keras_xla.config import GenerationOptions

Specs = dict[str, tuple[tuple, str]]  # shape and dtype of each output; a single one, "text", for text


def output_specs(ids: Any, options: GenerationOptions, text: bool, one_clip: bool = False) -> Specs:
    """Of what comes of a tensor of `ids`, strings or speech, which may be that of one clip alone.

    Raises:
        TypeError: for what is no tensor.
        ValueError: for a single prompt.
    """
    if not hasattr(ids, "shape"):
        raise TypeError(
            f"Received a {type(ids).__name__} in a graph; expected one tensor, of ids or strings. For a mask pass "
            '{"input_ids": ids, "attention_mask": mask}.'
        )
    if len(ids.shape) == 0:
        raise ValueError("Received a single prompt in a graph; expected a batch of them: dataset.batch(8).map(layer).")
    rows = 1 if one_clip else ids.shape[0]
    rows = None if rows is None else rows * options.num_return_sequences
    if text:
        return {"text": ((rows,), "string")}
    return {
        "sequences": ((rows, options.most_new_tokens), "int32"),
        "lengths": ((rows,), "int32"),
        "scores": ((rows,), "float32"),
    }


def symbolic_outputs(ids: Any, options: GenerationOptions, text: bool, one_clip: bool = False) -> Any:
    """Those outputs as symbolic tensors."""
    specs = output_specs(ids, options, text, one_clip)
    outputs = {name: keras.KerasTensor(shape, dtype=dtype) for name, (shape, dtype) in specs.items()}
    return outputs.get("text", outputs)


def host_call(complete: Callable, inputs: Any, specs: Specs) -> Any:
    """What `complete` makes of the inputs' arrays, as tensors."""

    def run(arrays):
        outputs = complete(arrays)
        return np.array(outputs, object) if "text" in specs else [outputs[name] for name in specs]

    outputs = dict(zip(specs, backend.host_call(run, inputs, list(specs.values())), strict=True))
    return outputs.get("text", outputs)
