"""keras_xla.jit: any function or bound method, one executable for each signature."""

import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import pickle
import threading
import time
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_xla import RecompileError, XLAUnsupportedError
from keras_xla.functions.jit import jit
from keras_xla.functions.parameters import seen_by
from keras_xla.private.keras.masks import mask_of, put_mask
from tests import examples
from tests.training.helpers import Log

ONES = np.ones((4, 3), "float32")


def values(x):
    return keras.ops.convert_to_numpy(x).tolist()


def test_one_executable_for_each_shape_and_dtype():
    log, double = Log(), jit(lambda x: x * 2, name="double")
    assert values(double(ONES)) == (ONES * 2).tolist()
    double(ONES * 5)
    double(ONES[:2])
    double(ONES.astype("int32"))
    assert double.trace_count == 3
    assert [(e.name, e.kind, e.cause) for e in log.new()] == [
        ("double", "function", "first call"),
        ("double", "function", "argument x: (4, 3) -> (2, 3)"),
        ("double", "function", "argument x: (2, 3) float32 -> (4, 3) int32"),
    ]


def test_static_values_are_part_of_the_executable():
    @jit
    def scale(x, factor=2, mode=None):
        return x * factor if mode is None else x

    log = Log()
    assert values(scale(ONES, 3)) == (ONES * 3).tolist()
    scale(ONES, factor=3)
    scale(ONES, 3.0)
    scale(ONES, 3.0, mode="same")
    assert log.causes() == ["first call", "argument factor: 3 -> 3.0", "argument mode: None -> 'same'"]
    scale(ONES, np.float32(4))
    assert values(scale(ONES, np.float32(5))) == (ONES * 5).tolist()
    assert scale.trace_count == 4


def test_sets_and_ranges_that_are_equal_but_not_alike_have_executables_of_their_own():
    first = jit(lambda x, those: x * next(iter(those)))
    signs = [np.signbit(values(first(ONES, frozenset({zero})))).all() for zero in (0.0, -0.0)]
    assert signs == [False, True]
    assert [first(ONES, frozenset({one})).dtype == "float32" for one in (1, True)] and first.trace_count == 4
    stop = jit(lambda x, those: x * those.stop)
    assert [values(stop(ONES, range(0, n, 2)))[0][0] for n in (3, 4)] == [3.0, 4.0]


def test_arguments_keep_their_places():
    order = jit(lambda z, a, m=None: z[:, :1] * 100 + a[0] * 10 + m)
    assert values(order(ONES, np.full(5, 2, "float32"), m=np.float32(3))) == [[123.0]] * 4


def test_structures_in_and_out():
    @jit
    def split(batch, extra=None):
        return {"sum": batch["a"] + batch["b"][0], "nothing": extra, "deep": [(batch["a"],)]}

    out = split({"a": ONES, "b": (ONES, "ignored")})
    assert values(out["sum"]) == (ONES * 2).tolist()
    assert out["nothing"] is None
    assert values(out["deep"][0][0]) == ONES.tolist()


def test_what_is_no_tensor_comes_back_as_it_is_and_dicts_in_their_order():
    told = jit(lambda x, name: {"y": x * 2, "name": name, "rows": x.shape[0], "all": [(True, None)]})
    for name in ("net", "net", "other"):
        out = told(ONES, name)
        assert list(out) == ["y", "name", "rows", "all"] and values(out.pop("y")) == (ONES * 2).tolist()
        assert out == {"name": name, "rows": 4, "all": [(True, None)]} and type(out["rows"]) is int
    assert told.trace_count == 2


def test_structures_of_the_same_leaves_are_not_mixed_up():
    log, same, first = Log(), jit(lambda x: x), jit(lambda x: next(iter(x.values())))
    kinds = [type(same(x)) for x in ([ONES], (ONES,), [ONES])]
    assert kinds == [list, tuple, list] and same.trace_count == 2
    assert log.causes() == ["first call", "another structure of the arguments"]
    assert [values(first(x))[0][0] for x in ({"a": ONES, "b": ONES * 2}, {"b": ONES * 2, "a": ONES})] == [1.0, 2.0]


def test_empty_structures_are_not_mixed_up():
    shift = jit(lambda x, options: x + int("a" in options) + 2 * isinstance(options, list))
    assert [values(shift(ONES, x))[0][0] for x in ({}, {"a": {}}, [], {})] == [1.0, 2.0, 3.0, 1.0]
    assert shift.trace_count == 3


def test_int64_ids_and_nan():
    assert values(jit(lambda ids: ids + 1)(np.array([1, 2], "int64"))) == [2, 3]
    assert np.isnan(values(jit(lambda x: x + 1)(np.array([np.nan], "float32")))).all()


def test_a_float_is_another_one_if_its_sign_is_and_nan_is_the_same():
    scale = jit(lambda x, factor: x * factor)
    signs = [np.signbit(values(scale(ONES[:1], factor))).all() for factor in (0.0, -0.0)]
    assert signs == [False, True]
    before = scale.trace_count
    scale(ONES, float("nan")), scale(ONES, float("nan"))
    assert scale.trace_count == before + 1


@dataclasses.dataclass(frozen=True)
class Factor:
    value: float | complex | tuple


def test_equal_values_of_other_types_are_others_in_a_dataclass_too():
    scale = jit(lambda x, factor: x * (factor.value[0] if isinstance(factor.value, tuple) else factor.value))
    signs = [np.signbit(values(scale(ONES, Factor(value)))).all() for value in (0.0, -0.0, (0.0,), (-0.0,))]
    assert signs == [False, True, False, True]
    for value in (0.0, 0, 0.0):
        scale(ONES, Factor((value,)))
    assert scale.trace_count == 4 + 1


def test_tables_that_change_in_place_are_no_variables():
    class Table:
        __hash__ = None
        assign = dict

    with pytest.raises(TypeError, match=r"x of type Table, which is neither a tensor nor hashable"):
        jit(lambda x: x)(Table())


def test_a_method_of_a_dataclass_without_a_hash_says_how_to_get_one():
    @dataclasses.dataclass
    class Scale:
        factor: float

        @jit
        def call(self, x):
            return x * self.factor

    with pytest.raises(TypeError, match=r"self of type Scale.*Give the dataclass frozen=True or eq=False\."):
        Scale(2.0).call(ONES)
    with pytest.raises(TypeError, match=r"hashable static values\.") as error:
        jit(lambda x: x)(Factor([1]))  # which is frozen
    assert "Give the dataclass" not in str(error.value)


def test_variables_are_read_and_assigned_live():
    counter = keras.Variable(np.zeros(3, "float32"))

    @jit
    def count(x):
        counter.assign_add(x)
        return counter * 2

    one = np.ones(3, "float32")
    assert values(count(one)) == [2.0, 2.0, 2.0]
    counter.assign(np.full(3, 10, "float32"))
    assert values(count(one)) == [22.0, 22.0, 22.0]
    assert values(counter.value) == [11.0, 11.0, 11.0]
    assert count.trace_count == 1


