"""Answers that a program can read: labels by score, and JSON by a schema, from SmolLM2-135M-Instruct.

It needs the extra: in a checkout, pip install ".[grammar]". Run with the path of a GGUF file or of a folder to
use another model.
"""

import argparse
import json
import time

import keras_xla

REVIEWS = [
    "I loved it, and I laughed every time I watched it.",
    "Two hours of my life that I will never get back.",
    "A wonderful story, with music that I still hear.",
    "The actors try, but the story makes no sense at all.",
]
EXAMPLES = """\
Review: A wonderful film, I loved every minute of it.
Opinion: good
Review: Boring, far too long and badly acted.
Opinion: bad
Review: The best comedy of the year.
Opinion: good
Review: I left the cinema after half an hour.
Opinion: bad
"""
LABELS = [" good", " bad"]
PEOPLE = [
    "Marie Curie was born in Warsaw in 1867. She was a physicist and a chemist.",
    "Alan Turing, a mathematician from London, was born in 1912.",
]
PERSON = """\
Text: Claude Monet, born in Paris in 1840, was a painter.
JSON: {"name": "Claude Monet", "year_of_birth": 1840, "profession": "painter"}
Text: In 1879 Albert Einstein was born in Ulm; he became a physicist.
JSON: {"name": "Albert Einstein", "year_of_birth": 1879, "profession": "physicist"}
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "year_of_birth": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "profession": {"enum": ["physicist", "mathematician", "painter"]},
    },
    "required": ["name", "year_of_birth", "profession"],
    "additionalProperties": False,
}


def main(source):
    layer = keras_xla.XLAGenerationLayer.from_pretrained(source, max_new_tokens=80)

    print("Which label follows more likely:")
    prompts = [f"{EXAMPLES}Review: {review}\nOpinion:" for review in REVIEWS]
    pairs = [(prompt, label) for prompt in prompts for label in LABELS]
    scores = layer.score([prompt for prompt, _ in pairs], [label for _, label in pairs])
    for i, review in enumerate(REVIEWS):
        good, bad = (each.logprobs.sum() for each in scores[2 * i : 2 * i + 2])
        print(f"  {'good' if good > bad else 'bad ':4} by {abs(good - bad):.1f} nats: {review}")

    print("\nThe same as answers that have to be one of the labels, behind examples that are computed once:")
    saved = layer.save_prompt(EXAMPLES)
    for _ in range(2):
        start = time.perf_counter()
        made = layer.generate(prompts, regex=" (good|bad)", reuse_prompt=saved)
        seconds = time.perf_counter() - start
    print(f"  {[answer.strip() for answer in made]} ({seconds:.2f} s)")

    print("\nJSON by a schema:")
    asked = [f"{PERSON}Text: {text}\nJSON:" for text in PEOPLE]
    for answer in layer.generate(asked, json_schema=SCHEMA, output_logprobs=True):
        person = json.loads(answer)
        print(f"  {person}  (mean log-probability of a token {answer.scored.logprobs.mean():.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    model = parser.parse_args().model
    if model is None:
        import smollm2  # the file beside this one, which fetches the model

        model = smollm2.fetch()
    main(model)
