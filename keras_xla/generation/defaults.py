"""Which options hold: those that a checkpoint or a live model brings along, and those that a user asked for."""

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_xla import config
from keras_xla.config import GenerationOptions
from keras_xla.config.other_names import hint
from keras_xla.config.values import as_integer
from keras_xla.engine.buckets import make_buckets
from keras_xla.engine.executables import check_on_recompile
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.tokens import SpeechTokens
from keras_xla.troubleshooting import warn

_TOKENS = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "bos_token_id")
_SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens")  # a file may say -1 for none
_VOCABULARIES = ("vocab_size", "decoder_vocab_size")
_FIELDS = tuple(field.name for field in dataclasses.fields(GenerationOptions))
SPEECH_FIELDS = tuple(field.name for field in dataclasses.fields(SpeechOptions))
# Of ours alone: where a checkpoint has such a name, it means nothing to transformers.
_NOT_STORED = frozenset({"presence_penalty", "frequency_penalty", "seed", "processor_options", *config.CONSTRAINTS})
# Which change the output in transformers, and have no counterpart here.
_UNKNOWN = (
    "constraints",
    "diversity_penalty",
    "dola_layers",
    "force_words_ids",
    "num_beam_groups",
    "penalty_alpha",
    "token_healing",
    "top_h",
    "watermarking_config",
)
# None says nothing of these, as in transformers: what the checkpoint or the layer says holds.
_UNSAID = ("language", "task", "condition_on_prev_tokens", "prompt_condition_type")
_SPEECH_TOKENS = (  # what SpeechTokens reads, and what serves features we do not have: times of words
    "alignment_heads",
    "forced_decoder_ids",
    "is_multilingual",
    "lang_to_id",
    "max_initial_timestamp_index",
    "median_filter_width",
    "no_timestamps_token_id",
    "prev_sot_token_id",
    "task_to_id",
)


@dataclass(frozen=True)
class ResolvedOptions:
    """What holds for a layer.

    Attributes:
        options: How to decode.
        tokens: The special tokens of a speech model; None for text.
        speech: How to transcribe; None for text.
    """

    options: GenerationOptions
    tokens: SpeechTokens | None = None
    speech: SpeechOptions | None = None


def stored_options(checkpoint: Any, model_config: Any) -> dict[str, Any]:
    """What a checkpoint says about generation, as in a `generation_config.json`.

    Without that file it is what older checkpoints keep in `config.json`, and the defaults of the architecture. Those
    tell special tokens, too, which a file does not name.

    Args:
        checkpoint: What `open_checkpoint` returned.
        model_config: Its config as a transformers object.
    """
    stored = dict(checkpoint.generation_config or {})
    if checkpoint.generation_config is None:
        names = *_FIELDS, *_UNKNOWN
        stored = {name: checkpoint.config.get(name) for name in names}  # as transformers 5, without its defaults
        stored["max_length"] = checkpoint.config.get("max_length")
        stored["bos_token_id"] = checkpoint.config.get("bos_token_id")
        if checkpoint.config.get("force_bos_token_to_be_generated"):
            stored["forced_bos_token_id"] = stored["bos_token_id"]  # as the first BARTs say it
        stored = {name: value for name, value in stored.items() if value is not None}
    if hasattr(model_config, "num_mel_bins") and stored.get("forced_decoder_ids") is None:  # of language and task
        stored["forced_decoder_ids"] = checkpoint.config.get("forced_decoder_ids")
    options = {**{name: getattr(model_config, name, None) for name in _TOKENS}, **stored}
    options = {name: value for name, value in options.items() if name not in _NOT_STORED}
    vocab = max((getattr(model_config, name, None) or 0 for name in _VOCABULARIES), default=0)
    tokens = *_TOKENS, *_SUPPRESSED
    return {name: _that_exist(value, vocab) if name in tokens else value for name, value in options.items()}


def _that_exist(ids: Any, vocab: int) -> Any:
    """A token or several, without those that no model can make: checkpoints have -1 for none, or ids of another one."""
    if isinstance(ids, (list, tuple)):
        return [each for each in ids if not isinstance(each, int) or 0 <= each < (vocab or each + 1)]
    return None if isinstance(ids, int) and not 0 <= ids < (vocab or ids + 1) else ids


def known_options(stored: Mapping[str, Any], where: str, speech: bool) -> dict[str, Any]:
    """Stored options without those that keras_xla does not know; they are warned about by name.

    Args:
        stored: As in `generation_config.json`.
        where: Whose they are, for the warning.
        speech: Whether the model reads speech.

    Raises:
        TypeError: for an object that is no dict, such as a `GenerationConfig` of transformers.
    """
    if not isinstance(stored, Mapping):
        raise TypeError(
            f"Received generation_config of type {type(stored).__name__}; expected a dict, as in "
            "generation_config.json. Of a GenerationConfig of transformers, pass config.to_diff_dict()."
        )
    own = {*SPEECH_FIELDS, *_SPEECH_TOKENS} if speech else set()
    _, ignored = config.checkpoint_defaults({name: value for name, value in stored.items() if name not in own})
    if ignored:
        warn(
            f"{where}: its defaults for generation set {ignored}, which keras_xla does not implement: completions will "
            "differ from Hugging Face's."
        )
    return {name: value for name, value in stored.items() if name not in ignored}


def warn_of_max_length(given: Any, asked: Mapping[str, Any], has_encoder: bool) -> None:
    """Warn of a `generation_config` of the user's own whose `max_length` a decoder-only model does not follow."""
    if has_encoder or not isinstance(given, Mapping):
        return
    most = given.get("max_length")
    if most is not None and {**given, **asked}.get("max_new_tokens") is None:
        warn(
            f"Received generation_config with max_length={most!r}, which counts the prompt, and is not used here. Pass "
            "max_new_tokens."
        )


