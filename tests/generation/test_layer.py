"""`XLAGenerationLayer` as a Keras layer: ids and text, eager and in models, saved and loaded."""

import copy
import json
import logging
import shutil
import subprocess
import sys
import threading
import warnings
import zipfile

import keras
import numpy as np
import pytest
import transformers

import keras_xla
from keras_xla import XLAGenerationLayer
from keras_xla.generation.defaults import known_options, resolve, stored_options
from keras_xla.models.registry import load_model, model_config
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference
from tests.tokenizers import tiny

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="string tensors and graphs with host calls are TensorFlow's"
)
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("llama-tied-gqa")))


@pytest.fixture(scope="module")
def layer(model):
    """One for all tests that neither count what it compiles nor change it."""
    return XLAGenerationLayer(model, tiny(), max_new_tokens=6)


@pytest.fixture
def new_layer(model):
    return XLAGenerationLayer(model, tiny(), max_new_tokens=6)


@pytest.fixture(scope="module")
def expected():
    return [reference.generate("llama-tied-gqa", prompt, max_new_tokens=6) for prompt in PROMPTS]


def padded(prompts=PROMPTS):
    ids = np.zeros((len(prompts), max(map(len, prompts))), "int32")
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt)] = prompt
    return {"input_ids": ids, "attention_mask": (ids > 0).astype("int32")}


def test_called_eagerly_it_returns_tensors_of_new_tokens(layer, expected):
    out = layer(padded())
    assert keras.ops.convert_to_numpy(out["sequences"]).tolist() == expected
    assert keras.ops.is_tensor(out["scores"]) and out["lengths"].shape == (3,)


@pytest.mark.slow
def test_a_functional_model_predicts_over_arrays(layer, expected):
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "attention_mask")}
    pipeline = keras.Model(inputs, layer(inputs))
    assert pipeline.output["sequences"].shape == (None, 6)
    out = pipeline.predict(padded(), batch_size=2, verbose=0)
    assert out["sequences"].tolist() == expected
    assert out["sequences"].dtype == np.int32 and out["scores"].shape == (3,)


def test_a_sequential_model_takes_ids(layer):
    pipeline = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    out = pipeline.predict(np.array([[5, 6, 7], [7, 6, 5]]), verbose=0)
    assert out["sequences"][0].tolist() == reference.generate("llama-tied-gqa", [5, 6, 7], max_new_tokens=6)


@tensorflow_only
@pytest.mark.slow
def test_strings_go_through_a_sequential_model_in_arrays_and_datasets(layer):
    import tensorflow as tf

    pipeline = keras.Sequential([keras.Input((), dtype="string"), layer])
    texts = ["abc", "hello there", "x y"]
    expected = [text.encode() for text in layer.generate(texts)]
    assert pipeline.predict(tf.constant(texts), verbose=0).tolist() == expected
    data = tf.data.Dataset.from_tensor_slices(texts).batch(2)
    assert pipeline.predict(data, verbose=0).tolist() == expected
    mapped = [text for batch in data.map(layer).as_numpy_iterator() for text in batch.tolist()]
    assert mapped == expected


def object_array(texts):
    return np.array(texts, object)


@pytest.fixture(scope="class")
def of_ids(layer):
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "attention_mask")}
    return keras.Model(inputs, layer(inputs))


@pytest.fixture(scope="class")
def of_texts(layer):
    return keras.Sequential([keras.Input((), dtype="string"), layer])