def test_layers_that_are_built_inside():
    dense = keras.layers.Dense(2)
    fast = jit(lambda x: dense(x))
    assert np.allclose(fast(ONES), dense(ONES), atol=1e-6)
    dense.kernel.assign(dense.kernel * 0)
    assert values(fast(ONES)) == np.zeros((4, 2)).tolist()


def test_models_and_random_layers():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(64), keras.layers.Dropout(0.5)], name="net")
    fast = jit(model)
    assert np.allclose(fast(ONES), model(ONES), atol=1e-6)
    assert values(fast(ONES, training=True)) != values(fast(ONES, training=True))
    assert fast.trace_count == 2
    assert "net" in repr(fast)


def test_bound_methods_and_decorated_methods():
    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        def plain(self, x):
            return x * self.factor

        @jit
        def decorated(self, x):
            return x * self.factor

    two, three = Scaler(2.0), Scaler(3.0)
    assert values(jit(two.plain)(ONES)) == (ONES * 2).tolist()
    assert values(two.decorated(ONES)) == (ONES * 2).tolist()
    assert values(three.decorated(ONES)) == (ONES * 3).tolist()
    assert Scaler.decorated.trace_count == 2


def test_a_method_goes_with_its_instance():
    class Scorer(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        @jit(on_recompile="raise")
        def score(self, x):
            return self.dense(x)

    kept = Scorer()
    kept.score(ONES)
    kernels = []
    for _ in range(3):
        scorer = Scorer()
        assert np.allclose(scorer.score(ONES), scorer.dense(ONES), atol=1e-6)
        kernels.append(weakref.ref(scorer.dense.kernel))
    del scorer
    gc.collect(), gc.collect()  # of the instances, and of their functions
    assert all(kernel() is None for kernel in kernels)
    kept.score(ONES)
    assert Scorer.score.trace_count == kept.score.trace_count == 4
    with pytest.raises(RecompileError):
        kept.score(ONES[:2])
    assert np.allclose(Scorer().score(ONES), 0, atol=10)  # nobody else holds that one


def test_instances_that_are_equal_share_an_executable():
    @dataclasses.dataclass(frozen=True)
    class Scale:
        factor: float

        @jit
        def scaled(self, x):
            return x * self.factor

    for _ in range(3):
        assert values(Scale(2.0).scaled(ONES)) == (ONES * 2).tolist()
    assert Scale.scaled.trace_count == 1


class TestLayersThatChange:
    def test_other_weights_compile_again(self):
        dense = keras.layers.Dense(8)
        for fast, call in ((jit(dense), dense), (jit(dense.call), dense.call)):
            assert np.allclose(fast(ONES), call(ONES), atol=1e-6)
            fast(ONES)
            assert fast.trace_count == 1
        fast, log = jit(dense, on_recompile="log"), Log()
        fast(ONES)
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(np.ones(dense.lora_kernel_b.shape))
        assert np.allclose(fast(ONES), dense(ONES), atol=1e-6)
        assert [event.cause for event in log.new()] == ["first call", "other weights, or others of them trainable"]
        dense.quantize("int8")
        assert np.allclose(fast(ONES), dense(ONES), atol=1e-6)
        fast(ONES)
        assert fast.trace_count == 3

    def test_a_frozen_layer_is_frozen(self):
        norm = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((3,)), norm])
        fast = jit(model)
        fast(ONES, training=True)
        model.trainable = False
        before = values(norm.moving_mean)
        fast(ONES, training=True)
        assert values(norm.moving_mean) == before and fast.trace_count == 2
        model.trainable = True
        fast(ONES, training=True)
        assert values(norm.moving_mean) != before and fast.trace_count == 2

    def test_training_reaches_the_layers_inside_of_one_that_does_not_know_it(self):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.dropout = keras.layers.Dropout(0.5)

            def call(self, x):
                return self.dropout(x)

        fast = jit(Net())
        assert values(fast(ONES)) == values(fast(ONES, training=False)) == ONES.tolist()
        assert (np.asarray(fast(ONES, training=True)) != 1).any()


