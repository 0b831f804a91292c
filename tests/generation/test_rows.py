"""Options for each prompt, and more prompts than run at once: every row as if alone, in input order."""

import re
import time
import weakref

import keras
import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.engine.call import Call
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

ROWS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14]]


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("llama-tied-gqa")))


def layer_of(model, **options):
    return XLAGenerationLayer(
        model, tiny(), max_new_tokens=12, generation_config={}, pad_token_id=0, cache_buckets=(32, 64), **options
    )


@pytest.fixture(scope="module")
def layer(model):
    return layer_of(model)


def made(out):
    return [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]


class TestOptionsOfEachPrompt:
    @pytest.mark.parametrize(
        "options",
        [
            dict(temperature=[0.3, 1.0, 3.0]),
            dict(top_k=[None, 3, 1]),
            dict(top_p=[1.0, 0.3, 0.9], min_p=[0.2, 0.0, 0.0]),
            dict(typical_p=[0.4, None, 1.0], epsilon_cutoff=[0.0, 0.02, 0.0], eta_cutoff=[0.0, 0.0, 0.05]),
            dict(max_new_tokens=[3, 12, 7], temperature=np.array([0.5, 1.5, 1.0])),
        ],
        ids=lambda options: next(iter(options)),
    )
    @pytest.mark.quick("top_p", "typical_p", "top_k", "max_new_tokens")
    def test_each_row_is_as_if_alone(self, layer, options):
        options = {"do_sample": True, "seed": [11, 12, 13], **options}
        alone = [
            made(layer.generate([row], **{n: v[i] if n != "do_sample" else v for n, v in options.items()}))[0]
            for i, row in enumerate(ROWS)
        ]
        assert made(layer.generate(ROWS, **options)) == alone

    def test_answers_of_a_prompt_have_its_options(self, layer):
        options = dict(do_sample=True, num_return_sequences=2)
        together = layer.generate(ROWS, seed=[4, 5, 4], temperature=[1.0, 2.0, 1.0], **options)
        alone = [
            layer.generate([row], seed=seed, temperature=temperature, **options)
            for row, seed, temperature in zip(ROWS, [4, 5, 4], [1.0, 2.0, 1.0], strict=True)
        ]
        assert made(together) == [ids for out in alone for ids in made(out)]

    @pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
    @pytest.mark.quick("greedy")
    def test_lengths_of_their_own(self, layer, options):
        out = layer.generate(ROWS, max_new_tokens=[2, 9, 5], **options)
        assert out["sequences"].shape == (3, 9) and out["lengths"].tolist() == [2, 9, 5]
        assert (out["sequences"][0, 2:] == 0).all()
        for row, new, ids in zip(ROWS, [2, 9, 5], made(out), strict=True):
            assert ids == made(layer.generate([row], max_new_tokens=new, **options))[0]

    def test_stop_strings_of_their_own(self, layer):
        texts = ["a b", "c", "d e"]
        whole = layer.generate(texts)
        stops = [whole[0][3:5], None, [whole[2][1:3], "not there"]]
        alone = [layer.generate(text, stop_strings=stop)[0] for text, stop in zip(texts, stops, strict=True)]
        assert layer.generate(texts, stop_strings=stops) == alone
        assert alone[1] == whole[1] and len(alone[0]) < len(whole[0]) and len(alone[2]) < len(whole[2])

    def test_streams(self, layer):
        options = dict(max_new_tokens=[2, 9, 5], do_sample=True, seed=[1, 2, 3])
        rows = [[], [], []]
        for row, ids in layer.stream(ROWS, **options):
            rows[row] += ids.tolist()
        assert rows == made(layer.generate(ROWS, **options))

    def test_nothing_compiles_for_them(self, layer):
        layer.generate(ROWS)
        before = layer.trace_count
        layer.generate(ROWS, do_sample=True, temperature=[1.0, 2.0, 3.0], top_k=[1, 2, 3], max_new_tokens=[1, 2, 3])
        assert layer.trace_count == before

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (dict(max_new_tokens=[1, 2]), "max_new_tokens with 2 values for 3 prompts"),
            (dict(stop_strings=[["a"], None]), "stop_strings with 2 values for 3 prompts"),
            (dict(do_sample=True, temperature=[1.0, -1.0, 1.0]), "temperature=-1.0"),
            (dict(do_sample=True, temperature=[]), "one for each prompt"),
            (dict(min_new_tokens=5, max_new_tokens=[9, 4, 9]), "max_new_tokens=4"),
        ],
        ids=["too few", "stop strings", "a bad one", "none", "less than the least"],
    )
    def test_bad_lists(self, layer, options, text):
        before = layer.trace_count
        with pytest.raises(ValueError, match=text):
            layer.generate(["a", "b", "c"], **options)
        assert layer.trace_count == before

    def test_tensors_count_as_lists(self, layer):
        asked = dict(do_sample=True, seed=[1, 2, 3])
        lists = layer.generate(["a", "b", "c"], temperature=[1.0, 2.0, 0.5], **asked)
        tensor = keras.ops.convert_to_tensor([1.0, 2.0, 0.5])
        assert layer.generate(["a", "b", "c"], temperature=tensor, **asked) == lists

    def test_lists_are_of_calls(self, model):
        with pytest.raises(ValueError, match="max_new_tokens with values for one call"):
            XLAGenerationLayer(model, generation_config={"max_new_tokens": [1, 2]})


