"""bucket_lengths: batches of varying length in a few shapes, with the losses that they had."""

import collections
import itertools
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_xla.training.compile import compile
from keras_xla.training.data.bucket_lengths import bucket_lengths, sizes_of
from tests import examples
from tests.training.helpers import Log

layers = keras.layers
ON_JAX = keras.backend.backend() == "jax"
LENGTHS = [3, 9, 5, 12, 7, 2, 10, 4, 11, 6]
rng = np.random.default_rng(0)
IDS = [rng.integers(1, 20, length) for length in LENGTHS]
CLASS = (np.arange(10) % 2).astype("float32")
TAGS = [ids % 3 for ids in IDS]


def classifier():
    keras.utils.set_random_seed(0)
    body = [layers.Embedding(20, 4, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(1, "sigmoid")]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *body])


def tagger(mask=True):
    keras.utils.set_random_seed(0)
    body = [layers.Embedding(20, 4, mask_zero=mask), layers.Dense(3, "softmax")]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *body])


def rows(*columns):
    signature = tuple(tf.TensorSpec((None,) * np.ndim(c[0]), np.asarray(c[0]).dtype) for c in columns)
    return tf.data.Dataset.from_generator(lambda: zip(*columns, strict=True), output_signature=signature)


def classes():
    """Padded batches of 4, 4 and 2 rows, with lengths 12, 11 and 11."""
    return rows(IDS, CLASS).padded_batch(4)


def tags():
    return rows(IDS, TAGS).padded_batch(4)


def batches(*columns):
    """Dense batches as long as their longest row: 9, 4, 12, 11, 9, 10 and, of one row, 5."""

    def part(column, chosen):
        longest = max(LENGTHS[i] for i in chosen)
        return np.stack([np.pad(column[i], (0, longest - LENGTHS[i]) if np.ndim(column[i]) else 0) for i in chosen])

    for chosen in ((0, 1), (5, 7), (3, 4), (8, 1), (1, 5), (6, 7), (2,)):
        yield tuple(part(column, chosen) for column in columns)


class Batches(keras.utils.PyDataset):
    """The same as a PyDataset, which counts its epochs."""

    def __init__(self, *columns, **options):
        super().__init__(**options)
        self.made, self.begun, self.ended = list(batches(*columns)), 0, 0

    def __len__(self):
        return len(self.made)

    def __getitem__(self, index):
        return self.made[index]

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


def shapes(data):
    return [keras.tree.map_structure(lambda x: np.asarray(x).shape, batch) for batch in data]


def losses(model, data, epochs=2):
    history = model.fit(data, epochs=epochs, verbose=0, shuffle=False).history
    return [value for values in history.values() for value in values]


class TestDataset:
    def test_lengths_become_sizes_and_rows_stay_as_they_are(self):
        data = bucket_lengths(classes(), (4, 16, 32))
        assert shapes(data) == [((4, 16), (4,)), ((4, 16), (4,)), ((2, 16), (2,))]
        for (x, y), (ours, theirs) in zip(classes(), data, strict=True):
            assert np.array_equal(ours[:, : x.shape[1]], x) and not np.any(ours[:, x.shape[1] :])
            assert np.array_equal(y, theirs)
        assert data.element_spec[0].shape.as_list() == [None, None]

    def test_ragged_batches_become_dense(self):
        data = tf.data.Dataset.from_tensor_slices(
            (tf.ragged.constant([list(map(int, ids)) for ids in IDS]), CLASS)
        ).batch(4)
        assert [x.tolist() for x, _ in bucket_lengths(data, (16,)).as_numpy_iterator()] == [
            np.pad(x.numpy(), [(0, 0), (0, 16 - x.shape[1])]).tolist() for x, _ in classes()
        ]

    def test_it_keeps_its_cardinality(self):
        data = tf.data.Dataset.from_tensor_slices(
            (tf.ragged.constant([list(map(int, ids)) for ids in IDS]), CLASS)
        ).batch(4)
        assert int(bucket_lengths(data).cardinality()) == 3

    def test_only_what_varies_is_padded(self):
        data = classes().map(lambda x, y: {"ids": x, "more": tf.tile(y[:, None], [1, 3])})
        assert shapes(bucket_lengths(data, (16,)))[-1] == {"ids": (2, 16), "more": (2, 3)}

    def test_batches_may_be_named_tuples(self):
        batch = collections.namedtuple("batch", ["inputs", "targets"])
        data = classes().map(lambda x, y: batch(x, y))
        assert type(data.element_spec) is not tuple
        assert shapes(bucket_lengths(data, (16,))) == shapes(bucket_lengths(classes(), (16,)))

    def test_another_axis(self):
        data = rows(TAGS).padded_batch(2).map(lambda x: tf.tile(x[:, None, :, None], [1, 6, 1, 2]))
        assert {shape for shape in shapes(bucket_lengths(data, (16,), axis=2))} == {(2, 6, 16, 2)}

    def test_strings(self):
        words = tf.data.Dataset.from_tensors(tf.ragged.constant([["a", "b"], ["c"]]))
        ((x, *_),) = [list(batch.tolist()) for batch in bucket_lengths(words, (3,)).as_numpy_iterator()]
        assert x == [b"a", b"b", b""]

    def test_a_length_above_the_largest_size_says_what_to_do(self):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"largest of its buckets \(4, 8\), and it cuts nothing"
        ):
            list(bucket_lengths(classes(), (4, 8)))