def test_threads_lose_no_update_and_draw_no_number_twice():
    counter, seed = keras.Variable(0.0), keras.random.SeedGenerator(0)
    add = jit(lambda x: counter.assign_add(x))
    draw = jit(lambda: keras.random.uniform((), seed=seed))
    one, drawn = np.float32(1), []
    add(one), draw()

    def work():
        for _ in range(100):
            add(one)
            drawn.append(float(draw()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(counter.value) == 401
    assert len(set(drawn)) == 400


def test_an_array_may_change_once_the_call_has_returned():
    total, buffer = jit(lambda x: keras.ops.sum(keras.ops.tanh(x @ x) * 0 + x)), np.zeros((256, 256), "float32")
    made = []
    for value in range(5):
        buffer[:] = value
        made.append(total(buffer))
    buffer[:] = -1
    assert [float(x) / buffer.size for x in made] == [0, 1, 2, 3, 4]


def test_what_takes_no_instance_takes_none_as_an_attribute_of_a_class():
    class Net:
        layer = jit(keras.layers.ReLU())
        bound = jit(keras.layers.ReLU().call)

        @jit
        @staticmethod
        def static(x):
            return x * 2

    assert values(Net().layer(-ONES)) == values(Net().bound(-ONES)) == (ONES * 0).tolist()
    assert values(Net().static(ONES)) == values(Net.static(ONES)) == (ONES * 2).tolist()


def test_signature_and_copies_are_those_of_the_function():
    class Scaler:
        factor = 2.0

        def plain(self, x):
            return x * self.factor

        fast = jit(plain)

    double, scaler = jit(lambda x, *, factor=2: x * factor), Scaler()
    assert str(inspect.signature(double)) == "(x, *, factor=2)" and str(inspect.signature(scaler.fast)) == "(x)"
    assert copy.deepcopy(double) is double
    bound = jit(scaler.plain)
    assert values(bound(ONES)) == (ONES * 2).tolist()
    copied = copy.deepcopy({"scaler": scaler, "bound": bound})
    copied["scaler"].factor = 3.0
    assert values(copied["bound"](ONES)) == (ONES * 3).tolist()


def test_inside_another_compiled_function_it_becomes_a_part_of_that():
    inner = jit(lambda x: x + 1)
    outer = jit(lambda x: inner(x) * 2)
    assert values(outer(ONES)) == (ONES * 4).tolist()
    assert (inner.trace_count, outer.trace_count) == (0, 1)


def test_a_constant_may_be_padded_inside_another_compiled_function():
    inner = jit(lambda y: y * 2, buckets={"y": {0: (8,)}})
    outer = jit(lambda x: x + inner(np.ones(3, "float32")))
    assert values(outer(np.ones(3, "float32"))) == [3.0, 3.0, 3.0]


def test_with_an_input_of_keras_it_becomes_a_part_of_the_model():
    inputs, double = keras.Input((3,)), jit(lambda x: x * 2, buckets={"x": {0: "pow2"}})
    model = keras.Model(inputs, double(inputs))
    assert values(model(ONES)) == (ONES * 2).tolist()
    assert double.trace_count == 0


def test_positional_and_keyword_collections():
    @jit
    def add(*parts, **named):
        return sum(parts) + named["last"]

    assert values(add(ONES, ONES, last=ONES)) == (ONES * 3).tolist()


def test_an_argument_may_be_called_self():
    assert values(jit(lambda self, x: x * self)(self=2, x=ONES)) == (ONES * 2).tolist()


def test_raise_on_recompile():
    fast = jit(lambda x: x, on_recompile="raise", name="fixed")
    fast(ONES)
    log = Log()
    with pytest.raises(RecompileError, match=r"fixed would compile again: argument x: \(4, 3\) -> \(2, 3\)"):
        fast(ONES[:2])
    fast(ONES * 2)
    assert fast.trace_count == 1
    assert log.new() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_recompile": "warn"}, r'on_recompile=\'warn\'; it expects "log" or "raise"'),
        ({"buckets": {"y": {0: (1,)}}}, "argument 'y'; it expects one of its arguments: x"),
        ({"buckets": {"x": {-1: (1,)}}}, "axis -1 .* 0 or more"),
        ({"buckets": {"x": "pow2"}}, r"buckets\['x'\] of type str; it expects a dict"),
        ({"buckets": [8, 32]}, "buckets of type list; it expects a dict"),
        ({"pad_value": None}, "pad_value=None; it expects a number"),
        ({"buckets": {"x": {0: ()}}}, "expects positive ints"),
        ({"buckets": {"x": {0: "pow3"}}}, 'expects positive ints or "pow2"'),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        jit(lambda x: x, **options)


class Foreign:
    """An array of another library: what its values are, it tells NumPy alone."""

    def __init__(self, values):
        self.values = np.array(values, "float32")
        self.shape, self.dtype = self.values.shape, "its own"

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


@pytest.mark.parametrize("made", ["torch", Foreign])
def test_arrays_of_other_libraries_may_change_their_values(made):
    made = pytest.importorskip("torch").tensor if made == "torch" else made
    fast = jit(lambda x: x * 2, buckets={"x": {0: (4,)}})
    given = made([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(fast(given), [2, 4, 6])
    inside = given.values if isinstance(given, Foreign) else given
    inside[0] = 5.0
    np.testing.assert_array_equal(fast(given), [10, 4, 6])
    np.testing.assert_array_equal(fast(made([3.0, 2.0, 1.0, 0.0])), [6, 4, 2, 0])
    assert fast.trace_count == 1


def test_a_number_that_is_made_of_padding_is_no_answer():
    fast = jit(lambda x: {"rows": x.shape[0], "width": x.shape[1], "y": x * 2}, buckets={"x": {0: (4, 8)}})
    assert fast(ONES)["rows"] == 4  # which is right: nothing was padded
    with pytest.raises(ValueError, match="its output 0 is 4, which follows from the padding"):
        fast(ONES[:3])
    assert jit(lambda x: (x * 2, x.shape[1]), buckets={"x": {0: (4,)}})(ONES[:3])[1] == 3


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow converts Python")
def test_where_tensorflow_converts_python_it_is_a_part_of_the_graph_without_a_word(caplog):
    import tensorflow as tf

    fast = jit(lambda x: x * 2)

    @tf.function
    def step(x):
        return fast(x)

    with caplog.at_level("WARNING"):
        assert step(tf.constant(3.0)).numpy() == 6.0
        mapped = tf.data.Dataset.from_tensor_slices([1.0, 2.0]).map(fast)
        assert [float(x) for x in mapped] == [2.0, 4.0]
    assert not [record for record in caplog.records if "AutoGraph" in record.getMessage()]


def test_wrong_arguments():
    with pytest.raises(TypeError, match="received int; it expects a function"):
        jit(3)
    with pytest.raises(TypeError, match=r"x of type set, which is neither a tensor nor hashable"):
        jit(lambda x: x)({1, 2})


def test_buckets_pad_and_cut_back():
    @jit(buckets={"x": {0: (2, 8)}}, pad_value=-1)
    def total(x):
        return {"rows": x * 2, "all": keras.ops.sum(x)}

    out = total(ONES[:3])
    assert out["rows"].shape == (3, 3)
    assert values(out["all"]) == 9 - 5 * 3
    for size in (3, 4, 1, 2):
        assert total(ONES[:size])["rows"].shape == (size, 3)
    assert total.trace_count == 2
    with pytest.raises(ValueError, match=r"'x' with size 9 on axis 0; its largest bucket is 8"):
        total(np.ones((9, 3), "float32"))


@pytest.mark.parametrize("first", ["x", "y"])
def test_an_output_is_cut_once_though_it_then_has_the_size_of_another_bucket(first):
    buckets = {"x": {0: (8,)}, "y": {0: (4,)}}
    both = jit(lambda x, y: (x, y), buckets={name: buckets[name] for name in sorted(buckets, key=lambda n: n != first)})
    assert [len(out) for out in both(np.arange(4.0), np.arange(3.0))] == [4, 3]


def test_an_output_that_only_happens_to_have_the_size_of_a_bucket_stays_whole():
    table = np.random.default_rng(0).normal(size=(9, 8)).astype("float32")

    @jit(buckets={"ids": {1: (8, 16)}})
    def mean(ids, other):
        mask = keras.ops.cast(ids > 0, "float32")[..., None]
        rows = keras.ops.take(keras.ops.convert_to_tensor(table), ids, axis=0)
        return keras.ops.sum(rows * mask, 1) / keras.ops.sum(mask, 1), other * 2

    ids, other = np.arange(1, 6)[None], np.ones((2, 8), "float32")
    made, doubled = mean(ids, other)
    np.testing.assert_allclose(values(made), table[ids].mean(1), rtol=1e-5)
    assert doubled.shape == (2, 8)
    assert mean(np.arange(1, 4)[None], other)[0].shape == (1, 8) and mean.trace_count == 1


def test_each_axis_that_follows_a_padded_one_is_cut_wherever_it_is():
    cross = jit(
        lambda x: (keras.ops.matmul(x, keras.ops.transpose(x)), keras.ops.transpose(x)), buckets={"x": {0: (8,)}}
    )
    square, turned = cross(ONES[:3])
    assert square.shape == (3, 3) and turned.shape == (3, 3)
    wide = np.arange(10.0, dtype="float32").reshape(5, 2)
    np.testing.assert_allclose(values(cross(wide)[0]), wide @ wide.T)
    np.testing.assert_allclose(values(cross(wide)[1]), wide.T)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[1:],
        lambda x: x[::2],
        lambda x: keras.ops.reshape(x, (-1,)),
        lambda x: keras.ops.concatenate([x, x]),
        lambda x: keras.ops.pad(x, [[0, -x.shape[0] % 4], [0, 0]]),
        lambda x: x[: min(x.shape[0] // 2, 4)],
    ],
    ids=["shorter", "thinned", "flat", "joined", "rounded up", "half of it up to a limit"],
)
def test_padding_that_cannot_be_cut_off_is_an_error(make):
    with pytest.raises(ValueError, match=r"its output 1 of shape \(.*\) has the padding in axis 0"):
        jit(lambda x: (x, make(x)), buckets={"x": {0: (8,)}})(ONES[:3])


@pytest.mark.parametrize(
    "make",
    [lambda x: x + np.ones((8, 1), "float32"), lambda x: keras.ops.reshape(x, (24,))[:8]],
    ids=["rows", "others"],
)
def test_of_a_function_for_one_size_alone_nobody_can_tell_what_follows_that_size(make):
    """The eight numbers of the second one are no rows."""
    only = jit(make, buckets={"x": {0: (8,)}})
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"its output 0 of shape \(8.*\) has an axis of the padded size 8, and it runs"
        ):
            only(ONES[:3])
        assert only(np.ones((8, 3), "float32")).shape[0] == 8  # which are not padded
    assert only.trace_count == 1


def test_outputs_of_a_function_for_one_size_alone_that_have_other_sizes_are_whole():
    table = np.ones((24, 5), "float32")
    only = jit(lambda x: keras.ops.matmul(keras.ops.reshape(x, (1, 24)), table), buckets={"x": {0: (8,)}})
    assert values(only(ONES[:3])) == [[9.0] * 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: keras.ops.concatenate([x[::2], x[::2]]),
        lambda x: x[: x.shape[0] // 2 * 2],
        lambda x: keras.ops.repeat(keras.ops.average_pool(x[None], 2, 2, "same")[0], 2, axis=0),
    ],
    ids=["halves", "even", "down and up"],
)
def test_padding_in_outputs_of_a_multiple_of_two_is_an_error(make):
    for sizes in ("pow2", (8, 16), (4, 6)):
        with pytest.raises(ValueError, match=r"its output 0 of shape \(.*\) has the padding in axis 0"):
            jit(make, buckets={"x": {0: sizes}})(ONES[:3])


@pytest.mark.parametrize("sizes", [[np.int64(4), np.int32(8)], np.array([8, 4]), range(4, 9, 4)], ids=str)
def test_sizes_may_be_numbers_of_numpy(sizes):
    fast = jit(lambda x: x * 2, buckets={"x": {0: sizes}})
    assert [fast(ONES[:n]).shape[0] for n in (1, 3, 4)] == [1, 3, 4] and fast.trace_count == 1


def test_python_runs_where_users_ask_for_it():
    def noted(x):
        seen.append(type(x))
        return x * 2

    if keras.backend.backend() == "jax":
        import jax

        eagerly = jax.disable_jit
    else:
        import tensorflow as tf

        @contextlib.contextmanager
        def eagerly():
            tf.config.run_functions_eagerly(True)
            try:
                yield
            finally:
                tf.config.run_functions_eagerly(False)

    seen, fast = [], jit(noted)
    with eagerly():
        for n in (1, 2):
            assert values(fast(ONES)) == (ONES * 2).tolist() and len(seen) == n
    assert fast.trace_count == 0
    fast(ONES)
    assert fast.trace_count == 1


def test_a_partial_of_a_model_has_the_weights_of_the_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    fast = jit(functools.partial(model, training=False))
    np.testing.assert_allclose(values(fast(ONES)), values(model(ONES)), rtol=1e-5)
    model.layers[0].enable_lora(1)
    model.layers[0].lora_kernel_b.assign(np.ones((1, 2)))
    np.testing.assert_allclose(values(fast(ONES)), values(model(ONES)), rtol=1e-5)
    assert fast.trace_count == 2


def test_another_layer_without_weights_is_noticed():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Activation("relu")])
    fast = jit(model)
    assert values(fast(-ONES)) == (0 * ONES).tolist()
    model.pop()
    model.add(keras.layers.Activation("tanh"))
    np.testing.assert_allclose(values(fast(-ONES)), np.tanh(-ONES), rtol=1e-5)
    assert fast.trace_count == 2


def test_weights_that_a_layer_has_no_longer_are_let_go_of():
    layer = keras.layers.Dense(2)
    fast = jit(layer)
    fast(ONES)
    fast(ONES[:2])
    kernel = weakref.ref(layer.kernel)
    layer.quantize("int8")
    fast(ONES)
    gc.collect()
    assert kernel() is None and fast.trace_count == 3
    fast(ONES)
    assert fast.trace_count == 3


def test_heads_that_come_back_find_their_executables():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    fast, heads = jit(model), [keras.layers.Dense(n) for n in (1, 2)]
    for n in (0, 1, 0, 1, 0):
        model.add(heads[n])
        np.testing.assert_allclose(values(fast(ONES)), values(model(ONES)), rtol=1e-5, atol=1e-6)
        model.pop()
    assert fast.trace_count == 2


class Around:
    """No layer itself."""

    def __init__(self, layer):
        self.layer = layer

    @jit
    def decorated(self, x):
        return keras.ops.sum(self.layer(x))

    def __call__(self, x):
        return keras.ops.sum(self.layer(x))


GLOBAL = keras.layers.Dense(2, activity_regularizer="l2")


def with_global(x):
    return keras.ops.sum(GLOBAL(x))


class AroundGlobal:
    @jit
    def decorated(self, x):
        return with_global(x)

    def __call__(self, x):
        return with_global(x)


def test_layers_that_are_global_keep_their_losses():
    GLOBAL(ONES)
    expected = [float(x) for x in GLOBAL.losses]
    jitted, given = jit(with_global), functools.partial(lambda layer, x: keras.ops.sum(layer(x)), GLOBAL)
    others = jit(AroundGlobal()), jit(lambda x: jitted(x)), jit(functools.partial(with_global)), jit(given)
    for function in (jitted, AroundGlobal().decorated, *others):
        for _ in range(2):
            function(ONES)
            np.testing.assert_allclose([float(x) for x in GLOBAL.losses], expected, rtol=1e-5)


def test_what_a_function_uses_is_not_looked_through_for_long():
    class Odd:
        @property
        def __dict__(self):
            raise RuntimeError("nobody asks")

        def __call__(self, x):
            return x * len(data)

    data = [[{"a": [i]} for i in range(1000)] for _ in range(100)]
    begun = time.perf_counter()
    assert len(seen_by(lambda x: x * len(data))) <= 10_000
    assert time.perf_counter() - begun < 1.0
    assert values(jit(Odd())(ONES)) == (ONES * 100).tolist()


def test_of_sets_of_layers_the_newest_few_are_kept():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    fast = jit(model)
    for _ in range(8):
        model.add(keras.layers.Dense(1))
        fast(ONES)
        model.pop()
    assert fast.trace_count == 8 and len(fast._executables) == len(fast._held) == 4


@pytest.mark.parametrize("how", ["decorated", "method", "object", "in a dict", "in another function"])
def test_layers_that_a_function_uses_keep_their_losses(how):
    layer = keras.layers.Dense(2, activity_regularizer="l2")
    layer(ONES)
    expected, held = [float(x) for x in layer.losses], {"it": [layer]}

    def inner(x):
        return layer(x)

    function = {
        "decorated": Around(layer).decorated,
        "method": jit(Around(layer).__call__),
        "object": jit(Around(layer)),
        "in a dict": jit(lambda x: keras.ops.sum(held["it"][0](x))),
        "in another function": jit(lambda x: keras.ops.sum(inner(x))),
    }[how]
    for _ in range(2):
        function(ONES)
        np.testing.assert_allclose([float(x) for x in layer.losses], expected, rtol=1e-5)


def test_loops_behind_a_partial_are_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(TypeError, match="received predict of the model"):
        jit(functools.partial(model.predict, verbose=0))


def test_losses_of_a_model_that_a_function_is_around_are_as_without_jit():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activity_regularizer="l2")])

    def total(x):
        return keras.ops.mean(model(x)) + sum(model.losses)

    expected = total(ONES), list(map(float, model.losses))
    for fast in (jit(total), jit(functools.partial(total))):
        for _ in range(2):
            np.testing.assert_allclose(float(fast(ONES)), float(expected[0]), rtol=1e-5)
            np.testing.assert_allclose(list(map(float, model.losses)), expected[1], rtol=1e-5)


