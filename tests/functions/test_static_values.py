"""Arguments of `jit` that are no tensors, and calls of it within the trace of something else."""

import abc
import collections
import copy
import dataclasses
import functools
import gc
import inspect
import pickle
import random
import threading
import weakref

import attrs
import keras
import numpy as np
import optree
import pytest

import keras_xla
from keras_xla import jit

ONES = np.ones((2, 3), "float32")


def number(x):
    return float(np.ravel(keras.ops.convert_to_numpy(x))[0])


@pytest.mark.parametrize("made", [iter, lambda items: (x for x in items), lambda items: map(np.asarray, items)])
def test_an_iterator_is_refused_and_nothing_is_taken_from_it(made):
    given = made([ONES, 2 * ONES])
    with pytest.raises(TypeError, match=r"an iterator: what the first call takes.*Pass next\(it\), or a list"):
        jit(lambda it: next(it) * 2)(given)
    assert number(next(given)) == 1


@pytest.mark.parametrize("options", [{}, {"eq": False}, {"frozen": True}])
def test_a_dataclass_of_tensors_is_refused(options):
    @dataclasses.dataclass(**options)
    class Batch:
        x: np.ndarray

    with pytest.raises(TypeError, match=r"a dataclass that holds tensors.*Pass them in a tuple or a dict"):
        jit(lambda batch: batch.x * 2)(Batch(ONES))


def test_a_dataclass_of_tensors_within_another_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        x: np.ndarray

    @dataclasses.dataclass(frozen=True)
    class Outer:
        inner: Inner

    with pytest.raises(TypeError, match="a dataclass that holds tensors"):
        jit(lambda batch: batch.inner.x * 2)(Outer(Inner(ONES)))


@pytest.mark.parametrize("made", [random.Random, np.random.default_rng, np.random.RandomState, np.random.PCG64])
def test_what_draws_numbers_is_refused(made):
    with pytest.raises(TypeError, match=r"which draws numbers.*take a keras.random.SeedGenerator"):
        jit(lambda x, rng: x)(ONES, made(0))


def test_a_slice_is_a_part_of_the_executable():
    part = jit(lambda x, which: x[which])
    for which in (slice(0, 1), slice(0, 1), slice(None, None, 2), slice(1, None)):
        assert part(ONES, which).shape == ONES[which].shape
    assert part.trace_count == 3
    with pytest.raises(TypeError, match="received which of type slice, which is neither a tensor nor hashable"):
        part(ONES, slice(np.array(1), 2))


def test_fields_of_a_class_of_attrs_are_told_apart_by_type():
    @attrs.frozen
    class Scale:
        by: float
        name: str = attrs.field(default="", eq=False)

    fast, x = jit(lambda x, scale: keras.ops.multiply(x, scale.by)), np.ones(2, "int32")
    for scale in (Scale(1), Scale(1.0), Scale(1, name="other")):
        assert keras.backend.standardize_dtype(fast(x, scale).dtype).startswith(type(scale.by).__name__)
    assert fast.trace_count == 2


def test_a_bool_of_numpy_is_a_flag():
    drop = jit(keras.layers.Dropout(0.5))
    assert number(drop(ONES, training=np.bool_(False))) == 1
    choose = jit(lambda x, twice: x * 2 if twice else x)
    assert [number(choose(ONES, (k < ONES).any())) for k in (0, 5, 0)] == [2, 1, 2]
    assert choose.trace_count == 2
    flip = jit(lambda x, kept: keras.ops.where(~kept, x, -x))
    assert number(flip(ONES, np.True_)) == -1
    drop = keras.layers.Dropout(0.5)
    assert number(jit(lambda x, **options: drop(x, **options))(ONES, training=np.bool_(False))) == 1
    mask = jit(lambda x, kept: keras.ops.where(kept, x, 0.0))
    assert [number(mask(ONES, np.array(kept))) for kept in (True, False)] == [1, 0] and mask.trace_count == 1


@optree.register_pytree_node_class(namespace="keras")
class Scaled:
    def __init__(self, x, k):
        self.x, self.k = x, k

    def tree_flatten(self):
        return (self.x,), self.k, None

    @classmethod
    def tree_unflatten(cls, k, children):
        return cls(*children, k)


def test_what_a_registered_class_holds_beside_tensors_is_part_of_the_executable():
    scale = jit(lambda scaled: scaled.x * scaled.k)
    assert [number(scale(Scaled(ONES, k))) for k in (2.0, 3.0, 2.0)] == [2, 3, 2]
    assert scale.trace_count == 2


def test_a_deque_has_a_structure():
    kind = jit(lambda items: items[0][0] * (2 if isinstance(items[0], tuple) else 1))
    assert [number(kind(collections.deque([each]))) for each in ([ONES], (ONES,), [ONES])] == [1, 2, 1]


