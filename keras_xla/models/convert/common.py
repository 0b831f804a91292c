"""What every family's converter shares: the family record, rotary parameters, and checked loading."""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_xla import backend
from keras_xla.backend.host_array import new_array
from keras_xla.models.build import make_from
from keras_xla.models.convert.config_keys import (
    ConfigKeys,
    ModelConfig,
)
from keras_xla.models.convert.shared_keys import FULL_ATTENTION
from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.layers.matrices import Matrix
from keras_xla.models.parameters import parameters
from keras_xla.models.spec import DecoderSpec, EncoderDecoderSpec, ModelSpec
from keras_xla.models.transformer import Transformer
from keras_xla.models.weights import unmade_weights

Model = Transformer | EncoderDecoderModel
OnRead = Callable[[int, int], None]  # of the bytes that are read, and of all
_READERS = min(4, os.cpu_count() or 1)  # variables that are read, or dequantized, at the same time
_AT_ONCE = 2**18  # values of 16 bits that are looked at together: they stay in the processor's cache
ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_BROKEN, _LARGE = "NaN or infinity", "numbers that float16 cannot hold"
_FIXES = {
    _BROKEN: "Use a checkpoint of a training run that did not diverge",
    _LARGE: 'Pass dtype="bfloat16" or "float32"',
}
_LARGEST_HALF = float(np.finfo("float16").max)


@dataclass(frozen=True)
class Family:
    """How one architecture's checkpoints become a model.

    Attributes:
        keys: The keys of its config that are read, see `read_config`.
        spec: From its config to a spec.
        modules: From the spec to checkpoint names. Keys are either our modules, whose values are checkpoint modules,
            or single variables of ours, whose values are whole tensor names: `"a=b|c"` is the first of them that
            is stored, where `b` must equal `a` if both are. Several values are stacked by rows.
        sizes: Keys of its config that say how large it is, see `check_sizes`.
        prefix: What its checkpoints may or may not put before every name.
        ignored: Names in checkpoints that are no weights (masks, tables that can be computed).
        transposed: Checkpoint modules stored `[in, out]`.
        optional: Tensors that checkpoints may leave out, and that are zero then.
        as_stored: From its config and a checkpoint to the config of what is stored there, where weights say more.
    """

    keys: ConfigKeys
    spec: Callable[[ModelConfig], ModelSpec]
    modules: Callable[..., Mapping[str, tuple[str, ...]]]
    sizes: tuple[str, ...]
    prefix: str
    ignored: str = r"rotary_emb\.inv_freq$"
    transposed: str = r"(?!)"
    optional: str = r"(?!)"
    as_stored: Callable[[ModelConfig, Any], ModelConfig] = lambda config, checkpoint: config


class Filled(NamedTuple):
    """A variable or a matrix, and the checkpoint tensors that fill it: each transposed if `flip`, stacked by rows."""

    target: keras.Variable | Matrix
    names: list[str]
    flip: bool
    rows: tuple[int, ...]  # where each begins; rows that none covers are zero


def activation(name: str) -> str:
    """The spec's name of a Hugging Face activation."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"the activation {name!r} is not supported here; expected one of {known}")
    return ACTIVATIONS[name]


def sliding(
    config, window: int | None, first: int = 0, full: tuple[str, ...] = FULL_ATTENTION
) -> tuple[int | None, ...]:
    """Each layer's window: that of the layers which `layer_types` names, or of those from the `first` on.

    `full` are the names of layers without one.
    """
    layers = config.num_hidden_layers
    if config.layer_types is None:
        return tuple((window or None) if i >= first else None for i in range(layers))
    if len(config.layer_types) != layers:
        raise ValueError(f"layer_types has {len(config.layer_types)} entries; expected one for each of {layers} layers")
    if others := sorted({*config.layer_types} - {"sliding_attention", *full}):
        known = ", ".join(("sliding_attention", *full))
        raise ValueError(f"layer_types has {', '.join(map(repr, others))}, not supported here; expected {known}")
    return tuple((window or None) if kind == "sliding_attention" else None for kind in config.layer_types)


def embedding_of(spec: DecoderSpec, name: str) -> tuple[str, ...]:
    """What fills a decoder's embedding: a tied checkpoint may have stored it as its head alone, or twice."""
    return (f"{name}=lm_head.weight" if spec.tied else name,)


def untied(spec: ModelSpec, family: Family, checkpoint) -> ModelSpec:
    """`spec` with a head of its own, if the checkpoint has one whose values are not the embedding's.

    So does Hugging Face since transformers 5, whatever the config says: that of T5 v1.1 cannot tell. The head of a live
    model is its own even where its values are the embedding's: they need not stay so.
    """
    inner = spec.decoder if isinstance(spec, EncoderDecoderSpec) else spec
    if not inner.tied:
        return spec
    table, present = family.modules(spec), _present(family, checkpoint)
    head, embedding = (_found(table[_main(spec) + name][0], present) for name in ("head", "embedding"))
    if head is None or embedding is None or head == embedding:
        return spec
    live = hasattr(checkpoint, "variable")
    if not live and np.array_equal(checkpoint.read(present[head]), checkpoint.read(present[embedding])):
        return spec
    inner = dataclasses.replace(inner, tied=False)
    return dataclasses.replace(spec, decoder=inner) if isinstance(spec, EncoderDecoderSpec) else inner


