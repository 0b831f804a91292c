"""What TensorFlow classes saved reads like PyTorch's folders; tests/transformers4 has them save it themselves."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_xla import XLAGenerationLayer
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.tensorflow.folder import h5
from keras_xla.models.sources.tensorflow.names import as_pytorch
from tests import reference


def theirs(name, array):
    """A PyTorch tensor of GPT-2 or OPT under the name and in the layout that TensorFlow's class gives it."""
    *scopes, leaf = name.split(".")
    owner = scopes[-1]
    if owner.startswith("ln_") or "layer_norm" in owner:
        leaf = {"weight": "gamma", "bias": "beta"}[leaf]
    elif owner in ("wte", "wpe", "embed_positions"):
        leaf = "embeddings"
    elif leaf == "weight" and owner in ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"):
        leaf, array = "kernel", array.T
    elif leaf == "bias" and owner.startswith("c_"):
        array = array[None]
    path = re.sub(r"\blayers/", "layers.", re.sub(r"\bh/", "h_._", "/".join([*scopes, leaf])))
    return f"{path}:0", np.ascontiguousarray(array)


@pytest.fixture(params=["safetensors", "h5"])
def saved(request, checkpoint, tmp_path):
    """`saved(variant)`: the reference's folder as TensorFlow's class would have saved it, `edit` its arrays by name."""

    def make(variant, edit=lambda arrays: None):
        source = open_checkpoint(checkpoint(variant))
        arrays = dict(theirs(name, source.read(name)) for name in source.names() if not name.startswith("lm_head"))
        edit(arrays)
        shutil.copy(f"{source.path}/config.json", tmp_path)
        if request.param == "safetensors":
            save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "tf"})
        else:
            with h5py.File(tmp_path / "tf_model.h5", "w") as file:
                file.attrs["layer_names"] = ["main"]
                file.create_group("top_level_model_weights").attrs["weight_names"] = []
                group = file.create_group("main")
                group.attrs["weight_names"] = [f"tf_model/{name}" for name in arrays]
                for name, array in arrays.items():
                    group[f"tf_model/{name}"] = array
        return source, tmp_path

    return make


@pytest.mark.parametrize("variant", ["gpt2", "opt-125m"])
@pytest.mark.slow
def test_tensors_and_tokens_are_the_references(saved, variant):
    source, folder = saved(variant)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == {name for name in source.names() if not name.startswith("lm_head")}
    assert checkpoint.dtype() == "float32"
    for name in checkpoint.names():
        assert checkpoint.shape(name) == source.shape(name)
        np.testing.assert_array_equal(checkpoint.read(name), source.read(name))
    layer = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=8, eos_token_id=None)
    expected = reference.generate(variant, [5, 6, 7], max_new_tokens=8)
    assert layer.generate([[5, 6, 7]])["sequences"][0].tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_dtype_of_most_numbers_is_found(dtype, tmp_path):
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        file.attrs["layer_names"] = ["main"]
        group = file.create_group("main")
        group.attrs["weight_names"] = ["m/a/kernel:0", "m/b/bias:0"]
        group["m/a/kernel:0"], group["m/b/bias:0"] = np.ones((2, 3), dtype), np.ones(3, "float64")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert open_checkpoint(tmp_path).dtype() == dtype


def test_tensors_of_whole_numbers_are_refused_by_name(saved):
    def edit(arrays):
        name = next(name for name in arrays if "c_fc/weight" in name)
        arrays[name] = arrays[name].astype("int8")

    _, folder = saved("gpt2", edit)
    with pytest.raises(ValueError, match=r"the tensor '.*c_fc\.weight' is stored as I8; expected one of F64, F32"):
        XLAGenerationLayer.from_pretrained(folder)


def test_options_that_their_classes_ignore_are_ignored(saved):
    _, folder = saved("gpt2")
    config = json.loads((folder / "config.json").read_text())
    config |= {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    found = open_checkpoint(folder).config
    assert found["tie_word_embeddings"] and not found["scale_attn_by_inverse_layer_idx"]


@pytest.mark.parametrize("content", [b"", b"cos\nsystem\n(S'false'\ntR."])
def test_a_file_that_is_no_hdf5(saved, content):
    _, folder = saved("gpt2")
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "tf_model.h5").write_bytes(content)
    with pytest.raises(ValueError, match=r"tf_model\.h5 cannot be read.*Download or save it again"):
        open_checkpoint(folder)


def test_an_hdf5_file_of_something_else(saved):
    _, folder = saved("gpt2")
    (folder / "model.safetensors").unlink(missing_ok=True)
    h5py.File(folder / "tf_model.h5", "w").close()
    with pytest.raises(ValueError, match=r"as the weights of a Hugging Face TensorFlow model.*layer_names"):
        open_checkpoint(folder)


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_h5(path):
    """A file with one matrix; returned open for changes."""
    file = h5py.File(path, "w")
    file.attrs["layer_names"] = ["main"]
    file.create_group("main").attrs["weight_names"] = ["m/a/kernel:0"]
    file["main/m/a/kernel:0"] = VALUES
    return file


def test_an_hdf5_file(tmp_path):
    write_h5(tmp_path / "tf_model.h5").close()
    ((name, tensor),) = h5(tmp_path / "tf_model.h5")
    assert (name, tensor.shape) == ("a.weight", (3, 2))
    np.testing.assert_array_equal(tensor.read(), VALUES.T)


