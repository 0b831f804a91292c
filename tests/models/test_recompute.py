"""Any Keras model from ids to logits generates what its own calls, one after the other, would give."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_xla import XLAGenerationLayer
from keras_xla.models.recompute import Recompute

VOCAB, LENGTH = 41, 40
PROMPTS = [[5], [7, 11, 13, 17, 19], [3, 4, 5, 6, 7, 8, 9, 10, 11], [30, 20, 10]]


class TokensAndPositions(layers.Layer):
    """As in the Keras example of a miniature GPT."""

    def __init__(self, length):
        super().__init__()
        self.tokens, self.positions = layers.Embedding(VOCAB, 16), layers.Embedding(length, 16)

    def call(self, ids):
        return self.tokens(ids) + self.positions(ops.arange(0, ops.shape(ids)[-1], 1))


class Table(layers.Layer):
    """Positions by slicing a table, as KerasHub does: a longer text is an error."""

    def build(self, shape):
        self.table = self.add_weight((LENGTH, shape[-1]), name="positions")

    def call(self, x):
        return x + ops.slice(ops.convert_to_tensor(self.table), (0, 0), ops.shape(x)[1:])

    def compute_output_shape(self, shape):
        return shape


def block(x, causal=True):
    attention = layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=causal)
    x = layers.LayerNormalization()(x + layers.Dropout(0.5)(attention))
    return x + layers.Dense(16, activation="relu")(x)


def gpt(length=LENGTH, activation=None, causal=True, positions=None):
    """The miniature GPT; its second output is what the example has there, the last hidden states."""
    inputs = keras.Input((length,), dtype="int32")
    x = TokensAndPositions(LENGTH)(inputs) if positions is None else positions(layers.Embedding(VOCAB, 16)(inputs))
    x = block(x, causal)
    return shaken(keras.Model(inputs, [layers.Dense(VOCAB, activation=activation)(x), x]))


def lstm():
    """With the float input that Keras makes of an Input without a dtype."""
    stack = [layers.Embedding(VOCAB, 16), layers.LSTM(16, return_sequences=True), layers.Dense(VOCAB)]
    return shaken(keras.Sequential([keras.Input((None,)), *stack]))


def masked(kind):
    """Ids and a padding mask, as a dict or a list; a token that the mask hides is not seen."""
    ids, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "attention_mask"))
    seen = layers.Reshape((1, -1))(mask)
    x = layers.Embedding(VOCAB, 16)(ids)
    x = x + layers.MultiHeadAttention(2, 8)(x, x, attention_mask=seen, use_causal_mask=True)
    inputs = {"input_ids": ids, "attention_mask": mask} if kind == "dict" else [ids, mask]
    return shaken(keras.Model(inputs, {"logits": layers.Dense(VOCAB)(x), "hidden": x}))


def without_an_input():
    """A Sequential that has only been called: it knows a shape, but no other one is wrong."""
    model = keras.Sequential([layers.Embedding(VOCAB, 16), layers.GRU(16, return_sequences=True), layers.Dense(VOCAB)])
    model(np.zeros((2, 7), "int32"))
    return shaken(model)


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = layers.Embedding(VOCAB, 16), layers.GRU(16, return_sequences=True), None
        self.head = layers.Dense(VOCAB)

    def call(self, ids, training=False):
        return self.head(self.rnn(self.embed(ids)))


def subclass():
    model = Subclass()
    model(np.zeros((1, 4), "int32"))
    return shaken(model)


MODELS = {
    "gpt of a fixed length": gpt,
    "gpt of any length": lambda: gpt(None),
    "gpt with a table": lambda: gpt(None, positions=Table()),
    "gpt with probabilities": lambda: gpt(activation="softmax"),
    "lstm": lstm,
    "sequential without an input": without_an_input,
    "dict": lambda: masked("dict"),
    "list": lambda: masked("list"),
    "subclass": subclass,
}


def shaken(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(ops.convert_to_numpy(weight) + rng.normal(0, 0.3, weight.shape))
    return model


def outputs(model, ids):
    """What the model says to `ids`, padded behind to the length that every model here can read."""
    row = np.zeros((1, LENGTH), "int32")
    row[0, : len(ids)] = ids
    inputs = row
    if len(getattr(model, "inputs", None) or ()) == 2:
        mask = (np.arange(LENGTH)[None] < len(ids)).astype("int32")
        inputs = {"input_ids": row, "attention_mask": mask} if isinstance(model.input, dict) else [row, mask]
    out = model(inputs, training=False)
    out = out["logits"] if isinstance(out, dict) else out[0] if isinstance(out, list) else out
    return ops.convert_to_numpy(out)[0, len(ids) - 1]


def by_hand(model, prompt, new=8):
    ids = list(prompt)
    for _ in range(new):
        ids.append(int(outputs(model, ids).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow
def test_greedy_tokens_are_those_of_the_models_own_calls_for_prompts_of_mixed_lengths(name):
    model = MODELS[name]()
    layer = XLAGenerationLayer(Recompute(model), max_new_tokens=8)
    expected = [by_hand(model, prompt) for prompt in PROMPTS]
    assert layer.generate(PROMPTS)["sequences"].tolist() == expected
    assert layer.generate(PROMPTS[1:2])["sequences"].tolist() == expected[1:2]
    assert layer.trace_count == 4  # prompts and tokens, for batches of 4 and 1


@pytest.mark.slow
def test_after_more_training_the_new_weights_count_and_nothing_compiles_again():
    model = gpt()
    layer = XLAGenerationLayer(Recompute(model), max_new_tokens=8)
    before, traces = layer.generate(PROMPTS)["sequences"].tolist(), layer.trace_count
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss=[loss, None])
    data = (np.arange(LENGTH + 1)[None] + np.arange(32)[:, None]) % VOCAB  # counting
    model.fit(data[:, :-1], data[:, 1:], epochs=80, verbose=0)
    after = layer.generate(PROMPTS)["sequences"].tolist()
    assert after == [by_hand(model, prompt) for prompt in PROMPTS] != before
    assert after[2] == list(range(12, 20))
    assert layer.trace_count == traces


@pytest.mark.slow
def test_probabilities_become_logits_whose_scores_are_their_logarithms():
    model = gpt(activation="softmax")
    out = XLAGenerationLayer(Recompute(model), max_new_tokens=4).generate(PROMPTS[1:2])
    ids, total = list(PROMPTS[1]), 0.0
    for token in out["sequences"][0].tolist():
        total += np.log(outputs(model, ids)[token])
        ids.append(token)
    np.testing.assert_allclose(out["scores"], [total], rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt of a fixed length", "gpt of any length", "gpt with a table"])
@pytest.mark.quick_on_jax("fixed")
@pytest.mark.quick("fixed")
def test_the_length_of_the_input_or_of_the_table_of_positions_is_the_limit(name):
    decoder = Recompute(MODELS[name]())
    assert decoder.max_positions == LENGTH
    layer = XLAGenerationLayer(decoder, max_new_tokens=8)
    with pytest.raises(ValueError, match=f"more than the model's {LENGTH} positions"):
        layer.generate([[5] * (LENGTH - 7)])
    longest = list(range(LENGTH - 8))  # its bucket and the new tokens' are longer than the model, together
    assert layer.generate([longest])["sequences"].tolist() == [by_hand(decoder.model, longest)]


@pytest.mark.quick_on_jax
def test_a_model_without_positions_has_no_limit_unless_told():
    assert Recompute(lstm()).max_positions is None
    assert Recompute(lstm(), max_positions=20).max_positions == 20
    assert Recompute(gpt(), max_positions=100).max_positions == LENGTH


def two_inputs():
    a, b = keras.Input((4,), name="ids"), keras.Input((4,), name="weather")
    return keras.Model([a, b], layers.Dense(VOCAB)(layers.Embedding(VOCAB, 8)(a + b)))


def classifier():
    stack = [layers.Embedding(VOCAB, 8), layers.LSTM(8), layers.Dense(VOCAB)]
    return keras.Sequential([keras.Input((None,)), *stack])


def shorter():
    stack = [layers.Embedding(VOCAB, 8), layers.Conv1D(VOCAB, 3, padding="valid")]
    return keras.Sequential([keras.Input((12,)), *stack])


def bidirectional():
    rnn = layers.Bidirectional(layers.LSTM(8, return_sequences=True))
    return shaken(keras.Sequential([keras.Input((None,)), layers.Embedding(VOCAB, 8), rnn, layers.Dense(VOCAB)]))


def argmax():
    inputs = keras.Input((None,))
    return keras.Model(inputs, ops.cast(layers.Dense(VOCAB)(layers.Embedding(VOCAB, 8)(inputs)), "int32"))


def fewer_rows():
    stack = [layers.Embedding(VOCAB - 1, 8), layers.LSTM(8, return_sequences=True), layers.Dense(VOCAB)]
    return keras.Sequential([keras.Input((None,)), *stack])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (fewer_rows, ValueError, "makes logits of 41 tokens, but cannot read the last of them: of token 40"),
        (lambda: keras.Sequential([layers.Dense(3)]), TypeError, "has not been built.*Call it on ids once"),
        (lambda: len, TypeError, "is no Keras model"),
        (two_inputs, TypeError, r"inputs \['ids', 'weather'\]; expected one of ids.*'token_ids' and 'padding_mask'"),
        (lambda: keras.Sequential([keras.Input((4, 3)), layers.Dense(3)]), TypeError, r"shape \(None, 4, 3\)"),
        (
            lambda: keras.Sequential([keras.Input(batch_shape=(2, 4, 3)), layers.LSTM(3, stateful=True, name="rnn")]),
            TypeError,
            r"stateful layers \['rnn'\].*Set stateful=False",
        ),
        (classifier, ValueError, r"makes float32 \(1, 41\).*return_sequences=True"),
        (shorter, ValueError, r"makes float32 \(1, 10, 41\).*expected float logits of shape \(1, 12, vocab\)"),
        (argmax, ValueError, r"makes int32 \(1, 8, 41\)"),
        (bidirectional, ValueError, "not causal: a change of token 4"),
        (lambda: gpt(causal=False), ValueError, "not causal.*use_causal_mask=True"),
    ],
)
@pytest.mark.quick_on_jax
def test_other_models_are_refused_when_the_layer_is_made(make, error, text):
    with pytest.raises(error, match=text):
        Recompute(make())


@pytest.mark.slow
def test_a_lora_that_comes_later_is_not_ignored():
    model = keras.Sequential(
        [keras.Input((8,), dtype="int32"), keras.layers.Embedding(20, 4), keras.layers.Dense(20, name="head")]
    )
    layer = XLAGenerationLayer(model, max_new_tokens=2)
    layer.generate([[5, 6]])
    model.get_layer("head").enable_lora(2)
    with pytest.raises(ValueError, match=r"has other weights than when the layer was made.*LoRA"):
        layer.generate([[5, 6]])
    assert XLAGenerationLayer(model, max_new_tokens=2).generate([[5, 6]])["lengths"].tolist() == [2]


def test_its_weights_are_read_where_the_model_around_it_holds_it_and_else_a_warning_says_so(tmp_path):
    def around(model):
        inputs = keras.Input((3,), dtype="int32")
        both = {"made": XLAGenerationLayer(model, max_new_tokens=2)(inputs)["lengths"], "scores": model(inputs)}
        return keras.Model(inputs, both)

    model, other, alone = lstm(), lstm(), lstm()
    before = alone.get_weights()
    around(model).save_weights(tmp_path / "both.weights.h5")
    with pytest.warns(UserWarning, match="Load them into that model, unless the file has been read into it"):
        around(other).load_weights(tmp_path / "both.weights.h5")
    for ours, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    pipeline = keras.Sequential([keras.Input((3,), dtype="int32"), XLAGenerationLayer(alone, max_new_tokens=2)])
    pipeline.save_weights(tmp_path / "layer.weights.h5")
    with pytest.warns(UserWarning, match="whose weights are no part of what the layer reads"):
        pipeline.load_weights(tmp_path / "layer.weights.h5")
    for ours, theirs in zip(alone.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
