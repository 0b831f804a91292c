"""KerasHub tasks: the tokens of their own `generate`, whatever the class, and their weights whenever they change."""

import inspect
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla import XLAGenerationLayer
from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.recompute import Recompute
from keras_xla.models.sources.keras_hub.cached import CachedTask
from keras_xla.models.sources.keras_hub.layouts import LAYOUTS
from keras_xla.models.sources.keras_hub.task import is_task, layout_of, open_task
from keras_xla.models.sources.keras_hub.tokenizer import _ENDS_OF_TURNS, options_of_task, tokenizer_of_task
from keras_xla.models.transformer import Transformer

keras_hub = pytest.importorskip(
    "keras_hub", minversion="0.32", reason="an optional extra, and for Keras 3.15 or newer: keras-xla[kerashub]"
)
hub = keras_hub.models
on_tensorflow = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.skipif(not on_tensorflow, reason="jax arrays cannot be shared: weights are always copied")

pytestmark = pytest.mark.quick_on_jax  # but for what is about JAX

VOCAB = 97
PROMPTS = [[5], [7, 11, 13, 17, 19], [3, 4, 5, 6, 7, 8, 9, 10, 11], [90, 80, 70]]
SMALL = dict(vocabulary_size=VOCAB, num_layers=2, num_heads=4, hidden_dim=32, intermediate_dim=64)
GROUPED = dict(
    vocabulary_size=VOCAB, num_layers=2, num_query_heads=4, num_key_value_heads=2, hidden_dim=32, intermediate_dim=48
)
LLAMA3 = dict(
    rope_frequency_adjustment_factor=8.0,
    rope_low_freq_factor=1.0,
    rope_high_freq_factor=4.0,
    rope_pretraining_sequence_length=32,
    rope_max_wavelength=500,
)
CAUSAL = {
    "gpt2": ("GPT2", {**SMALL, "max_sequence_length": 64}),
    "opt": ("OPT", {**SMALL, "max_sequence_length": 64}),
    "llama": ("Llama", GROUPED),
    "llama3": ("Llama3", {**GROUPED, **LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 7, "head_dim": 16}),
    "qwen": ("Qwen", {**GROUPED, "rope_scaling_factor": 2.0}),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 16, "tie_word_embeddings": False}),
}
WINDOWS = {
    "qwen with a window": ("Qwen", {**GROUPED, "use_sliding_window_attention": True, "sliding_window_size": 6}),
    "qwen3 with a window": ("Qwen3", {**GROUPED, "head_dim": 16, "sliding_window_size": 6}),
}
T5 = {name: value for name, value in SMALL.items() if name != "activation"}
SEQ2SEQ = {
    "bart": ("Bart", {**SMALL, "max_sequence_length": 64}),
    "t5": ("T5", {**T5, "use_gated_activation": False, "activation": "relu", "tie_embedding_weights": True}),
    "t5 v1.1": ("T5", {**T5, "key_value_dim": 16, "activation": "gelu", "tie_embedding_weights": False}),
}
SMOLLM3 = dict(
    vocabulary_size=VOCAB,
    hidden_dim=32,
    intermediate_dim=48,
    num_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attention_bias=False,
    attention_dropout=0.0,
    rope_layer_enabled_list=[True, False],
    layer_types=["full_attention"] * 2,
    mlp_bias=False,
    layer_norm_epsilon=1e-6,
    max_position_embeddings=64,
    rope_theta=10000.0,
    partial_rotary_factor=1.0,
)
UNDESCRIBED = {
    "gemma 2": ("Gemma", {**GROUPED, "head_dim": 8, "attention_logit_soft_cap": 50, "use_post_ffw_norm": True}),
    "layers without positions": ("SmolLM3", SMOLLM3),
}


def make(variants, name, seed=0):
    family, config = variants[name]
    head = "Seq2SeqLM" if variants is SEQ2SEQ else "CausalLM"
    keras.utils.set_random_seed(seed)
    backbone = getattr(hub, f"{family}Backbone")(**config)
    return shaken(getattr(hub, f"{family}{head}")(backbone), seed)


def shaken(task, seed=0):
    rng = np.random.default_rng(seed)
    for weight in task.weights:
        weight.assign(ops.convert_to_numpy(weight) + rng.normal(0, 0.15, weight.shape))
    return task


def padded(rows, room=0):
    ids = np.zeros((len(rows), max(map(len, rows)) + room), "int32")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids, np.arange(ids.shape[1])[None] < np.array([[len(row)] for row in rows])


def theirs(task, prompts=PROMPTS, new=8):
    """What KerasHub makes of the prompts, as one batch."""
    if not isinstance(task.sampler, keras_hub.samplers.GreedySampler):  # the default is to sample
        task.compile(sampler="greedy")
    ids, mask = padded(prompts, new)
    made = task.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)["token_ids"]
    return [made[i, len(row) : len(row) + new].tolist() for i, row in enumerate(prompts)]