class TestWhatPredictTakes:
    """`predict` is Keras' own, and docs/generation.md says which forms it takes; the layer alone takes all of them."""

    TEXTS = ("abc", "hello there")

    @staticmethod
    def tokens(**options):
        return tiny()(list(TestWhatPredictTakes.TEXTS), padding=True, **options)

    @pytest.mark.parametrize(
        "form", [dict, lambda batch: {name: batch[name] for name in ("input_ids", "attention_mask")}]
    )
    def test_a_dict_of_what_a_tokenizer_returns(self, layer, of_ids, form):
        made = of_ids.predict(form(self.tokens(return_tensors="np")), verbose=0)["sequences"].tolist()
        assert made == layer.generate(self.tokens())["sequences"].tolist()

    @tensorflow_only
    @pytest.mark.parametrize("form", [keras.ops.convert_to_tensor, object_array])
    def test_a_tensor_of_strings_and_an_array_of_objects(self, layer, of_texts, form):
        made = of_texts.predict(form(list(self.TEXTS)), verbose=0)
        assert [text.decode() for text in made] == layer.generate(list(self.TEXTS))

    @pytest.mark.parametrize("options", [{}, {"return_tensors": "np"}])
    def test_what_a_tokenizer_returns_is_no_dict_to_keras(self, layer, of_ids, options):
        with pytest.raises(ValueError, match="Unrecognized data type"):
            of_ids.predict(self.tokens(**options), verbose=0)

    @tensorflow_only
    @pytest.mark.parametrize(("form", "error"), [(list, "Unrecognized data type"), (np.array, "Invalid dtype: str")])
    def test_lists_and_arrays_of_strings_are_refused(self, of_texts, form, error):
        with pytest.raises(ValueError, match=error):
            of_texts.predict(form(list(self.TEXTS)), verbose=0)

    @pytest.mark.parametrize("form", [list, np.array, object_array])
    def test_the_layer_takes_strings_in_any_form(self, layer, form):
        texts = list(self.TEXTS)
        assert layer.generate(form(texts)) == layer(form(texts)) == layer.generate(texts)

    @pytest.mark.parametrize("options", [{}, {"return_tensors": "np"}])
    def test_the_layer_takes_what_a_tokenizer_returns(self, layer, options):
        expected = layer.generate([tiny()(text)["input_ids"] for text in self.TEXTS])["sequences"].tolist()
        assert layer.generate(self.tokens(**options))["sequences"].tolist() == expected
        assert keras.ops.convert_to_numpy(layer(self.tokens(**options))["sequences"]).tolist() == expected


@tensorflow_only
def test_a_string_tensor_gives_a_string_tensor(layer):
    import tensorflow as tf

    out = layer(tf.constant([["abc"], ["x"]]))
    assert out.dtype == tf.string and out.shape == (2,)


def test_text_gives_a_list_of_completions(layer):
    one = layer.generate("abc")
    assert isinstance(one, list) and isinstance(one[0], str)
    assert layer.generate(["abc", "hello"])[0] == one[0] == layer(["abc"])[0]
    assert layer.generate("abc", return_prompt=True) == ["abc" + one[0]]


def test_text_equals_the_references_tokens_decoded(layer):
    prompt = "So it goes"
    ids = tiny()(prompt)["input_ids"]
    new = reference.generate("llama-tied-gqa", ids, max_new_tokens=6)
    whole = tiny().decode(ids + new, skip_special_tokens=True)
    assert layer.generate(prompt, return_prompt=True) == [whole]


def test_special_tokens_are_added_and_shown_as_asked(model):
    tokenizer = tiny(bos=True)
    layer = XLAGenerationLayer(model, tokenizer, max_new_tokens=3, forced_eos_token_id=2)

    def text(ids):
        return tokenizer.decode(layer.generate([ids])["sequences"][0], skip_special_tokens=True)

    bare = tokenizer("abc", add_special_tokens=False)["input_ids"]
    assert layer.generate("abc") == [text([1, *bare])]
    assert layer.generate("abc", add_special_tokens=False) == [text(bare)] != layer.generate("abc")
    shown = layer.generate("abc", skip_special_tokens=False)[0]
    assert shown.endswith("</s>") and shown.removesuffix("</s>") == layer.generate("abc")[0]


def test_a_prompt_longer_than_a_tokenizer_likes_makes_no_noise(model, capfd):
    tokenizer = copy.deepcopy(tiny())
    tokenizer.model_max_length = 4
    XLAGenerationLayer(model, tokenizer, max_new_tokens=2).generate("So it goes")
    assert "longer than" not in "".join(capfd.readouterr())


def test_chats_go_through_the_chat_template_without_a_second_bos(model):
    layer = XLAGenerationLayer(model, tiny(bos=True), max_new_tokens=6)
    chat = [{"role": "user", "content": "Hi"}]
    ids = tiny(bos=True)("<user>Hi</s><assistant>", add_special_tokens=False)["input_ids"]
    sequence = layer.generate([ids])["sequences"][0]
    assert layer.generate(chat) == [tiny().decode(sequence, skip_special_tokens=True)]
    assert layer.generate([chat, chat]) == layer.generate(chat) * 2


def test_options_of_a_call_override_those_of_the_layer(layer):
    assert layer.generate(PROMPTS, max_new_tokens=2)["sequences"].shape == (3, 2)
    out = layer.generate(PROMPTS, do_sample=True, seed=3, num_return_sequences=2)
    again = layer.generate(PROMPTS, do_sample=True, seed=3, num_return_sequences=2)
    assert out["sequences"].shape == (6, 6) and (out["sequences"] == again["sequences"]).all()
    assert layer.options.max_new_tokens == 6 and not layer.options.do_sample