def test_a_function_whose_parameters_nobody_knows_is_refused():
    with pytest.raises(TypeError, match=r"<built-in function max>, whose parameters Python does not.*lambda x: f\(x\)"):
        jit(max)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ("pow2", 8, {5: 5, 8: 8, 9: 8, 3: 3}),
        ("pow2", 6, {3: 3, 5: 5, 7: 6, 40: 6}),
        ((8, 64), 16, {5: 5, 40: 16, 10: 10}),
        ((1, 8, 32), 4, {1: 1, 3: 3, 7: 4, 20: 4}),
    ],
)
def test_outputs_that_end_at_a_limit_have_the_size_that_they_would_have(sizes, most, expected):
    some = jit(lambda x: x[:most], buckets={"x": {0: sizes}})
    assert {rows: some(np.ones((rows, 3), "float32")).shape[0] for rows in expected} == expected


@pytest.mark.parametrize("sizes", [{0: (8, 16), 1: (4, 8)}, {0: (8,), 1: (8,)}])
def test_two_padded_axes_of_one_size_are_told_apart(sizes):
    turn = jit(keras.ops.transpose, buckets={"x": sizes})
    assert turn(np.ones((5, 7), "float32")).shape == (7, 5)


def test_two_padded_axes_of_other_sizes_are_told_apart():
    for sizes in ({0: "pow2", 1: "pow2"}, {0: (4, 8, 16), 1: (2, 4, 8)}):
        turn = jit(lambda x: (keras.ops.transpose(x), keras.ops.arange(x.shape[1])), buckets={"x": sizes})
        for shape in ((5, 3), (3, 5), (8, 3), (5, 4)):
            turned, columns = turn(np.ones(shape, "float32"))
            assert turned.shape == shape[::-1] and columns.shape == shape[1:]