@pytest.mark.parametrize("link", [h5py.ExternalLink, h5py.SoftLink])
@pytest.mark.parametrize("entry", ["main", "main/m", "main/m/a", "main/m/a/kernel:0", "top_level_model_weights"])
def test_hdf5_links_are_not_followed(tmp_path, entry, link):
    path, other = tmp_path / "tf_model.h5", tmp_path / "other.h5"
    write_h5(other).close()
    with write_h5(path) as file:
        there = entry if entry in file else "main"
        file.copy(there, "elsewhere")
        if entry in file:
            del file[entry]
        file[entry] = link("/elsewhere") if link is h5py.SoftLink else link(str(other), f"/{there}")
    with pytest.raises(ValueError, match=rf"is a link \({link.__name__}\), and links are not followed") as error:
        list(h5(path))
    assert str(path) in str(error.value)


def replaced(make):
    """A change: the matrix is made otherwise."""

    def change(file):
        del file["main/m/a/kernel:0"]
        make(file["main/m/a"], "kernel:0")

    return change


def stored_outside(group, name):
    other = f"{group.file.filename}.bin"
    VALUES.tofile(other)
    group.create_dataset(name, VALUES.shape, "f4", external=[(other, 0, VALUES.nbytes)])


def virtual(group, name):
    other = f"{group.file.filename}.other"
    write_h5(other).close()
    layout = h5py.VirtualLayout(VALUES.shape, "f4")
    layout[:] = h5py.VirtualSource(other, "main/m/a/kernel:0", VALUES.shape)
    group.create_virtual_dataset(name, layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced(stored_outside), "'m/a/kernel:0' has its values in another file, which is not opened"),
        (replaced(virtual), "'m/a/kernel:0' has its values in another file, which is not opened"),
        (replaced(lambda group, name: None), "'m/a/kernel:0' is not in the file"),
        (replaced(lambda group, name: group.create_group(name)), "'m/a/kernel:0' is no array"),
        (replaced(lambda group, name: group.create_dataset(name, data=["a"])), "'m/a/kernel:0' holds no numbers"),
        (replaced(lambda group, name: group.create_dataset(name, dtype="f4")), "'m/a/kernel:0' holds no numbers"),
        (
            replaced(lambda group, name: group.create_dataset(name, (10**6, 10**6), "f4", chunks=(1, 1000))),
            "'m/a/kernel:0' needs 4000000000000 bytes, of which the file has 0",
        ),
        (lambda file: file.attrs.create("layer_names", "main"), "'layer_names' is no list of names"),
        (lambda file: file.attrs.create("layer_names", [1, 2]), "'layer_names' is no list of names"),
        (lambda file: file.attrs.create("layer_names", h5py.Empty("S5")), "'layer_names' is no list of names"),
        (lambda file: file.attrs.create("layer_names", ["main/m/a/kernel:0"]), "weight_names"),
        (lambda file: file["main"].attrs.create("weight_names", [b"\xff"]), "codec can't"),
    ],
)
def test_hdf5_files_that_hold_something_else(tmp_path, change, message):
    path = tmp_path / "tf_model.h5"
    with write_h5(path) as file:
        change(file)
    with pytest.raises(ValueError, match=rf"as the weights of a Hugging Face TensorFlow model \(.*{message}") as error:
        list(h5(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_truncated_hdf5_files(tmp_path, part):
    path = tmp_path / "tf_model.h5"
    write_h5(path).close()
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=r"tf_model\.h5 cannot be read as the weights"):
        list(h5(path))


def test_an_array_that_cannot_be_read(tmp_path):
    with write_h5(tmp_path / "tf_model.h5") as file:
        replaced(lambda group, name: group.create_dataset(name, data=VALUES, chunks=True, fletcher32=True))(file)
        file.flush()
        at = file["main/m/a/kernel:0"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "tf_model.h5").read_bytes())
    content[at] ^= 1  # which its checksum tells
    (tmp_path / "tf_model.h5").write_bytes(content)
    ((_, tensor),) = h5(tmp_path / "tf_model.h5")
    with pytest.raises(ValueError, match=r"tf_model\.h5 cannot be read as .*'m/a/kernel:0': "):
        tensor.read()


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("m/a/kernel:0", (4,), ("a.weight", None)),
        ("m/a/kernel:0", (4, 1, 1, 1, 1), ("a.weight", None)),
        ("/:0", (4,), ("/:0", None)),
        ("m/transformer/h_._0/ln_1/gamma:0", (4,), ("transformer.h.0.ln_1.weight", None)),
        ("m/transformer/h_._0/ln_1/beta:0", (4,), ("transformer.h.0.ln_1.bias", None)),
        ("m/model/encoder/conv1/kernel:0", (3, 8, 4), ("model.encoder.conv1.weight", (2, 1, 0))),
        ("shared/shared/embeddings:0", (9, 4), ("shared.weight", None)),
        ("model.shared/model.shared/embeddings:0", (9, 4), ("model.shared.weight", None)),
        ("final_logits_bias:0", (1, 9), ("final_logits_bias", None)),
        ("m/encoder/x___layer/kernel:0", (4, 2), ("encoder.layer.weight", (1, 0))),
    ],
)
def test_names(name, shape, expected):
    assert as_pytorch(name, shape) == expected
