"""What is read of a `config.json` is what transformers reads of it, without transformers."""

import dataclasses
import inspect
import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.activations import ACT2FN

from keras_xla.models.convert.common import activation
from keras_xla.models.convert.config_keys import read_config
from keras_xla.models.registry import FAMILIES, load_model, model_config
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference

VERSION_4 = transformers.__version__.startswith("4.")
KINDS = [kind for kind in FAMILIES if kind in CONFIG_MAPPING]  # the oldest transformers has no Ministral
OURS = {"learned_positions", "rope_freq_factors"}  # what other sources say of their models in this way
ROPE = {"rope_theta", "rope_scaling", "rope_parameters"}  # which transformers 5 makes one of
_LLAMA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=50)
_STACKS = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=2,
    encoder_ffn_dim=48,
    decoder_ffn_dim=40,
)
# As files on the hub have it, some of them written years ago, but for the sizes.
FILES = {
    "gpt2": dict(
        model_type="gpt2",
        activation_function="gelu_new",
        architectures=["GPT2LMHeadModel"],
        attn_pdrop=0.1,
        bos_token_id=50256,
        eos_token_id=50256,
        initializer_range=0.02,
        layer_norm_epsilon=1e-05,
        n_ctx=1024,
        n_embd=768,
        n_head=12,
        n_layer=12,
        n_positions=1024,
        summary_type="cls_index",
        task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
        vocab_size=50257,
    ),
    "gpt2 by other names": dict(
        model_type="gpt2", hidden_size=48, num_attention_heads=3, num_hidden_layers=2, max_position_embeddings=77
    ),
    "opt-125m": dict(
        model_type="opt",
        _remove_final_layer_norm=False,
        activation_function="relu",
        do_layer_norm_before=True,
        ffn_dim=3072,
        hidden_size=768,
        init_std=0.02,
        layerdrop=0.0,
        max_position_embeddings=2048,
        num_attention_heads=12,
        num_hidden_layers=12,
        pad_token_id=1,
        prefix="</s>",
        torch_dtype="float16",
        vocab_size=50272,
        word_embed_proj_dim=768,
    ),
    "opt of before 4.20": dict(model_type="opt", hidden_size=96, num_attention_heads=4, _remove_final_layer_norm=True),
    "llama-2": dict(
        **_LLAMA,
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        bos_token_id=1,
        eos_token_id=2,
        hidden_act="silu",
        max_position_embeddings=4096,
        num_key_value_heads=4,
        pretraining_tp=1,
        rms_norm_eps=1e-05,
        rope_scaling=None,
        tie_word_embeddings=False,
        torch_dtype="float16",
        use_cache=True,
    ),
    "llama-1": dict(**_LLAMA, model_type="llama", pad_token_id=-1, max_sequence_length=2048, rms_norm_eps=1e-06),
    "llama-3.1": dict(
        **_LLAMA,
        model_type="llama",
        eos_token_id=[128001, 128008, 128009],
        num_key_value_heads=2,
        max_position_embeddings=131072,
        mlp_bias=False,
        rope_theta=500000.0,
        rope_scaling=dict(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
            rope_type="llama3",
        ),
    ),
    "llama with linear scaling": dict(**_LLAMA, model_type="llama", rope_scaling={"type": "linear", "factor": 4}),
    "llama with yarn": dict(**_LLAMA, model_type="llama", rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "llama with dynamic scaling": dict(**_LLAMA, model_type="llama", rope_scaling={"type": "dynamic", "factor": 2.0}),
    "llama with the trained length beside": dict(
        **_LLAMA,
        model_type="llama",
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        original_max_position_embeddings=256,
    ),
    "smollm2": dict(
        **_LLAMA,
        model_type="llama",
        is_llama_config=True,
        num_key_value_heads=2,
        rope_interleaved=False,
        rope_scaling=None,
        rope_theta=100000,
        tie_word_embeddings=True,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}},
    ),
    "mistral": dict(**_LLAMA, model_type="mistral", num_key_value_heads=2, sliding_window=4096, rope_theta=10000.0),
    "mistral without a window": dict(**_LLAMA, model_type="mistral", head_dim=32, sliding_window=None, rope_theta=1e6),
    "ministral": dict(
        **_LLAMA,
        model_type="ministral",
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        num_key_value_heads=2,
        rope_theta=1e8,
        sliding_window=4096,
    ),
    "qwen2.5": dict(
        **_LLAMA,
        model_type="qwen2",
        bos_token_id=151643,
        eos_token_id=151645,
        max_window_layers=21,
        num_key_value_heads=2,
        rope_theta=1000000.0,
        sliding_window=32768,
        tie_word_embeddings=True,
        use_sliding_window=False,
    ),
    "qwen2 with windows": dict(**_LLAMA, model_type="qwen2", use_sliding_window=True, max_window_layers=1),
    "qwen2 with kinds of layers": dict(
        **_LLAMA,
        model_type="qwen2",
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3": dict(
        **_LLAMA,
        model_type="qwen3",
        attention_bias=False,
        head_dim=16,
        max_window_layers=28,
        num_key_value_heads=2,
        rope_scaling=None,
        rope_theta=1000000,
        sliding_window=None,
        use_sliding_window=False,
    ),
    "t5-small": dict(
        model_type="t5",
        d_ff=2048,
        d_kv=64,
        d_model=512,
        decoder_start_token_id=0,
        dropout_rate=0.1,
        eos_token_id=1,
        initializer_factor=1.0,
        is_encoder_decoder=True,
        layer_norm_epsilon=1e-06,
        n_positions=512,
        num_heads=8,
        num_layers=6,
        output_past=True,
        pad_token_id=0,
        relative_attention_num_buckets=32,
        vocab_size=32128,
    ),
    "flan-t5": dict(
        model_type="t5", d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "t5 with another gate": dict(model_type="t5", feed_forward_proj="gated-silu"),
    "mt5-small": dict(model_type="mt5", feed_forward_proj="gated-gelu", tie_word_embeddings=False, vocab_size=250112),
    "bart": dict(
        **_STACKS,
        model_type="bart",
        _num_labels=3,
        activation_function="gelu",
        add_final_layer_norm=False,
        classif_dropout=0.1,
        forced_bos_token_id=0,
        id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        normalize_before=False,
        num_hidden_layers=2,
        scale_embedding=False,
        vocab_size=50265,
    ),
    "mbart": dict(
        **_STACKS, model_type="mbart", scale_embedding=True, normalize_before=True, static_position_embeddings=False
    ),
    "opus-mt": dict(
        **_STACKS,
        model_type="marian",
        activation_function="swish",
        bad_words_ids=[[58100]],
        decoder_vocab_size=58101,
        max_position_embeddings=512,
        num_beams=4,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        static_position_embeddings=True,
        vocab_size=58101,
    ),
    "marian without its second vocabulary": dict(
        **_STACKS, model_type="marian", share_encoder_decoder_embeddings=False, vocab_size=99
    ),
    "whisper": dict(
        **_STACKS,
        model_type="whisper",
        begin_suppress_tokens=[220, 50257],
        forced_decoder_ids=[[1, 50259], [2, 50359], [3, 50363]],
        max_length=448,
        max_source_positions=1500,
        num_hidden_layers=2,
        num_mel_bins=128,
        suppress_tokens=[1, 2, 7],
        vocab_size=51866,
    ),
}


