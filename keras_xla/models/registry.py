"""Which architecture is which family. A new one is a file in `convert/` and a row here."""

from typing import TYPE_CHECKING, Any

from keras_xla.backend.requirements import require
from keras_xla.models.build import build
from keras_xla.models.convert.bart import BART, MBART
from keras_xla.models.convert.common import Family, load, untied
from keras_xla.models.convert.gpt2 import GPT2
from keras_xla.models.convert.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from keras_xla.models.convert.marian import MARIAN
from keras_xla.models.convert.opt import OPT
from keras_xla.models.convert.t5 import MT5, T5
from keras_xla.models.convert.whisper import WHISPER
from keras_xla.models.encoder_decoder import EncoderDecoder
from keras_xla.models.sources.live import follow
from keras_xla.models.transformer import Transformer

if TYPE_CHECKING:
    from keras_xla.models.sources.checkpoint import Checkpoint

FAMILIES: dict[str, Family] = {
    "bart": BART,
    "gpt2": GPT2,
    "llama": LLAMA,
    "marian": MARIAN,
    "mbart": MBART,
    "mistral": MISTRAL,
    "mt5": MT5,
    "opt": OPT,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "t5": T5,
    "whisper": WHISPER,
}


def model_config(checkpoint: "Checkpoint") -> Any:
    """A checkpoint's config as a transformers object, which knows the defaults of its architecture.

    Raises:
        ValueError: unknown architecture.
    """
    kind = checkpoint.config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"{checkpoint.path}: received the architecture model_type={kind!r}; expected one of {known}.")
    require("transformers", "Reading a model's config")
    from transformers import AutoConfig  # late: it takes a second

    values = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    return AutoConfig.for_model(kind, **values)


def load_model(checkpoint: "Checkpoint", dtype: str | None = None) -> Transformer | EncoderDecoder:
    """The model of an open checkpoint, weights and all.

    Args:
        checkpoint: What `open_checkpoint` returned.
        dtype: dtype or dtype policy of weights and computation; Keras' own default if None.

    Raises:
        ValueError: unknown architecture; or weights that are missing, unexpected, of the wrong
            shape or not finite, all named at once.
    """
    config = model_config(checkpoint)
    kind = config.model_type
    family = FAMILIES[kind]
    model = build(untied(family.spec(config), family, checkpoint), dtype=dtype, name=kind)
    follow(model, load(model, family, checkpoint), checkpoint)
    return model