@pytest.mark.slow
def test_forty_different_calls_compile_once_a_bucket(model, new_events):
    layer = XLAGenerationLayer(model, max_new_tokens=8, eos_token_id=2, cache_buckets=(64, 128), name="forty")
    rng = np.random.default_rng(0)
    buckets = set()
    for i in range(40):
        batch, longest, new = int(rng.integers(3, 5)), 1 + (i * 37) % 64, int(rng.integers(1, 33))
        rows = [rng.integers(5, 90, longest if r == 0 else rng.integers(1, longest + 1)).tolist() for r in range(batch)]
        options = dict(
            temperature=float(rng.uniform(0.3, 2)),
            top_k=int(rng.integers(0, 60)),
            top_p=float(rng.uniform(0.3, 1)),
            min_p=float(rng.uniform(0, 0.3)),
            seed=i,
            min_new_tokens=int(rng.integers(0, new + 1)),
        )
        out = layer.generate(rows, do_sample=True, max_new_tokens=new, **options)
        assert out["sequences"].shape == (batch, new)
        buckets.add((1 << (batch - 1).bit_length(), 64 if longest + new <= 64 else 128))
    assert layer.trace_count == len(new_events("generate")) == 2 * len(buckets) == 4


def test_a_model_around_it_is_not_compiled_again_and_says_why(layer):
    pipeline = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    with pytest.raises(keras_xla.XLAUnsupportedError, match=r"compiles itself.*jit_compile=False"):
        keras_xla.compile(pipeline, jit_compile=True)


@pytest.mark.slow
@tensorflow_only
def test_one_layer_serves_models_of_texts_and_of_ids_in_any_order(new_layer, expected):
    texts, ids = keras.Input((), dtype="string"), keras.Input((None,), dtype="int32")
    of_texts, of_ids = keras.Model(texts, new_layer(texts)), keras.Model(ids, new_layer(ids))
    again = keras.Model(texts, new_layer(texts))
    assert of_ids.predict(padded()["input_ids"][:1, :3], verbose=0)["sequences"].tolist() == expected[:1]
    for model in (of_texts, again):
        assert model(keras.ops.convert_to_tensor(["abc"])).numpy()[0].decode() == new_layer.generate(["abc"])[0]


@pytest.mark.slow
def test_warmup_compiles_ahead(new_layer, new_events):
    assert new_layer.warmup(batch_sizes=[1, 3], prompt_lengths=[5, 20], verbose=0) == 4
    new_layer.generate([[5] * 20])
    new_layer.generate([[5], [6], [7]])
    assert len(new_events("generate")) == 4


def test_a_warmup_draws_nothing(new_layer):
    np.random.seed(3)
    expected = np.random.randint(2**31)
    np.random.seed(3)
    new_layer.warmup(batch_sizes=1, prompt_lengths=5, do_sample=True, verbose=0)
    assert np.random.randint(2**31) == expected


def test_new_weights_are_used_without_compiling_again(checkpoint, new_events):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=6, eos_token_id=None)
    before = layer.generate([[5, 6]])
    other = reference.torch_model("gpt2", seed=1).transformer.wte.weight.detach().numpy()
    layer.model.embedding.values.assign(other)
    assert (layer.generate([[5, 6]])["scores"] != before["scores"]).all()
    assert len(new_events("generate")) == 2


@pytest.mark.slow
def test_a_saved_pipeline_loads_with_weights_tokenizer_and_options(layer, tmp_path):
    inputs = keras.Input((3,), dtype="int32")
    pipeline = keras.Model(inputs, layer(inputs))
    pipeline.save(tmp_path / "pipeline.keras")
    loaded = keras.saving.load_model(tmp_path / "pipeline.keras")
    ids = np.array([[5, 6, 7]])
    assert (loaded.predict(ids, verbose=0)["sequences"] == pipeline.predict(ids, verbose=0)["sequences"]).all()
    restored = loaded.get_layer(layer.name)
    assert restored.options == layer.options
    assert restored.generate("abc") == layer.generate("abc")


@pytest.mark.slow
def test_two_layers_that_share_a_model_share_it_when_they_are_loaded(layer, tmp_path):
    ids, long = keras.Input((3,), dtype="int32"), XLAGenerationLayer(layer.model, layer.tokenizer, max_new_tokens=9)
    pipeline = keras.Model(ids, [layer(ids)["sequences"], long(ids)["sequences"]])
    pipeline.save(tmp_path / "pipeline.keras")
    loaded = keras.saving.load_model(tmp_path / "pipeline.keras")
    prompts = np.array([[5, 6, 7]])
    for made, expected in zip(loaded.predict(prompts, verbose=0), pipeline.predict(prompts, verbose=0), strict=True):
        np.testing.assert_array_equal(made, expected)
    assert loaded.get_layer(layer.name).model is loaded.get_layer(long.name).model


