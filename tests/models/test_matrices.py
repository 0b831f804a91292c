"""How a matrix is stored changes neither its shape nor, but for rounding, its products and rows."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_xla import backend
from keras_xla.models.layers.matrices import (
    _FEW_ROWS,
    FloatMatrix,
    Int4Matrix,
    Int8Matrix,
    check_quantization,
    make_matrix,
    stored_as,
)
from tests import examples

RNG = np.random.default_rng(0)


@pytest.fixture(params=["here", "on a GPU"])
def both_ways(request, monkeypatch):
    """A test runs twice: with products as on this machine, and as on a GPU."""
    if request.param == "on a GPU":
        monkeypatch.setattr(backend, "on_cpu", lambda: False)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def made(kind, values, **kwargs):
    matrix = kind(*values.shape, **kwargs)
    matrix.assign(values)
    return matrix


def quantized(x):
    """Whole numbers, and the size of a step, for each row."""
    step = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    return np.rint(x / np.where(step == 0, 1, step)), step


def two_digits(x):
    """The same with a second digit behind the point."""
    first, step = quantized(x)
    return first + np.rint((x / step - first) * 254) / 254, step


def as_multiplied(x):
    """What stands for `x` in a product with whole numbers, and the size of a step: on a GPU the floats themselves."""
    first, step = two_digits(x)
    return (first, step) if backend.on_cpu() else (x / step, step)


def product(matrix, x):
    run = backend.jit(matrix.product, matrix.variables)
    return ops.convert_to_numpy(run(ops.convert_to_tensor(x)))


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("kind", [FloatMatrix, Int8Matrix])
def test_values_come_back_as_they_were_assigned(kind, by_row):
    values = normal(5, 3)
    read = made(kind, values, by_row=by_row).numpy()
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    assert read.shape == (5, 3) and (np.abs(read - values) <= (step / 2 + 1e-7 if kind is Int8Matrix else 0)).all()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("shape", [(7,), (1, 1, 7), (2, 3, 7), (70, 7)])
def test_a_float_product_is_that_of_numpy(shape, by_row):
    values, x = normal(5, 7), normal(*shape)
    np.testing.assert_allclose(product(made(FloatMatrix, values, by_row=by_row), x), x @ values.T, atol=1e-5)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("rows", [1, 2, 3, _FEW_ROWS, _FEW_ROWS + 1, 200])
def test_an_int8_product_is_that_of_the_whole_numbers_whatever_the_number_of_rows(rows):
    values, x = normal(40, 700), normal(rows, 700) * np.float32(10) ** RNG.integers(-3, 3, (rows, 1))
    (left, a), (right, b) = as_multiplied(x), quantized(values)
    expected = (left.astype("float64") @ right.T) * a * b.T
    size = (np.abs(left).astype("float64") @ np.abs(right).T) * a * b.T
    # A second digit may be rounded to either side where it lies in the middle.
    assert (np.abs(product(made(Int8Matrix, values), x) - expected) <= size * 1e-5 + 127 * a * b.T / 254).all()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("rows", [1, 2, _FEW_ROWS, _FEW_ROWS + 1])
@pytest.mark.parametrize("shape", [(40, 64), (41, 70), (1, 1)])
def test_an_int4_product_is_that_of_its_values_whatever_the_number_of_rows(shape, rows):
    matrix, x = made(Int4Matrix, normal(*shape)), normal(rows, shape[1])
    (left, step), values = as_multiplied(x), matrix.numpy().astype("float64")
    bound = (np.abs(left) * step) @ np.abs(values).T * 1e-5 + step / 254 * np.abs(values).max()
    assert (np.abs(product(matrix, x) - (left * step) @ values.T) <= bound).all()


@pytest.mark.quick_on_jax
@examples(60)
@given(
    seed=st.integers(0, 2**31),
    outputs=st.integers(1, 5),
    inputs=st.integers(1, 100),
    shift=st.sampled_from([0, 3, -3, 1000]),
    tails=st.sampled_from([0.2, 2, 50]),
)
def test_int4_is_off_by_half_of_its_steps_and_half_of_an_int8(seed, outputs, inputs, shift, tails):
    """In the mean of each group of 32. Numbers of int8 that ran over would be off by 256 of these."""
    values = np.random.default_rng(seed).standard_t(tails, size=(outputs, inputs)).astype("float32") + np.float32(shift)
    error = made(Int4Matrix, values).numpy() - values
    unit = np.abs(values).max(axis=1, keepdims=True) / 127
    for start in range(0, inputs, 32):
        group, off = values[:, start : start + 32], error[:, start : start + 32]
        step = np.ceil(np.ptp(group, axis=1, keepdims=True) / 15 / unit) * unit
        assert (np.abs(off) <= 1.01 * (step + unit)).all()  # a whole step where the next number would run over
        if group.shape[1] == 32:
            assert (np.sqrt(np.mean(np.square(off), axis=1, keepdims=True)) <= 1.01 * (step / 2 + unit)).all()


def test_int4_rounds_as_well_as_groups_with_scales_of_their_own():
    """Those of llama.cpp's Q4_1, where each group has two floats."""
    values = normal(64, 256)
    groups = values.reshape(64, -1, 32)
    low, step = groups.min(-1, keepdims=True), np.ptp(groups, axis=-1, keepdims=True) / 15
    with_floats = (np.rint((groups - low) / step) * step + low).reshape(values.shape)
    assert (made(Int4Matrix, values).numpy() - values).std() <= 1.1 * (with_floats - values).std()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow does not tell the memory of an executable")
