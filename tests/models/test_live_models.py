"""Whatever is passed as a model finds its decoder, or is refused with what could be passed."""

import pathlib
import re

import keras
import numpy as np
import pytest
import torch
from keras import layers

from keras_xla import XLAGenerationLayer
from keras_xla.models.recompute import Recompute
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.live_models import as_decoder, options_of, tokenizer_of
from tests.engine.fake import Follow

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "own_decoder.md"


def language_model():
    stack = [layers.Embedding(20, 8), layers.GRU(8, return_sequences=True), layers.Dense(20)]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *stack])


def test_what_implements_the_protocol_is_its_own_decoder(checkpoint):
    fake, ours = Follow(), load_model(open_checkpoint(checkpoint("gpt2")))
    assert as_decoder(fake) is fake
    assert as_decoder(ours) is ours


def test_a_keras_model_is_recomputed():
    model = language_model()
    decoder = as_decoder(model)
    assert isinstance(decoder, Recompute) and decoder.model is model


def test_without_a_source_of_them_there_is_no_tokenizer_and_there_are_no_options():
    assert tokenizer_of(language_model()) is None and options_of(language_model()) == {}


def test_a_kerashub_task_brings_its_decoder_and_its_backbone_alone_is_refused():
    hub = pytest.importorskip("keras_hub", minversion="0.32", reason="an optional extra: keras-xla[kerashub]").models
    backbone = hub.GPT2Backbone(20, 1, 2, 8, 16, max_sequence_length=16)
    assert as_decoder(hub.GPT2CausalLM(backbone)).max_positions == 16
    with pytest.raises(TypeError, match=r"GPT2Backbone.*A backbone has no logits: pass the task"):
        as_decoder(backbone)


class NoVocabulary:
    max_positions, variables = None, ()
    prefill, step = Follow.prefill, Follow.step


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (3, "Received a builtins.int as the model; expected a Keras model .*own_decoder.md"),
        ("gpt2", r"builtins.str.*from_pretrained\(\.\.\.\)"),
        (torch.nn.Linear(2, 2), r"torch\.nn.*save_pretrained\(folder\), then"),
        (NoVocabulary(), "methods prefill and step, but without vocab_size"),
    ],
)
def test_anything_else_is_refused(model, text):
    with pytest.raises(TypeError, match=text):
        as_decoder(model)


@pytest.mark.slow
def test_the_example_of_the_documentation_gives_the_tokens_of_the_same_model_without_a_cache():
    example = {}
    exec(re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[1], example)
    layer, model = example["layer"], example["model"]
    plain = XLAGenerationLayer(model, max_new_tokens=12)
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]
    expected = plain.generate(prompts)["sequences"].tolist()
    assert example["completions"]["sequences"].tolist() == expected
    assert layer.generate(prompts[:1])["sequences"].tolist() == expected[:1]
    beams = (made.generate(prompts, num_beams=3)["sequences"] for made in (layer, plain))
    np.testing.assert_array_equal(*beams)
    for weight in model.weights:
        weight.assign(-keras.ops.convert_to_numpy(weight))
    after = layer.generate(prompts)["sequences"].tolist()
    assert after == plain.generate(prompts)["sequences"].tolist() != expected
    assert layer.trace_count == 6  # prompts and tokens: for two sizes of a batch, and for beams
