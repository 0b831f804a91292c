"""Fine-tune a GPT-2 with `fit`, compiled by XLA, and watch what it writes after each epoch.

    python examples/finetune_gpt2.py                               # openai-community/gpt2 from the hub
    python examples/finetune_gpt2.py --model folder --text book.txt --save writer.keras

The layer generates with the weights that are being trained, and does not compile again when they change.
"""

import argparse
import pathlib

import keras
import numpy as np

import keras_xla

TEXT = "".join(f"{n} green bottles hanging on the wall. If one green bottle should fall: " for n in range(200, 0, -1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="openai-community/gpt2")
    parser.add_argument("--text", type=pathlib.Path, help="what to learn; a nursery rhyme by default")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--length", type=int, default=64, help="tokens in a training sequence")
    parser.add_argument("--save", type=pathlib.Path, help="a .keras file for a model that continues prompts")
    args = parser.parse_args()

    layer = keras_xla.XLAGenerationLayer.from_pretrained(args.model)
    text = args.text.read_text(encoding="utf-8") if args.text else TEXT
    ids = np.array(layer.tokenizer(text)["input_ids"], "int32")
    rows = len(ids) // (args.length + 1)
    if not rows:
        raise SystemExit(
            f"The text has {len(ids)} tokens; expected at least {args.length + 1}. Pass a smaller --length."
        )
    ids = ids[: rows * (args.length + 1)].reshape(rows, args.length + 1)

    tokens = keras.Input((args.length,), dtype="int32")
    model = keras.Model(tokens, layer.model(tokens))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    keras_xla.compile(model, optimizer=keras.optimizers.AdamW(1e-3), loss=loss)
    samples = keras_xla.callbacks.GenerateSamples("10 green ", layer, max_new_tokens=12)
    model.fit(ids[:, :-1], ids[:, 1:], batch_size=8, epochs=args.epochs, callbacks=[samples])
    print(keras_xla.compile_log())
    if args.save:  # keras.saving.load_model(args.save).predict(prompts) then makes tokens of padded token ids
        prompts = keras.Input((None,), dtype="int32", name="input_ids")
        keras.Model(prompts, layer(prompts)).save(args.save)


if __name__ == "__main__":
    main()