def test_matrices_of_int4_are_unpacked_one_after_the_other():
    import jax

    matrices = [made(Int4Matrix, normal(256, 256)) for _ in range(16)]

    def run(weights, x):
        with keras.StatelessScope(list(zip([v for m in matrices for v in m.variables], weights, strict=True))):
            for matrix in matrices:
                x = matrix.product(x)
        return x

    weights = [v.value for m in matrices for v in m.variables]
    memory = jax.jit(run).lower(weights, jax.numpy.ones((1, 256))).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 8 * 256 * 256  # of 16 that would be unpacked


@examples(30)
@given(seed=st.integers(0, 2**31), outputs=st.integers(1, 9), inputs=st.integers(1, 40), batch=st.integers(1, 4))
@pytest.mark.quick_on_jax
def test_an_int8_product_is_off_by_half_a_step_of_matrix_and_row_at_most(seed, outputs, inputs, batch):
    rng = np.random.default_rng(seed)
    values, x = (rng.standard_t(2, size=size).astype("float32") for size in ((outputs, inputs), (batch, inputs)))
    (_, a), (_, b) = quantized(x), quantized(values)
    bound = a / 508 * np.abs(values).sum(axis=1) + np.abs(x).sum(axis=1, keepdims=True) * b.T / 2
    made_ = ops.convert_to_numpy(made(Int8Matrix, values).product(ops.convert_to_tensor(x)))
    assert (np.abs(made_ - x @ values.T) <= bound * 1.001 + 1e-6).all()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("rows", [2, _FEW_ROWS + 1])
