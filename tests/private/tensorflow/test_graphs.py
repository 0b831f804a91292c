"""What keras_xla uses of TensorFlow without a promise."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("of the TensorFlow backend", allow_module_level=True)
import tensorflow as tf

from keras_xla.private.names import Name
from keras_xla.private.tensorflow import graphs
from tests.private.helpers import names_of


@tf.function
def scaled(x, factor=2.0):
    return private_scale(x) * factor + OFFSET


@tf.function
def private_scale(x):
    return x * 3.0


OFFSET = tf.Variable(1.0)
CONCRETE = scaled.get_concrete_function(tf.TensorSpec([2]))


def owner_of(name: Name):
    package, _, kind = name.owner.rpartition(".")
    if package == "tensorflow.python.util":
        from tensorflow.python.util import pywrap_xla_ops

        return pywrap_xla_ops
    if name.owner == "tensorflow.python.framework.config":
        from tensorflow.python.framework import config

        return config
    if name.owner.startswith("tensorflow.python.eager"):
        from tensorflow.python.eager import context, execute, record
        from tensorflow.python.eager.polymorphic_function import polymorphic_function

        modules = {"record": record, "execute": execute, "polymorphic_function": polymorphic_function}
        return (modules | {"context()": context.context()})[kind]
    return {
        "Graph": CONCRETE.graph,
        "FuncGraph": CONCRETE.graph,
        "Operation": tf.Operation,
        "ConcreteFunction": CONCRETE,
        "Function": scaled,
        "__internal__": getattr(tf, "__internal__", None),
    }[kind]


@pytest.mark.parametrize("name", names_of(graphs), ids=str)
def test_name(name):
    assert name.of(owner_of(name)) is not None


def test_graphs_can_be_taken_apart():
    graphs.require_graphs()
    (handle, inner), *_ = graphs.captures(CONCRETE.graph)
    assert handle is OFFSET.handle and inner.graph is CONCRETE.graph
    assert graphs.variables(CONCRETE.graph) == (OFFSET,)
    assert "ReadVariableOp" in {op.type for op in graphs.effects(CONCRETE.graph)}
    calls = [op for op in CONCRETE.graph.get_operations() if "PartitionedCall" in op.type]
    inside = graphs.graph_of_function(CONCRETE.graph, calls[0].get_attr("f").name)
    assert "Mul" in {op.type for op in inside.get_operations()}


def test_the_ops_that_xla_knows():
    kernels = graphs.xla_kernels(on_gpu=False)
    assert {"MatMul", "Conv2D", "ResourceApplyAdam"} <= kernels and "StringUpper" not in kernels


def test_a_tape_is_seen():
    assert not graphs.may_be_recorded()
    with tf.GradientTape():
        assert graphs.may_be_recorded()


def test_arguments_as_a_trace_takes_them():
    x = tf.constant([1.0, 2.0])
    (only,) = graphs.flat_arguments(scaled, CONCRETE, (), {"x": x})
    assert only is x


def test_composite_tensors():
    assert graphs.is_composite(tf.ragged.constant([[1], [2, 3]]))
    assert graphs.is_composite(tf.sparse.from_dense([[0, 1]]))
    assert not graphs.is_composite(tf.constant(1)) and not graphs.is_composite(np.ones(2))


def test_the_class_of_functions_can_be_derived_from():
    assert isinstance(scaled, graphs.Function)
    assert scaled.python_function is not None and callable(graphs.Function.__getstate__)


def test_a_function_is_called_by_a_name_of_its_own():
    top, called = graphs.definition(CONCRETE)
    for each in (*called, top):
        copy = type(each)()
        copy.CopyFrom(each)
        copy.signature.name = "own_" + each.signature.name
        call = graphs.named_function([copy])
    np.testing.assert_array_equal(call([tf.constant([1.0, 2.0]), OFFSET.handle])[0], [7.0, 13.0])


def test_op_determinism_is_seen():
    from tensorflow.python.framework.config import disable_op_determinism

    assert not graphs.ops_are_deterministic()
    tf.config.experimental.enable_op_determinism()
    try:
        assert graphs.ops_are_deterministic()
    finally:
        disable_op_determinism()


def test_after_the_first_operation_it_is_too_late_for_flags():
    with pytest.raises(RuntimeError, match=r"has run something already.*right after the imports"):
        graphs.at_start("--flag", lambda: None)