def test_a_frozen_layer_freezes_its_model(model):
    layer = XLAGenerationLayer(model, max_new_tokens=2, trainable=False)
    ids = keras.Input((3,), dtype="int32")
    assert keras.Model(ids, layer(ids)).trainable_variables == [] == layer.model.trainable_variables
    model.trainable = True


def test_one_dict_for_each_prompt_is_refused(layer):
    with pytest.raises(TypeError, match="Prompt 0 is a dict; expected one dict with the ids of all prompts"):
        layer.generate([{"input_ids": [5, 6]}, {"input_ids": [7]}])


def test_what_is_frozen_stays_so_when_it_is_loaded_or_cloned(checkpoint, tmp_path):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=6)
    layer.model.embedding.trainable = layer.model.blocks[1].trainable = False
    ids = keras.Input((3,), dtype="int32")
    pipeline = keras.Model(ids, layer(ids))
    pipeline.save(tmp_path / "pipeline.keras")
    for made in (keras.saving.load_model(tmp_path / "pipeline.keras"), keras.models.clone_model(pipeline)):
        again = made.layers[-1].model
        trainable = [each.path for each in layer.model.trainable_variables]
        assert [each.path for each in again.trainable_variables] == trainable != []
    layer.trainable = False
    again = XLAGenerationLayer.from_config(layer.get_config())
    assert again.model.trainable_variables == [] != again.model.variables


@pytest.mark.parametrize("variant", ["gpt2", "t5"])
def test_the_model_of_a_layer_is_a_part_of_a_keras_model_that_can_be_saved(variant, checkpoint, tmp_path):
    layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), max_new_tokens=6)
    names = ("source", "ids") if layer._generator.has_encoder else ("ids",)
    rows = 1 if layer._generator.has_encoder else None  # whose attention to the source needs to know how many
    inputs = {name: keras.Input((3,), batch_size=rows, dtype="int32", name=name) for name in names}
    tuned = keras.Model(inputs, layer.model(**inputs))
    tuned.save(tmp_path / "tuned.keras")
    loaded = keras.saving.load_model(tmp_path / "tuned.keras")
    ids = {name: np.array([[5, 6, 7]]) for name in names}
    np.testing.assert_allclose(loaded.predict(ids, verbose=0), tuned.predict(ids, verbose=0), atol=1e-5)


@pytest.mark.parametrize("named", ["Own", "PreTrainedTokenizerFast"])
def test_a_saved_tokenizers_own_code_is_neither_run_nor_asked_about(layer, tmp_path, monkeypatch, named):
    path, asked = tmp_path / "pipeline.keras", []
    keras.Sequential([keras.Input((3,), dtype="int32"), layer]).save(path)
    with zipfile.ZipFile(path) as whole:
        files = {name: whole.read(name) for name in whole.namelist()}
    (config,) = (name for name in files if name.endswith("tokenizer_config.json"))
    own = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": named}
    files[config] = json.dumps({**json.loads(files[config]), **own}).encode()
    files[config.replace("tokenizer_config.json", "own.py")] = f"open({str(tmp_path / 'ran')!r}, 'w')".encode()
    with zipfile.ZipFile(path, "w") as whole:
        for name, content in files.items():
            whole.writestr(name, content)
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    if named == "Own":  # of whose class there is nothing but that code
        with pytest.raises(ValueError, match=r"Code that comes with a tokenizer is not run\."):
            keras.saving.load_model(path)
    else:
        assert keras.saving.load_model(path).layers[-1].generate("abc") == layer.generate("abc")
    assert not asked and not (tmp_path / "ran").exists()


@pytest.mark.slow
@tensorflow_only
def test_tensorflow_never_warns_of_retracing(model):
    """Each executable is traced once, however many there are."""
    import tensorflow as tf

    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    try:
        layer = XLAGenerationLayer(model, tiny(), max_new_tokens=40, batch_buckets=range(1, 8), cache_buckets=(32, 64))
        for rows in range(1, 8):
            layer.generate(["abc"] * rows, max_new_tokens=4)
            list(layer.stream(["abc"] * rows, max_new_tokens=4))
            layer.score(["abc"] * rows)
        layer.generate("abc")  # to the next cache
        for beams in range(2, 8):
            layer.generate("abc", num_beams=beams, max_new_tokens=2)
        pipeline = keras.Sequential([keras.Input((), dtype="string"), layer])
        texts = tf.constant(["abc"] * 13)
        pipeline.predict(texts, batch_size=5, verbose=0)
        list(tf.data.Dataset.from_tensor_slices(texts).batch(5).map(layer))
    finally:
        tf.get_logger().removeHandler(handler)
    # Those of Keras' own count through all models of the process, those of other tests among them.
    assert layer.trace_count > 20 and not [t for t in told if "retracing" in t and "TensorFlowTrainer." not in t]


