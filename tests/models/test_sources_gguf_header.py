import gguf
import numpy as np
import pytest

from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.gguf_header import GGUFHeader
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
    assert ours.metadata == expected
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