def test_limits_of_several_axes():
    some = jit(lambda x: (x[:, :3], x[:4]), buckets={"x": {0: (4, 8), 1: (8,)}})
    for rows, columns in ((3, 2), (3, 5), (7, 2), (8, 8)):
        assert [out.shape for out in some(np.ones((rows, columns), "float32"))] == [
            (rows, min(columns, 3)),
            (min(rows, 4), columns),
        ]


@pytest.mark.parametrize(
    ("sizes", "shape", "multiple"),
    [({0: (8,), 1: (8,)}, (5, 7), 8), ({0: (2,), 1: (2,)}, (2, 1), 1), ({0: (8, 16), 1: (8, 16)}, (10, 13), 8)],
)
def test_axes_are_told_apart_though_the_function_is_for_few_sizes(sizes, shape, multiple):
    def turned(x):
        if any(size % multiple for size in x.shape):
            raise ValueError("not for this size")
        return keras.ops.transpose(x)

    assert jit(turned, buckets={"x": sizes})(np.ones(shape, "float32")).shape == shape[::-1]


def test_arguments_in_buckets_of_their_own_are_told_apart():
    both = jit(lambda x, y: (x, y), buckets={"x": {0: "pow2"}, "y": {0: (8, 64)}})
    assert [len(out) for out in both(np.arange(10.0), np.arange(5.0))] == [10, 5]


def test_an_axis_that_is_of_a_buckets_size_already_may_become_anything():
    thinned = jit(lambda x: x[:, ::2], buckets={"x": {0: "pow2", 1: "pow2"}})
    assert thinned(np.ones((8, 4), "float32")).shape == (8, 2)
    assert thinned(np.ones((5, 4), "float32")).shape == (5, 2)
    with pytest.raises(ValueError, match="has the padding in axis 1"):
        thinned(np.ones((5, 3), "float32"))


def test_a_variable_that_is_returned_stays_whole():
    table = keras.Variable(np.ones((8, 2), "float32"))
    turned, same = jit(lambda x: (keras.ops.transpose(x), table), buckets={"x": {0: (8,)}})(ONES[:3, :2])
    assert turned.shape == (2, 3) and same.shape == (8, 2)


def test_as_many_outputs_as_rows_are_an_error():
    for rows in (keras.ops.unstack, lambda x: x[0] if x.shape[0] == 8 else x):
        with pytest.raises(ValueError, match="the number of its outputs, or of their axes, depends on the padding"):
            jit(lambda x, rows=rows: rows(x), buckets={"x": {0: (8,)}})(ONES[:3])


def test_axes_that_have_to_agree_are_padded_alike_when_outputs_are_looked_at():
    masked = jit(
        lambda x, mask: (keras.ops.matmul(mask, x), x[:, 0] * 2),
        buckets={"x": {1: (8, 16)}, "mask": {0: (8, 16), 1: (8, 16)}},
    )
    rows, first = masked(np.ones((8, 5, 8), "float32"), np.ones((5, 5), "float32"))
    assert rows.shape == (8, 5, 8) and first.shape == (8, 8) and (np.array(values(rows)) == 5).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a loop of TensorFlow's")
def test_an_axis_whose_size_tensorflow_does_not_know_is_cut_by_the_padded_size():
    import tensorflow as tf

    @jit(buckets={"x": {0: (8,)}})
    def rows(x):
        n = tf.shape(x)[0]
        made = tf.TensorArray(tf.float32, n, element_shape=(3,))
        return tf.while_loop(lambda i, _: i < n, lambda i, t: (i + 1, t.write(i, x[i] * 2)), (0, made))[1].stack()

    assert rows(ONES[:3]).shape == (3, 3)


def test_a_call_with_padding_waits_for_no_compilation_of_another():
    compiling, go_on = threading.Event(), threading.Event()

    def slow(x):
        if x.shape[0] == 8:
            compiling.set()
            go_on.wait(30)
        return x * 2

    fast = jit(slow, buckets={"x": {0: (4, 8)}})
    go_on.set()
    fast(ONES[:3])
    compiling.clear(), go_on.clear()
    other = threading.Thread(target=fast, args=(np.ones((7, 3), "float32"),))
    other.start()
    assert compiling.wait(30)
    assert fast(ONES[:3]).shape == (3, 3)
    go_on.set()
    other.join()