@pytest.mark.parametrize("kind", [Int8Matrix, Int4Matrix])
def test_gradients_go_through_whole_numbers_as_through_the_floats_that_they_stand_for(kind, rows):
    whole = made(kind, normal(6, 4))
    floats, start, target = made(FloatMatrix, whole.numpy()), normal(rows, 4), normal(rows, 6)
    found = []
    for matrix in (whole, floats):
        inputs = keras.Input((4,))
        first = keras.layers.Dense(4, use_bias=False, kernel_initializer="identity")
        model = keras.Model(inputs, keras.layers.Lambda(matrix.product, output_shape=(6,))(first(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(start, target, batch_size=rows, verbose=0)
        found.append(ops.convert_to_numpy(first.kernel))
    assert np.abs(found[0] - np.eye(4)).max() > 1e-2
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", [Int8Matrix, Int4Matrix])
def test_zeros_stay_zeros(kind):
    values, x = normal(3, 4), normal(2, 4)
    values[1] = x[1] = 0
    y = product(made(kind, values), x)
    assert (y[1] == 0).all() and (y[:, 1] == 0).all() and np.isfinite(y).all()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", [FloatMatrix, Int8Matrix, Int4Matrix])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_leaves_the_others_alone(kind, bad):
    values, x = normal(3, 4), normal(3, 4)
    clean = product(made(kind, values), x)
    x[0, 0] = bad
    y = product(made(kind, values), x)
    np.testing.assert_array_equal(y[1:], clean[1:])
    assert not np.isfinite(y[0]).any()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", [FloatMatrix, Int8Matrix])
def test_rows_and_products_are_of_the_compute_dtype(kind, dtype):
    values = normal(6, 4)
    matrix = made(kind, values, by_row=True, dtype=dtype)
    rows = matrix.rows(ops.convert_to_tensor([[5, 0], [2, 2]]))
    compute = keras.dtype_policies.get(dtype).compute_dtype
    assert keras.backend.standardize_dtype(rows.dtype) == compute
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(rows, "float32")), matrix.numpy()[[[5, 0], [2, 2]]], rtol=1e-2, atol=1e-2
    )
    assert keras.backend.standardize_dtype(matrix.product(rows).dtype) == compute


@pytest.mark.parametrize("kind", [FloatMatrix, Int8Matrix, Int4Matrix])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_gpu_a_single_row_is_multiplied_as_two_in_the_compute_dtype(kind, dtype, monkeypatch):
    given, multiply = [], backend.matmul_transposed

    def look(x, kernel):
        given.extend((tuple(x.shape), *(keras.backend.standardize_dtype(each.dtype) for each in (x, kernel))))
        return multiply(x, kernel)

    monkeypatch.setattr(backend, "on_cpu", lambda: False)
    monkeypatch.setattr(backend, "matmul_transposed", look)
    y = made(kind, normal(6, 32), by_row=True, dtype=dtype).product(ops.ones((1, 32), dtype))
    assert y.shape == (1, 6) and given == [(2, 32), dtype, dtype]


def test_on_a_gpu_sums_may_be_larger_than_float16_before_they_are_scaled(monkeypatch):
    monkeypatch.setattr(backend, "on_cpu", lambda: False)
    x = np.full((2, 700), 10, "float16")  # 127 * 700 * 10 is more than 65,504
    y = product(made(Int8Matrix, np.full((3, 700), 0.5, "float32"), dtype="float16"), x)
    assert y.dtype == "float16" and (y == 3500).all()


def test_int8_takes_a_quarter_of_the_memory_and_int4_four_and_a_half_bits_a_value():
    kinds = (FloatMatrix, Int8Matrix, Int4Matrix)
    sizes = [sum(np.asarray(v).nbytes for v in made(kind, normal(64, 256)).variables) for kind in kinds]
    assert sizes[1] == sizes[0] / 4 + 4 * 64 and sizes[2] == sizes[0] * 4.5 / 32 + 4 * 64


def test_a_model_that_is_built_says_how_its_matrices_are_stored():
    with stored_as("int4"):
        assert type(make_matrix(2, 3)) is Int4Matrix
        assert type(make_matrix(2, 3, by_row=True)) is type(make_matrix(2, 3, of_tokens=True)) is Int8Matrix
    with stored_as("int8"):
        assert type(make_matrix(2, 3)) is Int8Matrix
        with stored_as(None):
            assert isinstance(make_matrix(2, 3), FloatMatrix)
    assert isinstance(make_matrix(2, 3), FloatMatrix)
    with pytest.raises(ValueError, match="Received quantization='int3'; expected 'int8', 'int4', or None"):
        check_quantization("int3")