class Later(keras.Model):
    """Calls a function without arguments, which finds what the call has put aside."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(4), keras.layers.Dense(1)
        self.head = jit(self._head)

    def call(self, x):
        self.put_aside = self.inner(x)
        return self.head()

    def _head(self):
        return self.outer(self.put_aside)


def test_a_call_without_tensors_within_a_trace_is_a_part_of_it():
    x, histories = np.random.default_rng(0).normal(size=(10, 3)).astype("float32"), []
    for call in (keras.Model.compile, keras_xla.compile):
        keras.utils.set_random_seed(0)
        model = Later()
        call(model, "sgd", "mse")
        histories.append(model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-5)


def test_a_call_within_another_function_leaves_nothing_of_it_behind():
    state = {}
    inner = jit(lambda k: state["x"] * k)

    @jit
    def outer(x):
        state["x"] = x
        return inner(2)

    assert [number(outer(each)) for each in (ONES, 3 * ONES, ONES[:1], 5 * ONES)] == [2, 6, 2, 10]
    assert inner.trace_count == 0


def test_functions_that_call_each_other_in_two_threads_both_end():
    begun = threading.Barrier(2, timeout=60)
    functions = {}

    def make(own, other):
        @jit
        def function(depth):
            if depth:
                begun.wait()
                return functions[other](0) * 2
            return keras.ops.ones(())

        functions[own] = function

    make("a", "b"), make("b", "a")
    made = {}
    threads = [threading.Thread(target=lambda name=name: made.update({name: functions[name](1)})) for name in "ab"]
    for each in threads:
        each.daemon = True
        each.start()
    for each in threads:
        each.join(60)
    assert {name: number(x) for name, x in made.items()} == {"a": 2, "b": 2}


@dataclasses.dataclass(eq=False)
class Slotted:
    """Forbids weak references, so that the instance is an argument."""

    x: np.ndarray
    __slots__ = ("x",)

    @jit
    def doubled(self, y):
        return self.x * 2 + y


def test_an_instance_may_hold_tensors():
    assert number(Slotted(ONES).doubled(ONES)) == 3


class Metrics:
    @jit(name="named")
    def other(self, y, p):
        return keras.ops.mean(y * p)

    @jit
    def error(self, y, p):
        return keras.ops.mean(keras.ops.abs(y - p))


def test_a_function_that_is_put_into_a_class_keeps_its_name():
    @jit(name="mine")
    def function(x):
        return x

    class Config:
        metric = function

    assert function.__name__ == "mine" and Config.metric is function


def test_keras_shows_a_metric_by_the_name_of_its_function():
    @jit
    def off(y, p):
        return keras.ops.mean(keras.ops.abs(y - p))

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[off, Metrics().error])
    history = model.fit(ONES, ONES[:, :1], validation_data=(ONES, ONES[:, :1]), verbose=0).history
    assert {"off", "val_off", "error", "val_error"} < set(history)
    assert off.__qualname__.endswith("<locals>.off") and off.__name__ == "off"


def test_a_bound_method_is_pickled():
    for name in ("error", "other"):
        made = pickle.loads(pickle.dumps(getattr(Metrics(), name)))
        assert number(made(ONES, ONES)) == (name == "other")


def test_a_method_that_is_put_on_a_class_later_keeps_no_instance():
    class Model:
        def score(self, x):
            return x * 2

    Model.score = jit(Model.score, on_recompile="raise")
    instances = [Model(), Model()]
    assert [number(each.score(ONES)) for each in instances] == [2, 2]
    gone = list(map(weakref.ref, instances))
    del instances
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_what_is_on_the_function_is_on_the_compiled_one():
    def function(x):
        return x

    function.tag = "mine"
    assert jit(function).tag == "mine" and copy.copy(jit(function)).tag == "mine"
    assert inspect.unwrap(jit(functools.wraps(function)(lambda x: x * 3)))(2) == 6

    class Abstract(abc.ABC):
        @jit
        @abc.abstractmethod
        def run(self, x):
            pass

    with pytest.raises(TypeError, match="abstract"):
        Abstract()


class CompilesItself:
    compiles_itself = True

    def generate(self, x):
        return x


def test_what_compiles_itself_is_refused():
    with pytest.raises(TypeError, match=r"received generate of CompilesItself, which compiles itself"):
        jit(CompilesItself().generate)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="mine")
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        with pytest.raises(TypeError, match=f"received {name} of the model 'mine', which runs steps that are compiled"):
            jit(getattr(model, name))
    assert jit(model)(ONES).shape == (2, 1)

    class Own(keras.Model):
        def predict(self, x):
            return x * 2

    assert number(jit(Own().predict)(ONES)) == 2
