import struct
import tracemalloc

import gguf
import numpy as np
import pytest

from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.gguf.header import GGUFHeader
from tests.models.test_sources_gguf import as_gguf, reference, write_gguf


def test_header_is_what_gguf_reader_reads(tmp_path):
    fields = {
        "a.list": ["x", "é", ""],
        "a.numbers": [1, 2, 3],
        "a.floats": [0.5, 2.0],
        "a.yes": True,
        "a.text": "日本",
    }
    fields["general.alignment"] = 64
    path = write_gguf(tmp_path / "m.gguf", fields=fields, tensors=as_gguf(reference("llama")[1], True))
    ours, theirs = GGUFHeader(path), gguf.GGUFReader(path)
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    metadata = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in ours.metadata.items()}
    assert metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        np.testing.assert_array_equal(ours.read(tensor.name), tensor.data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "phi3"}, "architecture 'phi3'; expected one of llama, qwen2, qwen3"),
        ({"fields": {"llama.expert_count": 8}}, r"mixture of experts, which is not supported"),
        (
            {
                "tensors": {
                    "token_embd.weight": np.zeros((4, 4)),
                    "blk.0.ffn_up_exps.weight": np.zeros((2, 4, 4)),
                }
            },
            "mixture",
        ),
        ({"fields": {"split.count": 3}}, "one of 3 parts.*--merge"),
        ({"fields": {"split.count": 3}, "arch": "none"}, "one of 3 parts.*--merge"),  # a later part tells no more
        ({"fields": {"llama.block_count": None}}, "has no 'llama.block_count'"),
        (
            {"fields": {"llama.rope.dimension_count": 8}},
            "rope.dimension_count' is 8; expected the head size 16",
        ),
        ({"tensors": {"other.weight": np.zeros(4)}}, "no tensor 'token_embd.weight'"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path, changes, message):
    if "tensors" in changes:
        changes = {"tensors": {name: array.astype(np.float32) for name, array in changes["tensors"].items()}}
    path = write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(ValueError, match=message) as error:
        open_checkpoint(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("keep", [0, 3, 10, 30, 200, 700, -1000, -1])
def test_truncated_files_name_their_size(tmp_path, keep):
    path = write_gguf(tmp_path / "m.gguf", tensors=as_gguf(reference("llama")[1], True))
    content = path.read_bytes()[:keep]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"m\.gguf.*\b{len(content)} bytes"):
        open_checkpoint(path)


def test_other_files_are_no_gguf_files(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(ValueError, match=r"400 bytes\) is no GGUF file"):
        open_checkpoint(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        open_checkpoint(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(100))
    with pytest.raises(ValueError, match="of version 1"):
        open_checkpoint(path)
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(100))
    with pytest.raises(ValueError, match="big-endian"):
        open_checkpoint(path)


def test_damaged_header_does_not_hang_or_crash(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", tensors=as_gguf(reference("llama")[1], True))
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for at in rng.integers(4, 2200, 150):
        damaged = bytearray(content)
        damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            open_checkpoint(path)
        except ValueError as error:
            assert str(path) in str(error), at


def one_entry(value):
    """A GGUF file without tensors, whose only entry `a` has this kind and value (bytes)."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + value


@pytest.mark.parametrize("depth", [1, 400, 100_000])
def test_arrays_of_arrays_are_refused(tmp_path, depth):
    path = tmp_path / "m.gguf"
    path.write_bytes(one_entry(struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)))
    with pytest.raises(ValueError, match=r"m\.gguf is damaged: it holds an array of arrays") as error:
        open_checkpoint(path)
    assert str(path) in str(error.value)


def test_arrays_of_numbers_take_no_memory_of_their_own(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(one_entry(struct.pack("<IIQ", 9, 0, 4_000_000) + bytes(4_000_000)))
    tracemalloc.start()
    try:
        assert not GGUFHeader(path).metadata["a"].any()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axes", [0, 5, 2**31])
def test_tensors_have_one_to_four_axes(tmp_path, axes):
    path = tmp_path / "m.gguf"
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<I", axes) + bytes(100)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor)
    with pytest.raises(ValueError, match=rf"m\.gguf is damaged: a tensor has {axes} axes; expected 1 to 4"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.alignment", "a", "='a'; expected a whole number of at least 0"),
        ("general.alignment", True, "=True; expected a whole number"),
        ("general.architecture", ["llama"], r"=\['llama'\]; expected a string"),
        ("general.architecture", [1, 2], r"=array\(\[1, 2\], dtype=int32\); expected a string"),
        ("llama.attention.head_count", 0, "=0; expected a whole number of at least 1"),
        ("llama.attention.head_count", "4", "='4'; expected a whole number"),
        ("llama.attention.head_count", ["4"] * 40, r"=\['4', .*\.\.\.\]; expected a whole number"),
        ("llama.attention.head_count", [0, 0], "=0; expected a whole number of at least 1"),
        ("llama.embedding_length", 64.0, r"=64\.0; expected a whole number"),
        ("llama.block_count", True, "=True; expected a whole number"),
        ("llama.attention.layer_norm_rms_epsilon", "a", "='a'; expected a finite number of at least 0"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "=nan; expected a finite number"),
        ("llama.rope.freq_base", float("inf"), "=inf; expected a finite number"),
        ("llama.rope.scale_linear", ["a"], r"=\['a'\]; expected a finite number"),
        ("llama.rope.scaling.factor", "2", "='2'; expected a finite number"),
        ("llama.rope.scaling.type", [1, 2], r"=array\(.*; expected a string"),
        ("llama.rope.scaling.original_context_length", "a", "='a'; expected a whole number"),
        ("llama.rope.scaling.finetuned", "a", "='a'; expected True or False"),
        ("llama.attention.sliding_window", "a", "='a'; expected a whole number"),
        ("llama.expert_count", "a", "='a'; expected a whole number"),
        ("split.count", "a", "='a'; expected a whole number"),
        ("tokenizer.ggml.model", [1, 2], r"=array\(.*; expected a string"),
        ("tokenizer.ggml.eos_token_id", "2", "='2'; expected a whole number"),
        ("tokenizer.ggml.eot_token_id", [-1], "=-1; expected a whole number of at least 0"),
    ],
)
def test_values_of_a_wrong_kind_are_named(tmp_path, key, value, message):
    # The last entry of a key counts. Under another name gguf's writer takes any value for it.
    path = write_gguf(tmp_path / "m.gguf", fields={f"{key[:-1]}~": value})
    path.write_bytes(path.read_bytes().replace(f"{key[:-1]}~".encode(), key.encode()))
    with pytest.raises(ValueError, match=f"received {key}{message}") as error:
        open_checkpoint(path)
    assert str(path) in str(error.value) and len(str(error.value)) < 1000


def test_a_factor_below_zero(tmp_path):
    prefix = "llama.rope.scaling."
    fields = {prefix + "type": "yarn", prefix + "factor": -8.0, prefix + "attn_factor": 0.5}
    with pytest.raises(ValueError, match=r"m\.gguf: received the rotary scaling .*-8\.0"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=fields))
