"""A live TensorFlow model as a source of weights: its tokens, its memory, and its weights whenever they change."""

import keras
import numpy as np
import pytest
import transformers

from keras_xla import XLAGenerationLayer
from keras_xla.models.parameters import parameters
from keras_xla.models.registry import FAMILIES, load_model
from keras_xla.models.sources.live import Follower, refresh
from keras_xla.models.sources.live_models import as_decoder
from keras_xla.models.sources.transformers_tf import CLASSES, TransformersTF
from tests.transformers4.models import PROMPTS, VARIANTS, live, shake, speech, theirs

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="on jax, weights of a TensorFlow model are always copied"
)


def test_every_class_is_of_a_family_that_can_be_loaded_and_has_a_variant():
    assert set(CLASSES) <= set(FAMILIES)
    tested = {f"TF{family}{head}" for family, head, _ in VARIANTS.values()}
    assert {name for names in CLASSES.values() for name in names} == tested


def answers(model, layer):
    """Six new tokens for each prompt, by the layer and by the model itself."""
    if model.main_input_name == "input_ids":
        return layer.generate(PROMPTS)["sequences"].tolist(), theirs(model)
    features = speech()
    expected = theirs(model, features, new=7)
    return layer.generate({"input_features": features})["sequences"].tolist(), [row[1:] for row in expected]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.slow
def test_tokens_are_those_of_its_own_generate_and_stay_so_when_weights_change(variant):
    model = live(variant)
    layer = XLAGenerationLayer(model, max_new_tokens=6)
    before, expected = answers(model, layer)
    assert before == expected
    traces = layer.trace_count
    shake(model)
    after, expected = answers(model, layer)
    assert after == expected != before
    assert layer.trace_count == traces


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits(variant):
    model, ids = live(variant), np.array([[5, 6, 7, 8]], "int32")
    ours = load_model(TransformersTF(model))
    if not model.config.is_encoder_decoder:
        np.testing.assert_allclose(ours(ids), model(ids).logits, atol=1e-4)
    else:
        source = speech(1) if variant == "whisper" else np.array([[9, 10, 11, 12, 13, 1]], "int32")
        expected = model({model.main_input_name: source, "decoder_input_ids": ids}).logits
        np.testing.assert_allclose(ours(source, ids), expected, atol=1e-4)


@tensorflow_only
def test_all_of_gpt2_but_its_biases_is_shared():
    model = live("gpt2")
    ours, wte = load_model(TransformersTF(model)), model.transformer.wte.embeddings
    assert ours.embedding.values.value is wte
    assert {step.target.name for step in ours.follower._copied} == {"bias"}  # of shape (1, n) there
    wte.assign(wte * 2)
    np.testing.assert_array_equal(ours.embedding.values, wte)


@tensorflow_only
@pytest.mark.parametrize("variant", ["opt", "mistral", "t5", "bart"])
def test_elsewhere_only_queries_keys_and_values_and_gates_are_copied(variant):
    model = live(variant)
    ours = load_model(TransformersTF(model))
    names = {id(target): name for name, target in parameters(ours).items()}
    copied = {names[id(step.target)].split(".")[-2] for step in ours.follower._copied}
    assert copied <= {"qkv", "kv", "up"}


@tensorflow_only
def test_another_dtype_is_copied():
    model = live("gpt2")
    ours = load_model(TransformersTF(model), dtype="bfloat16")
    model.transformer.wte.embeddings.assign(np.full((97, 32), 0.5))
    refresh(ours)
    assert ours.embedding.values.dtype == "bfloat16"
    assert (keras.ops.convert_to_numpy(ours.embedding.values) == 0.5).all()


def test_auto_is_the_dtype_of_the_live_model():
    checkpoint = TransformersTF(live("gpt2"))
    assert checkpoint.dtype() == "float32"
    assert load_model(checkpoint, dtype="auto").compute_dtype == "float32"


def named(model, end):
    """The variable of a live model whose name ends so."""
    return next(v for v in model.weights if v.name.removesuffix(":0").endswith(end))