def test_run_eagerly_gives_the_same_without_compiling(new_layer, expected, new_events):
    new_layer.run_eagerly = True
    assert new_layer.generate(PROMPTS)["sequences"].tolist() == expected
    assert not new_events() and new_layer.trace_count == 0


def test_the_checkpoints_defaults_hold_unless_overridden(checkpoint, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(checkpoint("qwen2"), folder)
    config = {"do_sample": True, "temperature": 0.5, "eos_token_id": [7, 8], "num_beams": 3, "length_penalty": 2.0}
    (folder / "generation_config.json").write_text(json.dumps({**config, "diversity_penalty": 0.5}))
    with pytest.warns(UserWarning, match="diversity_penalty"):
        layer = XLAGenerationLayer.from_pretrained(folder)
    assert (layer.options.temperature, layer.options.num_beams, layer.options.length_penalty) == (0.5, 3, 2.0)
    assert layer.options.eos_token_id == (7, 8)
    with pytest.warns(UserWarning, match="diversity_penalty"):
        layer = XLAGenerationLayer.from_pretrained(folder, do_sample=False, num_beams=1, eos_token_id=9)
    assert not layer.options.do_sample and layer.options.num_beams == 1 and layer.options.eos_token_id == (9,)


def test_a_config_makes_a_layer_again_and_again(model):
    config = XLAGenerationLayer(model, max_new_tokens=3, dtype="float32").get_config()
    known = dict(config)
    for _ in range(2):
        assert XLAGenerationLayer.from_config(config).options.max_new_tokens == 3
        assert config == known


def test_check_takes_all_that_generate_takes(model, new_events):
    layer = XLAGenerationLayer(model, tiny(), max_new_tokens=3)
    more = dict(output_logprobs=True, top_logprobs=2, reuse_prompt=True, cancel=threading.Event(), verbose=0)
    layer.check(["abc", "d"], do_sample=True, **more)
    for options in (dict(top_logprobs=50), dict(cancel=3), dict(streamer=3), dict(reuse_prompt=3)):
        for call in (layer.check, layer.generate):
            with pytest.raises((ValueError, TypeError), match=str(*options.values())):
                call(["abc"], **options)
    assert not new_events()


@pytest.mark.parametrize(
    ("inputs", "options", "error", "text"),
    [
        ([], {}, ValueError, "no prompts"),
        ("", {}, ValueError, "Prompt 0 is empty"),
        ([[5] * 128], {}, ValueError, "has 128 tokens; the model has 128 positions"),
        ([[97]], {}, ValueError, "token id 97; expected ids from 0 to 96"),
        (np.zeros((3,), int), {}, ValueError, "expected (batch, length)"),
        (np.ones((1, 2), "float32"), {}, TypeError, "dtype float32"),
        ([[5]], {"max_new_tokens": 0}, ValueError, "at least 1"),
        ([[5]], {"num_beam": 3}, TypeError, "unknown generation option 'num_beam'"),
    ],
)
def test_bad_input_raises_before_any_compilation(new_layer, inputs, options, error, text, new_events):
    with pytest.raises(error) as caught:
        new_layer.generate(inputs, **options)
    assert text in str(caught.value)
    assert not new_events() and new_layer.trace_count == 0


def test_text_without_a_tokenizer_or_template_says_what_to_pass(model):
    layer = XLAGenerationLayer(model)
    with pytest.raises(ValueError, match="no tokenizer"):
        layer.generate("abc")
    from transformers import PreTrainedTokenizerFast

    layer.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny().backend_tokenizer)
    with pytest.raises(ValueError, match="no chat template"):
        layer.generate([{"role": "user", "content": "Hi"}])


@pytest.mark.slow
def test_the_log_names_the_layer(model):
    layer = XLAGenerationLayer(model, max_new_tokens=2, name="storyteller")
    layer.generate([[5]])
    event = keras_xla.compile_log()[-1]
    assert event.name == "storyteller" and event.kind == "generate" and event.seconds > 0


