"""What `from_pretrained` does at once, what only when it is needed, and what it shows meanwhile."""

import copy
import dataclasses
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.generation import loading
from keras_xla.generation.text import tokenizing
from keras_xla.generation.tokenizer import LazyTokenizer
from keras_xla.models.sources import safetensors_folder
from tests.tokenizers import tiny

ROOT = pathlib.Path(__file__).parents[2]
IN_ITS_OWN_PROCESS = """
import json, sys
import keras_xla
layer = keras_xla.XLAGenerationLayer.from_pretrained(sys.argv[1], max_new_tokens=2, eos_token_id=None)
found = [name in sys.modules for name in ("transformers", "torch")]
ids = layer.generate([[5, 6, 7]])["sequences"].shape
found += [name in sys.modules for name in ("transformers", "torch")]
text = layer.generate("abc")
print(json.dumps([found, ids, len(text), "transformers" in sys.modules]))
"""


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A tiny GPT-2 with a tokenizer."""
    path = tmp_path / "model"
    shutil.copytree(checkpoint("gpt2"), path)
    tiny().save_pretrained(path)
    return path


@pytest.fixture
def reads(monkeypatch):
    """The folders whose tokenizers were read so far."""
    read, found = safetensors_folder.open_tokenizer, []
    monkeypatch.setattr(safetensors_folder, "open_tokenizer", lambda path: found.append(path) or read(path))
    return found


@pytest.mark.slow
def test_transformers_is_imported_for_the_first_text(folder):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", IN_ITS_OWN_PROCESS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[False] * 4, [1, 2], 1, True]


class Mine(XLAGenerationLayer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_a_class_of_the_users_own_hands_its_arguments_on(folder):
    layer = Mine.from_pretrained(folder, max_new_tokens=2, eos_token_id=None)
    assert layer.generate([[5, 6, 7]])["sequences"].shape == (1, 2)


def test_a_class_of_the_users_own_takes_the_arguments_of_the_layer(folder):
    layer = Mine.from_pretrained(folder, batch_buckets=[1, 4], cache_bytes=10**8, name="mine", max_new_tokens=2)
    assert layer.name == "mine" and layer.get_config()["batch_buckets"] == [1, 4]


@pytest.mark.parametrize(
    ("argument", "error", "match"),
    [
        (dict(on_recompile="rasie"), ValueError, 'on_recompile=\'rasie\'; expected "log" or "raise"'),
        (dict(batch_buckets="8"), TypeError, "batch_buckets='8'; expected a list of ints"),
        (dict(cache_buckets=[4, 2]), ValueError, "cache_buckets"),
        (dict(cache_bytes=0), ValueError, "cache_bytes=0; expected an int of at least 1"),
        (dict(do_sample=True, temperature=[0.5, 0.9]), ValueError, "temperature with values for one call"),
    ],
    ids=str,
)
def test_bad_arguments_are_told_before_the_weights_are_read(folder, monkeypatch, argument, error, match):
    monkeypatch.setattr(loading, "load_model", lambda *args: pytest.fail("the weights were read"))
    with pytest.raises(error, match=match):
        XLAGenerationLayer.from_pretrained(folder, **argument)


def test_what_needs_no_tokenizer_reads_none(folder, reads):
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=3)
    layer.generate([[5, 6]], output_logprobs=True)
    layer.warmup(1, 2, verbose=0)
    assert len(list(layer.stream([[5, 6]]))) and layer.score([[5, 6, 7]])
    layer.check([[5, 6]])
    clone = XLAGenerationLayer.from_config(layer.get_config())
    assert reads == []
    assert clone.tokenizer is layer.tokenizer
    assert reads == [str(folder)]


@pytest.mark.quick("text", "attribute")
@pytest.mark.parametrize(
    "use",
    [
        lambda layer: layer.generate("abc"),
        lambda layer: layer.generate([[5, 6]], stop_strings="a"),
        lambda layer: layer.chat(),
        lambda layer: layer.score(["abc"]),
        lambda layer: layer.tokenizer,
        lambda layer: layer.check("abc"),
    ],
    ids=["text", "stop string", "chat", "score", "attribute", "check"],
)
def test_what_needs_a_tokenizer_reads_it_once(folder, reads, use):
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=3)
    for _ in range(2):
        use(layer)
    assert reads == [str(folder)]


@pytest.mark.slow
def test_a_saved_layer_has_the_tokenizer_that_nobody_had_asked_for(folder, reads, tmp_path):
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=3)
    keras.Sequential([keras.Input((3,), dtype="int32"), layer]).save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    assert restored.generate("abc") == layer.generate("abc")
    assert reads == [str(folder)]


@pytest.mark.slow
def test_a_layer_without_a_tokenizer_is_loaded_beside_layers_that_have_files(checkpoint, tmp_path):
    """Keras puts their files into folders, of which an empty one is not there any more."""
    texts = [["to be or not"], ["that is the question"]]
    words = keras.layers.TextVectorization(output_sequence_length=4)
    words.adapt(texts)
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), max_new_tokens=3)
    model = keras.Sequential([keras.Input((1,), dtype="string"), words, layer])
    expected = model.predict(keras.ops.convert_to_tensor(texts), verbose=0)["sequences"]
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    assert restored.layers[-1].tokenizer is None
    made = restored.predict(keras.ops.convert_to_tensor(texts), verbose=0)["sequences"]
    assert made.tolist() == expected.tolist()


@pytest.mark.slow
def test_another_tokenizer_takes_its_place_unread(folder, reads):
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=3)
    layer.tokenizer = tiny()
    assert layer.tokenizer is tiny() and layer.generate("abc")
    layer.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer"):
        layer.generate("abc")
    assert XLAGenerationLayer.from_pretrained(folder, tokenizer=tiny()).tokenizer is tiny()
    assert reads == []


def test_a_folder_without_a_tokenizer_says_so_at_once(checkpoint):
    assert XLAGenerationLayer.from_pretrained(checkpoint("gpt2")).tokenizer is None


@pytest.mark.slow
def test_the_script_may_have_gone_to_another_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layer = XLAGenerationLayer.from_pretrained("./model", max_new_tokens=3)
    monkeypatch.chdir(ROOT)
    assert layer.generate("abc")


@pytest.mark.slow
def test_a_tokenizer_that_cannot_be_read_is_an_error_whenever_it_is_needed(folder):
    (folder / "tokenizer.json").write_text('{"model": ')
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=3)
    assert layer.generate([[5, 6]])["lengths"] == [3]
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"{folder}: its tokenizer cannot be read from tokenizer\.json \("):
            layer.generate("abc")
    layer.tokenizer = tiny()
    assert layer.generate("abc")


@pytest.mark.parametrize("dtype", ["int8", "bool", "float8_e4m3fn", "int8_from_float32"])
def test_a_dtype_of_no_floats_is_refused_before_the_weights_are_read(folder, monkeypatch, dtype):
    monkeypatch.setattr("keras_xla.models.registry.load", lambda *args: pytest.fail("the weights were read"))
    with pytest.raises(ValueError, match=rf"Received dtype='{dtype}'; expected one that computes in float32, bfloat16"):
        XLAGenerationLayer.from_pretrained(folder, dtype=dtype)


def test_threads_that_need_it_first_read_it_once():
    reads, waiting = [], threading.Barrier(8)

    def read():
        reads.append(time.sleep(0.05))
        return object()

    tokenizer, got = LazyTokenizer(read), []

    def need():
        waiting.wait()
        got.append(tokenizer.get())

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1 and len(got) == 8 and len(set(map(id, got))) == 1


def test_small_weights_show_nothing_unless_asked(checkpoint, capsys):
    for verbose in (0, "auto"):
        XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), verbose=verbose)
        assert capsys.readouterr().out == ""
    XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), verbose=1)
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "1/1" in out and "/MB" in out


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_what_is_told_adds_up_to_the_weights(checkpoint, quantization):
    from keras_xla.models.registry import load_model
    from keras_xla.models.sources.checkpoint import open_checkpoint

    told = []
    model = load_model(
        open_checkpoint(checkpoint("llama2")), None, quantization, lambda done, whole: told.append((done, whole))
    )
    size = sum(keras.ops.convert_to_numpy(variable).nbytes for variable in model.variables)
    assert told[0] == (0, size) and told[-1] == (size, size) and told == sorted(told) and len(told) > 10


@pytest.mark.parametrize(("watched", "seconds"), [(True, 3.0), (True, 1.0), (False, 3.0)])
def test_a_bar_is_shown_where_reading_takes_long_and_somebody_watches(watched, seconds, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched, raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    now = [0.0]
    monkeypatch.setattr(loading.time, "monotonic", lambda: now[0])
    report = loading._progress("auto")
    report(0, 400_000_000)
    now[0] += seconds
    for done in (100_000_000, 400_000_000):
        report(done, 400_000_000)
    out = capsys.readouterr().out
    assert ("100/400" in out, "400/400" in out) == ((watched and seconds > 2,) * 2)


def test_a_tokenizer_that_was_not_read_yet_is_copied_and_pickled():
    read = LazyTokenizer(lambda: {"a": 1})
    assert copy.deepcopy(read) is read
    assert pickle.loads(pickle.dumps(read)).get() == {"a": 1}


def test_a_folder_that_is_gone_is_named(folder, tmp_path):
    own = shutil.copytree(folder, tmp_path / "own")
    layer = XLAGenerationLayer.from_pretrained(own)
    shutil.rmtree(own)
    with pytest.raises(FileNotFoundError, match="no longer there"):
        layer.generate("abc")


def without(folder, name, *keys):
    path = pathlib.Path(folder) / name
    stored = {key: value for key, value in json.loads(path.read_text()).items() if key not in keys}
    path.write_text(json.dumps(stored))
    return path, stored


def test_what_older_checkpoints_say_in_their_config_holds_and_nothing_else(checkpoint, tmp_path):
    """As in transformers 5: BART's class forces an end that is in no file."""
    path = tmp_path / "bart"
    shutil.copytree(checkpoint("bart"), path)
    (path / "generation_config.json").unlink()
    config, stored = without(path, "config.json", "forced_eos_token_id")
    layer = XLAGenerationLayer.from_pretrained(path, max_new_tokens=3)
    assert layer.options.forced_eos_token_id == ()
    config.write_text(json.dumps({**stored, "forced_eos_token_id": 3}))
    assert XLAGenerationLayer.from_pretrained(path, max_new_tokens=3).options.forced_eos_token_id == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("pad", [-1, 500_000])
