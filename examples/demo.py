"""`make demo`: both halves of keras_xla on real input, in about a minute and a half on two cores.

The digits come through tensorflow-datasets. `fit_predict.py`, `tfds_pipeline.py` and `generate_text.py` beside this
file are the same as scripts to copy.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable

EPOCHS = 50
QUESTIONS = (
    ("What is the capital of France?", {}),
    ("Name three colours.", dict(do_sample=True, temperature=0.7, seed=1)),
    ("Why is the sky blue?", dict(stop_strings=".")),
)
TURNS = ("I have a cat. Her name is Mia.", "What is the name of my cat?")


@contextlib.contextmanager
def without_cpp_log():
    """Leave out what TensorFlow's C++ code says as it starts and reads files: it is about the machine, and no error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


print("Importing Keras and TensorFlow ...", flush=True)
with without_cpp_log():
    import fit_predict
    import generate_text
    import keras
    import numpy as np
    import smollm2
    import tensorflow as tf
    import tensorflow_datasets as tfds
    import tfds_pipeline

    import keras_xla

    tf.config.list_physical_devices()  # it looks for a GPU, and says at length that there is none


class Progress(keras.callbacks.Callback):
    """One line that grows with the epochs, and their seconds."""

    def __init__(self, label: str):
        super().__init__()
        self.label, self.start, self.epochs = label, time.perf_counter(), 0
        self.show()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs = epoch + 1
        if sys.stdout.isatty() or self.epochs % 10 == 0:
            self.show(f"  accuracy {logs['accuracy']:.3f}")

    def show(self, more: str = "") -> None:
        bar = "=" * round(30 * self.epochs / EPOCHS)
        end = "" if sys.stdout.isatty() else "\n"
        seconds = time.perf_counter() - self.start
        print(f"\r  {self.label:<32}[{bar:30}] {seconds:5.1f} s{more}", end=end, flush=True)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images `(1500, 8, 8)` float32 and labels `(1500,)`, from files that tensorflow-datasets writes."""
    tfds.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None), without_cpp_log():
        builder = tfds_pipeline.Digits(data_dir=folder)
        builder.download_and_prepare()
        return tfds.as_numpy(builder.as_dataset(split="train", as_supervised=True, batch_size=-1))


def train(label: str, images: np.ndarray, labels: np.ndarray, compile) -> tuple[float, keras.Model]:
    """The seconds of a fit, and the model."""
    model = fit_predict.classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compile(model, optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
    progress = Progress(label)
    model.fit(images, labels, batch_size=32, epochs=EPOCHS, verbose=0, callbacks=[progress])
    print()
    return time.perf_counter() - progress.start, model


def show_training() -> None:
    print(f"\n1. A small transformer learns to read handwritten digits, {EPOCHS} epochs\n", flush=True)
    images, labels = digits()
    plain, _ = train("model.compile(...)", images, labels, lambda model, **arguments: model.compile(**arguments))
    fast, model = train("keras_xla.compile(model, ...)", images, labels, keras_xla.compile)
    print(
        f"\n  {plain / fast:.2f} times as fast, with all measuring and compiling. What was measured, chosen and run:\n"
    )
    print(keras_xla.model_report(model))


def show(pieces: Iterable[str]) -> None:
    """Print an answer as it is made."""
    start = time.perf_counter()
    for piece in pieces:
        print(piece.replace("\n", "\n    "), end="", flush=True)
    print(f"\n    [{time.perf_counter() - start:.1f} s]\n")


def show_generation() -> None:
    print("\n2. SmolLM2-135M-Instruct answers, one token after the other\n", flush=True)
    source = smollm2.fetch()
    print("  Loading 135 million parameters ...", end=" ", flush=True)
    layer, seconds = generate_text.timed(
        keras_xla.XLAGenerationLayer.from_pretrained, source, max_new_tokens=48, cache_buckets=(256,), verbose=0
    )
    print(f"{seconds:.1f} s")
    print("  Reading the tokenizer ...", end=" ", flush=True)
    _, seconds = generate_text.timed(lambda: layer.tokenizer)
    print(f"{seconds:.1f} s")
    print("  Compiling, once for all lengths and options ...", end=" ", flush=True)
    _, seconds = generate_text.timed(layer.warmup, verbose=0)
    print(f"{seconds:.1f} s\n")
    compiled = layer.trace_count
    for question, options in QUESTIONS:
        said = ", ".join(f"{name}={value!r}" for name, value in options.items()) or "greedy"
        print(f"  {question}  ({said})\n    ", end="", flush=True)
        show(layer.stream([{"role": "user", "content": question}], **options))
    chat = layer.chat(max_new_tokens=24)
    for turn in TURNS:
        print(f"  You: {turn}\n  It:  ", end="", flush=True)
        show(chat.stream(turn))
    assert layer.trace_count == compiled
    print(f"Compiled while it answered: nothing. All compilations of it:\n{keras_xla.compile_log('generate')}")


if __name__ == "__main__":
    show_training()
    show_generation()
