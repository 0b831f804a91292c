"""Encoder-decoders give PyTorch transformers' logits: padded sources, padded prompts, step by step, and in trees."""

import json
import re

import keras
import numpy as np
import pytest
import torch
import transformers
from keras import ops

from keras_xla import backend
from keras_xla.models.build import build
from keras_xla.models.interface import View
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.spec import spec_from_dict
from tests import reference
from tests.models import trees

pytestmark = pytest.mark.quick_on_jax("marian", "whisper", "gated")
VARIANTS = [*reference.SEQ2SEQ, *reference.SPEECH]
PROMPTS = [[3, 40, 41, 42], [3, 50, 51, 52, 53, 54, 55]]
IDS = np.random.default_rng(0).integers(3, reference.VOCAB, (2, 20)).astype("int32")
CLOSE = dict(atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def model(variant, checkpoint):
    return load_model(open_checkpoint(checkpoint(variant)))


def sources(variant):
    """Two sources as the reference takes them, and both as one padded batch with its mask."""
    rng = np.random.default_rng(1)
    if variant in reference.SPEECH:
        features = rng.normal(0, 1, (2, reference.MEL, reference.FRAMES)).astype("float32")
        return [features[:1], features[1:]], features, None
    ids, lengths = rng.integers(3, reference.VOCAB, (2, 33)).astype("int32"), (11, 30)
    mask = np.arange(33)[None] < np.array(lengths)[:, None]
    return [ids[i : i + 1, :n] for i, n in enumerate(lengths)], np.where(mask, ids, 0), mask


def conditioned(model, batch, mask):
    """The decoder behind an encoded batch."""
    mask = None if mask is None else ops.convert_to_tensor(mask)
    return model.with_memory(model.remember(model.encode(ops.convert_to_tensor(batch), mask), mask))


@pytest.mark.quick_on_jax("whisper")
def test_teacher_forced_logits_equal_the_reference(model, variant):
    alone, _, _ = sources(variant)
    expected = reference.seq2seq_logits(variant, alone[1], IDS[:1])
    np.testing.assert_allclose(model(source=alone[1], ids=IDS[:1]), expected, **CLOSE)


@pytest.mark.quick_on_jax
def test_padded_sources_and_prompts_of_mixed_length_equal_each_row_alone_at_every_step(model, variant):
    alone, batch, mask = sources(variant)
    expected = [reference.seq2seq_logits(variant, source, IDS[i : i + 1])[0] for i, source in enumerate(alone)]
    np.testing.assert_allclose(model(source=batch, ids=IDS, source_mask=mask), expected, **CLOSE)

    # Prompts of 3 and 7 tokens, padded to 9 on the left, then the tokens that follow.
    decoder, lengths, prompt = conditioned(model, batch, mask), np.array([3, 7]), 9
    starts = (prompt - lengths).astype("int32")
    padded = np.zeros((2, prompt), "int32")
    for i, n in enumerate(lengths):
        padded[i, prompt - n :] = IDS[i, :n]
    starts = ops.convert_to_tensor(starts)
    logits, cache = decoder.prefill(ops.convert_to_tensor(padded), starts, prompt + 12)
    for step in range(13):
        at = lengths + step
        np.testing.assert_allclose(logits, [row[n - 1] for row, n in zip(expected, at, strict=True)], **CLOSE)
        if step < 12:
            tokens = ops.convert_to_tensor(IDS[[0, 1], at])
            slot = ops.convert_to_tensor(prompt + step, "int32")
            logits, cache = decoder.step(tokens, slot, starts, cache)


@pytest.mark.quick_on_jax
def test_a_tree_of_tokens_equals_each_path_alone(model, variant):
    alone, batch, mask = sources(variant)
    made = trees.run(conditioned(model, batch, mask), PROMPTS, reference.VOCAB)
    assert len(made) == 24
    for logits, row, path in made:
        expected = reference.seq2seq_logits(variant, alone[row], np.array([path]))[0, -1]
        np.testing.assert_allclose(logits, expected, **CLOSE)


def test_keys_and_values_of_the_source_are_kept_once_a_row(model, variant):
    _, batch, mask = sources(variant)
    cross, memory = model.spec.decoder.cross_attention, conditioned(model, batch, mask)._memory
    length = reference.FRAMES // 2 if variant in reference.SPEECH else 33
    assert len(memory.layers) == model.spec.decoder.layers
    shape = (2 * cross.kv_heads, length, cross.head_dim)
    transposed = (shape[0], shape[2], shape[1]) if backend.on_cpu() else shape
    assert {tuple(tuple(x.shape) for x in layer) for layer in memory.layers} == {(transposed, shape)}


def test_the_limits_are_those_of_the_config(model, variant):
    limits = (None, None) if "t5" in variant else (64, reference.FRAMES // 2) if variant == "whisper" else (64, 64)
    assert (model.max_positions, model.max_source) == limits
    assert model.vocab_size == reference.VOCAB
    _, batch, mask = sources(variant)
    decoder = conditioned(model, batch, mask)
    assert (decoder.max_positions, decoder.vocab_size) == (limits[0], reference.VOCAB)
    assert decoder.variables and {id(v) for v in decoder.variables} < {id(v) for v in model.variables}


@pytest.mark.quick_on_jax
def test_a_spec_survives_json_and_builds_the_same_model(model, variant):
    again = build(spec_from_dict(json.loads(json.dumps(model.spec.to_dict()))), name=variant)
    assert again.spec == model.spec and type(again) is type(model)
    assert [tuple(v.shape) for v in again.variables] == [tuple(v.shape) for v in model.variables]
    for ours, theirs in zip(again.variables, model.variables, strict=True):
        ours.assign(theirs)
    alone, _, _ = sources(variant)
    np.testing.assert_array_equal(again(source=alone[0], ids=IDS[:1]), model(source=alone[0], ids=IDS[:1]))


@pytest.mark.parametrize("shape", [(1, 6, 38), (1, 6, 42), (1, 5, 40), (1, 40, 6)])
def test_speech_of_another_shape_is_an_error(shape, checkpoint):
    model = load_model(open_checkpoint(checkpoint("whisper")))
    with pytest.raises(ValueError, match=r"expected \(batch, 6, 40\). Pad the audio with silence, or cut it"):
        model.encode(np.zeros(shape, "float32"), None)


@pytest.mark.parametrize("family", ["bart", "marian"])
@pytest.mark.quick_on_jax
def test_a_source_longer_than_the_encoders_positions_is_an_error(family, checkpoint):
    model = load_model(open_checkpoint(checkpoint(family)))
    model.encode(np.zeros((1, 64), "int32"), None)
    with pytest.raises(ValueError, match=r"a source of 65 tokens; the encoder has 64 positions\. Shorten it"):
        model.encode(np.zeros((1, 65), "int32"), None)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax gives the compiled program as text")
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.quick("t5-gated-3", "whisper-1", "3-t5-gated", "1-whisper")
def test_a_loop_of_steps_reads_the_source_where_it_is(model, variant, width):
    import jax

    if not backend.on_cpu():
        pytest.skip("a GPU's program has other operations than those that are looked for")
    _, batch, mask = sources(variant)

    def run(values, batch, mask):
        with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
            decoder = model.with_memory(model.remember(model.encode(batch, mask), mask))
            starts = ops.zeros((2,), "int32")
            _, cache = decoder.prefill(ops.ones((2, 4), "int32"), starts, 4 + 8 * width)

            def step(i, tokens, cache):
                slot = 4 + width * i
                view = View.causal(slot, width, 4 + 8 * width, starts)
                logits, cache = decoder.extend(tokens, slot, view, cache)
                return i + 1, ops.cast(ops.argmax(logits, axis=-1), "int32"), cache

            state = (ops.zeros((), "int32"), ops.ones((2, width), "int32"), cache)
            return ops.while_loop(lambda i, *_: i < 8, step, state)[1]

    program = jax.jit(run).lower([v.value for v in model.variables], batch, mask).compile().as_text()
    loop = in_the_loop(program)
    for one in conditioned(model, batch, mask)._memory.layers[0]:  # keys, and values
        memory = re.escape(f"f32[{','.join(map(str, one.shape))}]")
        assert re.search(rf"= {memory}\S* (parameter|get-tuple-element)\(", loop)
        assert not re.findall(rf"= {memory}\S* (?!parameter|get-tuple-element|bitcast)[\w-]+\(.*", loop)


def in_the_loop(program):
    """The text of a compiled program's loop body and of all that it calls."""
    named = {m[1]: m[0] for m in re.finditer(r"^(?:ENTRY )?(%\S+) .*\{\n(?:  .*\n)+\}", program, re.M)}
    (body,) = re.findall(r"while\(.*body=(%[\w.\-]+)", program)
    found, todo = {}, [body]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = named[name]
            todo += [called for called in re.findall(r"(?:calls|to_apply)=(%[\w.\-]+)", named[name])]
    return "\n".join(found.values())


@pytest.mark.parametrize("variant", ["t5-gated"])
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.quick("None-t5-gated")
@pytest.mark.quick_on_jax("None-t5-gated")
def test_sums_of_t5_may_outgrow_float16(variant, quantization, checkpoint, tmp_path):
    torch_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint(variant))
    for name, weight in torch_model.named_parameters():
        if name.endswith("wo.weight"):
            weight.data *= 3e6
    torch_model.save_pretrained(tmp_path)
    reference_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float16)
    source = np.arange(5, 16, dtype="int32")[None]
    with torch.no_grad():
        expected = reference_model(torch.tensor(source), decoder_input_ids=torch.tensor(IDS[:1])).logits.numpy()
    model = load_model(open_checkpoint(tmp_path), dtype="float16", quantization=quantization)
    logits = ops.convert_to_numpy(model(source=source, ids=IDS[:1]))
    assert np.isfinite(expected).all() and np.abs(largest_sum(reference_model, source)) > 65_504
    if quantization:  # rounds more than float16 does
        expected = load_model(open_checkpoint(tmp_path), quantization=quantization)(source=source, ids=IDS[:1])
    np.testing.assert_allclose(logits, expected, atol=0.1)
    decoder = conditioned(model, source, None)
    step, _ = decoder.prefill(ops.convert_to_tensor(IDS[:1]), ops.convert_to_tensor(np.zeros(1, "int32")), 24)
    np.testing.assert_allclose(step, logits[:, -1], atol=0.1)


