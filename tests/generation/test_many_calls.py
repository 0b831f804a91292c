"""Many calls, from many threads: each has a state of its own, nothing compiles, memory stays flat."""

import gc
import resource
import threading

import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny


@pytest.fixture
def layer(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    return XLAGenerationLayer(
        model, tiny(), max_new_tokens=8, eos_token_id=2, cache_buckets=(32, 64, 128), on_recompile="raise"
    )


def mixed(rng):
    """A call: its way, its inputs and its options."""
    rows = [rng.integers(5, 90, rng.integers(1, 40)).tolist() for _ in range(rng.integers(1, 3))]
    options = dict(max_new_tokens=int(rng.integers(1, 20)))
    if rng.random() < 0.5:
        options |= dict(do_sample=True, seed=int(rng.integers(100)), top_k=int(rng.integers(0, 20)))
    if rng.random() < 0.3:
        options |= dict(repetition_penalty=1.3)
    return ("generate", "stream", "reuse")[rng.integers(3)], rows, options


def answer(layer, way, rows, options):
    if way == "stream":
        made = [[] for _ in rows]
        for piece in layer.stream(rows, **options):
            row, ids = piece if len(rows) > 1 else (0, piece)
            made[row] += ids.tolist()
        return made
    out = layer.generate(rows, reuse_prompt=way == "reuse", **options)
    return [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]


def test_a_cache_that_could_not_grow_as_far_is_refused_before_anything_runs(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    layer = XLAGenerationLayer(model, cache_buckets=[64], max_new_tokens=60)
    with pytest.raises(ValueError, match=r"cache of 65, larger than the largest bucket of \(64,\)"):
        layer.generate([[5] * 5])
    assert layer.trace_count == 0 and layer.generate([[5] * 4])["sequences"].shape == (1, 60)


@pytest.mark.slow
def test_eight_threads_get_the_answers_of_one(layer):
    layer.warmup(batch_sizes=[1, 2], prompt_lengths=[5, 40], max_new_tokens=20, verbose=0)
    rng = np.random.default_rng(0)
    calls = [mixed(rng) for _ in range(300)]
    alone = [answer(layer, *call) for call in calls]
    compiled, got, errors = layer.trace_count, [None] * len(calls), []

    def work(first):
        try:
            for i in range(first, len(calls), 8):
                got[i] = answer(layer, *calls[i])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and got == alone
    assert layer.trace_count == compiled


@pytest.mark.slow
def test_ten_thousand_calls_leave_no_memory_behind(layer):
    layer.warmup(batch_sizes=[1], prompt_lengths=[5], verbose=0)
    sizes = []
    for i in range(10_000):
        layer.generate([[5 + i % 80]], max_new_tokens=1 + i % 3, reuse_prompt=i % 2 == 0)
        if i % 1000 == 999:
            gc.collect()
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert sizes[-1] - sizes[2] < 20, sizes  # MiB