def load(
    build: Callable[[], Model], family: Family, checkpoint, report: OnRead | None = None
) -> tuple[Model, list[Filled]]:
    """Build a model with the weights of `checkpoint`, after checking all of them.

    Args:
        build: Makes the model.
        family: How its weights are called in checkpoints.
        checkpoint: Where they are.
        report: Told of the bytes of the weights, as they are read.

    Returns:
        The model, and what was filled from what.

    Raises:
        ValueError: listing all missing and unexpected names and all wrong shapes at once; or all
            weights that hold NaN or infinity, or what the dtype cannot hold.
    """
    with ThreadPoolExecutor(_READERS) as pool, unmade_weights() as unmade:
        model = build()
        made = {variable: number for number, variable in enumerate(unmade)}
        plan = sorted(_plan(model, family, checkpoint), key=lambda step: made[id(_first_of(step.target))])
        values = _ReadAhead(plan, checkpoint, pool, report)
        for number, step in enumerate(plan):
            make_from(functools.partial(values.of, number), step.target, unmade)
    for what, names in values.wrong.items():
        fix = _FIXES[what]
        raise ValueError(f"{checkpoint.path}: {len(names)} weights hold {what}: {', '.join(names)}. {fix}.")
    return model, plan


def _plan(model: Model, family: Family, checkpoint) -> list[Filled]:
    """What fills each variable and matrix."""
    present, table = _present(family, checkpoint), family.modules(model.spec)
    missing, wrong, unequal, plan = [], [], [], []
    used = set(_names(table[_main(model.spec) + "head"]))  # a tied head is a copy, where it is stored at all
    for ours, target in parameters(model).items():
        module, leaf = ours.rpartition(".")[::2]
        suffix = ".bias" if leaf == "bias" else ".weight"
        choices = table.get(ours) or [source + suffix for source in table[module]]
        used.update(_names(choices))
        names = [_found(choice, present) for choice in choices]
        unequal += [name for choice in choices for name in _unequal(choice, present, checkpoint)]
        absent = [choice for choice, name in zip(choices, names, strict=True) if name is None]
        if required := [_names([choice])[0] for choice in absent if not re.search(family.optional, choice)]:
            missing += required
            continue
        whole = tuple(target.shape)
        flip = leaf == "kernel" and any(re.search(family.transposed, name) for name in names if name)
        shapes = [tuple(checkpoint.shape(present[name])) for name in names if name]
        shapes = [shape[::-1] for shape in shapes] if flip else shapes
        rows = _rows(names, shapes, whole)
        if rows is None:
            received = " + ".join(str(shape) for shape in shapes)
            known = " + ".join(name for name in names if name)
            wrong.append(f"{known}: received {received}, expected {whole}")
            continue
        plan.append(Filled(target, [present[name] for name in names if name], flip, rows))
    unexpected = [name for name in present if name not in used and not re.search(family.ignored, name)]
    _raise_if_any(
        checkpoint,
        {
            "missing": missing,
            "unexpected": unexpected,
            "of the wrong shape": wrong,
            "with other values than the tensor that they should be copies of": unequal,
        },
    )
    return plan


def _present(family: Family, checkpoint) -> dict[str, str]:
    """The checkpoint's names, by themselves without the family's prefix."""
    names = sorted(checkpoint.names(), key=lambda name: name.startswith(family.prefix))
    present = {name.removeprefix(family.prefix): name for name in names}
    if len(present) < len(names):
        twice = [f"{name} and {family.prefix}{name}" for name in names if family.prefix + name in set(names)]
        _raise_if_any(checkpoint, {f"stored twice, with the prefix {family.prefix!r} and without it": twice})
    return present


def _main(spec: ModelSpec) -> str:
    """What stands before the names of the decoder's variables."""
    return "decoder." if isinstance(spec, EncoderDecoderSpec) else ""


def _names(choices: Iterable[str]) -> list[str]:
    return [name for choice in choices for name in re.split("[|=]", choice)]


def _found(choice: str, present: Mapping[str, str]) -> str | None:
    """The first of the names that is there."""
    return next((name for name in _names([choice]) if name in present), None)


def _unequal(choice: str, present: Mapping[str, str], checkpoint) -> list[str]:
    """The names whose values are not those of the first."""
    wrong = []
    for copies in choice.split("|"):
        stored: list[Any] = [name for name in copies.split("=") if name in present] or [None]
        first, *others = stored
        values: Any = checkpoint.read(present[first]) if others else None
        wrong += [name for name in others if not np.array_equal(values, checkpoint.read(present[name]))]
    return wrong


