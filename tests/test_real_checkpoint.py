"""SmolLM2-135M-Instruct, the real one: from its GGUF file and from safetensors, against PyTorch."""

import numpy as np
import pytest
import torch

from keras_xla import XLAGenerationLayer
from tests import real_models

pytestmark = pytest.mark.slow
QUESTIONS = [
    "What is the capital of France?",
    "Hi",
    "Name three colours.",
    "Write a haiku about the sea.",
    "Why is the sky blue? Answer in one sentence, for a child of five years who has never heard of physics.",
]
CHATS = [[{"role": "user", "content": question}] for question in QUESTIONS]


@pytest.fixture(scope="module")
def gguf():
    return real_models.smollm2()


@pytest.fixture(scope="module")
def folder(gguf, shared, once):
    """The same weights as a Hugging Face folder."""
    return once("smollm2", lambda: str(real_models.as_folder(gguf, shared / "smollm2")))


@pytest.fixture(scope="module")
def layer(gguf):
    return XLAGenerationLayer.from_pretrained(gguf, max_new_tokens=24)


def test_gguf_answers_alone_and_in_a_batch_of_five_the_same(layer):
    """The longer prompts alone: in test_examples.py."""
    answers = layer.generate(CHATS)
    assert answers[0] == "The capital of France is Paris."
    lengths = [len(layer.tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"]) for c in CHATS]
    short = [i for i, length in enumerate(lengths) if length <= 32]
    assert short and [answers[i] for i in short] == [layer.generate(CHATS[i])[0] for i in short]
    assert layer.trace_count == 4  # prompts and tokens, for batches of 8 and 1


def test_tokens_equal_pytorchs(layer, folder):
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = [layer.tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in CHATS]
    out = layer.generate(ids)
    for i, prompt in enumerate(ids):
        with torch.no_grad():
            expected = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
        assert out["sequences"][i, : out["lengths"][i]].tolist() == expected.tolist()


def test_safetensors_give_the_same_answers(layer, folder):
    """Without compiling again: from the same values, spec, options and prompts."""
    other = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=24)
    for made, expected in zip(other.model.weights, layer.model.weights, strict=True):
        np.testing.assert_array_equal(made, expected, err_msg=expected.path)
    assert (other.model.spec, other.options) == (layer.model.spec, layer.options)
    for chat in CHATS:
        assert other.tokenizer.apply_chat_template(chat) == layer.tokenizer.apply_chat_template(chat)
    other.run_eagerly = True
    assert other.generate(CHATS[0]) == ["The capital of France is Paris."]
