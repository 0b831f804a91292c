"""PyTorch transformers' tokens for every family, mode and batch shape, in calls of 1, 3 and 32 tokens, and streamed."""

import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.engine.call import Call
from keras_xla.engine.runs.deadline import Deadline
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference

MODES = {
    "greedy": {},
    "penalty": dict(repetition_penalty=1.7),
    "no repeated pairs": dict(no_repeat_ngram_size=2),
    "least": dict(min_new_tokens=9, eos_token_id=list(range(5, 50))),
    "ends": dict(eos_token_id=list(range(40, 97))),
    "words": dict(bad_words_ids=[[7], [30, 31], [50]], suppress_tokens=[11, 60, 61]),
    "biases": dict(
        sequence_bias={(7,): -4.0, (30, 31): 5.0},
        exponential_decay_length_penalty=(5, 1.5),
        eos_token_id=list(range(40, 97)),
    ),
    "what is read": dict(encoder_repetition_penalty=1.5, encoder_no_repeat_ngram_size=2),
    "beams": dict(num_beams=3),
    "normal beams": dict(num_beams=3, repetition_penalty=1.7, renormalize_logits=True),
    "beams that end": dict(num_beams=2, eos_token_id=list(range(60, 97)), length_penalty=1.5, early_stopping=True),
    "beams of pairs": dict(num_beams=4, no_repeat_ngram_size=2, num_return_sequences=2),
}
BATCHES = ([[5, 6, 7]], [[8], [9, 10, 11, 12, 13], list(range(20, 60))])
NEW = 24  # the third row's cache grows on the way
VARIANTS = [*reference.VARIANTS, "t5", "t5-gated", "bart", "mbart", "marian"]


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def layer(variant, checkpoint):
    model = load_model(open_checkpoint(checkpoint(variant)))
    start = {} if variant in reference.VARIANTS else dict(decoder_start_token_id=3)
    return XLAGenerationLayer(
        model, max_new_tokens=NEW, generation_config={}, pad_token_id=0, cache_buckets=(32, 64, 128, 256), **start
    )


def made(out):
    return [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]


def in_calls_of(layer, rows, count, options):
    """What the engine makes in calls of `count` tokens."""
    generator, options = layer._generator, layer.options.replace(**options)
    run = generator.start(Call([np.array(row, np.int32) for row in rows], options))
    for _ in run.advance(Deadline(), count=count):
        pass
    outputs = run.outputs()
    run.close()
    return made(outputs)


@pytest.mark.quick("llama-tied-gqa-beams of pairs")
@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_the_references(layer, variant, mode):
    options = MODES[mode]
    for rows in BATCHES:
        wanted = [new for row in rows for new in reference.generated(variant, row, max_new_tokens=NEW, **options)]
        assert made(layer.generate(rows, **options)) == wanted
        for count in (1, 3, 32):
            assert in_calls_of(layer, rows, count, options) == wanted
        if "num_beams" not in options:
            streamed = [[] for _ in rows]
            for row, ids in (
                layer.stream(rows, **options) if len(rows) > 1 else ((0, i) for i in layer.stream(rows, **options))
            ):
                streamed[row] += ids.tolist()
            assert streamed == wanted