@pytest.mark.quick_on_jax
def test_sums_of_an_encoder_are_cut_where_they_outgrow_float16(checkpoint, tmp_path):
    torch_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint("mbart"))
    for name, weight in torch_model.named_parameters():
        if re.search(r"encoder\.layers\.\d+\.fc2\.weight", name):
            weight.data *= 5e4 / weight.abs().max()
    torch_model.save_pretrained(tmp_path)
    reference_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float16)
    source = np.arange(5, 16, dtype="int32")[None]
    with torch.no_grad():
        expected = reference_model(torch.tensor(source), decoder_input_ids=torch.tensor(IDS[:1])).logits.numpy()
    assert largest_sum(reference_model.model, source) == 64_512  # which is 64,504 in float16
    logits = ops.convert_to_numpy(load_model(open_checkpoint(tmp_path), dtype="float16")(source=source, ids=IDS[:1]))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, expected, atol=0.02)


@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa"])
def test_more_tokens_than_positions_are_an_error(variant, checkpoint):
    model = load_model(open_checkpoint(checkpoint(variant)))
    most = model.max_positions
    assert model(np.zeros((1, most), "int32")).shape == (1, most, model.vocab_size)
    with pytest.raises(ValueError, match=f"Received {most + 1} tokens a row; the model has {most} positions"):
        model(np.zeros((1, most + 1), "int32"))


def largest_sum(model, source) -> float:
    """Of the residuals behind the encoder's last block."""
    with torch.no_grad():
        return float(model.encoder(torch.tensor(source), output_hidden_states=True).hidden_states[-2].abs().max())


@pytest.mark.parametrize("variant", ["gpt2", "t5", "llama-tied-gqa"])
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_each_variable_has_a_path_of_its_own(checkpoint, tmp_path, variant, quantization):
    """By which Keras' state trees and its older HDF5 files keep them."""
    model = load_model(open_checkpoint(checkpoint(variant)), quantization=quantization)
    paths = [variable.path for variable in model.variables]
    assert len(set(paths)) == len(paths) and all(path.startswith(f"{model.name}/") for path in paths)
    assert any(re.search(r"blocks/1/attention/\w+/kernel/values$", path) for path in paths) or quantization
