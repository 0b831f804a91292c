"""`warmup` of a layer: what it shows, what it refuses, and how many executables it says it has compiled."""

import re

import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("llama-tied-gqa")))


@pytest.fixture
def layer(model):
    return XLAGenerationLayer(model, tiny(), max_new_tokens=6, cache_buckets=(32, 64), on_recompile="raise")


def shown(capsys):
    """The lines on a terminal that no later one has taken the place of."""
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).replace("\x08", "").split("\n")
    return [line.rsplit("\r", 1)[-1].rstrip() for line in lines]


@pytest.mark.slow
def test_a_line_for_each_executable_and_a_bar_below_them(layer, capsys, new_events):
    assert layer.warmup([1, 2], [5, 20], max_new_tokens=20) == 8
    *lines, bar, end = shown(capsys)
    told = [re.fullmatch(r"(\S.*\S) +\d+\.\d s", line).group(1) for line in lines]
    assert (
        sorted(told) == sorted(event.shapes for event in new_events("generate"))
        and "advance, batch 2, cache 64" in told
    )
    assert re.match(r"8/8 ━+ .*/executable", bar) and end == ""


def test_nothing_is_shown_of_what_is_there_already_or_in_silence(layer, capsys):
    assert layer.warmup(1, 5, verbose=0) == 2
    assert layer.warmup(1, [5, 9]) == 0
    assert capsys.readouterr().out == ""


def test_bad_sizes_and_options_raise_before_anything_compiles(layer, capsys):
    with pytest.raises(ValueError, match="needs a cache of 106"):
        layer.warmup([1, 2], [5, 100])
    with pytest.raises(ValueError, match="top_logprobs"):
        layer.warmup(1, 5, output_logprobs=True, top_logprobs=99)
    assert layer.trace_count == 0 and capsys.readouterr().out == ""


def test_op_by_op_there_is_nothing_to_compile(layer, capsys):
    layer.run_eagerly = True
    assert layer.warmup(1, 5) == 0 and capsys.readouterr().out == ""


MIXED = [[5 + i % 40 for i in range(50)]] * 2 + [[5, 6, 7]] * 2


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 2}, {"prompt_lookup_num_tokens": 4}, {"eos_token_id": 2, "output_logprobs": True}],
    ids=["beams", "guesses", "log-probabilities"],
)
@pytest.mark.slow
def test_of_a_list_in_several_batches_some_have_shorter_prompts(model, options):
    """Which take a smaller cache than those of the longest prompt."""
    layer = XLAGenerationLayer(
        model, tiny(), max_new_tokens=6, cache_buckets=(16, 32, 64), batch_buckets=(1, 2), on_recompile="raise"
    )
    layer.warmup(4, 50, verbose=0, **options)
    before = layer.trace_count
    assert len(layer.generate(MIXED, **options)["sequences"]) == 4 and layer.trace_count == before


@pytest.mark.slow
def test_of_a_list_in_several_batches_some_read_less(checkpoint):
    model = load_model(open_checkpoint(checkpoint("t5")))
    layer = XLAGenerationLayer(
        model,
        tiny(),
        max_new_tokens=6,
        decoder_start_token_id=3,
        source_buckets=(8, 64),
        batch_buckets=(1, 2),
        on_recompile="raise",
    )
    layer.warmup(4, 50, verbose=0, output_logprobs=True)
    layer.generate(MIXED, output_logprobs=True)