def changes():
    import tensorflow as tf

    ones = np.ones((32, 32), "float32")
    draw = np.random.default_rng(0).normal

    def fit(model, jit_compile):
        ids = np.full((4, 5), 9)
        model.compile("sgd", jit_compile=jit_compile)
        model.fit({"input_ids": ids}, ids, verbose=0)

    return {
        "assign": lambda model, v: v.assign(draw(size=v.shape)),
        "negated": lambda model, v: v.assign(-v),
        "rows in another order": lambda model, v: v.assign(tf.reverse(v, [0])),
        "assign_add": lambda model, v: v.assign_add(ones),
        "one element": lambda model, v: v[3, 4].assign(v[3, 4] + 1),
        "scattered": lambda model, v: v.scatter_nd_add([[1]], ones[:1]),
        "in a tf.function": lambda model, v: tf.function(lambda: v.assign_add(ones))(),
        "under XLA": lambda model, v: tf.function(lambda: v.assign_add(ones), jit_compile=True)(),
        "set_weights": lambda model, v: model.set_weights([w * 1.5 for w in model.get_weights()]),
        "fit": lambda model, v: fit(model, False),
        "fit under XLA": lambda model, v: fit(model, True),
    }


@pytest.mark.parametrize("change", changes())
@pytest.mark.quick(
    "fit",
    "under XLA",
    "assign_add",
    "in a tf.function",
    "set_weights",
    "one element",
    "scattered",
    "rows in another order",
    "assign",
    "negated",
)
def test_every_way_to_change_a_weight_is_seen(change):
    model, apply = live("opt", num_hidden_layers=1), changes()[change]
    ours, kernel = load_model(TransformersTF(model)), named(model, "q_proj/kernel")
    for _ in range(2):  # the second time nothing else holds the old value
        before = kernel.numpy()
        apply(model, kernel)
        assert (kernel.numpy() != before).any()
        refresh(ours)
        qkv = keras.ops.convert_to_numpy(ours.blocks[0].attention.qkv.kernel.values)
        np.testing.assert_array_equal(qkv[:, :32], kernel)


@pytest.mark.slow
def test_variables_that_take_the_place_of_others_are_an_error():
    model = live("gpt2", n_layer=1)
    layer = XLAGenerationLayer(model, max_new_tokens=2)
    layer.generate(PROMPTS)
    model.resize_token_embeddings(120)
    with pytest.raises(ValueError, match="has other weights than when the layer was made"):
        layer.generate(PROMPTS)
    assert XLAGenerationLayer(model, max_new_tokens=2).generate(PROMPTS)["sequences"].shape == (3, 2)


def test_only_what_changed_is_copied_again():
    model = live("opt")
    follower = load_model(TransformersTF(model)).follower
    assert isinstance(follower, Follower) and follower.refresh() == 0
    for name in (
        "layers.0/self_attn/k_proj/kernel",
        "layers.0/self_attn/v_proj/kernel",
        "layers.1/self_attn/q_proj/bias",
    ):
        named(model, name).assign_add(named(model, name))
    assert (follower.refresh(), follower.refresh()) == (2, 0)  # keys and values are one variable here


def test_a_model_that_was_not_built_yet_is_built():
    model = transformers.TFGPT2LMHeadModel(live("gpt2").config)
    assert not model.built
    ours = load_model(TransformersTF(model))
    np.testing.assert_array_equal(ours.embedding.values, model.transformer.wte.embeddings)


def test_a_model_built_inside_another_is_found_by_its_own_names():
    import tf_keras

    inner = transformers.TFGPT2LMHeadModel(live("gpt2").config, name="inner")
    ids = tf_keras.Input((None,), dtype="int32")
    tf_keras.Model(ids, inner(ids).logits, name="outer")
    ours = load_model(TransformersTF(inner))
    np.testing.assert_array_equal(ours.embedding.values, inner.transformer.wte.embeddings)


def test_a_model_without_a_language_model_head_is_refused():
    import tf_keras

    trunk = transformers.TFGPT2Model(live("gpt2").config)
    with pytest.raises(TypeError, match=r"transformers\..*TFGPT2Model.*expected.*TFGPT2LMHeadModel.*TFOPTForCausalLM"):
        as_decoder(trunk)
    dense = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,))])
    with pytest.raises(TypeError, match=r"Sequential.*TFGPT2LMHeadModel"):
        as_decoder(dense)
