"""Models of sequences: recurrent networks and transformers."""

import keras
from case import Case, seeded
from data import forecasts, next_words, passages
from keras import layers, ops
from models_dense import classifier


def bilstm() -> Case:
    """Two bidirectional LSTMs in the shape of Keras' IMDB example; which half of WikiText-2 is a paragraph from?"""
    vocabulary, length = 10_000, 80

    @seeded
    def make():
        model = keras.Sequential([keras.Input((None,), dtype="int32"), layers.Embedding(vocabulary, 64)])
        model.add(layers.Bidirectional(layers.LSTM(32, return_sequences=True)))
        model.add(layers.Bidirectional(layers.LSTM(32)))
        model.add(layers.Dense(1, activation="sigmoid"))
        return model

    def arguments():
        return dict(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])

    return Case(make, arguments, passages(vocabulary, length), batch_size=32)


def gru() -> Case:
    """The temperature in 12 hours out of 72 hours of New York's weather."""

    @seeded
    def make():
        return keras.Sequential([keras.Input((72, 6)), layers.GRU(32), layers.Dense(1)])

    def arguments():
        return dict(optimizer=keras.optimizers.Adam(1e-3), loss="mse", metrics=["mae"])

    return Case(make, arguments, forecasts(past=72, ahead=12), batch_size=128)


class TokenAndPositionEmbedding(keras.layers.Layer):
    """Adds what is learned of a word and of its place."""

    def __init__(self, length: int, vocabulary: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.words = layers.Embedding(vocabulary, width)
        self.places = layers.Embedding(length, width)

    def call(self, ids):
        return self.words(ids) + self.places(ops.arange(ops.shape(ids)[-1]))


class TransformerBlock(keras.layers.Layer):
    """Attention and a feed-forward network, each with dropout, a shortcut and a norm after it."""

    def __init__(self, width: int, heads: int, hidden: int, causal: bool = False, rate: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.causal = causal
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.feed_forward = keras.Sequential([layers.Dense(hidden, activation="relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropouts = [layers.Dropout(rate) for _ in range(2)]

    def call(self, x, training=None):
        attended = self.attention(x, x, use_causal_mask=self.causal)
        x = self.norms[0](x + self.dropouts[0](attended, training=training))
        return self.norms[1](x + self.dropouts[1](self.feed_forward(x), training=training))


def text_transformer() -> Case:
    """One transformer block, pooled, dropout; which half of WikiText-2 is a paragraph from?"""
    vocabulary, length, width = 10_000, 100, 32

    @seeded
    def make():
        inputs = keras.Input((length,), dtype="int32")
        x = TokenAndPositionEmbedding(length, vocabulary, width)(inputs)
        x = TransformerBlock(width, heads=2, hidden=32)(x)
        x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
        x = layers.Dropout(0.1)(layers.Dense(20, activation="relu")(x))
        return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))

    return Case(make, classifier, passages(vocabulary, length), batch_size=32)


def mini_gpt() -> Case:
    """A miniature GPT on the words of WikiText-2: one causal block, logits for 4,000 words; from `tf.data`."""
    vocabulary, length, width = 4000, 40, 96

    @seeded
    def make():
        inputs = keras.Input((length,), dtype="int32")
        x = TokenAndPositionEmbedding(length, vocabulary, width)(inputs)
        x = TransformerBlock(width, heads=2, hidden=width, causal=True)(x)
        return keras.Model(inputs, layers.Dense(vocabulary)(x))

    def arguments():
        return dict(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    data = next_words(vocabulary, length)
    return Case(make, arguments, data, batch_size=16, pipeline=True, predict_rows=512)