@pytest.fixture(scope="class")
def few(model):
    """Runs at most four prompts at once."""
    return layer_of(model, batch_buckets=(1, 2, 4))


class TestManyPrompts:
    PROMPTS = [list(range(5, 6 + i * 7 % 20)) for i in range(10)]

    def test_answers_come_in_input_order(self, few, capsys):
        before = few.trace_count
        together = made(few.generate(self.PROMPTS))
        assert "10/10" in capsys.readouterr().out
        assert few.trace_count - before == 2  # one size of the batch
        assert together == [made(few.generate([prompt]))[0] for prompt in self.PROMPTS]

    def test_draws_do_not_depend_on_what_runs_together(self, few, layer):
        options = dict(do_sample=True, seed=3, num_return_sequences=2)
        assert made(few.generate(self.PROMPTS, **options)) == made(layer.generate(self.PROMPTS, **options))

    def test_streams_and_options_of_each(self, few):
        options = dict(max_new_tokens=[1 + i % 5 for i in range(10)])
        rows = [[] for _ in self.PROMPTS]
        for row, ids in few.stream(self.PROMPTS, **options):
            rows[row] += ids.tolist()
        out = few.generate(self.PROMPTS, verbose=0, **options)
        assert rows == made(out) and out["sequences"].shape == (10, 5)

    def test_texts_and_stop_strings(self, few):
        texts = [f"{word} b" for word in ["a", "b", "c", "d", "e", "a", "b", "c"]]
        stop = few.generate(texts[3])[0][2]
        alone = [few.generate(text, stop_strings=stop)[0] for text in texts]
        assert few.generate(texts, stop_strings=stop) == alone
        assert alone[3].index(stop) == len(alone[3]) - 1

    def test_silence(self, few, capsys):
        few.generate(self.PROMPTS, verbose=0)
        few.generate(self.PROMPTS[:2])
        assert capsys.readouterr().out == ""
        few.generate(self.PROMPTS[:2], verbose=1)
        assert "2/2" in capsys.readouterr().out

    def test_the_bar_tells_the_time_of_the_first_batch_too(self, model, capsys):
        def slow(tokens, logits, step):
            time.sleep(2)  # while it is traced
            return logits

        layer, start = layer_of(model, logits_processors=[slow]), time.monotonic()
        layer.generate(self.PROMPTS[:2], verbose=1)
        took = time.monotonic() - start
        told = re.search(r"2/2 \S+ (\d+)s ", re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out))
        assert 2 <= int(told[1]) <= took + 1

    def test_caches_hold_no_more_than_asked_for(self, model, few):
        row = few._generator._programs.slot_bytes * 32
        assert row == 2 * 2 * 2 * 8 * 4 * 32  # keys and values of 2 layers, 2 heads of 8 float32
        small = layer_of(model, cache_bytes=2 * row)
        sizes = [len(part.rows) for part in small._generator.parts(Call(self.PROMPTS, small.options))]
        assert sizes == [2] * 5
        assert made(small.generate(self.PROMPTS, verbose=0)) == made(few.generate(self.PROMPTS, verbose=0))

    @pytest.mark.quick("rows that make room")
    @pytest.mark.parametrize("ends", [None, 2], ids=["batches", "rows that make room"])
    def test_all_caches_that_are_there_at_once_fit_into_what_was_asked_for(self, model, ends):
        """And half as much again: while a cache grows, the smaller one is there, too."""
        row = layer_of(model)._generator._programs.slot_bytes * 64
        layer = layer_of(model, cache_bytes=12 * row, eos_token_id=ends)
        live, most, pool = {}, [0], layer._generator.pool
        make = pool._make

        def counted(key):
            state = make(key)
            live[id(state)] = key.rows * key.cache
            weakref.finalize(state, live.pop, id(state))
            most[0] = max(most[0], sum(live.values()))
            return state

        pool._make = counted
        prompts = [list(range(5, 6 + i * 7 % 30)) for i in range(60)]
        out = layer.generate(prompts, max_new_tokens=30, verbose=0)
        assert out["sequences"].shape == (60, 30)
        assert 8 * 64 <= most[0] <= 1.5 * 12 * 64  # slots: of eight rows at least


def test_cache_bytes_are_checked(model):
    for bad in (0, "1GB", None, True):
        with pytest.raises(ValueError, match="cache_bytes"):
            layer_of(model, cache_bytes=bad)


def test_warmup_takes_no_lists(layer):
    with pytest.raises(ValueError, match="lists for temperature"):
        layer.warmup(2, 8, do_sample=True, temperature=[0.5, 1.0])
