"""explain: what keeps XLA from compiling a model, where, and what to do."""

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla.diagnosis.explain import explain
from tests.training.helpers import X, classifier

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="what jax can trace, XLA can compile"
)


class Picky(keras.layers.Layer):
    """Says that XLA cannot compile it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_jit = False

    def call(self, x):
        return x


class Shouting(keras.Model):
    """Goes through strings inside its call."""

    def __init__(self):
        super().__init__(name="shouting")
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        import tensorflow as tf

        return self.dense(tf.strings.to_number(tf.strings.as_string(x)))


def test_a_fine_model():
    explanation = explain(classifier("fine"))
    assert explanation and explanation.compilable and explanation.blockers == ()
    assert str(explanation) == "fine: everything compiles"


def test_an_unbuilt_model_says_that_its_operations_were_not_looked_at():
    model = keras.Sequential([keras.layers.Dense(2)])
    assert not explain(model).traced
    assert "Pass explain(model, sample_batch=x)" in str(explain(model))
    assert explain(model, sample_batch=X[:2]).traced


def test_a_layer_that_a_sample_batch_builds_is_looked_at():
    class Never(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="never")
            self.supports_jit = False

        def call(self, x):
            return x

    class Late(keras.Model):
        def build(self, shape):
            self.never = Never()

        def call(self, x):
            return self.never(x)

    (blocker,) = explain(Late(), sample_batch=X[:2]).blockers
    assert blocker.layer == "never"


@tensorflow_only
def test_inputs_of_an_unknown_dtype_are_no_error():
    """It was built by ids, and knows the shape alone."""

    class Looks(keras.Model):
        def __init__(self):
            super().__init__(name="looks")
            self.table = self.add_weight(shape=(5, 2))

        def call(self, ids):
            assert keras.backend.is_int_dtype(ids.dtype)
            return keras.ops.take(self.table, ids, axis=0)

    model = Looks()
    model(np.array([[1, 2]], "int32"))
    assert not explain(model).traced and "Pass explain(model, sample_batch=x)" in str(explain(model))
    assert explain(model, sample_batch=np.array([[1, 2]], "int32")).traced


def test_nothing_runs_and_no_weight_changes():
    model = keras.Sequential([keras.Input((20,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    before = [np.array(v.value) for v in model.variables]
    explain(model)
    assert all(np.array_equal(a, v.value) for a, v in zip(before, model.variables, strict=True))


def test_inputs_of_any_structure():
    inputs = {"b": keras.Input((3,), name="b"), "a": keras.Input((4,), dtype="int32", name="a")}
    joined = keras.layers.concatenate([inputs["b"], keras.ops.cast(inputs["a"], "float32")])
    assert explain(keras.Model(inputs, keras.layers.Dense(1)(joined))).traced


def test_a_layer_that_says_so_itself():
    (blocker,) = explain(keras.Sequential([keras.Input((2,)), Picky(name="picky")])).blockers
    assert (blocker.layer, blocker.layer_class) == ("picky", "Picky")
    assert "split the model" in blocker.fix


def test_an_image_transformation_has_no_kernel_on_tensorflow_and_elsewhere_its_class_says_no():
    (blocker,) = explain(keras.Sequential([keras.Input((4, 4, 3)), keras.layers.RandomRotation(0.1)])).blockers
    on_tensorflow = keras.backend.backend() == "tensorflow"
    assert ("no XLA kernel" in blocker.reason, "supports_jit=False" in blocker.reason) == (
        on_tensorflow,
        not on_tensorflow,
    )
    assert "move_to_pipeline" in blocker.fix


@tensorflow_only
def test_known_layers_have_a_fix_and_are_named_once():
    text = keras.Input((), dtype="string")
    vectorize = keras.layers.TextVectorization(vocabulary=["a"], output_sequence_length=4, name="split")
    explanation = explain(keras.Model(text, keras.layers.Embedding(8, 2)(vectorize(text))))
    assert not explanation
    assert [(b.layer, b.layer_class) for b in explanation.blockers] == [
        ("split", "TextVectorization"),
        (vectorize._lookup_layer.name, "StringLookup"),
    ]
    assert all("tf.data pipeline before the model" in b.fix for b in explanation.blockers)


@tensorflow_only
def test_an_operation_without_a_kernel_is_found_in_a_subclassed_model():
    (blocker,) = [b for b in explain(Shouting(), sample_batch=X[:2]).blockers if "AsString" in b.reason]
    assert (blocker.layer, blocker.layer_class) == ("shouting", "Shouting")
    assert blocker.where.startswith(__file__)
    assert "no strings" in blocker.fix


@tensorflow_only
@pytest.mark.parametrize("kind", [str, bytes, object])
def test_a_sample_batch_of_strings(kind):
    class Cities(keras.Model):
        def __init__(self):
            super().__init__(name="cities")
            self.lookup = keras.layers.StringLookup(vocabulary=["Rome", "Oslo"], name="lookup")
            self.embedding = keras.layers.Embedding(3, 2)

        def call(self, x):
            return self.embedding(self.lookup(x))

    explanation = explain(Cities(), sample_batch=np.array([["Oslo"], ["Rome"]], dtype=kind))
    assert explanation.traced and "lookup" in [blocker.layer for blocker in explanation.blockers]


@tensorflow_only
def test_a_built_subclassed_model_needs_no_sample():
    model = Shouting()
    model.build((None, 20))
    assert explain(model).traced and not explain(model)


@tensorflow_only
def test_operations_inside_loops_and_branches_are_found():
    import tensorflow as tf

    def loop(x):
        def body(i, x):
            branch = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.numpy_function(np.sin, [x], tf.float32), lambda: x)
            return i + 1, tf.ensure_shape(branch, x.shape)

        return tf.while_loop(lambda i, x: i < 3, body, (0, x))[1]

    layer = keras.layers.Lambda(loop, output_shape=(20,), name="looping")
    (blocker,) = explain(keras.Sequential([keras.Input((20,)), layer])).blockers
    assert (blocker.layer, "PyFunc" in blocker.reason) == ("looping", True)
    assert "keras.ops" in blocker.fix


@tensorflow_only
@pytest.mark.parametrize(
    "build",
    [
        lambda x: keras.layers.GlobalMaxPooling2D()(keras.layers.Conv2D(4, 3)(x)),
        lambda x: keras.layers.LSTM(3)(keras.layers.Reshape((8, 24))(x)),
        lambda x: keras.layers.MultiHeadAttention(2, 4)(*[keras.layers.Reshape((64, 3))(x)] * 2),
        lambda x: keras.layers.Resizing(4, 4)(keras.layers.RandomFlip()(x)),
        lambda x: keras.layers.BatchNormalization()(keras.layers.GaussianNoise(0.1)(x)),
    ],
    ids=["convolution", "lstm", "attention", "images", "noise"],
)
def test_ordinary_layers_raise_no_false_alarm(build):
    inputs = keras.Input((8, 8, 3))
    assert explain(keras.Model(inputs, build(inputs))), "XLA compiles this"


class Backwards(keras.layers.Layer):
    """Knows how many rows there are, or cannot run."""

    def call(self, x):
        import tensorflow as tf

        return tf.stack(tf.unstack(x)[::-1])


class Reversing(keras.Model):
    def call(self, x):
        return Backwards()(x)


@tensorflow_only
def test_a_model_that_needs_to_know_its_batch_size():
    inputs = keras.Input(batch_shape=(8, 4))
    assert explain(keras.Model(inputs, Backwards()(inputs)))
    assert explain(Reversing(), sample_batch=X[:8])


def test_layers_of_the_same_name_in_two_models_are_told_apart():
    def part(name, kind):
        inner = kind(name="prep")
        return keras.Sequential([keras.Input((4,)), inner], name=name)

    class Strings(keras.layers.Layer):
        def call(self, x):
            import tensorflow as tf

            return tf.reshape(tf.strings.to_number(tf.strings.as_string(x)), tf.shape(x))

    x = keras.Input((4,))
    second = Strings if keras.backend.backend() == "tensorflow" else Picky
    model = keras.Model(x, part("b", second)(part("a", Picky)(x)))
    found = {(blocker.layer, blocker.layer_class) for blocker in explain(model).blockers}
    assert found == {("prep", "Picky"), ("prep", second.__name__)}
    assert len({blocker.reason for blocker in explain(model).blockers}) >= (2 if second is Strings else 1)


@tensorflow_only
@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda tf, x: tf.boolean_mask(x, x[:, 0] > 0), "Where, whose shape depends on values"),
        (lambda tf, x: tf.unique(tf.reshape(x, [-1]))[0], "Unique, whose shape depends on values"),
        (lambda tf, x: tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, "int32"), 2)[0], "DynamicPartition, whose shape"),
        (lambda tf, x: tf.linalg.tridiagonal_solve(tf.stack([x, x, x]), x), "TridiagonalSolve with partial_pivoting"),
    ],
    ids=["mask", "unique", "partition", "tridiagonal"],
)
def test_what_xla_would_compute_wrongly_is_in_the_way(function, operation):
    import tensorflow as tf

    class Layer(keras.layers.Layer):
        def call(self, x):
            return tf.reduce_sum(function(tf, x)) + x

    model = keras.Sequential([keras.Input((4,)), Layer()])
    (blocker,) = explain(model).blockers
    assert f"XLA cannot do the operation {operation}" in blocker.reason and blocker.fix
    model.compile("sgd", "mse")
    keras_xla.compile(model, optimizer="sgd", loss="mse", jit_compile=True)
    with pytest.raises(keras_xla.XLAUnsupportedError, match=operation):
        model.fit(X[:8, :4], X[:8, :4], verbose=0)


@tensorflow_only
def test_what_is_printed_is_named_once():
    import tensorflow as tf

    class Prints(keras.layers.Layer):
        def call(self, x):
            tf.print("sum", tf.reduce_sum(x))
            return x

    (blocker,) = explain(keras.Sequential([keras.Input((4,)), Prints()])).blockers
    assert "PrintV2" in blocker.reason and blocker.fix.startswith("remove tf.print, or compile")


@tensorflow_only
def test_a_function_is_told_what_a_function_can_do():
    import tensorflow as tf

    for function in (lambda x: tf.strings.as_string(x), lambda x: tf.boolean_mask(x, x > 0)):
        with pytest.raises(keras_xla.XLAUnsupportedError) as caught:
            keras_xla.jit(function)(X[:4])
        assert "outside of any layer" not in str(caught.value) and "jit_compile" not in str(caught.value)


@tensorflow_only
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_sample_that_is_not_dense_is_refused(kind):
    import tensorflow as tf

    sample = {"ragged": tf.ragged.constant([[1.0, 2.0], [3.0]]), "sparse": tf.sparse.from_dense(X[:2])}[kind]
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(TypeError, match=r"in sample_batch; it expects dense arrays"):
        explain(model, sample_batch=sample)
    assert not model.built