def test_every_class_with_a_layout_has_a_variant_here():
    tested = {f"{family}CausalLM" for family, _ in CAUSAL.values()}
    assert tested | {f"{family}Seq2SeqLM" for family, _ in SEQ2SEQ.values()} == set(LAYOUTS)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.slow
def test_tokens_are_those_of_its_own_generate_and_stay_so_when_weights_change(name):
    task = make(CAUSAL, name)
    model = open_task(task)
    assert isinstance(model, Transformer)
    layer = XLAGenerationLayer(model, max_new_tokens=8)
    before = layer.generate(PROMPTS)["sequences"].tolist()
    assert before == theirs(task)
    ids = np.random.default_rng(1).integers(0, VOCAB, (2, 20), "int32")
    expected = task({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    np.testing.assert_allclose(model(ids), expected, atol=1e-4)
    shaken(task, 1)
    assert layer.generate(PROMPTS)["sequences"].tolist() == theirs(task) != before
    assert layer.trace_count == 2  # prompts and tokens


@pytest.mark.skipif(not on_tensorflow, reason="on jax KerasHub 0.32 attends in another way, which forgets windows")
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_seen_as_in_its_own_call(name):
    task = make(WINDOWS, name)
    ids = np.random.default_rng(1).integers(0, VOCAB, (2, 20), "int32")
    expected = task({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    np.testing.assert_allclose(open_task(task)(ids), expected, atol=1e-4)


def test_an_activation_that_is_cut_off_far_from_0_is_another_one(monkeypatch):
    monkeypatch.setitem(SEQ2SEQ, "cut off", ("T5", {**SEQ2SEQ["t5"][1], "activation": keras.activations.relu6}))
    with pytest.raises(ValueError, match="the activation 'relu6'"):
        open_task(make(SEQ2SEQ, "cut off"))


@tensorflow_only
def test_tables_norms_and_biases_stand_on_the_tasks_own_memory():
    task = make(CAUSAL, "gpt2")
    model = open_task(task)
    assert model.embedding.values.value is task.backbone.token_embedding.embeddings.value
    task.backbone.layer_norm.gamma.assign(np.full((32,), 3.0))
    np.testing.assert_array_equal(model.final_norm.scale, np.full((32,), 3.0))


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.slow
def test_fit_changes_the_layer_too_and_only_what_has_changed_is_copied(jit_compile):
    task = make(CAUSAL, "llama")
    model = open_task(task)
    layer = XLAGenerationLayer(model, max_new_tokens=8)
    before = layer.generate(PROMPTS)["sequences"].tolist()
    ids = np.random.default_rng(0).integers(0, VOCAB, (4, 9), "int32")
    task.compile(optimizer=keras.optimizers.Adam(0.01), sampler="greedy", jit_compile=jit_compile)
    task.fit({"token_ids": ids[:, :-1], "padding_mask": np.ones((4, 8), bool)}, ids[:, 1:], verbose=0)
    assert model.follower.refresh() > 0
    assert model.follower.refresh() == 0
    assert layer.generate(PROMPTS)["sequences"].tolist() == theirs(task) != before
    assert layer.trace_count == 2  # prompts and tokens


@pytest.mark.slow
def test_predict_has_the_weights_of_now_in_each_batch_and_leaves_them_to_later_calls():
    """On JAX, Keras takes back what is assigned while it predicts."""
    task, rows = make(CAUSAL, "llama"), np.array([[5, 6], [7, 8], [9, 10]])
    layer = XLAGenerationLayer(open_task(task), max_new_tokens=8, eos_token_id=None)
    pipe = keras.Sequential([keras.Input((2,), dtype="int32"), layer])
    before = layer.generate(rows)["sequences"].tolist()
    shaken(task, 1)
    predicted = pipe.predict(rows, batch_size=2, verbose=0)["sequences"].tolist()
    again = XLAGenerationLayer(open_task(task), max_new_tokens=8, eos_token_id=None)
    assert predicted == again.generate(rows)["sequences"].tolist() != before
    assert layer.generate(rows)["sequences"].tolist() == predicted


def test_a_layer_of_mixed_precision_copies_what_the_task_has_as_it_stands():
    task = make(CAUSAL, "llama")
    model = open_task(task)
    layer = XLAGenerationLayer(model, max_new_tokens=4, dtype="mixed_bfloat16")
    expected = layer.generate(PROMPTS[1:2])["scores"]
    np.testing.assert_array_equal(layer(np.array(PROMPTS[1:2]))["scores"], expected)
    with keras.src.backend.common.variables.AutocastScope("bfloat16"):  # as around a layer's call
        assert model.follower.refresh() == 0


@pytest.mark.parametrize("name", UNDESCRIBED)
@pytest.mark.slow
def test_other_classes_run_through_their_own_cached_call(name):
    task = make(UNDESCRIBED, name)
    model = open_task(task)
    assert isinstance(model, CachedTask)
    layer = XLAGenerationLayer(model, max_new_tokens=8)
    before = layer.generate(PROMPTS)["sequences"].tolist()
    assert before == theirs(task)
    assert layer.generate(PROMPTS[1:2])["sequences"].tolist() == before[1:2]
    shaken(task, 1)
    assert layer.generate(PROMPTS)["sequences"].tolist() == theirs(task) != before
    assert layer.trace_count == 4  # prompts and tokens, for batches of 4 and 1


def lora(task):
    task.backbone.enable_lora(4)
    task.generate_function = None  # compiled before there was a LoRA
    shaken(task, 1)


def int8(task):
    task.quantize("int8")
    rng = np.random.default_rng(1)
    scales = [weight for weight in task.weights if weight.name.endswith("scale") and weight.ndim == 1]
    for weight in scales:  # rounding alone need not change a token
        weight.assign(ops.convert_to_numpy(weight) * rng.uniform(0.2, 5.0, weight.shape))
    assert scales


@pytest.mark.parametrize("change", [lora, int8])
@pytest.mark.slow
def test_a_lora_that_is_not_merged_and_quantized_weights_count(change):
    task = make(CAUSAL, "llama")
    plain = theirs(task)
    change(task)
    model = open_task(task)
    assert layout_of(task) is None and isinstance(model, CachedTask)
    made = XLAGenerationLayer(model, max_new_tokens=8).generate(PROMPTS)["sequences"].tolist()
    assert made == theirs(task) != plain


@pytest.mark.slow
def test_rows_near_the_end_of_the_positions_fit():
    task = make(CAUSAL, "gpt2")
    prompts = [list(range(20, 76)), [3, 4]]
    layer = XLAGenerationLayer(CachedTask(task), max_new_tokens=8)
    assert layer.generate(prompts)["sequences"].tolist() == theirs(task, prompts)
    with pytest.raises(ValueError, match="more than the model's 64 positions"):
        layer.generate([[5] * 57])


@pytest.mark.slow
def test_beams_of_the_cached_call_are_those_of_our_own_model():
    task = make(CAUSAL, "llama")
    options = dict(max_new_tokens=6, num_beams=3)
    ours, cached = (XLAGenerationLayer(model, **options) for model in (open_task(task), CachedTask(task)))
    expected, made = ours.generate(PROMPTS), cached.generate(PROMPTS)
    np.testing.assert_array_equal(made["sequences"], expected["sequences"])
    np.testing.assert_allclose(made["scores"], expected["scores"], rtol=1e-4)


class OtherCache(hub.GPT2CausalLM):
    """A task whose cache needs more than tokens, as in KerasHub's tasks for images."""

    def _build_cache(self, token_ids, padding_mask):
        raise NotImplementedError


@pytest.mark.slow
def test_a_task_without_the_usual_cache_runs_without_one():
    task = make(CAUSAL, "gpt2")
    other = OtherCache(task.backbone)
    assert is_task(other) and layout_of(other) is None
    model = open_task(other)
    assert isinstance(model, Recompute) and model.max_positions == 64
    assert XLAGenerationLayer(model, max_new_tokens=8).generate(PROMPTS)["sequences"].tolist() == theirs(task)


@pytest.mark.parametrize("name", SEQ2SEQ)
@pytest.mark.slow
def test_encoder_decoders_become_ours(name):
    task = make(SEQ2SEQ, name)
    model = open_task(task)
    assert isinstance(model, EncoderDecoderModel)
    layer = XLAGenerationLayer(model, max_new_tokens=8, decoder_start_token_id=2)
    task.compile(sampler="greedy")

    def expected():
        source, seen = padded(PROMPTS)
        ids, mask = padded([[2]] * len(PROMPTS), 8)
        inputs = {"encoder_token_ids": source, "encoder_padding_mask": seen}
        inputs |= {"decoder_token_ids": ids, "decoder_padding_mask": mask}
        return task.generate(inputs, stop_token_ids=None)["decoder_token_ids"][:, 1:].tolist()

    before = layer.generate(PROMPTS)["sequences"].tolist()
    assert before == expected()
    shaken(task, 1)
    assert layer.generate(PROMPTS)["sequences"].tolist() == expected() != before
    assert layer.trace_count == 2  # the source, and the tokens


def test_other_encoder_decoders_are_refused():
    task = make(SEQ2SEQ, "bart")
    task.backbone.enable_lora(4)
    with pytest.raises(TypeError, match=r"can run are BartSeq2SeqLM, T5Seq2SeqLM, not subclasses of them.*LoRA"):
        open_task(task)


VOCABULARY = ["!", "<s>", "<pad>", "</s>", "<mask>", "<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab", "Ġc"]
WORDS = dict(vocabulary={token: i for i, token in enumerate(VOCABULARY)}, merges=["a b", "Ġ c"])
TEXTS = ["ab cab", "hello"]


@pytest.mark.slow
def test_text_goes_through_the_tasks_tokenizer_and_ends_where_its_own_does():
    preprocessor = hub.GPT2CausalLMPreprocessor(hub.GPT2Tokenizer(**WORDS), sequence_length=32)
    config = {**CAUSAL["gpt2"][1], "vocabulary_size": len(VOCABULARY)}
    task = shaken(hub.GPT2CausalLM(hub.GPT2Backbone(**config), preprocessor))
    tokenizer, options = tokenizer_of_task(task), options_of_task(task)
    start = VOCABULARY.index("<|endoftext|>")
    assert options == {"eos_token_id": [start]}  # 0, with which KerasHub pads, is a piece of text
    assert tokenizer("ab")["input_ids"] == [start, VOCABULARY.index("ab")]
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [VOCABULARY.index("ab")]
    layer = XLAGenerationLayer(task, max_new_tokens=8, return_prompt=True)
    task.compile(sampler="greedy")
    lengths = [len(tokenizer(text)["input_ids"]) + 8 for text in TEXTS]
    expected = [task.generate(text, max_length=n) for text, n in zip(TEXTS, lengths, strict=True)]
    assert layer.generate(TEXTS) == expected
    with pytest.raises(ValueError, match="GPT2Tokenizer, which cannot be saved"):
        layer.tokenizer.save_pretrained("anywhere")


@pytest.mark.slow
def test_an_encoders_text_has_a_start_and_an_end_and_its_decoder_both_of_its_first_tokens():
    tokenizer = hub.BartTokenizer(**WORDS)
    preprocessor = hub.BartSeq2SeqLMPreprocessor(tokenizer, encoder_sequence_length=16, decoder_sequence_length=10)
    config = {**SEQ2SEQ["bart"][1], "vocabulary_size": len(VOCABULARY)}
    task = shaken(hub.BartSeq2SeqLM(hub.BartBackbone(**config), preprocessor))
    start, pad, end = (VOCABULARY.index(token) for token in ("<s>", "<pad>", "</s>"))
    options = options_of_task(task)
    assert options == dict(eos_token_id=[end], pad_token_id=pad, decoder_start_token_id=end, forced_bos_token_id=start)
    assert tokenizer_of_task(task)("ab")["input_ids"] == [start, VOCABULARY.index("ab"), end]
    layer = XLAGenerationLayer(task, max_new_tokens=9)
    task.compile(sampler="greedy")
    assert layer.generate(TEXTS) == task.generate(TEXTS, max_length=10)


def test_a_task_without_a_preprocessor_has_neither_tokenizer_nor_options():
    task = make(CAUSAL, "gpt2")
    assert tokenizer_of_task(task) is None and options_of_task(task) == {}


@pytest.mark.parametrize("name", _ENDS_OF_TURNS)
def test_turns_end_where_keras_hubs_generate_ends_them(name):
    turn = _ENDS_OF_TURNS[name]
    assert f'"{turn}"' in inspect.getsource(getattr(keras_hub.models, name).generate).replace("'", '"')
    ids = {turn: 7}
    tokenizer = types.SimpleNamespace(
        end_token_id=1, pad_token_id=0, special_token_ids=[0, 1], token_to_id=lambda token: ids.get(token, 0)
    )
    preprocessor = types.SimpleNamespace(tokenizer=tokenizer, built=True, packer=None)
    task = type(name, (), dict(preprocessor=preprocessor))()
    assert options_of_task(task)["eos_token_id"] == [1, 7]
    ids.clear()
    assert options_of_task(task)["eos_token_id"] == [1]


@pytest.mark.parametrize(("token", "pads"), [("<pad>", True), ("<unk>", True), ("!", False)])
def test_a_piece_of_text_is_no_padding(token, pads):
    """KerasHub pads with 0 where a tokenizer has no token for that: "!" of GPT-2, "<unk>" of Llama."""
    tokenizer = types.SimpleNamespace(
        end_token_id=1, pad_token_id=0, special_token_ids=[1], id_to_token=lambda i: token
    )
    preprocessor = types.SimpleNamespace(tokenizer=tokenizer, built=True, packer=None)
    task = types.SimpleNamespace(preprocessor=preprocessor)
    assert options_of_task(task) == {"eos_token_id": [1], **({"pad_token_id": 0} if pads else {})}