def test_a_variable_and_a_seed_change_once_a_call_with_padding():
    calls, draw = keras.Variable(0.0), keras.random.SeedGenerator(1)

    @jit(buckets={"x": {0: (8,)}})
    def count(x):
        calls.assign_add(1.0)
        return x + keras.random.normal(keras.ops.shape(x), seed=draw)

    other = keras.random.SeedGenerator(1)
    first, second = count(ONES[:3]), count(ONES[:3])
    other.next(), other.next()
    assert values(calls) == 2 and values(draw.state) == values(other.state)
    assert first.shape == (3, 3) and (np.array(values(first)) != values(second)).all()


def test_two_arguments_in_one_bucket_must_have_one_size():
    add = jit(lambda x, y: x + y, buckets={"x": {0: "pow2"}, "y": {0: "pow2"}})
    assert add(ONES[:3], ONES[:3]).shape == (3, 3)
    with pytest.raises(ValueError, match="different sizes that go into the same bucket 4"):
        add(ONES[:3], ONES[:4])


POWERS = jit(lambda x: x + 1, buckets={"x": {0: "pow2", 1: "pow2"}})


@examples(25)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_power_of_two_buckets_never_change_the_answer(rows, columns):
    x = np.random.default_rng(rows * 10 + columns).normal(size=(rows, columns)).astype("float32")
    assert np.array_equal(keras.ops.convert_to_numpy(POWERS(x)), x + np.float32(1))
    assert POWERS.trace_count <= 5 * 5


def test_two_threads_compile_once():
    log, fast = Log(), jit(lambda x: keras.ops.matmul(x, keras.ops.transpose(x)))
    barrier, results = threading.Barrier(4), []

    def work():
        barrier.wait()
        for _ in range(20):
            results.append(values(fast(ONES))[0][0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [3.0] * 80
    assert fast.trace_count == len(log.new()) == 1


def test_several_threads_see_the_current_variable():
    scale = keras.Variable(2.0)
    fast = jit(lambda x: x * scale)
    fast(ONES)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(values(fast(ONES))[0][0]))
    scale.assign(7.0)
    thread.start()
    thread.join()
    assert seen == [7.0]


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (lambda x: (a for a in [x]), "generator"),
        (lambda x: [x, {1, 2}], "set"),
        (lambda x: {"one": object(), "two": map(abs, [x])}, "map"),
        (lambda x: object(), "object"),
    ],
)
def test_what_cannot_be_returned_is_named(returned, kind):
    fn = jit(returned, name="returned")
    expected = f"returned returned an object of type {kind}; keras_xla.jit takes tensors, numbers, strings and None"
    with pytest.raises(TypeError, match=expected):
        fn(np.ones(3, "float32"))
    assert fn.trace_count == 0


def test_a_failing_function_leaves_no_executable():
    def fail(x):
        raise RuntimeError("mine")

    log, fast = Log(), jit(fail)
    with pytest.raises(RuntimeError, match="mine"):
        fast(ONES)
    assert fast.trace_count == 0
    assert log.new() == []


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="what jax can trace, XLA can compile")
def test_unsupported_operations_are_named_before_anything_runs():
    import tensorflow as tf

    counter = keras.Variable(0.0)

    def spell(x):
        counter.assign_add(1.0)
        return tf.strings.as_string(x)

    with pytest.raises(XLAUnsupportedError, match=r"AsString has no XLA kernel at .*test_jit\.py:\d+"):
        jit(spell)(ONES)
    assert float(counter.value) == 0.0


class TestMasks:
    IDS = np.array([[1, 2, 0], [3, 0, 0]])

    def test_they_go_in_and_come_out(self):
        embedding, rnn = keras.layers.Embedding(10, 4, mask_zero=True), keras.layers.GRU(3)
        masked = embedding(self.IDS)
        expected, fast = values(rnn(masked)), jit(rnn)
        assert not np.allclose(expected, values(fast(keras.ops.copy(masked))))  # the mask matters
        np.testing.assert_allclose(values(fast(masked)), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values(rnn(jit(embedding)(self.IDS))), expected, rtol=1e-5, atol=1e-6)
        fast(embedding(self.IDS[::-1].copy()))
        assert fast.trace_count == 2  # with a mask, and without

    def test_they_are_padded_and_cut_as_what_they_are_on(self):
        masking = keras.layers.Masking()
        x = np.ones((2, 3, 4), "float32")
        x[1, 1:] = 0.0
        seen = []

        def run(x):
            made = masking(x)
            seen.append(mask_of(x).shape)
            return put_mask(made * 2.0, mask_of(x))

        made = jit(run, buckets={"x": {1: (8,)}})(masking(x))
        assert tuple(made.shape) == (2, 3, 4) and tuple(seen[0]) == (2, 8)
        assert values(mask_of(made)) == [[True, True, True], [True, False, False]]


def test_a_variable_that_is_returned_comes_as_its_value():
    variable = keras.Variable([1.0, 2.0])
    assert values(jit(lambda: variable)()) == [1.0, 2.0]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a tape, and ragged tensors")
class TestOnTensorFlow:
    def test_gradients_go_through_what_is_padded(self):
        import tensorflow as tf

        fast = jit(lambda x: x * x, buckets={"x": {0: (4, 8)}})
        for rows in (4, 3):
            x = tf.fill((rows,), 3.0)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = fast(x)
            assert values(tape.gradient(y, x)) == [6.0] * rows
        assert fast.trace_count == 1

    def test_the_number_to_pad_with_has_the_dtype_of_the_argument(self):
        made = jit(lambda x: keras.ops.sum(x[2:]), buckets={"x": {0: (3,)}}, pad_value=0.1)(np.ones((2,), "float64"))
        assert float(made) == 0.1

    @pytest.mark.parametrize("buckets", (None, {"rows": {1: (4,)}}))
    def test_ragged_and_sparse_tensors_are_refused_by_name(self, buckets):
        import tensorflow as tf

        for x in (tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([[0.0, 1.0]])):
            with pytest.raises(TypeError, match=r"received rows of type .*Tensor.* cannot be one dense tensor"):
                jit(lambda rows: rows, buckets=buckets)(x)


class TestPaddingThatCannotBe:
    @pytest.mark.parametrize("x", (1.0, [1.0, 2.0], "text"))
    def test_an_argument_with_buckets_is_an_array(self, x):
        with pytest.raises(
            TypeError, match=r"'x' of type \w+, which has buckets; it expects a tensor or a NumPy array"
        ):
            jit(lambda x: x, buckets={"x": {0: (4,)}})(x)

    @pytest.mark.parametrize("dtype, value", [("uint8", -1), ("int32", float("nan")), ("int32", 1.9), ("bool", 2)])
    def test_the_number_to_pad_with_fits_the_dtype(self, dtype, value):
        with pytest.raises(ValueError, match=rf"'x' of dtype {dtype} and pad_value={value}; it expects .* whole one"):
            jit(lambda x: x, buckets={"x": {0: (4,)}}, pad_value=value)(np.ones((2,), dtype))