@pytest.mark.parametrize("imports", ["keras_xla, keras", "keras, keras_xla", "keras, keras_xla.generation"])
@pytest.mark.slow
def test_a_saved_pipeline_loads_in_a_new_process_whatever_was_imported_first(imports, layer, tmp_path):
    inputs = keras.Input((3,), dtype="int32")
    keras.Model(inputs, layer(inputs)).save(tmp_path / "pipeline.keras")
    load = f"keras.saving.load_model({str(tmp_path / 'pipeline.keras')!r})"
    script = f"import {imports}; model = {load}; print(type(model.layers[-1]).__module__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "keras_xla.generation.layer", done.stderr


def test_the_package_alone_imports_no_keras():
    script = "import sys, keras_xla; print('keras' in sys.modules, len(sys.meta_path))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split()[0] == "False", done.stderr


@pytest.mark.slow
def test_strings_first_and_ids_in_a_model_afterwards(new_layer):
    new_layer(["abc"])
    inputs = keras.Input((3,), dtype="int32")
    pipeline = keras.Model(inputs, new_layer(inputs))
    assert pipeline.predict(np.array([[5, 6, 7]]), verbose=0)["sequences"].shape == (1, 6)


@pytest.mark.slow
def test_more_rows_than_run_at_once_are_batches_with_the_same_results(model):
    options = dict(max_new_tokens=4, do_sample=True, seed=5)
    rows = [[5 + i % 50, 6] for i in range(9)]
    few = XLAGenerationLayer(model, batch_buckets=[4], **options)
    assert (few.generate(rows)["sequences"] == XLAGenerationLayer(model, **options).generate(rows)["sequences"]).all()


def test_a_generation_config_of_transformers_is_passed_as_a_dict(checkpoint):
    config = transformers.GenerationConfig(max_new_tokens=3, eos_token_id=5, do_sample=True, temperature=0.5)
    with pytest.raises(TypeError, match=r"type GenerationConfig; expected a dict.*pass config\.to_diff_dict"):
        XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), generation_config=config)
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), generation_config=config.to_diff_dict())
    assert (layer.options.max_new_tokens, layer.options.temperature, layer.options.do_sample) == (3, 0.5, True)


@pytest.mark.slow
def test_what_a_checkpoint_tunes_for_sampling_and_beams_holds_once_they_are_asked_for(model):
    stored = {"top_k": 1, "temperature": 0.0, "length_penalty": 2.0}  # a temperature that no option can have
    layer = XLAGenerationLayer(model, max_new_tokens=6, generation_config=stored, pad_token_id=0)
    greedy = layer.generate([[5, 6, 7]])["sequences"].tolist()
    assert all(layer.generate([[5, 6, 7]], do_sample=True, seed=s)["sequences"].tolist() == greedy for s in range(3))
    assert (layer.options.temperature, layer.options.replace(num_beams=2).length_penalty) == (1.0, 2.0)
    again = XLAGenerationLayer.from_config(layer.get_config())
    assert again.options == layer.options
    beams = layer.generate([[5, 6, 7]], num_beams=2)["scores"]
    assert beams == layer.generate([[5, 6, 7]], num_beams=2, length_penalty=2.0)["scores"]


def test_greedy_search_draws_nothing_from_numpy(layer):
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    layer.generate([[5, 6, 7]])
    assert np.random.rand() == expected


def test_padding_of_a_call_is_stripped_from_arrays_and_lists(layer):
    expected = layer.generate([[5, 6, 7]])["sequences"].tolist()
    for inputs in (np.array([[9, 5, 6, 7, 9]]), [[5, 6, 7, 9]], [[9, 9, 5, 6, 7]]):
        assert layer.generate(inputs, pad_token_id=9)["sequences"].tolist() == expected


@pytest.mark.slow
def test_a_length_that_counts_the_prompt_is_not_ignored_in_silence(layer, checkpoint):
    given, text = dict(max_length=7, pad_token_id=0), "max_length=7, which counts the prompt"
    with pytest.warns(UserWarning, match=text):
        XLAGenerationLayer(layer.model, generation_config=given)
    with pytest.warns(UserWarning, match=text):
        XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), generation_config=given)
    with warnings.catch_warnings(action="error"):
        assert XLAGenerationLayer(layer.model, max_new_tokens=5, generation_config=given).options.max_new_tokens == 5
        XLAGenerationLayer(layer.model, generation_config={**given, "max_new_tokens": 3})
        XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=5, generation_config=given)


