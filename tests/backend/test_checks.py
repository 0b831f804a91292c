"""Values that TensorFlow's kernels refuse and XLA takes in silence: known before a compiled step runs, or within it."""

import contextlib

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX plain Keras is compiled by XLA, too, and checks nothing", allow_module_level=True)

import tensorflow as tf

from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.partial.split import NotSplittable, split
from tests import examples

TABLE = np.arange(10, dtype="float32").reshape(5, 2)
ROWS = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")


def ints(*values, dtype="int32"):
    return np.array(values, dtype)


def checks_of(function, *arguments, opened=True):
    """The checks in a function, traced for arguments with an open first axis, and the plain function."""
    arguments = [*map(tf.convert_to_tensor, arguments)]
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
    traced = [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in specs] if opened else specs
    plain = tf.function(function, autograph=False)
    return Checks(plain.get_concrete_function(*traced), specs), plain


def holds(checks, *arguments):
    arguments = [*map(tf.convert_to_tensor, arguments)]
    return bool(tf.function(lambda *flat: checks.predicate(flat), autograph=False)(*arguments))


def raised(run, *arguments):
    """The error of a call, as its type and the operations that it names."""
    with pytest.raises(tf.errors.OpError) as caught:
        run(*map(tf.convert_to_tensor, arguments))
    return type(caught.value), caught.value.message


def gathered(ids):
    return tf.gather(TABLE, ids)


COMPUTED = tf.Variable(np.eye(5, dtype="float32"))
VARIABLE = tf.Variable(np.zeros((5, 2), "float32"))


def slices(ids):
    return tf.IndexedSlices(tf.ones_like(ids, tf.float32)[:, None] * [[1.0, 1.0]], ids)