def theirs(values: dict):
    return AutoConfig.for_model(**json.loads(json.dumps(values)))


def spec(values: dict):
    family = FAMILIES[values["model_type"]]
    return family.spec(read_config(values, family.keys, "config.json"))


def through_transformers(values: dict):
    """The spec of what transformers read of a config, all of its defaults put in."""
    read = theirs(values)
    made = {**{name: getattr(read, name) for name in FAMILIES[values["model_type"]].keys if hasattr(read, name)}}
    if hasattr(read, "_remove_final_layer_norm"):
        made["_remove_final_layer_norm"] = read._remove_final_layer_norm
    if VERSION_4 and values["model_type"] in ("t5", "mt5"):  # which has no key of its own for this
        made["scale_decoder_outputs"] = read.tie_word_embeddings
    return spec({**made, "model_type": values["model_type"]})


def declared(kind: str) -> dict:
    """The defaults that transformers declares for the keys of a family, or has in an object without any values."""
    made, names = (
        AutoConfig.for_model(kind),
        [f"{underscore}{name}" for name in FAMILIES[kind].keys for underscore in ("", "_")],
    )
    config = type(made)
    if dataclasses.is_dataclass(config):
        found = {field.name: field.default for field in dataclasses.fields(config)}
    else:
        found = {name: each.default for name, each in inspect.signature(config.__init__).parameters.items()}
    return {**{name: getattr(made, name) for name in names if hasattr(made, name)}, **found}


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_transformers(kind):
    known = declared(kind)
    for name, key in FAMILIES[kind].keys.items():
        default = known.get(f"_{name}", known.get(name))
        if name in OURS:
            assert name not in known
        elif name in ("scale_decoder_outputs", "is_gated_act", "dense_act_fn"):  # follow from other keys
            assert key.default is None
        elif VERSION_4 and (kind, name) == ("mt5", "tie_word_embeddings"):  # transformers 5 ties it
            assert key.default is True and default is False
        elif name not in ROPE:
            assert _listed(key.default) == _listed(default), name