def test_a_negative_length_penalty_makes_no_answer_shorter(layer):
    """Where all answers are of one length the penalty changes none, however low it makes their scores."""
    options = dict(num_beams=2, num_return_sequences=2, max_new_tokens=20, eos_token_id=None)
    plain = layer.generate([[5, 6, 7]], length_penalty=0.0, **options)
    for penalty in (-2.0, -5.0, -7.5, -20.0):
        out = layer.generate([[5, 6, 7]], length_penalty=penalty, **options)
        np.testing.assert_array_equal(out["sequences"], plain["sequences"])
        np.testing.assert_allclose(out["scores"], plain["scores"] * 20.0**-penalty, rtol=1e-4)
    with pytest.raises(ValueError, match=r"length_penalty=-200.0 with max_new_tokens=20.*expected at least -23.4"):
        layer.generate([[5, 6, 7]], length_penalty=-200.0, **options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda layer: XLAGenerationLayer(layer.model, cache_buckets=64), TypeError, "expected a list of ints"),
        (lambda layer: layer.generate(None), TypeError, "received no inputs; expected text"),
        (lambda layer: layer.generate(5), TypeError, "Received 5; expected text"),
        (lambda layer: layer.generate({"abc"}), TypeError, r"Received a set; .* Pass a list of its elements"),
        (lambda layer: layer.generate(iter(["abc"])), TypeError, r"Received a list_iterator; expected text"),
        (lambda layer: layer.generate({"role": "user", "content": "a"}), TypeError, "one message; expected a list"),
        (lambda layer: layer.warmup(None), TypeError, "Received batch_sizes=None; expected an int, or a list of ints"),
        (lambda layer: XLAGenerationLayer(layer.model, cache_buckets=[True]), TypeError, "expected a list of ints"),
        (lambda layer: layer.generate("a\ud800"), ValueError, "no Unicode text"),
    ],
)
def test_odd_arguments_raise_our_errors(layer, make, error, text):
    with pytest.raises(error, match=text):
        make(layer)


@tensorflow_only
def test_a_dataset_of_single_strings_says_to_batch_them(layer):
    import tensorflow as tf

    with pytest.raises(ValueError, match=r"dataset.batch\(8\)"):
        tf.data.Dataset.from_tensor_slices(["abc"]).map(layer)


@pytest.mark.slow
def test_a_clone_has_the_tokenizer(layer):
    pipeline = keras.Sequential([keras.Input((), dtype="string"), layer])
    clone = keras.models.clone_model(pipeline).layers[-1]
    assert clone.tokenizer is layer.tokenizer and clone.options == layer.options
    clone.set_weights(layer.get_weights())
    assert clone.generate("abc") == layer.generate("abc")


def test_bad_values_of_a_checkpoint_can_be_overridden(checkpoint, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("gpt2"), folder)
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": -3, "repetition_penalty": "high"}))
    with pytest.raises((TypeError, ValueError), match=r"max_new_tokens|repetition_penalty"):
        XLAGenerationLayer.from_pretrained(folder)
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=3, repetition_penalty=1.1)
    assert layer.options.max_new_tokens == 3
    layer = XLAGenerationLayer.from_pretrained(folder, generation_config={"max_new_tokens": 5})
    assert layer.options.max_new_tokens == 5 and layer.options.repetition_penalty == 1.0


@pytest.mark.parametrize("least", [0, 5])
@pytest.mark.slow
def test_min_new_tokens_that_are_asked_for_come_before_a_min_length_of_the_checkpoint(least, checkpoint, tmp_path):
    folder, ends = tmp_path / "model", list(range(5, 97))
    shutil.copytree(checkpoint("gpt2"), folder)
    stored = {"min_length": 12, "eos_token_id": ends, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(stored))
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=14)
    for options in ({}, {"min_new_tokens": least}):
        expected = reference.generate("gpt2", [5, 6], max_new_tokens=14, **stored, **options)
        made = layer if not options else XLAGenerationLayer.from_pretrained(folder, max_new_tokens=14, **options)
        for out in (layer.generate([[5, 6]], **options), made.generate([[5, 6]])):
            assert out["sequences"][0, : out["lengths"][0]].tolist() == expected
    again = XLAGenerationLayer.from_config(layer.get_config())
    assert again.options.min_length == 12 and again.options == layer.options


def test_min_new_tokens_of_a_checkpoint_come_before_its_min_length():
    def lengths(**asked):
        options = resolve({"min_length": 12, "min_new_tokens": 3}, asked, False, None).options
        return options.min_length, options.min_new_tokens

    assert lengths() == lengths(min_new_tokens=3) == (0, 3) and lengths(min_new_tokens=None) == (12, 0)
    with pytest.raises(ValueError, match="min_length=9 with min_new_tokens=3"):
        lengths(min_length=9)