def test_tokens_that_no_model_makes_are_none(folder, where, pad):
    """Checkpoints write -1 for no padding, and ends of another vocabulary."""
    ids = {"pad_token_id": pad, "eos_token_id": [2, 500_000]}
    for name in ("config.json", "generation_config.json"):
        path, stored = without(folder, name, *ids)
        path.write_text(json.dumps(stored | (ids if name == where else {})))
    if where == "config.json":
        (folder / "generation_config.json").unlink()
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=2)
    assert layer.options.eos_token_id == (2,) and layer.options.pad_token_id is None
    layer.generate([[5, 6]])


def test_texts_become_ids_in_one_thread_at_a_time():
    """A translator's tokenizer switches to the words of the target, and back, for all threads."""
    inside = threading.Lock()

    def tokenizer(text=None, text_target=None, **how):
        assert inside.acquire(blocking=False)
        time.sleep(0.01)
        inside.release()
        return {"input_ids": [1] if text_target is None else [2]}

    tokenizer.model_max_length = 9
    lazy = LazyTokenizer(lambda: tokenizer)
    with ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda i: tokenizing.encode(lazy, ["a"], target=bool(i % 2))[0].tolist(), range(12))
        assert list(made) == [[1], [2]] * 6


@pytest.mark.parametrize("variant", ["gpt2", "bart", "t5"])
def test_what_a_checkpoint_says_of_generation_stays_with_its_model(variant, checkpoint, tmp_path):
    shutil.copytree(checkpoint(variant), tmp_path / variant)
    said = json.loads((tmp_path / variant / "generation_config.json").read_text())
    said |= dict(eos_token_id=[7, 9], repetition_penalty=1.5, max_length=30)
    (tmp_path / variant / "generation_config.json").write_text(json.dumps(said))
    layer = XLAGenerationLayer.from_pretrained(tmp_path / variant)
    assert layer.options.eos_token_id == (7, 9) and layer.options.repetition_penalty == 1.5
    again = type(layer.model).from_config(json.loads(json.dumps(layer.model.get_config())))
    expected = dataclasses.replace(layer.options, max_new_tokens=5)
    for model in (layer.model, again, XLAGenerationLayer(again, quantization="int8").model):
        assert XLAGenerationLayer(model, max_new_tokens=5).options == expected
    own = XLAGenerationLayer(layer.model, generation_config=dict(said, eos_token_id=8))
    assert own.options.eos_token_id == (8,) and XLAGenerationLayer(layer.model).options == layer.options


def test_a_generation_config_with_a_dict_by_tuples_is_saved_as_well(folder, tmp_path):
    config = dict(eos_token_id=2, sequence_bias={(5, 6): -2.0, (7,): 1.5})
    layer = XLAGenerationLayer.from_pretrained(folder, generation_config=config, max_new_tokens=3)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras").layers[-1]
    assert again.options == layer.options == XLAGenerationLayer(again.model, max_new_tokens=3).options
    assert layer.options.sequence_bias == (((5, 6), -2.0), ((7,), 1.5))