def _listed(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_are_those_of_transformers(kind):
    names = {other: name for name, key in FAMILIES[kind].keys.items() for other in key.also if other[0] != "_"}
    theirs = {other: name for other, name in type(AutoConfig.for_model(kind)).attribute_map.items()}
    theirs.pop("num_key_value_heads", None)  # Whisper's, of no use
    assert theirs.items() <= names.items() if VERSION_4 else theirs == names  # transformers 5 has a few more


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_without_keys_is_that_of_transformers(kind):
    assert spec({"model_type": kind}) == through_transformers({"model_type": kind})


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if file["model_type"] in KINDS])
def test_files_of_the_hub_are_read_as_transformers_reads_them(name):
    assert spec(FILES[name]) == through_transformers(FILES[name])
    read = read_config(FILES[name], FAMILIES[FILES[name]["model_type"]].keys, "config.json")
    expected = theirs(FILES[name])
    for token in ("eos_token_id", "pad_token_id", "decoder_start_token_id"):
        assert getattr(read, token) == getattr(expected, token, None)
    assert read.is_encoder_decoder == expected.is_encoder_decoder
    if hasattr(expected, "dense_act_fn"):
        mlp = spec(FILES[name]).decoder.mlp
        assert (mlp.activation, mlp.gated) == (activation(expected.dense_act_fn), expected.is_gated_act)


@pytest.mark.parametrize("variant", [*reference.VARIANTS, *reference.SEQ2SEQ, *reference.SPEECH])
def test_files_that_transformers_writes_are_read_as_it_reads_them(variant, tmp_path):
    family, values = {**reference.VARIANTS, **reference.SEQ2SEQ, **reference.SPEECH}[variant]
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"this version of transformers has no {family}")
    config = getattr(transformers, f"{family}Config")(**values)
    config.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert spec(stored) == through_transformers(stored)
    assert spec(config.to_dict()) == spec(stored)  # with all defaults written out


