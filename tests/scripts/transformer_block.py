"""Text classification with a transformer block and token and position embeddings."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(9)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        out1 = self.layernorm1(inputs + self.dropout1(self.att(inputs, inputs)))
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        positions = ops.arange(start=0, stop=ops.shape(x)[-1], step=1)
        return self.token_emb(x) + self.pos_emb(positions)


random = np.random.default_rng(9)
sequences = [random.integers(1, 50, random.integers(5, 24)) for _ in range(600)]
labels = np.array([int(np.sum(sequence < 10) > 2) for sequence in sequences])
x = keras.utils.pad_sequences(sequences, maxlen=20)

inputs = layers.Input(shape=(20,))
h = TokenAndPositionEmbedding(20, 50, 16)(inputs)
h = TransformerBlock(16, 2, 16)(h)
h = layers.GlobalAveragePooling1D()(h)
h = layers.Dropout(0.1)(h)
h = layers.Dense(20, activation="relu")(h)
model = keras.Model(inputs=inputs, outputs=layers.Dense(2, activation="softmax")(h), name="transformer")
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x[:500], labels[:500], batch_size=32, epochs=2, validation_data=(x[500:], labels[500:]), verbose=0)
print(json.dumps(history.history))
