"""A call that is ended while its prompts still run: it returns at once, with nothing made, and all is as before."""

import threading

import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.engine.executables import Executables
from keras_xla.engine.keys import PrefillKey
from keras_xla.engine.runs.generation import Pace
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

TOKENS = np.arange(100, dtype="int32") % 90 + 5
PROMPT = TOKENS[None]  # four chunks of 32 tokens


class SetWhenAsked(threading.Event):
    """Another thread sets it, just before it is looked at for the n-th time."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def is_set(self):
        self.left -= 1
        if self.left <= 0:
            self.set()
        return super().is_set()


class Told:
    def __init__(self):
        self.ended, self.ids = 0, []

    def put(self, ids):
        self.ids.append(np.asarray(ids))

    def end(self):
        self.ended += 1


@pytest.fixture(scope="module")
def layer(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    layer = XLAGenerationLayer(model, max_new_tokens=4, eos_token_id=2, pad_token_id=0, cache_buckets=(32, 64, 128))
    layer.generate(PROMPT)
    return layer


@pytest.fixture
def chunks(monkeypatch):
    """The keys of all chunks of prompts that run."""
    keys, call = [], Executables.__call__

    def counted(self, key, *args, **kwargs):
        keys.extend([key] if isinstance(key, PrefillKey) else [])
        return call(self, key, *args, **kwargs)

    monkeypatch.setattr(Executables, "__call__", counted)
    return keys


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_no_chunk_of_the_prompt_runs_afterwards(layer, chunks, asked):
    out = layer.generate(PROMPT, cancel=SetWhenAsked(asked))
    assert len(chunks) == max(asked - 2, 0)  # looked at once before all
    assert out["lengths"].tolist() == [0] and out["sequences"].shape == (1, 4)


@pytest.mark.parametrize("asked", [1, 2, 6])
def test_a_stream_has_the_prompts_that_it_was_to_return(layer, asked):
    call = dict(return_prompt=True)
    texts = XLAGenerationLayer(layer.model, tiny(), max_new_tokens=4, batch_buckets=(1,))
    expected = texts.generate(["abc", "de"], cancel=SetWhenAsked(asked), **call)
    made = ["", ""]
    for row, piece in texts.stream(["abc", "de"], cancel=SetWhenAsked(asked), **call):
        made[row] += piece
    assert made == expected and made[1] == "de"


@pytest.mark.parametrize("asked", [1, 3])
def test_a_stream_and_a_streamer_end_without_a_token(layer, chunks, asked):
    assert list(layer.stream(PROMPT, cancel=SetWhenAsked(asked))) == []
    told = Told()
    out = layer.generate(PROMPT, streamer=told, cancel=SetWhenAsked(asked))
    assert len(told.ids) == 1 and told.ended == 1 and out["lengths"].tolist() == [0]  # the prompt
    assert len(chunks) == 2 * max(asked - 2, 0)


def test_of_several_batches_those_that_ran_before_are_returned(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    layer = XLAGenerationLayer(model, max_new_tokens=4, eos_token_id=None, batch_buckets=[1])
    prompts = [TOKENS[:100], TOKENS[:99], TOKENS[:98]]
    whole = layer.generate(prompts)
    event = SetWhenAsked(10**9)
    layer.generate(prompts[:1], cancel=event)
    asked = 10**9 - event.left
    out = layer.generate(prompts, cancel=SetWhenAsked(asked + 4))
    assert sorted(out["lengths"]) == [0, 0, 4]
    (made,) = np.flatnonzero(out["lengths"])
    assert out["sequences"][made].tolist() == whole["sequences"][made].tolist()


def test_max_time_counts_while_prompts_run(layer, chunks):
    assert layer.generate(PROMPT, max_time=1e-9)["lengths"].tolist() == [0] and not chunks


@pytest.mark.slow
def test_a_long_list_ends_in_the_middle_of_its_prompts(checkpoint, chunks):
    """A row that has ended makes room for the next prompt there."""
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    layer = XLAGenerationLayer(model, max_new_tokens=4, eos_token_id=2, batch_buckets=[4])
    prompts = [np.roll(TOKENS, i) for i in range(12)]
    whole, runs = layer.generate(prompts), len(chunks)
    assert any(key.batch == 1 for key in chunks)
    for asked in (1, 2, 3, 7, 12):
        chunks.clear()
        out = layer.generate(prompts, cancel=SetWhenAsked(asked))
        assert len(chunks) < min(asked, runs)
        for made, length, expected in zip(out["sequences"], out["lengths"], whole["sequences"], strict=True):
            assert made[:length].tolist() == expected[:length].tolist()
    for name, values in layer.generate(prompts).items():
        np.testing.assert_array_equal(values, whole[name])


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
@pytest.mark.quick("2", "4", "3")
def test_what_is_kept_of_earlier_prompts_is_never_taken_for_more_than_ran(layer, asked):
    expected = layer.generate(PROMPT)
    layer.generate(PROMPT[:, :40], reuse_prompt=True)
    assert layer.generate(PROMPT, reuse_prompt=True, cancel=SetWhenAsked(asked))["lengths"].tolist() == [0]
    for _ in range(2):
        out = layer.generate(PROMPT, reuse_prompt=True)
        assert out["sequences"].tolist() == expected["sequences"].tolist()
        np.testing.assert_allclose(out["scores"], expected["scores"], rtol=1e-5)  # other chunks round otherwise


def test_nothing_compiles_again_and_the_pool_keeps_its_bound(layer):
    before, compiled = layer.generate(PROMPT), layer.trace_count
    held = layer._generator.pool.nbytes
    for asked in range(1, 9):
        layer.generate(PROMPT, cancel=SetWhenAsked(asked))
    after = layer.generate(PROMPT)
    assert layer.trace_count == compiled and after["sequences"].tolist() == before["sequences"].tolist()
    assert 0 < layer._generator.pool.nbytes <= held


@pytest.mark.slow
def test_beams_of_a_row_that_has_ended_stay_when_another_row_is_cut_off(layer, monkeypatch):
    monkeypatch.setattr(Pace, "count", lambda *_: 3)  # the event is looked at behind every third token
    rows = [[50, 4, 63], [28, 55, 43, 60, 13], [37, 62], [75, 39, 6, 71]]
    options = dict(num_beams=2, num_return_sequences=2, early_stopping=True, eos_token_id=[6, 16, 18, 33, 37, 72])
    whole = layer.generate(rows, max_new_tokens=40, **options)
    assert whole["lengths"].tolist() == [4, 3, 2, 1, 40, 40, 40, 40]
    for looks in (5, 6):  # after 6 tokens, and after 9
        cut = layer.generate(rows, max_new_tokens=40, cancel=SetWhenAsked(looks), **options)
        assert cut["lengths"].tolist() == [4, 3, 2, 1] + [3 * looks - 9] * 4
        assert cut["sequences"][:4].tolist() == whole["sequences"][:4].tolist()
        assert cut["scores"][:4].tolist() == whole["scores"][:4].tolist()


@pytest.mark.parametrize("many", [1, 12])
@pytest.mark.quick("12")
def test_what_a_damaged_prompt_left_in_its_cache_serves_nobody(checkpoint, many):
    """Its call has ended before the first step, which would have told."""
    model = load_model(open_checkpoint(checkpoint("llama2")))
    damaged = np.array(model.embedding.values)
    damaged[96] = np.nan
    model.embedding.values.assign(damaged)
    layer = XLAGenerationLayer(model, max_new_tokens=4, eos_token_id=2, batch_buckets=[1, 4], cache_buckets=[160])
    prompts = np.repeat(PROMPT, many, axis=0)
    prompts[:, 40] = 96
    short = [[5]] * many
    expected = layer.generate(short)["sequences"]
    for asked in range(3, 9):
        try:
            layer.generate(prompts, cancel=SetWhenAsked(asked))
        except ValueError as error:
            assert "logits are NaN" in str(error)
        np.testing.assert_array_equal(layer.generate(short)["sequences"], expected)
