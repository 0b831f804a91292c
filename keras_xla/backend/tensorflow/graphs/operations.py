"""Which operations of a traced TensorFlow function XLA cannot compile."""

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.new_shapes import BlockingOp
from keras_xla.backend.tensorflow.graphs.definitions import functions_in
from keras_xla.backend.tensorflow.machine import on_gpu
from keras_xla.private.tensorflow.graphs import graph_of_function, xla_kernels

# These carry no computation: XLA drops them or turns them into arguments, and the list of kernels has not all
# of them.
_STRUCTURAL = frozenset(
    {"Placeholder", "PlaceholderWithDefault", "Const", "NoOp", "_Arg", "_Retval", "Identity", "IdentityN"}
)
# What they make has a shape that depends on values. XLA gives it room for the largest, and many operations then count
# what is no part of it, or end the process.
_OF_VARYING_SHAPE = frozenset({"Where", "Unique", "UniqueV2", "DynamicPartition", "NonMaxSuppressionV3"})
_SPARSE = os.path.join(os.path.dirname(os.path.abspath(keras.__file__)), "src", "backend", "tensorflow", "sparse.py")
_OPTIMIZERS = os.path.join(os.sep, "tf_keras", "src", "optimizers", "")  # of Keras 2
_PACKAGES: tuple[Any, ...] = (keras, tf, sys.modules["keras_xla"])
_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(os.path.dirname(module.__file__) for module in _PACKAGES),
    )
)


@functools.cache  # asked for each operation of a graph
def compilable_ops() -> frozenset[str]:
    """The operation types that XLA has a kernel for on this machine's device."""
    return xla_kernels(on_gpu=on_gpu()) | _STRUCTURAL


def has_varying_shape(op) -> bool:
    """Whether what an operation makes has a shape that depends on values, which XLA computes wrongly with."""
    return op.type in _OF_VARYING_SHAPE and not is_of_sparse_gradients(op)


def is_of_sparse_gradients(op) -> bool:
    """Whether Keras made an operation for gradients of looked-up rows: it does with them what XLA does rightly."""
    return any(
        os.path.abspath(frame.filename) == _SPARSE
        or (frame.name == "apply_gradients" and _OPTIMIZERS in os.path.abspath(frame.filename))
        for frame in op.traceback or ()
    )


def blocking_ops(function) -> list[BlockingOp]:
    """Every operation of a concrete function, or of a function it calls, that XLA cannot compile.

    An operation whose result nobody uses is included: TensorFlow checks it all the same. So is one that may make a list
    longer: XLA has a kernel for it, which drops what is behind the list's end.
    """
    found, grown = [], []
    for op in operations(function.graph):
        if op.type in ("Placeholder", "_Arg") and op.outputs[0].dtype == tf.string:
            found.append(BlockingOp(f"string input {op.name}", op.name, ""))
        elif op.type == "StringFormat" and _is_printed(op.outputs[0]):
            continue  # the one that prints is told
        elif has_varying_shape(op):
            found.append(BlockingOp(f"{op.type}, whose shape depends on values", op.name, _user_line(op)))
        elif op.type not in compilable_ops():
            found.append(BlockingOp(op.type, op.name, _user_line(op)))
        elif op.type == "TridiagonalSolve" and op.get_attr("partial_pivoting"):
            found.append(BlockingOp(f"{op.type} with partial_pivoting", op.name, _user_line(op)))
        elif grows_list(op):
            grown.append(BlockingOp(f"{op.type} for a list that grows", op.name, _user_line(op)))
    # A string that enters is only worth a word when nothing tells what is done with it.
    computed = [blocker for blocker in found if not blocker.op.startswith("string input")]
    return list(dict.fromkeys([*(computed or found), *grown]))


def _is_printed(x) -> bool:
    return bool(x.consumers()) and all(op.type.startswith("Print") for op in x.consumers())


def operations(graph, seen: set[str] | None = None) -> Iterator:
    """Every operation of a graph and of the functions that it calls."""
    seen = set() if seen is None else seen
    for op in graph.get_operations():
        yield from operations_of(op, seen)


def operations_of(op, seen: set[str] | None = None) -> Iterator:
    """An operation, and every one of the functions that it calls, but for those `seen`."""
    seen = set() if seen is None else seen
    yield op
    for called in functions_in(op.node_def):
        inner = graph_of_function(op.graph, called.name) if called.name not in seen else None
        seen.add(called.name)
        if inner is not None:
            yield from operations(inner, seen)


def calls_unknown(op) -> bool:
    """Whether an operation calls a function of which no graph is at hand, as those of imported graphs may."""
    names = [called.name for called in functions_in(op.node_def)]
    return any(name and graph_of_function(op.graph, name) is None for name in names)


def grows_list(op) -> bool:
    """Whether an operation makes a list of tensors longer where needed, as a dynamic `tf.TensorArray` does."""
    return "resize_if_index_out_of_bounds" in op.node_def.attr and op.get_attr("resize_if_index_out_of_bounds")


def _user_line(op) -> str:
    """The last line of the user's own."""
    for frame in reversed(op.traceback or ()):
        if is_user_file(frame.filename) and not frame.filename.startswith("<"):
            return f"{os.path.abspath(frame.filename)}:{frame.lineno}"
    return ""


@functools.cache
def is_user_file(filename: str) -> bool:
    """Whether it is outside of Keras, TensorFlow, the standard library, this package and all that is installed."""
    path = os.path.realpath(filename)
    installed = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
    return not installed and not path.startswith(_LIBRARIES)