def as_saved(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options as a file can have them: JSON knows no dict by tuples, as `sequence_bias` may be one."""
    bias = stored.get("sequence_bias")
    pairs = dict(sequence_bias=[[list(ids), value] for ids, value in bias.items()]) if isinstance(bias, Mapping) else {}
    return {**stored, **pairs}


def resolve(
    stored: Mapping[str, Any], asked: Mapping[str, Any], has_encoder: bool, speech_positions: int | None
) -> ResolvedOptions:
    """The options that hold.

    Args:
        stored: What `known_options` returned.
        asked: What comes first.
        has_encoder: Whether it is an encoder-decoder: its `max_length` does not count what it reads.
        speech_positions: Of the decoder, if the model reads speech; None if it does not.

    Raises:
        TypeError, ValueError: for options as `GenerationOptions` and `SpeechOptions` do.
    """
    if speech_positions is not None:
        wishes, rest = split_speech(asked)
        tokens = SpeechTokens.from_checkpoint(stored)
        own = {name: value for name, value in stored.items() if name in _FIELDS and value is not None}
        own.pop("do_sample", None)  # only a temperature of the call, or of the layer, makes a transcript one of draws
        if stored.get("max_length") and "max_new_tokens" not in {**own, **asked}:
            # Of features. In transformers it does not count what their tokens begin with, for which there has to be
            # room.
            begun = tokens.prompt(tokens.any_language, "transcribe", timestamps=False)  # no prompt is longer
            room = speech_positions - len(begun)
            own["max_new_tokens"] = max(min(as_integer("max_length", stored["max_length"], 1), room), 1)
        stored = {name: value for name, value in stored.items() if name != "max_new_tokens"}  # transcripts take all
        of_clips = SpeechOptions.from_checkpoint(stored).replace(**wishes)
        rest, drawn = split_drawn(of_clips, rest)
        text = resolve(own, rest, False, None)
        return ResolvedOptions(dataclasses.replace(text.options, **drawn), tokens, of_clips)
    options, _ = config.checkpoint_defaults(stored)
    if has_encoder and stored.get("max_length") and "max_new_tokens" not in {**options, **asked}:
        length = as_integer("max_length", stored["max_length"], 1)
        options["max_new_tokens"] = max(length - 1, 1)  # it counts the start token
    if has_encoder and options.get("decoder_start_token_id") is None and stored.get("bos_token_id") is not None:
        options["decoder_start_token_id"] = stored["bos_token_id"]
    if {**options, **asked}.get("min_new_tokens") is not None:  # which comes before it
        options.pop("min_length", None)
    merged = config.without_idle({**options, **asked})
    idle = {name: value for name, value in options.items() if name not in merged and name not in asked}
    # What is asked for comes instead of what is stored, even where that is no value an option can have.
    options = {name: value for name, value in options.items() if name in merged and name not in asked}
    return ResolvedOptions(_with_idle(GenerationOptions().replace(**options, **asked), idle))


def _with_idle(options: GenerationOptions, idle: Mapping[str, Any]) -> GenerationOptions:
    """The same with what the checkpoint has tuned for sampling or beams, which a call may still ask for.

    Values that no option can have are left out: checkpoints without sampling have temperatures of 0.
    """
    for name, value in idle.items():
        with contextlib.suppress(TypeError, ValueError):
            options = dataclasses.replace(options, **{name: value})
    return options


def split_drawn(speech: SpeechOptions, rest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the decoding, and of them those of drawing that hold where a temperature of `speech` is above 0."""
    if "do_sample" in rest or not any(speech.temperatures):
        return dict(rest), {}
    drawn = {name: value for name, value in rest.items() if name in config.SAMPLING}
    return {name: value for name, value in rest.items() if name not in drawn}, drawn


def split_speech(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the transcription, and those of the decoding; `max_new_tokens` is both.

    Raises:
        TypeError: There is no such option.
    """
    for name in asked:
        if name not in (*SPEECH_FIELDS, *_FIELDS):
            raise TypeError(f"Received the unknown generation option {name!r}.{hint(name, [*SPEECH_FIELDS, *_FIELDS])}")
    several = isinstance(asked.get("temperature"), (list, tuple))  # to be tried one after the other
    own = set(SPEECH_FIELDS) - ({"temperature"} if asked.get("do_sample") and not several else set())
    asked = {name: value for name, value in asked.items() if value is not None or name not in _UNSAID}
    rest = {name: value for name, value in asked.items() if name not in own or name == "max_new_tokens"}
    return {name: value for name, value in asked.items() if name in own}, rest


def check_arguments(*, cache_bytes: Any = 1, on_recompile: Any = "log", **buckets: Any) -> None:
    """Raise the errors that a layer raises for its arguments: before its model is read, which can take a while.

    Args:
        cache_bytes: As the layer takes it.
        on_recompile: As the layer takes it.
        **buckets: The sizes that it takes, as `batch_buckets`.

    Raises:
        ValueError: One of them has a wrong value.
        TypeError: Buckets are no list of ints.
    """
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 1:
        raise ValueError(f"Received cache_bytes={cache_bytes!r}; expected an int of at least 1.")
    check_on_recompile(on_recompile)
    for name, sizes in buckets.items():
        make_buckets(name.removesuffix("_buckets"), sizes, 1)


def check_defaults(options: GenerationOptions) -> None:
    """Raise a `ValueError` for options with values for the rows of a call, which cannot be those of a layer."""
    if lists := [*options.per_row, *(["processor_options"] if options.processor_options else [])]:
        raise ValueError(f"Received {', '.join(lists)} with values for one call. Pass that to generate.")