@pytest.mark.quick_on_jax("sgd-True")
class TestEqualLosses:
    @pytest.mark.parametrize(("optimizer", "jit_compile"), [("adam", False), ("sgd", True)])
    @pytest.mark.quick("adam-False")
    def test_of_a_model_that_masks(self, optimizer, jit_compile):
        def run(data):
            model = classifier()
            model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], jit_compile=jit_compile)
            return losses(model, data), model.predict(data, verbose=0)

        plain, ours = run(classes()), run(bucket_lengths(classes(), (16, 32)))
        np.testing.assert_allclose(ours[0], plain[0], rtol=1e-6)
        np.testing.assert_allclose(ours[1], plain[1], rtol=1e-6)

    @pytest.mark.parametrize("weights", ["mask", None])
    def test_of_one_that_masks_with_a_target_for_each_position(self, weights):
        def run(data):
            model = tagger()
            model.compile("sgd", "sparse_categorical_crossentropy")
            return losses(model, data)

        np.testing.assert_allclose(run(bucket_lengths(tags(), (16, 32), weights=weights)), run(tags()), rtol=1e-5)

    def test_of_one_that_does_not_mask_by_the_mean_over_real_positions(self):
        def run(data):
            model = tagger(mask=False)
            accuracy = keras.metrics.SparseCategoricalAccuracy()
            model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=[accuracy])
            return losses(model, data)

        made = run(bucket_lengths(Batches(IDS, TAGS), (6, 16), weights="mean"))
        np.testing.assert_allclose(made, run(Batches(IDS, TAGS)), rtol=1e-5)

    def test_of_a_loss_that_ignores_a_class(self):
        def run(data):
            model = tagger(mask=False)
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(ignore_class=-1))
            return losses(model, data)

        signed = rows(IDS, TAGS).padded_batch(4, padding_values=(np.int64(0), np.int64(-1)))
        padded = bucket_lengths(signed, (16, 32), padding_values={"y": -1}, weights=None)
        np.testing.assert_allclose(run(padded), run(signed), rtol=1e-5)


class TestCompilations:
    @pytest.mark.slow
    def test_one_for_each_size_and_number_of_rows(self):
        log, model = Log(), classifier()
        compile(model, "sgd", "binary_crossentropy", jit_compile=True)
        data = rows(IDS, CLASS).padded_batch(1)  # ten lengths
        model.fit(bucket_lengths(data, (4, 8, 16)), epochs=2, verbose=0)
        assert log.kinds() == ["train"] * 3
        model.fit(bucket_lengths(data.repeat(2), (4, 8, 16)), epochs=1, verbose=0)
        assert log.kinds() == []

    def test_of_a_pydataset(self):
        log, model = Log(), classifier()
        compile(model, "sgd", "binary_crossentropy", jit_compile=True)
        model.fit(bucket_lengths(Batches(IDS, CLASS), (8, 12)), epochs=3, verbose=0)
        assert sorted(event.shapes.split(")")[0] for event in log.new()) == ["x: (1, 8", "x: (2, 12", "x: (2, 8"]


