"""What every family's converter shares: the family record, rotary parameters, and checked loading."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import keras
import numpy as np

from keras_xla.models.positions import inverse_frequencies
from keras_xla.models.spec import DecoderSpec, RotaryPositions
from keras_xla.models.transformer import Transformer

ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class Family:
    """How one architecture's checkpoints become a `Transformer`.

    Attributes:
        spec: From its Hugging Face config to a `DecoderSpec`.
        modules: From the spec to `{our module: checkpoint modules}`; several are stacked by rows.
        prefix: What its checkpoints may or may not put before every name.
        ignored: Names in checkpoints that are no weights (masks, tables that can be computed).
        transposed: Checkpoint modules stored `[in, out]`.
    """

    spec: Callable[..., DecoderSpec]
    modules: Callable[[DecoderSpec], Mapping[str, tuple[str, ...]]]
    prefix: str
    ignored: str = r"rotary_emb\.inv_freq$"
    transposed: str = field(default=r"(?!)")


def activation(name: str) -> str:
    """The spec's name of a Hugging Face activation."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"Received a config with the activation {name!r}; expected one of {known}.")
    return ACTIVATIONS[name]


def rotary(config, head_dim: int) -> RotaryPositions:
    """The rotary part of a config, whichever generation of transformers wrote it."""
    rope = dict(getattr(config, "rope_parameters", None) or {})
    rope.setdefault("rope_theta", getattr(config, "rope_theta", None) or 10000.0)
    if rope.get("rope_type") in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", config.max_position_embeddings)
    rope["frequency_factors"] = getattr(config, "rope_freq_factors", None)
    frequencies, factor = inverse_frequencies(rope, head_dim)
    return RotaryPositions(config.max_position_embeddings, frequencies, factor)


def windows(config) -> tuple[int | None, ...]:
    """Each layer's sliding window, from `layer_types` where the config has them."""
    window, layers = getattr(config, "sliding_window", None), config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def parameters(model: Transformer) -> dict[str, keras.Variable]:
    """Every variable of a model by a dotted name, `blocks.0.attention.qkv.kernel`."""
    found = {"embedding": model.embedding}
    for name in ("positions", "head"):
        if hasattr(model, name):
            found[name] = getattr(model, name)
    modules = {n: getattr(model, n) for n in ("project_in", "project_out", "final_norm") if hasattr(model, n)}
    for i, block in enumerate(model.blocks):
        a, m = block.attention, block.mlp
        parts = {"attention_norm": block.attention_norm, "mlp_norm": block.mlp_norm}
        parts |= {"attention.qkv": a.qkv, "attention.out": a.out, "mlp.up": m.up, "mlp.down": m.down}
        parts |= {f"attention.{n}": getattr(a, n) for n in ("q_norm", "k_norm") if hasattr(a, n)}
        modules |= {f"blocks.{i}.{name}": layer for name, layer in parts.items()}
    for name, layer in modules.items():
        found |= {f"{name}.{weight.name}": weight for weight in layer.weights}
    return found


def load(model: Transformer, family: Family, checkpoint) -> None:
    """Assign every weight of `model` from `checkpoint`, after checking all of them.

    Raises:
        ValueError: listing all missing and unexpected names and all wrong shapes at once; or all
            weights that hold NaN or infinity.
    """
    present = {name.removeprefix(family.prefix): name for name in checkpoint.names()}
    table = family.modules(model.spec)
    missing, wrong, used, plan = [], [], set(), []
    for ours, variable in parameters(model).items():
        module, leaf = ours.rpartition(".")[::2] if "." in ours else (ours, "kernel")
        names = [f"{source}.{'bias' if leaf == 'bias' else 'weight'}" for source in table[module]]
        used.update(names)
        if absent := [name for name in names if name not in present]:
            missing += absent
            continue
        flip = leaf == "kernel" and any(re.search(family.transposed, name) for name in names)
        shapes = [tuple(checkpoint.shape(present[name])) for name in names]
        shapes = [shape[::-1] for shape in shapes] if flip else shapes
        stacked = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()
        if stacked != tuple(variable.shape) or any(s[1:] != shapes[0][1:] for s in shapes):
            wrong.append(f"{' + '.join(names)}: received {stacked}, expected {tuple(variable.shape)}")
        plan.append((variable, [present[name] for name in names], flip))
    skip = family.ignored + (r"|^lm_head\.weight$" if model.spec.tied else "")
    unexpected = [name for name in present if name not in used and not re.search(skip, name)]
    _raise_if_any(checkpoint, missing, unexpected, wrong)
    broken = [name for step in plan for name in _assign(*step, checkpoint)]
    if broken:
        raise ValueError(
            f"{checkpoint.path}: {len(broken)} weights hold NaN or infinity: {', '.join(broken)}. "
            "Use a checkpoint of a training run that did not diverge."
        )


def _raise_if_any(checkpoint, missing, unexpected, wrong):
    kinds = {"missing": missing, "unexpected": unexpected, "of the wrong shape": wrong}
    lines = [f"  {len(names)} {kind}: {', '.join(sorted(names))}" for kind, names in kinds.items() if names]
    if lines:
        raise ValueError(
            f"{checkpoint.path}: the weights do not fit the config (model_type="
            f"{checkpoint.config.get('model_type')!r}).\n"
            + "\n".join(lines)
            + "\nUse the config.json that was saved with these weights."
        )


def _assign(variable, names, flip, checkpoint) -> list[str]:
    """Assign one variable; returns the names whose values are not finite."""
    arrays = [checkpoint.read(name) for name in names]
    arrays = [array.T if flip else array for array in arrays]
    array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=0)
    array = np.ascontiguousarray(array, dtype="float32")
    variable.assign(array)
    return [] if np.isfinite(array).all() else names