def test_an_encoder_decoder_without_a_start_token_begins_with_bos():
    def start(stored, **asked):
        return resolve(stored, asked, True, None).options.decoder_start_token_id

    assert start({"bos_token_id": 4}) == 4 and start({"bos_token_id": 4, "decoder_start_token_id": 5}) == 5
    assert start({"bos_token_id": 4}, decoder_start_token_id=6) == 6 and start({}) is None


def test_what_old_checkpoints_say_in_config_json(checkpoint, tmp_path):
    def stored(**config):
        folder = tmp_path / "old"
        shutil.copytree(checkpoint("bart"), folder, dirs_exist_ok=True)
        (folder / "generation_config.json").unlink(missing_ok=True)
        there = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(there | config))
        opened = open_checkpoint(folder)
        return stored_options(opened, model_config(opened))

    assert stored(bos_token_id=7)["bos_token_id"] == 7
    assert stored(num_beams=4)["num_beams"] == 4
    (tmp_path / "old" / "generation_config.json").write_text("{}")  # which says that all is as usual
    opened = open_checkpoint(tmp_path / "old")
    assert "num_beams" not in stored_options(opened, model_config(opened))
    assert stored(bos_token_id=7, force_bos_token_to_be_generated=True)["forced_bos_token_id"] == 7
    forced = stored(bos_token_id=7, force_bos_token_to_be_generated=True, forced_bos_token_id=8)
    assert forced["forced_bos_token_id"] == 7  # as transformers has it
    with pytest.warns(UserWarning, match="'num_beam_groups': 2"):
        known_options(stored(num_beams=4, num_beam_groups=2), "old", False)


def test_suppressed_tokens_of_a_checkpoint_that_no_model_has_are_none(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "none")
    stored = dict(suppress_tokens=[-1], begin_suppress_tokens=[5, 10**6])
    (folder / "generation_config.json").write_text(json.dumps(stored))
    options = XLAGenerationLayer.from_pretrained(folder).options
    assert options.suppress_tokens == () and options.begin_suppress_tokens == (5,)
    with pytest.raises(ValueError, match="suppress_tokens=-1; expected an int of at least 0"):
        XLAGenerationLayer.from_pretrained(folder, suppress_tokens=[-1])


def test_what_is_no_option_of_transformers_is_none_of_a_checkpoint(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("gpt2"), tmp_path / "own")
    own = dict(presence_penalty=1.5, frequency_penalty=1.0, seed=3, regex="a", do_sample=True, temperature=0.5)
    (folder / "generation_config.json").write_text(json.dumps(own))
    options = XLAGenerationLayer.from_pretrained(folder).options
    assert options.temperature == 0.5 and options.do_sample
    assert (options.presence_penalty, options.frequency_penalty, options.seed, options.regex) == (0, 0, None, None)
    with pytest.warns(UserWarning, match="'cache_implementation': 'quantized'"):
        known_options(dict(cache_implementation="quantized"), "this", False)
    assert known_options(dict(cache_implementation="static"), "this", False)


def test_a_bad_max_length_of_an_encoder_decoder_can_be_overridden():
    def new_tokens(stored, **asked):
        return resolve(stored, asked, True, None).options.max_new_tokens

    assert new_tokens({"max_length": 20}) == 19 and new_tokens({"max_length": 1}) == 1
    assert new_tokens({"max_length": "20"}, max_new_tokens=4) == 4
    assert new_tokens({"max_length": "20", "max_new_tokens": 5}) == 5
    with pytest.raises(TypeError, match="Received max_length='20' of type str; expected an int"):
        new_tokens({"max_length": "20"})
    with pytest.raises(ValueError, match="Received max_length=-3; expected an int of at least 1"):
        new_tokens({"max_length": -3})


def test_a_list_of_symbolic_tensors_is_refused(layer):
    ids, mask = keras.Input((3,), dtype="int32"), keras.Input((3,), dtype="int32")
    with pytest.raises(TypeError, match=r'a list in a graph.*"attention_mask": mask'):
        layer([ids, mask])


def test_sizes_of_a_warmup_are_checked(layer, new_layer):
    assert (new_layer.warmup(np.int64(1), np.int32(3)), new_layer.warmup([1], [3])) == (2, 0)
    for bad in (0, [2, 0]):
        with pytest.raises(ValueError, match="batch_sizes=0; expected an int of at least 1"):
            layer.warmup(bad)
    with pytest.raises(TypeError, match=r"prompt_lengths=2\.5"):
        layer.warmup(1, [2.5])