class TestPyDataset:
    def test_it_stays_one(self):
        inside = Batches(IDS, CLASS, workers=3, max_queue_size=7)
        data = bucket_lengths(inside, (12,))
        assert isinstance(data, keras.utils.PyDataset) and len(data) == data.num_batches == len(inside)
        assert (data.workers, data.use_multiprocessing, data.max_queue_size) == (3, False, 7)
        assert shapes(data) == [((len(y), 12), (len(y),)) for _, y in inside.made]

    @pytest.mark.parametrize("workers", [1, 2])
    @pytest.mark.quick_on_jax
    def test_fit_with_first_batches_in_one_bucket(self, workers):
        """Keras takes the shapes of the first two batches for those of all where they agree."""
        inside = Batches(IDS, CLASS, workers=workers)
        data = bucket_lengths(inside, (9, 12))
        assert [x[1] for x, _ in shapes(data)] == [9, 9, 12, 12, 9, 12, 9]
        plain = Batches(IDS, CLASS, workers=workers)
        for batches in (data, plain):
            model = classifier()
            model.compile("sgd", "binary_crossentropy")
            model.fit(batches, epochs=2, verbose=0, shuffle=True)
        assert (inside.begun, inside.ended) == (plain.begun, plain.ended)

    @pytest.mark.skipif(ON_JAX, reason="Keras asks nothing on JAX")
    def test_the_first_batches_tell_keras_that_their_length_varies(self):
        data = bucket_lengths(Batches(IDS, CLASS), (12,))
        x = data[0][0]
        assert [data[i][0].shape for i in (1, 2)] == [(2, None), (2, 12)]
        assert repr(x) == repr(np.asarray(x))
        sent = pickle.loads(pickle.dumps(x))  # by use_multiprocessing
        assert type(sent) is np.ndarray and np.array_equal(sent, x)
        assert (x + 1)[0].shape == np.take(x, 0, 0).shape == np.take(a=x, indices=0, axis=0).shape == (12,)

    @pytest.mark.quick_on_jax
    def test_losses(self):
        def run(data):
            model = classifier()
            model.compile("sgd", "binary_crossentropy")
            return losses(model, data)

        np.testing.assert_allclose(
            run(bucket_lengths(Batches(IDS, CLASS), (9, 12))), run(Batches(IDS, CLASS)), rtol=1e-5
        )

    def test_targets_of_each_position_are_found_by_their_lengths(self):
        x, y, weight = bucket_lengths(Batches(IDS, TAGS), (16,))[0]
        assert [np.asarray(part).shape for part in (x, y, weight)] == [(2, 16)] * 3
        assert np.array_equal(weight, [[1] * 9 + [0] * 7] * 2)

    def test_a_leaf_that_varies_later_than_the_first_batches(self):
        inside = Batches(IDS, CLASS)
        inside.made = [({"ids": x, "more": np.ones((len(x), 2))}, y) for x, y in inside.made]
        data = bucket_lengths(inside, (12,))
        assert data[3][0]["more"].shape == (2, 2)
        inside.made[3][0]["more"] = np.ones((2, 3))
        with pytest.raises(ValueError, match=r"\"x\['more'\]\" with length 3 on axis 1; it was 2 in all of the first"):
            data[3]


class TestGenerator:
    def test_every_batch_once_and_in_order(self):
        data = list(bucket_lengths(batches(IDS, CLASS), (12,)))
        assert shapes(data) == [((len(y), 12), (len(y),)) for _, y in batches(IDS, CLASS)]
        assert np.array_equal(np.concatenate([y for _, y in data]), np.concatenate([y for _, y in batches(IDS, CLASS)]))

    def test_nothing_is_read_ahead_where_the_leaves_are_named(self):
        def endless():
            read.append(1)
            yield from batches(IDS, CLASS)

        read = []
        data = bucket_lengths(endless(), (12,), leaves=["x"])
        assert not read and np.asarray(next(data)[0]).shape == (2, 12)

    @pytest.mark.quick_on_jax
    def test_fit_and_predict(self):
        model = classifier()
        compile(model, "sgd", "binary_crossentropy", jit_compile=True)
        log = Log()
        model.fit(bucket_lengths(batches(IDS, CLASS), (9, 12)), verbose=0)
        made = model.predict(bucket_lengths(batches(IDS), (9, 12)), verbose=0)
        assert log.kinds().count("train") == 3  # (2, 9), (2, 12), (1, 9)
        expected = np.concatenate([keras.ops.convert_to_numpy(model(x)) for (x,) in batches(IDS)])
        np.testing.assert_allclose(made, expected, rtol=1e-4)

    def test_strings_to_pad_with_are_not_cut(self):
        for words in (np.array([["a", "bc"]]), np.array([[b"a", b"bc"]])):
            (made,) = bucket_lengths(iter([words]), (3,), leaves=["x"], padding_values="[PAD]")
            padding = "[PAD]" if words.dtype.kind == "U" else b"[PAD]"
            assert np.asarray(made).tolist() == [[*words[0].tolist(), padding]]

    def test_a_length_above_the_largest_size(self):
        with pytest.raises(ValueError, match=r"largest of its buckets \(4, 10\).* Received: 'x' with a length of 12"):
            list(bucket_lengths(batches(IDS, CLASS), (4, 10)))


