"""Text generation inside a Keras model: SmolLM2-135M-Instruct answers questions of different lengths.

Run with the path of a GGUF file or of a Hugging Face folder to use another model.
"""

import argparse
import time

import keras
import tensorflow as tf

import keras_xla

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue? Answer in one sentence, for a child of five years who has never heard of physics.",
]
STYLES = [
    ("greedy", {}),
    ("temperature 0.7, top-p 0.9", dict(do_sample=True, temperature=0.7, top_p=0.9, seed=1)),
    ("temperature 1.2, top-k 20", dict(do_sample=True, temperature=1.2, top_k=20, seed=2)),
    ("at least 20 tokens", dict(do_sample=True, temperature=0.2, min_new_tokens=20, seed=3)),
]
TURNS = ["What is the capital of Italy?", "How many people live there?", "Name one thing to see there."]


def timed(function, *args, **kwargs):
    start = time.perf_counter()
    result = function(*args, **kwargs)
    return result, time.perf_counter() - start


def main(source, new_tokens=48):
    layer, seconds = timed(keras_xla.XLAGenerationLayer.from_pretrained, source, max_new_tokens=new_tokens)
    print(f"Loaded {layer.model.count_params() / 1e6:.0f}M parameters in {seconds:.1f} s.\n")
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]

    # In a Keras pipeline: strings in, strings out.
    model = keras.Sequential([keras.Input((), dtype="string"), layer])
    prompts = [layer.tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
    for label in ("first call", "second call"):
        answers, seconds = timed(model.predict, tf.constant(prompts), verbose=0)
        print(f"model.predict of {len(prompts)} prompts, {label}: {seconds:.2f} s")
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"  {question}\n    {answer.decode()}")

    print("\nOne question at a time, as the answers are made, with other options at every call:")
    for style, options in STYLES:
        for chat, question in zip(chats, QUESTIONS, strict=True):
            compiled, start = layer.trace_count, time.perf_counter()
            print(f"  {question[:30]:30} {style}:\n    ", end="")
            for piece in layer.stream(chat, **options):
                print(piece.replace("\n", "\n    "), end="", flush=True)
            first = ", XLA compiled" if layer.trace_count > compiled else ""
            print(f"\n    ({time.perf_counter() - start:.2f} s{first})")

    print("\nA conversation, of which each turn runs only what is new:")
    conversation = layer.chat()
    for question in TURNS:
        answer, seconds = timed(conversation.send, question)
        print(f"  {question}\n    {answer}\n    ({seconds:.2f} s)")
    calls = 2 + len(STYLES) * len(QUESTIONS) + len(TURNS)
    print(f"\n{calls} calls, {layer.trace_count} XLA compilations:\n{keras_xla.compile_log('generate')}")

    answer, compiled = timed(layer.generate, chats[1])
    layer.run_eagerly = True
    same, eager = timed(layer.generate, chats[1])
    assert same == answer
    slower = eager / compiled
    print(f"\n{new_tokens} tokens compiled: {compiled:.2f} s; run eagerly: {eager:.2f} s, {slower:.0f} times slower.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--new-tokens", type=int, default=48, help="length of the longest answers")
    args = parser.parse_args()
    if args.model is None:
        import smollm2  # the file beside this one, which fetches the model

        args.model = smollm2.fetch()
    main(args.model, args.new_tokens)