PLACE = ints([1], [4])
KINDS = {
    "gather": (gathered, ints(0, 4), [ints(0, 5), ints(-1, 0)]),
    "gather of 64 bits": (gathered, ints(0, 4, dtype="int64"), [ints(0, 2**40, dtype="int64")]),
    "gather in rows": (lambda i: tf.gather(ROWS[:2], i, axis=1, batch_dims=1), ints([4], [0]), [ints([5], [0])]),
    "gather of a variable": (lambda i: tf.gather(VARIABLE, i), ints(0, 4), [ints(0, 5)]),
    "gather_nd": (lambda i: tf.gather_nd(TABLE, i), ints([4, 1]), [ints([1, 2]), ints([5, 0]), ints([0, -1])]),
    "labels": (
        lambda i: tf.nn.sparse_softmax_cross_entropy_with_logits(i, tf.zeros((2, 3))),
        ints(0, 2),
        [ints(0, 3), ints(-1, 0)],
    ),
    "assertion": (lambda i: [tf.debugging.assert_less(i, 3), i * 2][1], ints(2, 1), [ints(2, 3)]),
    "numbers": (lambda x: tf.debugging.check_numerics(x, "bad"), ROWS[0], [ROWS[0] / 0, ROWS[0] * np.nan]),
    "scatter_nd": (lambda i: tf.scatter_nd(i, tf.ones(2), [5]), PLACE, [PLACE + 1, PLACE - 2]),
    "scatter to a tensor": (lambda i: tf.tensor_scatter_nd_add(tf.zeros(5), i, tf.ones(2)), PLACE, [PLACE + 1]),
    "scatter over a tensor": (lambda i: tf.tensor_scatter_nd_update(tf.zeros(5), i, tf.ones(2)), PLACE, [PLACE + 1]),
    "scatter to a variable": (lambda i: VARIABLE.scatter_add(slices(i)).value(), ints(0, 4), [ints(0, 5)]),
    "scatter over a variable": (lambda i: VARIABLE.scatter_update(slices(i)).value(), ints(0, 4), [ints(5, 0)]),
    "scatter_nd to a variable": (lambda i: VARIABLE.scatter_nd_add(i, tf.ones((2, 2))).value(), PLACE, [PLACE + 1]),
    "segments": (lambda i: tf.math.unsorted_segment_sum(tf.ones(2), i, 3), ints(-1, 2), [ints(0, 3)]),
    "greatest of segments": (lambda i: tf.math.unsorted_segment_max(tf.ones(2), i, 3), ints(-1, 2), [ints(0, 3)]),
    "quotient": (lambda i: 7 // i, ints(-1, 2), [ints(0, 3)]),
    "rest": (lambda i: 7 % i, ints(-1, 2), [ints(0, 3)]),
    "cut quotient": (lambda i: tf.truncatediv(7, i), ints(-1, 2), [ints(0, 3)]),
    "cut rest": (lambda i: tf.truncatemod(7, i), ints(-1, 2), [ints(0, 3)]),
    "power": (lambda i: tf.pow(2, i), ints(0, 3), [ints(-1, 3)]),
    "counts": (lambda i: tf.math.bincount(i, minlength=4, maxlength=4), ints(0, 9), [ints(-1, 3)]),
    "lengths": (lambda i: tf.reverse_sequence(ROWS[:2], i, 1), ints(5, 0), [ints(6, 0), ints(1, -1)]),
    "element": (
        lambda i: tf.TensorArray(tf.float32, 3, element_shape=[]).unstack(tf.zeros(3)).read(i[0]),
        ints(2),
        [ints(3)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_for_which_a_kernel_raises_are_known_before(kind):
    function, good, bad = KINDS[kind]
    checks, plain = checks_of(function, good)
    assert not checks.late
    plain(tf.convert_to_tensor(good))
    assert holds(checks, good)
    for values in bad:
        raised(plain, values)
        assert not holds(checks, values)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_predicate_says_what_the_kernel_says(dtype):
    checks, plain = checks_of(lambda i: gathered(tf.where(i < 0, i + 5, i)), ints(0, 0, 0, dtype=dtype))
    limits = np.iinfo(dtype)
    test = tf.function(lambda x: checks.predicate([x]), autograph=False)

    @examples(80)
    @given(st.lists(st.one_of(st.integers(-6, 6), st.integers(limits.min, limits.max)), min_size=3, max_size=3))
    def same(values):
        values = tf.constant(values, dtype)
        try:
            plain(values)
            fine = True
        except tf.errors.InvalidArgumentError:
            fine = False
        assert bool(test(values)) == fine

    same()


def test_classes_that_there_are_not_are_among_the_best_for_xla_alone():
    """A kernel says False of them, and raises nothing."""
    checks, plain = checks_of(lambda i: tf.math.in_top_k(i, tf.constant([[-1.0, -2.0, -3.0]] * 2), 2), ints(0, 2))
    assert not checks.late and holds(checks, ints(0, 2))
    for bad in (ints(0, 3), ints(0, -1)):
        assert not holds(checks, bad) and plain(bad).numpy().tolist() == [True, False]


@pytest.mark.parametrize("by", [1.0, 0.5])
def test_the_rest_of_a_division_of_fractions_may_be_more_than_the_divisor_less_one(by):
    ids = lambda x: tf.maximum(tf.cast(tf.math.floormod(x, by) * (8 / by), tf.int32), 0)  # noqa: E731
    checks, plain = checks_of(lambda x: gathered(ids(x)), ROWS[0] * 0)
    assert holds(checks, ROWS[0] * 0 + 0.5 * by)
    raised(plain, ROWS[0] * 0 + 0.9 * by)
    assert not holds(checks, ROWS[0] * 0 + 0.9 * by)


IMAGES, KERNEL = np.ones((2, 4, 4, 3), "float32"), np.ones((1, 1, 1, 3), "float32")
SIZES = {
    "range": lambda i: tf.range(i[0]),
    "fill": lambda i: tf.fill([2, i[1]], 1.0),
    "tile": lambda i: tf.tile(TABLE, [1, i[0]]),
    "reshape": lambda i: tf.reshape(TABLE, [i[0], -1]),
    "broadcast": lambda i: tf.broadcast_to(1.0, [i[0], 2]),
    "one_hot": lambda i: tf.one_hot(i, tf.reduce_max(i)),
    "pad": lambda i: tf.pad(TABLE, [[0, i[0]], [0, 0]]),
    "top_k": lambda i: tf.math.top_k(ROWS, i[0])[0],
    "slice": lambda i: tf.slice(TABLE, [0, 0], [i[0], 2]),
    "slice to the end": lambda i: tf.slice(TABLE, [i[0], 0], [-1, 2]),
    "up to": lambda i: tf.constant(TABLE)[: i[0]],
    "from": lambda i: tf.constant(TABLE)[i[0] :, 1],
    "every": lambda i: tf.constant(TABLE)[:: i[0]],
    "split": lambda i: tf.split(tf.constant(ROWS), [i[0], 5 - i[0]], 1)[0],
    "drawn": lambda i: tf.random.stateless_normal([i[0], 2], [1, 2]),
    "drawn classes": lambda i: tf.random.stateless_categorical(ROWS, i[0], [1, 2]),
    "diagonal": lambda i: tf.linalg.diag(TABLE, k=i[0]),
    "of a diagonal": lambda i: tf.linalg.diag_part(ROWS, k=i[0]),
    "transform": lambda i: tf.signal.rfft(ROWS, [2 * i[0]]),
    "blocks": lambda i: tf.space_to_batch(IMAGES, [i[0], i[0]], [[0, 0], [0, 0]]),
    "kernel": lambda i: tf.nn.conv2d_transpose(IMAGES, KERNEL, tf.stack([2, 4 + i[0] // 3, 4, 1]), 1, "SAME"),
    "along": lambda i: tf.reduce_sum(ROWS, axis=i[0] - 1),
    "turned": lambda i: tf.transpose(ROWS, tf.stack([i[0] - 1, 2 - i[0]])),
    "behind": lambda i: tf.concat([ROWS, ROWS], axis=i[0] - 1),
    "by a variable": lambda i: tf.constant(TABLE)[: tf.cast(COMPUTED[0, 0], tf.int32)],
    "of a function": lambda i: tf.function(lambda i: tf.zeros(i), autograph=False)(i),
}


@pytest.mark.parametrize("name", SIZES)
def test_what_is_as_large_as_values_say_runs_plainly(name):
    checks, plain = checks_of(SIZES[name], ints(1, 1))
    assert len(checks.late) == (2 if name == "transform" else 1)  # which is padded, too
    run = tf.function(lambda i: split(checks)([i]), autograph=False)
    for numbers in (ints(1, 1), ints(2, 2)) if name not in ("reshape", "drawn") else ():
        with contextlib.suppress(NotSplittable):  # nothing else is there
            np.testing.assert_array_equal(run(numbers), plain(numbers))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.reshape(x, [tf.shape(x)[0] * tf.shape(x)[1]]),
        lambda x: tf.zeros_like(x)[: tf.size(x) // 10] + tf.range(5.0)[: tf.shape(x)[1]],
        lambda x: tf.ones([tf.gather(tf.shape(x), 1), 3]),
        lambda x: tf.constant(TABLE)[tf.cast(tf.reduce_sum(x), tf.int32) * 0],
        lambda x: tf.one_hot(tf.argmax(x, -1), 5),
    ],
)
def test_sizes_of_shapes_are_known_to_xla(function):
    assert not checks_of(function, ROWS)[0].late


def gradient_of(function):
    """That of a sum of what a function makes."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x))
        return tape.gradient(y, x)

    return gradient


def root_of(square):
    return gradient_of(lambda x: tf.math.rsqrt(square(x)))


@pytest.mark.parametrize(
    ("square", "late"),
    [
        (tf.square, True),
        (lambda x: x, True),
        (lambda x: tf.square(x) + 1e-6, False),
        (lambda x: tf.math.reduce_variance(x, 1, keepdims=True) + 1e-3, False),
        (lambda x: tf.maximum(tf.reduce_sum(tf.square(x), 1), 1e-12), False),
        (lambda x: tf.exp(x) + 1.0, False),
        (lambda x: x * x + 1e-6, False),
        (lambda x: tf.pow(x, 2.0) + 1e-6, False),
        (lambda x: tf.pow(x, 3.0) + 1e-6, True),
        (lambda x: tf.square(tf.sqrt(tf.square(x) + 1e-3)) + 1e-6, False),
        (lambda x: -tf.square(x) - 1.0, True),  # a NaN
        (lambda x: tf.square(x) + 1e-42, True),  # which XLA takes for 0
        (lambda x: tf.square(x) - 1e-6, True),
    ],
)
def test_gradients_of_roots_that_may_be_of_zero_run_plainly(square, late):
    checks, _ = checks_of(root_of(square), ROWS)
    assert [checks.graph.nodes[name].op for name in checks.late] == ["RsqrtGrad"] * late


def largest(x):
    return tf.reduce_max(x, axis=0)


def smallest_of_rows(x):
    return tf.reduce_min(x, axis=1, keepdims=True)


def largest_of_segments(x):
    return tf.math.unsorted_segment_max(x[:2], [0, 1], 2)


SQUARE = tf.constant(np.arange(25, dtype="float32").reshape(5, 5))


@pytest.mark.parametrize("take", [largest, smallest_of_rows, largest_of_segments])
@pytest.mark.parametrize(
    ("make", "plainly"),
    [
        (lambda x: x, False),
        (lambda x: x + 1.0, False),
        (lambda x: x * 2.0, False),
        (lambda x: tf.nn.relu(x @ SQUARE + 1.0) * 2.0, False),  # a product of a sum
        (lambda x: x * 2.0 + 1.0, True),
        (lambda x: tf.reverse(tf.nn.relu(x * 2.0), [1]) - x, True),
        (lambda x: (x @ SQUARE) * 0.1 + x, True),
        (lambda x: tf.nn.gelu(x), True),
        (lambda x: tf.cast(tf.cast(x, "bfloat16") + 1, "float32"), True),  # XLA may leave that rounding out
    ],
)
def test_maxima_are_taken_plainly_where_xla_may_compute_them_in_two_ways(make, plainly, take):
    checks, _ = checks_of(gradient_of(lambda x: take(make(x))), ROWS)
    kinds = {checks.graph.nodes[name].op for name in checks.beside}
    assert all("Max" in kind or "Min" in kind for kind in kinds) and len(kinds) == plainly and not checks.late


@pytest.mark.parametrize("compare", [tf.equal, tf.not_equal, tf.greater_equal, tf.less, tf.greater, tf.less_equal])
def test_so_are_those_that_are_compared_with_what_they_were_taken_of(compare):
    def step(x):
        y = x * 2.0 + 1.0
        return compare(y, largest(y)), compare(x, smallest_of_rows(y))  # the second one is of something else

    checks, _ = checks_of(step, ROWS)
    assert [checks.graph.nodes[name].op for name in checks.beside] == ["Max"]


def test_a_product_of_matrices_over_one_place_is_one_of_numbers():
    column = tf.ones((1, 5))
    assert len(checks_of(lambda x: largest(x[:, :1] @ column + 1.0) == x @ SQUARE, ROWS)[0].beside) == 0
    for x, marked in ((ROWS[:, :1], 1), (ROWS[:, :2], 0)):
        checks, _ = checks_of(lambda x: (y := x @ tf.ones((x.shape[1], 5)) + 1.0) == largest(y), x)
        assert len(checks.beside) == marked


def test_a_nan_has_another_place_for_xla_among_sorted_numbers():
    checks, _ = checks_of(lambda x: tf.searchsorted([-1.0, 0.0, 1.0], tf.reshape(x, [-1]), side="right"), ROWS)
    assert holds(checks, ROWS) and not checks.late
    assert not holds(checks, np.where(ROWS.max() == ROWS, np.nan, ROWS))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_roots_are_looked_at_in_every_dtype(dtype):
    for square, late in ((tf.square, 1), (lambda x: tf.square(x) + 1e-3, 0)):
        checks, _ = checks_of(lambda x, square=square: root_of(square)(tf.cast(x, dtype)), ROWS)
        assert len(checks.late) == late


def test_means_of_integers_may_overflow():
    checks, _ = checks_of(lambda i: tf.gather(TABLE, tf.reduce_mean(tf.clip_by_value(i, 0, 4))), ints(1, 2))
    assert checks.early or checks.late


def test_reciprocals_of_roots_of_what_is_above_zero_are_compiled():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.math.reciprocal(tf.sqrt(tf.reduce_mean(tf.pow(x, 2.0), 1) + 1e-6)))
        return tape.gradient(y, x)

    assert not checks_of(gradient, ROWS)[0].late


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_a_number_is_put_into_another_bucket(value):
    checks, _ = checks_of(lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]), ROWS)
    assert holds(checks, ROWS) and not holds(checks, ROWS * value)


def test_what_is_not_a_number_becomes_no_index():
    checks, plain = checks_of(lambda x: gathered(tf.cast(tf.sigmoid(x @ COMPUTED) * 4.0, tf.int32)), ROWS)
    assert len(checks.late) == 1
    raised(plain, ROWS * np.nan)
    raised(tf.function(lambda x: split(checks)([x]), autograph=False), ROWS * np.nan)


def test_ids_that_lose_their_upper_bits_are_looked_at_before():
    checks, plain = checks_of(lambda i: 7 // tf.cast(i, tf.int32), ints(1, dtype="int64"))
    raised(plain, ints(2**32, dtype="int64"))
    assert not holds(checks, ints(2**32, dtype="int64"))


@examples(60)
@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 6)), min_size=2, max_size=2))
def test_each_column_of_places_has_its_own_limit(places):
    checks, plain = COLUMNS
    places = tf.constant(places, tf.int32)
    try:
        plain(places)
        fine = True
    except tf.errors.InvalidArgumentError:
        fine = False
    assert holds(checks, places) == fine


COLUMNS = checks_of(lambda i: tf.gather_nd(TABLE, i), ints([0, 0], [1, 1]))


def test_columns_that_were_put_together_are_looked_at_one_by_one():
    def counted(labels, rows):
        return tf.scatter_nd(tf.stack([labels, tf.argmax(rows, -1, tf.int32)], 1), tf.ones(4), [3, 5])

    checks, _ = checks_of(counted, ints(0, 1, 2, 0), ROWS)
    (need,) = checks.early
    assert (need.low, need.high) == (0, 2) and not checks.late


ALWAYS = {
    "argmax": lambda x: gathered(tf.argmax(x @ tf.transpose(x)[:, :1] @ tf.ones((1, 5)), -1)),
    "top_k": lambda x: gathered(tf.math.top_k(tf.tanh(x), 2)[1]),
    "argsort": lambda x: gathered(tf.argsort(tf.tanh(x), -1)),
    "range": lambda x: gathered(tf.range(tf.shape(x)[1])) + tf.reduce_sum(x),
    "clip": lambda x: gathered(tf.clip_by_value(tf.cast(x @ tf.ones((5, 1)), tf.int32), 0, 4)),
    "rest": lambda x: gathered(tf.cast(x @ tf.ones((5, 1)), tf.int32) % 5),
    "thresholds": lambda x: tf.math.unsorted_segment_sum(
        tf.ones(20), tf.reshape(tf.cast(tf.sigmoid(x @ COMPUTED) * 4.0, tf.int32), [-1]), 5
    ),
    "random": lambda x: gathered(tf.random.stateless_uniform([3], (1, 2), 0, 5, tf.int32)) + tf.reduce_sum(x),
    "kept where it fits": lambda x: gathered(where_it_fits(tf.cast(x @ tf.ones((5, 1)), tf.int32))),
    "shapes": lambda x: [tf.debugging.assert_equal(tf.shape(x @ tf.ones((5, 3)))[0], 4), x][1],
    "divided by a constant": lambda x: tf.cast(x @ tf.ones((5, 1)), tf.int32) // 3,
    "a loop over a list": lambda x: tf.while_loop(
        lambda i, _: i < 4,
        lambda i, a: (i + 1, a.write(i, tf.gather(x, i))),
        (0, tf.TensorArray(tf.float32, 4, element_shape=[5])),
    )[1].stack(),
    "beginnings that are constant": lambda x: x[:, 2] + tf.slice(x, [0, 1], [4, 1])[:, 0],
}  # fmt: skip


def where_it_fits(ids):
    return tf.where(tf.logical_and(ids >= 0, ids < 5), ids, 0)


@pytest.mark.parametrize("kind", ALWAYS)
def test_what_cannot_be_out_of_range_is_not_looked_at(kind):
    checks, _ = checks_of(ALWAYS[kind], ROWS)
    assert not checks.late and not checks.early


def called(function):
    inner = tf.function(function)
    return lambda x: inner(x)


INSIDE = {
    "a called function": called(gathered),
    "a branch": lambda i: tf.cond(tf.reduce_sum(i) > 3, lambda: gathered(i), lambda: gathered(i) * 2),
    "a loop": lambda i: tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, x + gathered(i)), (0, tf.zeros((2, 2))))[
        1
    ],
}


@pytest.mark.parametrize("place", INSIDE)
def test_functions_that_a_step_calls_are_looked_into(place):
    checks, plain = checks_of(INSIDE[place], ints(1, 4))
    assert len(checks.early) == 1 and not checks.late
    assert holds(checks, ints(1, 4)) and not holds(checks, ints(4, 5))
    raised(plain, ints(4, 5))


def test_ids_that_a_branch_corrects_are_for_the_plain_graph_which_has_nothing_against_them():
    def safe(ids):
        return tf.cond(tf.reduce_max(ids) > 4, lambda: tf.zeros((2, 2)), lambda: gathered(ids))

    checks, plain = checks_of(safe, ints(1, 4))
    assert not holds(checks, ints(1, 9))
    np.testing.assert_array_equal(plain(ints(1, 9)), np.zeros((2, 2)))


LATE = {
    "gather": (lambda x: gathered(tf.cast(x @ COMPUTED, tf.int32)), "GatherV2"),
    "assert": (lambda x: [tf.debugging.assert_less(x @ COMPUTED, 4.0, name="least"), x * 2][1], "least/Assert"),
    "numbers": (lambda x: tf.debugging.check_numerics(tf.math.log(4.0 - x @ COMPUTED), "bad"), "CheckNumerics"),
    "a call": (lambda x: called(lambda y: gathered(tf.cast(y @ COMPUTED, tf.int32)))(x), "GatherV2"),
    "a loop": (
        lambda x: tf.while_loop(
            lambda n, _: n < 2,
            lambda n, y: (n + 1, y + 0.1 * gathered(tf.cast(y @ COMPUTED, tf.int32)[0, :1])[0, 0]),
            (0, x),
        )[1],
        "GatherV2",
    ),
    "matrix": (lambda x: tf.linalg.inv(tf.linalg.diag(6.0 - x @ COMPUTED)[0]), "MatrixInverse"),
}


@pytest.mark.parametrize("kind", LATE)
def test_what_depends_on_more_than_the_batch_raises_within_the_step_before_it_changes_anything(kind):
    function, node = LATE[kind]
    count, before = tf.Variable(0.0), tf.Variable(0.0)

    def step(x):
        count.assign_add(1.0)
        made = function(x * 2.0)
        before.assign(tf.reduce_sum(tf.exp(tf.tanh(made)) @ tf.ones((made.shape[-1], 3))))
        return made

    good, bad = np.full((4, 5), 0.25, "float32"), np.full((4, 5), 3.0, "float32")
    checks, plain = checks_of(step, good, opened=kind != "a loop")
    assert len(checks.late) == 1 and not checks.early
    run = tf.function(lambda x: split(checks)([x]), autograph=False)
    np.testing.assert_allclose(run(good), plain(good), rtol=1e-6)
    kept = count.numpy(), before.numpy()
    assert kept[0] == 2.0
    expected, said = raised(plain, bad)
    count.assign(kept[0]), before.assign(kept[1])
    found, told = raised(run, bad)
    assert found is expected and node in said and node in told
    assert (count.numpy(), before.numpy()) == kept


def test_what_a_check_itself_needs_is_changed_as_in_the_plain_graph():
    count = tf.Variable(0.0)

    def step(x):
        count.assign_add(1.0)
        tf.debugging.assert_less(tf.reduce_sum(x @ COMPUTED) * count, 100.0)
        return tf.exp(x @ COMPUTED)

    checks, plain = checks_of(step, ROWS)
    run = tf.function(lambda x: split(checks)([x]), autograph=False)
    raised(plain, ROWS * 0 + 99)
    raised(run, ROWS * 0 + 99)
    assert count.numpy() == 2.0