class TestSampleWeights:
    def one(self, batch, **options):
        return np.asarray(next(bucket_lengths(iter([batch]), (4,), leaves=["x", "y"], **options))[2])

    X = np.ones((2, 3), "int32")

    def test_zero_where_it_is_padded(self):
        assert np.array_equal(self.one((self.X, self.X)), [[1, 1, 1, 0]] * 2)

    def test_those_of_rows_are_spread(self):
        assert np.array_equal(self.one((self.X, self.X, np.array([2, 5]))), [[2, 2, 2, 0], [5, 5, 5, 0]])

    @pytest.mark.parametrize("weights", ["mask", None])
    def test_one_for_all_positions_of_a_row_counts_for_all_of_them(self, weights):
        given, expected = np.array([[2.0], [5.0]]), [[2, 2, 2, 0], [5, 5, 5, 0]]
        assert np.array_equal(self.one((self.X, self.X, given), weights=weights), expected)
        data = tf.data.Dataset.from_tensors((self.X, self.X, given))
        (padded,) = bucket_lengths(data, (4,), leaves=["x", "y"], weights=weights)
        assert np.array_equal(padded[2], expected)
        ((_, _, kept),) = bucket_lengths(iter([(self.X, given, given)]), (4,), leaves=["x"], weights=weights)
        assert np.array_equal(kept, given)

    def test_those_of_positions_are_padded(self):
        given = np.arange(6.0).reshape(2, 3)
        assert np.array_equal(self.one((self.X, self.X, given)), [[0, 1, 2, 0], [3, 4, 5, 0]])
        assert np.array_equal(self.one((self.X, self.X, given), weights=None), [[0, 1, 2, 0], [3, 4, 5, 0]])

    def test_their_mean_is_one_where_the_loss_is_a_mean(self):
        made = self.one((self.X, self.X), weights="mean")
        np.testing.assert_allclose(made, [[4 / 3, 4 / 3, 4 / 3, 0]] * 2, rtol=1e-6)

    def test_their_mean_over_more_positions_than_float16_can_count(self):
        x = np.ones((1, 70_000), "int32")
        keras.config.set_floatx("float16")
        try:
            for data in (iter([(x, x)]), tf.data.Dataset.from_tensors((x, x))):
                padded = bucket_lengths(data, (140_000,), leaves=["x", "y"], weights="mean")
                weight = np.asarray(next(iter(padded))[2])
                assert weight.dtype == "float16" and weight[0, [0, -1]].tolist() == [2, 0]
        finally:
            keras.config.set_floatx("float32")

    def test_of_several_targets(self):
        y = {"tags": self.X, "kind": np.ones((2, 1))}
        (_, _, made) = next(bucket_lengths(iter([(self.X, y)]), (4,), leaves=["x", "y['tags']"]))
        assert np.array_equal(made["tags"], [[1, 1, 1, 0]] * 2) and np.array_equal(made["kind"], [1, 1])

    def test_none_without_being_asked_for(self):
        assert len(next(bucket_lengths(iter([(self.X, self.X)]), (4,), leaves=["x", "y"], weights=None))) == 2
        assert len(next(bucket_lengths(iter([(self.X, self.X)]), (4,), leaves=["x"]))) == 2

    def test_those_of_ragged_targets_know_the_length_of_each_row(self):
        ragged = tf.ragged.constant([[1, 2], [3]])
        data = tf.data.Dataset.from_tensors((ragged, ragged))
        ((_, _, mask),) = bucket_lengths(data, (3,)).as_numpy_iterator()
        assert mask.tolist() == [[1, 1, 0], [1, 0, 0]]
        ((_, _, mean),) = bucket_lengths(data, (3,), weights="mean").as_numpy_iterator()
        assert mean.tolist() == [[2, 2, 0], [2, 0, 0]]

    def test_those_of_ragged_targets_in_batches_of_any_size(self):
        rows = tf.ragged.constant([[1, 2], [3], [4]])
        deep = tf.ragged.constant([[[1.0], [2.0]], [[3.0]], [[4.0]]], ragged_rank=1)
        for y in (rows, deep):
            for batched in ("batch", "ragged_batch"):
                data = getattr(tf.data.Dataset.from_tensor_slices((rows, y)), batched)(2)
                masks = [weights.tolist() for *_, weights in bucket_lengths(data, (3,)).as_numpy_iterator()]
                assert masks == [[[1, 1, 0], [1, 0, 0]], [[1, 0, 0]]]

    def test_floats_over_which_losses_take_a_mean(self):
        with pytest.raises(ValueError, match="floats 'y' whose last axis is the padded one, 1"):
            self.one((self.X, self.X.astype("float32")))
        made = self.one((self.X, self.X[..., None].astype("float32")))
        assert np.array_equal(made, [[1, 1, 1, 0]] * 2)