def _rows(names: list[str | None], shapes: list[tuple], whole: tuple) -> tuple[int, ...] | None:
    """The row of a variable of shape `whole` where each tensor begins; None if they do not fit.

    `names` has None for a tensor that is left out: it takes the rows that remain.
    """
    if any(not shape or shape[1:] != tuple(whole[1:]) for shape in shapes):
        return None
    spare = whole[0] - sum(shape[0] for shape in shapes)
    if spare < 0 or (spare > 0) != (None in names):
        return None
    sizes = iter(shapes)
    at, rows = 0, []
    for name in names:
        rows += [at] if name else []
        at += next(sizes)[0] if name else spare // names.count(None)
    return tuple(rows)


def _raise_if_any(checkpoint, kinds: Mapping[str, list[str]]):
    lines = [f"  {len(names)} {kind}: {', '.join(sorted(names))}" for kind, names in kinds.items() if names]
    if lines:
        raise ValueError(
            f"{checkpoint.path}: the weights do not fit the config (model_type="
            f"{checkpoint.config.get('model_type')!r}).\n"
            + "\n".join(lines)
            + "\nUse the config.json that was saved with these weights."
        )


def fill(step: Filled, checkpoint) -> None:
    """Assign one of them."""
    step.target.assign(_values(step, checkpoint))


def _values(step: Filled, checkpoint) -> np.ndarray:
    """What to assign, in memory as the target stores it: in its dtype if the checkpoint has that, or float32.

    For a GPU it may lie there transposed, see `weights.tensor_of`.
    """
    arrays = [checkpoint.read(name) for name in step.names]
    arrays = [array.T if step.flip else array for array in arrays]
    shape = tuple(step.target.shape)
    transposed = isinstance(step.target, Matrix) and step.target.transposed
    as_read = all(array.flags.f_contiguous for array in arrays)
    order: Literal["C", "F"] = "F" if transposed and (as_read or backend.on_cpu()) else "C"
    left_out = sum(map(len, arrays)) < shape[0]
    stored = _first_of(step.target).dtype
    as_it_is = stored == "float64" or all(array.dtype.name == stored for array in arrays)
    values = new_array(shape, stored if as_it_is else "float32", order, zeros=left_out)
    for row, array in zip(step.rows, arrays, strict=True):
        values[row : row + len(array)] = array
    return values


def all_finite(values: np.ndarray) -> bool:
    """Whether no value is infinite or no number; as quick for 16 bits as for 32, which NumPy is not."""
    exponent = {"bfloat16": 0x7F80, "float16": 0x7C00}.get(values.dtype.name)  # its bits, all of which are set then
    if exponent is None:
        return bool(np.isfinite(values).all())
    bits = values.ravel(order="K").view("uint16")
    parts = (bits[i : i + _AT_ONCE] for i in range(0, bits.size, _AT_ONCE))
    return not any(int((part & exponent).max()) == exponent for part in parts)


def _first_of(target: keras.Variable | Matrix) -> keras.Variable:
    return target.variables[0] if isinstance(target, Matrix) else target


def _bytes(target: keras.Variable | Matrix) -> int:
    """What a variable or a matrix takes in memory."""
    variables = target.variables if isinstance(target, Matrix) else [target]
    return sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in variables)


class _ReadAhead:
    """The values of a plan's steps, of which a few are read ahead: each is all of a matrix.

    Args:
        plan: What is filled, in the order in which it is asked for.
        checkpoint: Where the values are.
        pool: Reads them.
        report: Told of the bytes that have been asked for, and of all there are.

    Attributes:
        wrong: Names of the tensors that hold what no weight can be, by what that is.
    """

    def __init__(self, plan: list[Filled], checkpoint, pool: ThreadPoolExecutor, report: OnRead | None):
        self._plan, self._checkpoint, self._pool, self._report = plan, checkpoint, pool, report
        self._bytes = [_bytes(step.target) for step in plan]
        self._read_bytes = 0
        self._tell(0)
        self._reading: dict[int, Future] = {}
        self._next = 0
        self.wrong: dict[str, list[str]] = {}

    def of(self, number: int) -> np.ndarray:
        """Of one step, once."""
        for ahead in range(self._next, min(number + 1 + _READERS, len(self._plan))):
            self._reading[ahead] = self._pool.submit(self._read, self._plan[ahead])
            self._next = ahead + 1
        values, wrong = self._reading.pop(number).result()
        if wrong:
            self.wrong.setdefault(wrong, []).extend(self._plan[number].names)
        self._tell(self._bytes[number])
        return values

    def _tell(self, more: int) -> None:
        self._read_bytes += more
        if self._report is not None:
            self._report(self._read_bytes, sum(self._bytes))

    def _read(self, step: Filled) -> tuple[np.ndarray, str | None]:
        values = _values(step, self._checkpoint)
        if not all_finite(values):
            return values, _BROKEN
        narrow = _first_of(step.target).dtype == "float16" and max(values.max(), -values.min()) > _LARGEST_HALF
        return values, _LARGE if narrow else None
