"""Which architecture is which family. A new one is a file in `convert/` and a row here."""

from typing import TYPE_CHECKING

from keras_xla.models.convert.common import Family, load
from keras_xla.models.convert.gpt2 import GPT2
from keras_xla.models.convert.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from keras_xla.models.convert.opt import OPT
from keras_xla.models.transformer import Transformer

if TYPE_CHECKING:
    from keras_xla.models.sources.checkpoint import Checkpoint

FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "opt": OPT,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}


def load_model(checkpoint: "Checkpoint", dtype: str | None = None) -> Transformer:
    """The `Transformer` of an open checkpoint, weights and all.

    Args:
        checkpoint: What `open_checkpoint` returned.
        dtype: dtype or dtype policy of weights and computation; Keras' own default if None.

    Raises:
        ValueError: unknown architecture; or weights that are missing, unexpected, of the wrong
            shape or not finite, all named at once.
    """
    kind = checkpoint.config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"{checkpoint.path}: received the architecture model_type={kind!r}; expected one of {known}.")
    from transformers import AutoConfig  # late: it takes a second

    values = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    spec = FAMILIES[kind].spec(AutoConfig.for_model(kind, **values))
    model = Transformer(spec, dtype=dtype, name=kind)
    load(model, FAMILIES[kind], checkpoint)
    return model