def test_rope_theta_is_known_in_both_spellings():
    plain = spec({**_LLAMA, "model_type": "llama"})
    old = spec({**_LLAMA, "model_type": "llama", "rope_theta": 500000.0})
    new = spec({**_LLAMA, "model_type": "llama", "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}})
    assert old == new != plain
    assert spec({**_LLAMA, "model_type": "llama", "rope_parameters": None, "rope_scaling": {}}) == plain


def test_two_names_of_a_key_have_one_value():
    """Of two values transformers takes that under the other name, be it the right one or not."""
    assert spec({"model_type": "gpt2", "n_layer": 3, "num_hidden_layers": 3}).layers == 3
    assert spec({"model_type": "gpt2", "n_layer": 3, "num_hidden_layers": None}).layers == 3
    assert spec({"model_type": "bart", "encoder_layers": 3, "num_hidden_layers": 6}).encoder.layers == 3  # a student
    with pytest.raises(ValueError, match="has n_head=12 and num_attention_heads=16, expected one value"):
        spec({"model_type": "gpt2", "n_head": 12, "num_attention_heads": 16})


def test_rotary_parameters_may_be_those_of_each_kind_of_layer():
    """As transformers 5 writes them for some families; it must not mean other positions in silence."""
    rope = {"rope_theta": 500000.0, "rope_type": "default"}
    llama = {**_LLAMA, "model_type": "llama"}
    assert spec({**llama, "rope_parameters": {"full_attention": rope, "sliding_attention": rope}}) == spec(
        {**llama, "rope_parameters": rope}
    )
    other = {**rope, "rope_theta": 10000.0}
    with pytest.raises(ValueError, match="rope_parameters differ between kinds of layers"):
        spec({**llama, "rope_parameters": {"full_attention": rope, "sliding_attention": other}})
    with pytest.raises(ValueError, match="rope_parameters has rope_theta='x', expected a finite number"):
        spec({**llama, "rope_parameters": {"full_attention": {**rope, "rope_theta": "x"}}})


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A checkpoint whose config can be changed."""
    path = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), path)

    def change(**values):
        stored = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**stored, **values}))
        return open_checkpoint(path)

    return change


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", "32", "a whole number of at least 1"),
        ("hidden_size", 32.0, "a whole number of at least 1"),
        ("num_hidden_layers", -2, "a whole number of at least 1"),
        ("vocab_size", None, "a whole number of at least 1"),
        ("num_attention_heads", [4], "a whole number of at least 1"),
        ("num_attention_heads", True, "a whole number of at least 1"),
        ("num_key_value_heads", 0, "a whole number of at least 1, or null"),
        ("rms_norm_eps", "1e-5", "a finite number of at least 0"),
        ("rms_norm_eps", float("nan"), "a finite number of at least 0"),
        ("hidden_act", None, "a string"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("eos_token_id", "</s>", "a token id, or a list of them, or null"),
        ("layer_types", "full_attention", "a list, each a string, or null"),
        ("rope_theta", -1.0, "a finite number above 0"),
        ("rope_scaling", 5, "an object, or null"),
        ("rope_scaling", {"rope_type": "linear", "factor": "2"}, "a finite number above 0, or null"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_before_weights_are_read(folder, key, value, expected, monkeypatch):
    source = folder(**{key: value})
    monkeypatch.setattr(source, "read", None)
    with pytest.raises(ValueError) as error:
        load_model(source)
    name, value = (f"{key}.factor", value["factor"]) if isinstance(value, dict) else (key, value)
    assert f"config.json has {name}={value!r}, expected {expected}." in str(error.value)
    assert source.path in str(error.value)


def test_all_wrong_values_are_named_at_once(folder):
    with pytest.raises(ValueError, match=r"hidden_size='a', expected .*; vocab_size=-1, expected |vocab_size.*hidden"):
        model_config(folder(hidden_size="a", vocab_size=-1))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (dict(layer_types=["full_attention"]), "layer_types has 1 entries; expected one for each of 2 layers"),
        (dict(rope_parameters=None, rope_scaling={"type": "linear"}), "rope_type='linear' needs factor, which"),
        (dict(rope_parameters=None, rope_scaling={"type": "longrope", "factor": 2.0}), "rope_type='longrope' is"),
        (dict(hidden_act="mish"), "the activation 'mish' is not supported"),
        (
            dict(layer_types=["full_attention", "local"]),
            "layer_types has 'local', not supported here; expected sliding",
        ),
        (dict(is_causal=False), "it has is_causal=False"),
        (dict(sliding_window=6), "it has sliding_window=6, which transformers' Llama heeds in its cache"),
        (dict(attention_chunk_size=6), "it has attention_chunk_size=6, which transformers' Llama heeds in its cache"),
    ],
)
def test_values_that_do_not_fit_each_other_or_are_not_known(folder, values, text):
    with pytest.raises(ValueError, match=f"its config does not describe a 'llama' model.*{text}"):
        load_model(folder(**values))


@pytest.mark.parametrize(
    ("variant", "values", "text"),
    [
        ("gpt2", dict(is_causal=False), "it has is_causal=False: each token sees those behind it"),
        ("gpt2", dict(is_causal=None), "it has is_causal=None: each token sees those behind it"),
        ("t5", dict(is_causal=False), "it has is_causal=False: each token sees those behind it"),
        ("opt-125m", dict(sliding_window=6), "it has sliding_window=6, which transformers heeds in the cache of any"),
        ("bart", dict(attention_chunk_size=6), "it has attention_chunk_size=6, which transformers heeds in the cache"),
        ("gpt2", dict(layer_types=["sliding_attention"] * 2), "layer_types has sliding_attention, not supported here"),
        ("llama2", dict(per_layer_config={"1": {"rms_norm_eps": 0.1}}), "it has a per_layer_config"),
    ],
)
def test_keys_that_transformers_heeds_for_every_architecture(checkpoint, tmp_path, variant, values, text):
    path = shutil.copytree(checkpoint(variant), tmp_path / "model")
    stored = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**stored, **values}))
    with pytest.raises(ValueError, match=f"its config does not describe a '{stored['model_type']}' model.*{text}"):
        load_model(open_checkpoint(path))


def test_the_same_keys_where_they_mean_nothing(checkpoint, tmp_path):
    path = shutil.copytree(checkpoint("gpt2"), tmp_path / "model")
    stored = json.loads((path / "config.json").read_text())
    usual = dict(is_causal=True, sliding_window=None, layer_types=["full_attention"] * 2, per_layer_config=None)
    (path / "config.json").write_text(json.dumps({**stored, **usual}))
    assert load_model(open_checkpoint(path)).spec == load_model(open_checkpoint(checkpoint("gpt2"))).spec


@pytest.mark.parametrize("scaling", [None, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2**31}])
def test_more_positions_than_an_int32_counts(scaling):
    made = spec({**_LLAMA, "model_type": "llama", "max_position_embeddings": 10**10, "rope_scaling": scaling})
    assert made.position.max_positions == 2**31 - 1


def test_t5s_activation():
    with pytest.raises(ValueError, match="feed_forward_proj='half-gelu' is not supported here"):
        spec({"model_type": "t5", "feed_forward_proj": "half-gelu"})


def test_unknown_keys_are_of_no_meaning(folder):
    expected = model_config(folder())
    assert model_config(folder(num_experts=[1, {"a": None}], hidden_sise="32")) == expected


def test_a_number_that_no_float_holds_is_named():
    from keras_xla.models.convert.config_keys import number

    assert not number(1.0).fits(10**400) and number(1.0).fits(10**300) and not number(1.0).fits(float("nan"))


@pytest.mark.parametrize(
    "values", [dict(dense_act_fn="silu"), dict(is_gated_act=False), dict(dense_act_fn="relu")], ids=str
)
def test_t5s_activation_may_have_been_changed_by_hand(values):
    values = {"model_type": "t5", "feed_forward_proj": "gated-gelu", **values}
    mlp, expected = spec(values).decoder.mlp, theirs(values)
    assert (mlp.activation, mlp.gated) == (activation(expected.dense_act_fn), expected.is_gated_act)


def test_null_is_what_it_is_in_transformers():
    scales = [
        spec({"model_type": "t5", "tie_word_embeddings": tied}).decoder.head_scale for tied in (None, True, False)
    ]
    assert scales[0] == scales[1] != scales[2]
    assert spec({"model_type": "bart", "scale_embedding": None}) == spec({"model_type": "bart"})


@pytest.mark.parametrize("name", ["sliding_window", "attention_chunk_size"])
def test_llamas_cache_heeds_a_window_that_is_shorter_than_the_texts_may_be(name):
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    longer = {**_LLAMA, "model_type": "llama", "max_position_embeddings": 512, "rope_scaling": yarn}
    with pytest.raises(ValueError, match=f"it has {name}=512"):
        spec({**longer, name: 512})
    assert spec({**longer, name: 2048}) == spec(longer)
    layers = ["full_attention"] * longer["num_hidden_layers"]
    assert spec({**longer, name: 512, "layer_types": layers}) == spec(longer)


def test_linear_scaling_makes_more_positions_than_the_training_had():
    rope = {"type": "linear", "factor": 4.0}  # Vicuna's 16k, whose config says 4,096
    made = spec({**_LLAMA, "model_type": "llama", "max_position_embeddings": 512, "rope_scaling": rope})
    assert made.position.max_positions == 2048


def test_dynamic_scaling_changes_nothing_for_the_positions_that_there_are():
    plain = {**_LLAMA, "model_type": "llama"}
    assert spec({**plain, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}) == spec(plain)
    with pytest.raises(ValueError, match="rope_type='dynamic' needs factor"):
        spec({**plain, "rope_scaling": {"rope_type": "dynamic"}})


@pytest.mark.parametrize(("truncate", "same"), [({}, True), ({"truncate": True}, True), ({"truncate": None}, False)])
def test_yarn_takes_null_for_no_truncation_as_transformers_does(truncate, same):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    plain = {**_LLAMA, "model_type": "llama"}
    cut, whole = (spec({**plain, "rope_scaling": {**rope, "truncate": each}}) for each in (True, False))
    assert cut != whole
    assert spec({**plain, "rope_scaling": {**rope, **truncate}}) == (cut if same else whole)


def test_llama3s_factors_may_be_equal(recwarn):
    rope = dict(factor=8.0, low_freq_factor=2.0, high_freq_factor=2.0, original_max_position_embeddings=64)
    made = spec({**_LLAMA, "model_type": "llama", "rope_scaling": {**rope, "rope_type": "llama3"}})
    assert np.isfinite(made.position.inverse_frequencies).all() and not list(recwarn)


@pytest.mark.parametrize(("buckets", "distance"), [(32, 10), (8, 4)])
def test_t5s_distances_reach_beyond_those_with_a_bucket_each(buckets, distance):
    sizes = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    with pytest.raises(ValueError, match=f"max_distance={distance} is not supported here; expected more than"):
        spec({"model_type": "t5", **sizes})
    assert spec({"model_type": "t5", **sizes, "relative_attention_max_distance": buckets})


# The last one is of newer transformers.
@pytest.mark.parametrize("name", sorted({"gelu_python", "gelu_accurate", "gelu_python_tanh"}.intersection(ACT2FN)))
def test_other_names_of_activations(name):
    x = torch.linspace(-3, 3, 50)
    same = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}[activation(name)]
    torch.testing.assert_close(ACT2FN[name](x), ACT2FN[same](x))


def test_yarn_makes_more_positions_than_the_training_had():
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    made = spec({**_LLAMA, "model_type": "llama", "max_position_embeddings": 512, "rope_scaling": rope})
    assert made.position.max_positions == 2048
    given = spec({**_LLAMA, "model_type": "llama", "max_position_embeddings": 4096, "rope_scaling": rope})
    assert given.position.max_positions == 4096