def doubled(fn):
    """Says how its arguments were given, and doubles what it makes of them."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return 2 * fn(*args, **kwargs) + 10 * len(args) + 100 * len(kwargs)

    return wrapper


def test_a_wrapper_gets_its_arguments_as_they_were_given():
    plain = doubled(lambda x, factor=3.0: x * factor)
    fast = jit(plain, buckets={"x": {0: (4,)}})
    for args, kwargs in (((ONES,), {}), ((ONES, 2.0), {}), ((ONES,), {"factor": 2.0}), ((), {"x": ONES[:3]})):
        assert values(fast(*args, **kwargs)) == np.asarray(plain(*args, **kwargs)).tolist()
    assert fast.trace_count == 4
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        fast(ONES, y=3)


def test_a_wrapper_may_take_other_arguments_than_what_it_wraps():
    def given(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(5.0, *args)

        return wrapper

    @functools.wraps(lambda x, factor: None)
    def named(x):
        return x * 7

    assert values(jit(given(lambda factor, x: x * factor))(ONES)) == (5 * ONES).tolist()
    assert values(jit(named)(x=ONES)) == (7 * ONES).tolist()


def noted(fn):
    """Takes note of whether `training` came by its name."""

    @functools.wraps(fn)
    def wrapper(self, *args, **kwargs):
        return fn(self, *args, **kwargs) + (100 if "training" in kwargs else 0)

    return wrapper


class Noted:
    @jit(buckets={"x": {0: (4, 8)}})
    @noted
    def step(self, x, training=False):
        return x + training


def test_so_does_a_wrapper_of_a_method():
    thing, x = Noted(), ONES[:3]
    for args, kwargs in (((x,), {}), ((x, True), {}), ((x,), {"training": True})):
        expected = x + bool(args[1:] or kwargs) + (100 if kwargs else 0)
        assert values(thing.step(*args, **kwargs)) == expected.tolist()
        assert values(thing.step(*args, **kwargs)) == expected.tolist()
    assert thing.step.trace_count == 3


def test_so_does_a_wrapper_of_what_has_a_signature_to_copy():
    inner = jit(lambda x, factor: x * factor)
    assert "__signature__" in vars(inner)
    fast = jit(doubled(inner))
    assert values(fast(ONES, factor=2.0)) == (4 * ONES + 110).tolist()


def test_buckets_know_the_names_behind_a_partial():
    fast = jit(functools.partial(doubled(lambda x, factor: x * factor), factor=2.0), buckets={"x": {0: (4,)}})
    assert values(fast(ONES[:3])) == (4 * ONES[:3] + 110).tolist() and fast(ONES).shape == (4, 3)
    assert fast.trace_count == 1


@pytest.mark.parametrize("default", [np.ones(3, "float32"), float("nan")], ids=["array", "nan"])
def test_defaults_that_do_not_compare_are_no_reason_to_take_a_function_for_a_wrapper(default):
    def fn(x, w=default, **options):
        return x * w

    fast = jit(fn)
    for made in (fast(ONES), fast(x=ONES)):
        np.testing.assert_array_equal(np.asarray(made), ONES * default)
    assert fast.trace_count == 1
    assert values(jit(functools.partial(fn, w=ONES[0]))(ONES)) == ONES.tolist()


def test_buckets_know_the_own_names_of_a_wrapper():
    def giving(fn):
        @functools.wraps(fn)
        def wrapper(x, *args, **kwargs):
            return fn(2.0, x, *args, **kwargs)

        return wrapper

    fast = jit(giving(lambda params, x, y=0.0: x * params + y), buckets={"x": {0: (8,)}})
    assert values(fast(ONES)) == (2 * ONES).tolist() and values(fast(ONES[:2], 1.0)) == (2 * ONES[:2] + 1).tolist()
    assert fast.trace_count == 2


def test_a_partial_of_a_wrapper_with_an_argument_of_its_own():
    def scaled(fn):
        @functools.wraps(fn)
        def wrapper(*args, scale=1.0, **kwargs):
            return scale * fn(*args, **kwargs)

        return wrapper

    assert values(jit(functools.partial(scaled(lambda x: x), scale=3.0))(ONES)) == (3 * ONES).tolist()


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=1)

    @jit
    def mix(self, x):
        return self.dropout(x)

    def call(self, x, training=None):
        return self.mix(x)


@pytest.mark.parametrize("first", [True, False])
def test_what_layers_around_a_call_were_told_counts(first, new_events):
    block, x = Block(), np.ones((8, 8), "float32")
    for training in (first, not first, first):
        assert (0.0 in np.asarray(block(x, training=training))) == training
    assert [event.cause for event in new_events("function")][1:] == [
        "layers around the call were told otherwise, such as training"
    ]


def test_the_cause_is_told_after_other_calls_too(new_events):
    block, one, two = Block(), np.ones((4, 8), "float32"), np.ones((2, 8), "float32")
    for x, training in ((one, True), (two, False), (one, True), (one, False)):
        block(x, training=training)
    assert new_events("function")[-1].cause.startswith("layers around the call were told otherwise")


def test_a_default_may_be_said():
    dropout = keras.layers.Dropout(0.5, seed=1)
    fast = jit(dropout, on_recompile="raise")
    for options in ({}, {"training": False}):
        assert values(fast(ONES, **options)) == ONES.tolist()
    with pytest.raises(RecompileError, match="training"):
        fast(ONES, training=True)


def test_training_may_be_an_array():
    class Told(keras.layers.Layer):
        def call(self, x, training=False):
            return keras.ops.where(training, x, -x)

    fast = jit(Told())
    for training in (True, False):
        assert values(fast(ONES, training=np.array(training))) == (ONES if training else -ONES).tolist()
    assert fast.trace_count == 1
    block, x = Block(), np.ones((8, 8), "float32")
    for training in (True, False):
        assert (0.0 in np.asarray(block(x, training=np.bool_(training)))) == training


class Several(keras.layers.Layer):
    """Takes any number of tensors."""

    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5, seed=1)

    def call(self, *tensors):
        return self.dropout(sum(tensors))


def test_a_layer_with_any_number_of_tensors_is_told_too():
    several = jit(Several())

    class Around(keras.layers.Layer):
        def call(self, x, training=None):
            return several(x, x)

    around, x = Around(), np.ones((8, 8), "float32")
    for training in (True, False, True):
        assert (0.0 in np.asarray(around(x, training=training))) == training
    assert 0.0 in np.asarray(several(x, x, training=True)) and 0.0 not in np.asarray(several(x, x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "mixed_float16"])
def test_weights_have_their_own_dtypes(dtype):
    layer = keras.layers.Dense(4, dtype=dtype)
    expected, made = layer(ONES), jit(layer)(ONES)
    assert made.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(made, "float32"), np.asarray(expected, "float32"), rtol=0.02)


def test_what_a_layer_around_is_told_reaches_one_that_has_a_default():
    rnn = jit(keras.layers.GRU(4, dropout=0.5, seed=1))

    class Around(keras.layers.Layer):
        def call(self, x, training=None):
            return rnn(x)

    around, x = Around(), np.ones((2, 5, 3), "float32")
    told, untold = (np.asarray(around(x, training=training)) for training in (True, False))
    assert not np.allclose(told, untold)
    np.testing.assert_allclose(untold, np.asarray(rnn(x, training=False)), atol=1e-6)


def test_a_layer_among_the_arguments_compiles_again_once_it_is_frozen():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))
    step, x = jit(lambda layer, x: layer(x, training=True)), np.arange(12, dtype="float32").reshape(4, 3)
    assert abs(np.asarray(step(layer, x)).mean()) < 1e-3
    step(layer, x)
    assert step.trace_count == 1
    layer.trainable = False
    np.testing.assert_allclose(np.asarray(step(layer, x)), np.asarray(layer(x, training=True)), rtol=1e-5)
    assert step.trace_count == 2


def test_two_threads_may_build_one_among_the_arguments():
    layer, step = keras.layers.Dense(2), jit(lambda layer, x: layer(x), on_recompile="raise")
    threads = [threading.Thread(target=lambda: made.append(step(layer, ONES))) for _ in range(4)]
    made = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and step.trace_count == 1


def test_one_that_is_built_in_the_call_compiles_once(new_events):
    layer, step = keras.layers.Dense(2), jit(lambda layer, x: layer(x))
    for _ in range(2):
        step(layer, ONES)
    assert step.trace_count == 1
    layer.trainable = False
    step(layer, ONES)
    assert new_events("function")[-1].cause.endswith("has changed")


@jit
def tripled(x):
    return x * 3


def test_it_can_be_pickled():
    assert pickle.loads(pickle.dumps(tripled)) is tripled  # by its name, as a function
    again = pickle.loads(pickle.dumps(jit(np.square, name="squared")))
    assert again.__name__ == "squared" and again.trace_count == 0
    assert copy.copy(tripled) is tripled


@pytest.mark.parametrize("options", [dict(activity_regularizer="l2"), dict(kernel_regularizer="l2")], ids=str)
def test_losses_of_layers_count_inside(options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, **options)])

    def total(x):
        return keras.ops.mean(model(x)) + sum(model.losses)

    expected = float(total(ONES))
    assert float(model.losses[0]) > 0
    fast = jit(total)
    for _ in range(2):
        np.testing.assert_allclose(float(fast(ONES)), expected, rtol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only on TensorFlow does Keras read them")
def test_probabilities_bring_the_logits_that_they_were_made_of():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Activation("softmax")])
    x, y, loss = np.array([[0.0, 60.0]], "float32"), np.array([0]), keras.losses.SparseCategoricalCrossentropy()
    fast = jit(model, buckets={"inputs": {0: (4,)}})
    for _ in range(2):
        assert float(loss(y, fast(x))) == float(loss(y, model(x))) == 60.0
    assert fast.trace_count == 1


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only on TensorFlow does Keras read them")
def test_probabilities_take_along_the_logits_that_they_were_made_of():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Activation("softmax")])
    loss, y = keras.losses.SparseCategoricalCrossentropy(), np.array([0])
    probabilities = model(np.array([[0.0, 60.0]], "float32"))
    for fast in (jit(loss), jit(loss.call, buckets={"y_true": {0: (4,)}, "y_pred": {0: (4,)}})):
        for _ in range(2):
            assert float(keras.ops.sum(fast(y, probabilities))) == 60.0
        assert fast.trace_count == 1


@pytest.mark.parametrize(
    ("function", "made"),
    [
        (keras.ops.sigmoid, list),
        (keras.ops.sigmoid, np.array),
        (keras.ops.softmax, np.array),
        (keras.ops.softmax, keras.ops.convert_to_tensor),
    ],
)
def test_probabilities_are_arguments_like_others_whatever_they_were_made_of(function, made):
    given = made(ONES.tolist())
    double, rows = jit(lambda p: p * 2), jit(lambda p: p * 2, buckets={"p": {0: (8,)}})
    for fast in (double, rows, double, rows):
        np.testing.assert_allclose(values(fast(function(given))), values(function(given) * 2), rtol=1e-6)
    assert double.trace_count == rows.trace_count == 1


def test_probabilities_of_a_model_go_into_a_metric():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    metric = keras.metrics.SparseCategoricalAccuracy()
    for _ in range(2):
        jit(metric.update_state)(np.zeros(4), model(ONES))
    assert float(metric.result()) in (0.0, 1.0) and float(metric.count.value) == 8


def test_values_of_a_stateless_scope_count_within_it_and_no_longer():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    fast, late, x = jit(layer), jit(layer), np.ones((1, 2), "float32")
    assert values(fast(x)) == [[2.0]]
    with keras.StatelessScope([(layer.kernel, keras.ops.full((2, 1), 5.0))]):
        assert values(fast(x)) == values(late(x)) == [[10.0]]
    assert values(fast(x)) == values(late(x)) == [[2.0]]


@pytest.mark.quick_on_jax
@pytest.mark.parametrize("how", [dict(run_eagerly=True), dict(jit_compile=False), {}], ids=str)
def test_in_the_steps_of_a_model_it_has_the_values_of_that_step(how):
    """On JAX Keras takes the values off the variables meanwhile, and a method without arguments is traced by nobody."""

    class Block(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 2), initializer="ones")
            self.scale = self.add_weight(shape=(2,), initializer="ones")

        @jit
        def mix(self, x):
            return keras.ops.matmul(x, self.kernel)

        def table(self):
            return 2.0 * self.scale

        def call(self, x):
            return self.mix(x) * self.table()

    def made(kind):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), kind()])
        model.compile("sgd", "mse", **how)
        x, y = np.ones((4, 3), "float32"), np.zeros((4, 2), "float32")
        first = model.predict(x, verbose=0)
        model.fit(x, y, epochs=2, verbose=0)
        return [first, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0), *model.get_weights()]

    class Plain(Block):
        def mix(self, x):
            return keras.ops.matmul(x, self.kernel)

    class AllOfIt(Block):
        table = jit(Block.table)

    expected = made(Plain)
    for kind in (Block, AllOfIt):
        for a, b in zip(made(kind), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_first_call_that_fails_leaves_layers_as_it_would_without_xla():
    layer = keras.layers.Dense(2)
    fast, x = jit(lambda x, y: layer(x) + y), np.ones((4, 3), "float32")
    with pytest.raises(Exception, match=r"(?i)shape|dimension"):
        fast(x, np.ones((4, 3), "float32"))
    np.testing.assert_allclose(fast(x, np.ones((4, 2), "float32")), values(layer(x) + 1.0), rtol=1e-6)
    assert len(layer.get_weights()) == 2


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX has no such decorator in keras.ops")
def test_a_gradient_of_ones_own():
    import tensorflow as tf

    square = jit(keras.ops.custom_gradient(lambda x: (x * x, lambda upstream: upstream * 7 * x)))
    x = tf.Variable([3.0])
    with tf.GradientTape() as tape:
        y = square(tf.convert_to_tensor(x))
    assert values(y) == [9.0] and values(tape.gradient(y, x)) == [21.0]
