"""Many calls, from many threads: each has a state of its own, nothing compiles, memory stays flat."""

import concurrent.futures
import gc
import resource
import threading
import time

import numpy as np
import pytest
from keras import ops

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

VOCAB = 97
ZEROS = np.zeros((VOCAB,), "float32")


def biased(tokens, logits, step, *, values=ZEROS):
    return logits + values


def layer_of(checkpoint, variant, **more):
    options = dict(max_new_tokens=8, eos_token_id=2, cache_buckets=(32, 64, 128), on_recompile="raise")
    return XLAGenerationLayer(load_model(open_checkpoint(checkpoint(variant))), tiny(), **options, **more)


@pytest.fixture
def layer(checkpoint):
    return layer_of(checkpoint, "llama-tied-gqa")


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
    with pytest.raises(ValueError, match=r"cache of 65; the largest of cache_buckets=\(64,\) is smaller"):
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


KINDS = {
    "plain": {},
    "beams": dict(num_beams=2),
    "guesses": dict(prompt_lookup_num_tokens=4),
    "guided": dict(guidance_scale=1.5),
    "scored": dict(output_logprobs=True, top_logprobs=3),
    "assisted": dict(num_assistant_tokens=4),
}
PROCESSED = (
    dict(repetition_penalty=1.3),
    dict(presence_penalty=0.5, frequency_penalty=-0.2),
    dict(no_repeat_ngram_size=2, encoder_no_repeat_ngram_size=3),
    dict(bad_words_ids=[[7], [8, 9]], sequence_bias={(5, 6): 2.0}),
    dict(suppress_tokens=[11], begin_suppress_tokens=[12, 13], forced_eos_token_id=2),
    dict(exponential_decay_length_penalty=(2, 1.5), encoder_repetition_penalty=1.2),
    dict(min_length=4, eos_token_id=[2, 50, 60]),
)
DRAWN = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


def anything(rng):
    """A kind of call, its inputs, and whatever options may be given to it."""
    kind = rng.choice(list(KINDS), p=[0.55, 0.1, 0.1, 0.1, 0.1, 0.05])
    rows = [rng.integers(5, 90, rng.integers(1, 40)).tolist() for _ in range(rng.integers(1, 3))]
    options = dict(max_new_tokens=int(rng.integers(1, 20)))
    if rng.random() < 0.2:
        options["max_new_tokens"] = rng.integers(1, 20, len(rows)).tolist()
    if rng.random() < 0.5:
        options |= dict(do_sample=True, seed=int(rng.integers(100)), top_k=int(rng.integers(0, 20)))
        options |= {name: float(rng.uniform(0.1, 0.9)) for name in DRAWN if rng.random() < 0.2}
        if rng.random() < 0.2:
            options["temperature"] = rng.uniform(0.1, 2, len(rows)).tolist()
        if rng.random() < 0.1:
            options["renormalize_logits"] = True
        if kind != "beams" and rng.random() < 0.2:
            options |= dict(num_return_sequences=2) if len(rows) == 1 else dict(seed=[1, 2])
    for some in PROCESSED:
        options |= some if rng.random() < 0.1 else {}
    if kind == "beams":
        options |= dict(
            length_penalty=float(rng.uniform(-1, 2)), early_stopping=[True, False, "never"][rng.integers(3)]
        )
    if rng.random() < 0.3:
        options["processor_options"] = {"biased": {"values": rng.normal(0, 2, VOCAB).astype("float32")}}
    if kind == "plain" and rng.random() < 0.1:
        options["stop_strings"] = ["ab", "c"]
    if kind == "plain" and "num_return_sequences" not in options and rng.random() < 0.1:
        if any(name in options for some in PROCESSED for name in some):  # a text that they forbid may have to come
            options["regex"] = "[a-z]{1,9}"
        else:
            options["json_schema"] = {"type": "string", "maxLength": 5}
        options.pop("forced_eos_token_id", None)  # it may have to be a letter
    if kind == "guided":
        options["guidance_scale"] = float(rng.uniform(-1, 3))
        options |= dict(negative_prompt=rows[::-1]) if rng.random() < 0.5 else {}
    if kind in ("plain", "guesses") and rng.random() < 0.3:
        options["reuse_prompt"] = True
    return kind, rows, {**KINDS[kind], **options}


@pytest.mark.slow
def test_ten_thousand_calls_with_any_options_compile_nothing_and_leave_no_memory_behind(checkpoint):
    layer = layer_of(checkpoint, "llama-tied-gqa", logits_processors=[biased])
    assistant = layer_of(checkpoint, "gpt2")
    for kind, options in KINDS.items():
        more = dict(assistant=assistant) if kind == "assisted" else {}
        layer.warmup([1, 2], [5, 40], max_new_tokens=20, verbose=0, **options, **more)
    rng, sizes, before = np.random.default_rng(0), [], layer.trace_count
    for i in range(10_000):
        kind, rows, options = anything(rng)
        if kind == "plain" and i % 7 == 0 and "num_return_sequences" not in options:
            options.pop("reuse_prompt", None)
            list(layer.stream(rows, **options))
        elif i % 50 == 1:
            layer.score([[5, *row] for row in rows], top_logprobs=3)  # as the warm-up has it
        else:
            layer.generate(rows, **options, **(dict(assistant=assistant) if kind == "assisted" else {}))
        if i % 1000 == 999:
            gc.collect()
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert layer.trace_count == before
    assert sizes[-1] - sizes[2] < 20, sizes  # MiB


class Noting:
    """Counts on from the last token, which it notes in itself while Python runs: no two threads may do so at once."""

    vocab_size, max_positions, variables = 10, None, ()

    def logits(self, tokens):
        return ops.one_hot((tokens + 1) % self.vocab_size, self.vocab_size, dtype="float32")

    def prefill(self, ids, starts, slots):
        self.last = ids[:, -1]
        time.sleep(0.1)
        return self.logits(self.last), ops.cast(self.last, "float32")[:, None]

    def step(self, tokens, slot, starts, cache):
        return self.logits(tokens), cache


@pytest.mark.slow
def test_a_models_python_runs_in_one_thread_at_a_time():
    layer, gate = XLAGenerationLayer(Noting(), max_new_tokens=3), threading.Barrier(2)

    def call(rows):
        gate.wait()
        return layer.generate(rows)["sequences"].tolist()

    with concurrent.futures.ThreadPoolExecutor() as threads:
        one, two = threads.submit(call, [[3]]), threads.submit(call, [[3], [5]])
        assert one.result() == [[4, 5, 6]] and two.result() == [[4, 5, 6], [6, 7, 8]]
