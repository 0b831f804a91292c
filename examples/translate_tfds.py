"""Translate a tensorflow_datasets text set inside a tf.data pipeline: a local builder, T5, four beams.

    python examples/translate_tfds.py                          # google/flan-t5-small from the Hugging Face hub
    python examples/translate_tfds.py --model path/to/folder   # any T5, BART or mBART checkpoint

Sentences of all lengths go through a handful of XLA executables: one for each bucket of lengths.
"""

import argparse
import tempfile

import tensorflow as tf
import tensorflow_datasets as tfds

import keras_xla

SENTENCES = [
    "The house is wonderful.",
    "Where is the station?",
    "I would like a cup of coffee, please.",
    "The train to Berlin leaves in ten minutes from platform three.",
    "He has been working in this small town for more than twenty years, and he knows everybody.",
    "Good morning!",
    "My sister lives in France.",
    "Could you tell me what time it is?",
    "The weather is nice today, so we are going for a walk in the park.",
]


class Sentences(tfds.core.GeneratorBasedBuilder):
    """English sentences; for your own data, replace `_generate_examples`."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"en": tfds.features.Text()}))

    def _split_generators(self, dl_manager):
        return {"test": self._generate_examples()}

    def _generate_examples(self):
        for i, sentence in enumerate(SENTENCES):
            yield i, {"en": sentence}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="google/flan-t5-small")
    parser.add_argument("--prefix", default="translate English to German: ")
    parser.add_argument("--beams", type=int, default=4)
    args = parser.parse_args()

    layer = keras_xla.XLAGenerationLayer.from_pretrained(args.model, num_beams=args.beams, max_new_tokens=48)
    with tempfile.TemporaryDirectory() as folder:
        builder = Sentences(data_dir=folder)
        builder.download_and_prepare()
        dataset = builder.as_dataset(split="test").batch(4)
        dataset = dataset.map(lambda row: {**row, "de": layer(tf.strings.join([args.prefix, row["en"]]))})
        for row in tfds.as_numpy(dataset.unbatch()):
            print(f"{row['en'].decode()}\n    {row['de'].decode()}")
    print(f"\n{len(SENTENCES)} sentences, {layer.trace_count} XLA compilations:")
    print(keras_xla.compile_log("generate"))


if __name__ == "__main__":
    main()