@examples(30)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    length=st.integers(0, 12),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    axis=st.integers(1, 2),
    value=st.integers(-3, 3),
)
@pytest.mark.slow
def test_padding_adds_and_takes_nothing_else(sizes, length, shape, axis, value):
    full = [shape[0], shape[1]]
    full.insert(axis, length)
    x = np.random.default_rng(0).integers(1, 9, full)
    options = {"leaves": ["x"], "padding_values": value, "axis": axis}

    def ours():
        return np.asarray(next(bucket_lengths(iter([x]), sizes, **options)))

    def in_a_dataset():
        return next(bucket_lengths(tf.data.Dataset.from_tensors(x), sizes, **options).as_numpy_iterator())

    if length > max(sizes):
        with pytest.raises(ValueError, match="cuts nothing off"):
            ours()
        return
    made = ours()
    assert made.shape[axis] == min(size for size in sizes if size >= length)
    assert made.dtype == x.dtype
    assert np.array_equal(np.take(made, range(length), axis), x)
    assert np.all(np.take(made, range(length, made.shape[axis]), axis) == value)
    assert np.array_equal(made, in_a_dataset())


@given(budget=st.integers(1, 12))
def test_powers_of_two_within_the_budget(budget):
    sizes = sizes_of("pow2", budget)
    assert len(sizes) == budget and sizes[0] == 16
    assert all(b == 2 * a for a, b in itertools.pairwise(sizes))


def test_all_padded_leaves_of_a_batch_get_one_size():
    batch = {"a": np.ones((2, 3)), "b": np.ones((2, 7))}
    made = next(bucket_lengths(iter([batch]), (4, 8), leaves=["x['a']", "x['b']"]))
    assert np.asarray(made["a"]).shape == np.asarray(made["b"]).shape == (2, 8)


def test_one_call_for_each_of_two_lengths():
    batch = {"a": np.ones((2, 3)), "b": np.ones((2, 7))}
    data = bucket_lengths(iter([batch]), (4, 8), leaves=["x['a']"])
    (made,) = bucket_lengths(data, (7, 14), leaves=["x['b']"])
    assert (np.asarray(made["a"]).shape, np.asarray(made["b"]).shape) == ((2, 4), (2, 7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": (1, 2, 3), "budget": 2}, r"3 buckets and budget=2.*Pass at most 2, or budget=3"),
        ({"buckets": ()}, 'it expects positive ints or "pow2"'),
        ({"buckets": (0, 4)}, 'it expects positive ints or "pow2"'),
        ({"buckets": "pow3"}, 'it expects positive ints or "pow2"'),
        ({"axis": 0}, "0 is the rows'"),
        ({"budget": 0}, "the number of sizes"),
        ({"weights": "sum"}, 'it expects "mask", "mean" or None'),
        ({"leaves": "x"}, "it expects names such as"),
        ({"axis": 2}, "no leaf varies on axis 2, as far as their spec .*: x, y"),
        ({"leaves": ["z"]}, "a batch of x, y; there is no z in it"),
        ({"leaves": ["y"]}, "'y' of rank 1, which has no axis 1"),
        ({"padding_values": {"z": 1}}, "there is no z in it"),
    ],
)
def test_what_is_not_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        next(iter(bucket_lengths(classes(), **options)))


def test_padding_values_that_do_not_fit():
    with pytest.raises(ValueError, match="-1 for 'x' of dtype uint8"):
        next(bucket_lengths(iter([np.ones((2, 3), "uint8")]), (4,), leaves=["x"], padding_values=-1))


@pytest.mark.parametrize(
    "data", [np.ones((2, 3)), [np.ones((2, 3))], {"a": np.ones((2, 3))}, 3], ids=lambda data: type(data).__name__
)
def test_what_are_no_batches(data):
    with pytest.raises(TypeError, match=r"it expects batches: a batched tf\.data\.Dataset"):
        bucket_lengths(data)
