"""SmolLM2-135M-Instruct, the real one: from its GGUF file and from safetensors, against PyTorch."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from keras_xla import XLAGenerationLayer
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.test_examples import EXAMPLES

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
    sys.path.insert(0, str(EXAMPLES))
    try:
        import smollm2

        return smollm2.fetch()
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def folder(gguf, tmp_path_factory):
    """The same weights as a Hugging Face folder."""
    checkpoint, path = open_checkpoint(gguf), tmp_path_factory.mktemp("smollm2")
    tensors = {name: np.ascontiguousarray(checkpoint.read(name)) for name in checkpoint.names()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(checkpoint.config))
    (path / "generation_config.json").write_text(json.dumps(checkpoint.generation_config))
    checkpoint.tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def layer(gguf):
    return XLAGenerationLayer.from_pretrained(gguf, max_new_tokens=24)


def test_gguf_answers_alone_and_in_a_batch_of_five_the_same(layer):
    answers = layer.generate(CHATS)
    assert answers[0] == "The capital of France is Paris."
    assert answers == [layer.generate(chat)[0] for chat in CHATS]
    assert layer.trace_count == 3  # batch bucket 8; and 1, with prompt buckets 32 and 64


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
    other = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=24)
    assert other.generate(CHATS) == layer.generate(CHATS)
