"""The 20 calls of `answers.py`, in a process of its own; older versions of keras_xla can make them, too. Prints JSON.

PYTHONPATH=CHECKOUT python benchmarks/answers_calls.py MODEL [warm]
"""

import json
import os
import pathlib
import sys
import time

import numpy as np

LENGTHS = np.linspace(5, 700, 20).astype(int).tolist()
NEW = (5, 20, 60, 150, 300)


def mixed_calls(layer) -> dict:
    """20 prompts of 20 lengths, greedy and sampled, streamed and whole: what they took, and what they compiled."""
    rng, before, start = np.random.default_rng(0), layer.trace_count, time.perf_counter()
    for i, length in enumerate(rng.permutation(LENGTHS)):
        ids = rng.integers(100, 40_000, (1, length))
        options = dict(max_new_tokens=NEW[i % len(NEW)], **(dict(do_sample=True, seed=i) if i % 2 else {}))
        if i % 3 or not hasattr(layer, "stream"):
            layer.generate(ids, **options)
        else:
            list(layer.stream(ids, **options))
    return dict(seconds=time.perf_counter() - start, compiled=layer.trace_count - before)


def main(model: str, warm: str = ""):
    import keras_xla

    assert pathlib.Path(keras_xla.__file__).is_relative_to(os.environ["PYTHONPATH"]), "another keras_xla was imported"
    layer = keras_xla.XLAGenerationLayer.from_pretrained(model, eos_token_id=None)
    line = {}
    if warm:
        start = time.perf_counter()
        line["warmup_compiled"] = layer.warmup(1, LENGTHS, verbose=0, max_new_tokens=max(NEW))
        line["warmup_seconds"] = time.perf_counter() - start
    line |= mixed_calls(layer)
    line["shapes"] = [event.shapes for event in keras_xla.compile_log("generate")]
    print(json.dumps(line | {"again": mixed_calls(layer)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
