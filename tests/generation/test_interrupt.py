"""Ctrl-C as a user presses it, and `cancel` from another thread: both end a call at once; then all is as before."""

import json
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent(
    """
    import gc, json, os, signal, threading, time
    import numpy as np
    import keras_xla
    from keras_xla.models.build import build
    from keras_xla.models.spec import AttentionSpec, DecoderSpec, LearnedPositions, MLPSpec, NormSpec

    gc.disable()  # a Ctrl-C that comes while JAX's callback of the garbage collector runs is lost in it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has jobs in the background ignore it

    spec = DecoderSpec(
        vocab_size=500, hidden_size=256, embedding_size=256, layers=4, tied=True, final_norm=True,
        attention=AttentionSpec(heads=4, kv_heads=4, head_dim=64, qkv_bias=True, out_bias=True, scale=0.125),
        position=LearnedPositions(2000), norm=NormSpec("layer", 1e-5), mlp=MLPSpec(1024, "gelu", False, True),
    )
    layer = keras_xla.XLAGenerationLayer(build(spec), cache_buckets=[2000], max_new_tokens=1900)
    ids = np.arange(20, dtype="int32")[None]

    def interrupted(call, seconds):
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        start = time.perf_counter()
        timer.start()
        try:
            call()
        except KeyboardInterrupt:
            return time.perf_counter() - start
        finally:
            timer.cancel()

    found = {}
    found["compilation"] = interrupted(lambda: layer.generate(ids, max_new_tokens=2), 0.05)
    first = layer.generate(ids, max_new_tokens=50)["sequences"]
    found["compilations"] = layer.trace_count
    found["logged"] = len(keras_xla.compile_log("generate"))
    start = time.perf_counter()
    whole = layer.generate(ids)["sequences"][0]
    found["whole"] = time.perf_counter() - start
    found["generation"] = interrupted(lambda: layer.generate(ids), found["whole"] / 8)
    pieces = []
    found["stream"] = interrupted(lambda: pieces.extend(layer.stream(ids)), found["whole"] / 8)
    found["pieces"] = sum(map(len, pieces))
    cancel = threading.Event()
    another, start = threading.Timer(found["whole"] / 8, cancel.set), time.perf_counter()
    another.start()
    out = layer.generate(ids, cancel=cancel)
    found["cancelled"], made = time.perf_counter() - start, int(out["lengths"][0])
    found["made"], found["beginning"] = made, bool((out["sequences"][0, :made] == whole[:made]).all())
    found["same"] = bool((layer.generate(ids, max_new_tokens=50)["sequences"] == first).all())
    found["compilations at the end"] = layer.trace_count
    other = keras_xla.XLAGenerationLayer(layer.model, cache_buckets=[2000], max_new_tokens=1900)
    found["warm-up"] = interrupted(lambda: other.warmup(verbose=0), 0.5)
    other.warmup(verbose=0)
    found["compilations of the warm-up"] = other.trace_count
    print(json.dumps(found))
    """
)


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_compilation_need_not_be_waited_for_and_counts_once(found):
    assert found["compilation"] is not None
    assert found["compilations"] == found["logged"] == 2  # prefill and advance


@pytest.mark.slow
def test_a_warmup_goes_on_where_it_was_interrupted(found):
    assert found["warm-up"] is not None and found["compilations of the warm-up"] == 2


@pytest.mark.parametrize("call", ["generation", "stream", "cancelled"])
def test_a_generation_ends_long_before_its_last_token(found, call):
    assert found[call] is not None and found[call] < 0.7 * found["whole"]


def test_what_another_thread_cancels_returns_what_was_made(found):
    assert 0 < found["made"] < 1900 and found["beginning"]


def test_afterwards_the_layer_is_as_good_as_new(found):
    assert 0 < found["pieces"] < 1900
    assert found["same"] and found["compilations at the end"] == 2
