"""Generation options: frozen, checked once, before anything compiles. Standard library only."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from keras_xla.config.limits import INTEGERS, NUMBERS, OFF, TOKEN, TOKENS
from keras_xla.config.other_names import hint
from keras_xla.config.values import (
    all_values,
    as_biases,
    as_bool,
    as_constraint,
    as_decay,
    as_each,
    as_integer,
    as_number,
    as_stop_strings,
    as_tokens,
    as_words,
    is_bool,
    is_per_row,
)

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "seed")
"""Options that mean nothing without `do_sample`."""
BEAMS = ("length_penalty", "early_stopping")
"""Options that mean nothing without `num_beams`."""
PER_ROW = ("max_new_tokens", "guidance_scale", *SAMPLING)
"""Options that may have a value for each prompt, beside `stop_strings` and `CONSTRAINTS`."""
MOST_GUESSES = 64  # tokens at once
CONSTRAINTS = ("json_schema", "regex", "grammar")
"""Options that say which answers are possible; at most one of them."""


@dataclass(frozen=True)
class GenerationOptions:
    """Options of one generation, named as in Hugging Face's `GenerationConfig`.

    They are passed by name to `XLAGenerationLayer`, as its defaults, and to its methods for one call. A list in place
    of one value has a value for each prompt of a call; only `max_new_tokens`, `guidance_scale`, the options of
    sampling, `json_schema`, `regex`, `grammar` and `stop_strings` may be such lists. None is off, where an option can
    be off. Another value compiles nothing, but for `num_beams`, the numbers of guesses, whether there is guidance, long
    lists of tokens, and completions that need a larger cache.

    Attributes:
        max_new_tokens: The most tokens that a completion may have; at least 1.
        min_new_tokens: How many tokens a completion has before an end-of-sequence token may come.
        min_length: The same, counted with the prompt (an encoder-decoder's prompt is its start token). It does not
            hold where `min_new_tokens` is above 0, nor where that alone is asked for, even if it is 0.
        num_beams: The width of the beam search; 1 is no beam search.
        length_penalty: A beam's score is its log-probability divided by its length to this power.
        early_stopping: When a beam search ends: True, as soon as there are `num_beams` finished beams; False, when
            no better one is likely; `"never"`, when no better one is possible.
        do_sample: True draws each token from the distribution, False takes the most likely one (greedy).
        temperature: Divides the logits; above 0. Below 1 likely tokens become likelier, above 1 less likely.
        top_k: Draw among this many most likely tokens; 0 for all.
        top_p: Draw among the fewest most likely tokens that have this much probability together (Holtzman et al.,
            2020); 1 for all.
        min_p: Draw among tokens at least this fraction as likely as the most likely one; 0 for all.
        typical_p: Draw among the fewest tokens that have this much probability together, those first whose surprise is
            nearest to what is expected (Meister et al., 2022); 1 for all.
        epsilon_cutoff: Draw among tokens at least this likely (Hewitt et al., 2022); 0 is off.
        eta_cutoff: The same with a bound that is lower where many tokens are likely (Hewitt et al., 2022); 0 is off.
        seed: Equal seeds (0 to 2**63 - 1) draw equally in every call, on every backend and at every batch size; None
            takes one from NumPy. In graphs, such as in `predict`, each batch draws on from the one before, for as long
            as the layer lives.
        num_return_sequences: Completions a prompt; more than 1 needs `do_sample`, or as many `num_beams`.
        repetition_penalty: Divides the positive and multiplies the negative logits of tokens in prompt or completion
            (Keskar et al., 2019); 1 is off.
        presence_penalty: Subtracted from the logits of tokens that are in the completion, as in OpenAI's interface.
        frequency_penalty: The same, once for each time that a token is there.
        encoder_repetition_penalty: Above 1, tokens of what an encoder reads (without one, of the prompt) are more
            likely; below 1 less.
        sequence_bias: Added to the logit of a sequence's last token where the others have just been made: a dict of
            tuples of tokens to numbers, or pairs of a list and a number. `-inf` forbids it.
        exponential_decay_length_penalty: A pair: after how many new tokens ends become more likely, and how quickly (a
            factor, to the power of the tokens since).
        guidance_scale: How strongly completions are led from what follows a negative prompt (by default the prompt's
            last token) to what follows the prompt (Sanchez et al., 2023); 1 is off, usual are 1.1 to 3. The model then
            runs for two rows a prompt, and scores are of the distribution that it makes of both.
        renormalize_logits: Whether a beam's log-probabilities are of what processors and filters have left.
        no_repeat_ngram_size: No sequence of this many tokens occurs twice; 0 is off.
        encoder_no_repeat_ngram_size: No sequence of this many tokens of what an encoder reads (without one, of the
            prompt) is completed; 0 is off.
        bad_words_ids: Token sequences (lists of ids) that are never completed.
        forced_bos_token_id: The token after a prompt of one token (an encoder-decoder's start token).
        forced_eos_token_id: Token, or several, one of which is the last of `max_new_tokens`.
        suppress_tokens: Tokens that are never made.
        begin_suppress_tokens: Tokens that are not made first.
        processor_options: Tensors of the layer's own `logits_processors`, by the names of processor and tensor; None
            instead of them switches a processor off. For one call only.
        decoder_start_token_id: An encoder-decoder's prompt; the checkpoint's by default.
        stop_strings: Texts that end a completion, which includes them: it ends with the token that completes one.
        prompt_lookup_num_tokens: Tokens that are guessed at once, from what followed the same tokens earlier (Saxena,
            2023); at most 64, usually 10, 0 is off. What is made stays the same, but for rounding: the model runs
            several tokens at once. It takes less time where completions repeat their prompt or themselves, and hardly
            more where not. A `generation_config.json` does not switch it on.
        num_assistant_tokens: Tokens that an `assistant` guesses at once (Leviathan et al., 2023); 1 to 64.
        json_schema: A schema, as a dict or a string of JSON, that answers follow. Needs the package llguidance.
        regex: A regular expression that answers match as a whole. Needs llguidance, too.
        grammar: A grammar in Lark's language, as llguidance reads it, that answers follow.
        max_time: Seconds after which a call makes no more tokens; it returns those that there are. None for no limit.
        eos_token_id: Token, or several, that end a sequence; None for no end but `max_new_tokens`.
        pad_token_id: Fills the rest of a finished row; None takes the first `eos_token_id`, or 0.

    Raises:
        ValueError: A value is out of range; the message names the option, the value and the range.
        TypeError: A value has the wrong type.
    """

    max_new_tokens: int | tuple[int, ...] = 64
    min_new_tokens: int = 0
    min_length: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    do_sample: bool = False
    temperature: float | tuple[float, ...] = 1.0
    top_k: int | tuple[int, ...] = 50
    top_p: float | tuple[float, ...] = 1.0
    min_p: float | tuple[float, ...] = 0.0
    typical_p: float | tuple[float, ...] = 1.0
    epsilon_cutoff: float | tuple[float, ...] = 0.0
    eta_cutoff: float | tuple[float, ...] = 0.0
    seed: int | tuple[int, ...] | None = None
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    encoder_repetition_penalty: float = 1.0
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    exponential_decay_length_penalty: tuple[int, float] | None = None
    guidance_scale: float | tuple[float, ...] = 1.0
    renormalize_logits: bool = False
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    stop_strings: tuple[str, ...] | tuple[tuple[str, ...], ...] = ()
    prompt_lookup_num_tokens: int = 0
    num_assistant_tokens: int = 5
    json_schema: Any = None
    regex: Any = None
    grammar: Any = None
    max_time: float | None = None
    processor_options: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        for name, off in OFF.items():
            if getattr(self, name) is None:
                put(name, off)
        for name in ("do_sample", "renormalize_logits"):
            put(name, as_bool(name, getattr(self, name)))
        if is_bool(self.early_stopping):
            put("early_stopping", bool(self.early_stopping))
        elif self.early_stopping != "never":
            raise ValueError(f'Received early_stopping={self.early_stopping!r}; expected True, False or "never".')
        for name, low in INTEGERS.items():
            put(name, self._each(name, lambda value, name=name, low=low: as_integer(name, value, low)))
        for name, low in (("prompt_lookup_num_tokens", 0), ("num_assistant_tokens", 1)):
            put(name, as_integer(name, getattr(self, name), low, MOST_GUESSES))
        for name, *limits in NUMBERS:
            put(name, self._each(name, lambda value, name=name, by=limits: as_number(name, value, *by)))
        if self.seed is not None:
            put("seed", self._each("seed", lambda value: as_integer("seed", value, 0, 2**63 - 1)))
        for name in TOKENS:
            put(name, as_tokens(name, getattr(self, name)))
        for name in TOKEN:
            if getattr(self, name) is not None:
                put(name, as_integer(name, getattr(self, name), 0))
        put("bad_words_ids", as_words(self.bad_words_ids))
        put("sequence_bias", as_biases(self.sequence_bias))
        if self.exponential_decay_length_penalty is not None:
            put("exponential_decay_length_penalty", as_decay(self.exponential_decay_length_penalty))
        put("stop_strings", as_stop_strings(self.stop_strings))
        if self.max_time is not None:
            put("max_time", as_number("max_time", self.max_time, lambda v: v > 0, "above 0, in seconds"))
        for name in CONSTRAINTS:
            put(name, as_constraint(name, getattr(self, name)))
        if not isinstance(self.processor_options, Mapping) or not all(
            each is None or isinstance(each, Mapping) for each in self.processor_options.values()
        ):
            raise TypeError(
                f"Received processor_options={self.processor_options!r}; expected a dict from the name of a logits "
                "processor to a dict of its tensors, or to None."
            )
        if self.min_new_tokens:
            put("min_length", 0)
        self._check_together()

    def _each(self, name: str, check: Callable[[Any], Any]) -> Any:
        """The checked value of an option, or one for each prompt where it may have them."""
        value = getattr(self, name)
        return as_each(name, value, check, OFF.get(name)) if name in PER_ROW else check(value)

    def _check_together(self):
        least = min(all_values(self.max_new_tokens))
        if self.min_new_tokens > least:
            raise ValueError(
                f"Received min_new_tokens={self.min_new_tokens}, which is more than max_new_tokens={least}. Raise the "
                "latter, or lower the former."
            )
        if len(asked := [name for name in CONSTRAINTS if getattr(self, name) is not None]) > 1:
            raise ValueError(f"Received {' and '.join(asked)}; expected at most one of them.")
        if asked and self.prompt_lookup_num_tokens:
            raise ValueError(
                f"Received prompt_lookup_num_tokens={self.prompt_lookup_num_tokens} with {asked[0]}, which says after "
                "each token what may come next. Pass one of them."
            )
        asked += [name for name in ("prompt_lookup_num_tokens", "stop_strings") if getattr(self, name)]
        asked += ["guidance_scale"] if self.guided else []
        if asked and self.num_beams > 1:
            raise ValueError(
                f"Received {asked[0]}={getattr(self, asked[0])!r} with num_beams={self.num_beams}; it serves "
                "completions without beams only. Pass num_beams=1, or leave it out."
            )
        copies = self.num_return_sequences
        if self.num_beams > 1 and copies > self.num_beams:
            raise ValueError(
                f"Received num_return_sequences={copies} with num_beams={self.num_beams}: a beam search has "
                f"num_beams answers. Pass num_beams={copies} or more."
            )
        if copies > 1 and self.num_beams == 1 and not self.do_sample:
            raise ValueError(
                f"Received num_return_sequences={copies} with do_sample=False: greedy search has one answer a prompt. "
                f"Pass do_sample=True, or num_beams={copies}."
            )

    @property
    def most_new_tokens(self) -> int:
        """The largest `max_new_tokens` of all prompts (int)."""
        return max(all_values(self.max_new_tokens))

    @property
    def per_row(self) -> dict[str, int]:
        """For how many prompts (int) there are values, by the name of each option that has a list of them."""
        names = (*PER_ROW, *CONSTRAINTS)
        lists = {name: getattr(self, name) for name in names if isinstance(getattr(self, name), tuple)}
        if is_per_row(self.stop_strings):
            lists["stop_strings"] = self.stop_strings
        return {name: len(values) for name, values in lists.items()}

    def of_rows(self, rows: Collection[SupportsIndex]) -> "GenerationOptions":
        """Return the options of the prompts with these numbers (ints from 0 on), in this order."""
        chosen: dict[str, Any] = {name: tuple(getattr(self, name)[row] for row in rows) for name in self.per_row}
        return dataclasses.replace(self, **chosen) if chosen else self

    def stop_strings_of(self, row: int) -> tuple[str, ...]:
        """Return the stop strings that end the completions of the prompt with the number `row`."""
        given: tuple[Any, ...] = self.stop_strings
        return given[row] if is_per_row(given) else given

    @property
    def guided(self) -> bool:
        """Whether the completions of any prompt are led by `guidance_scale`."""
        return any(scale != 1 for scale in all_values(self.guidance_scale))

    @property
    def constrained(self) -> bool:
        """Whether there is one of `CONSTRAINTS`: a schema, an expression or a grammar."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)

    def constraint_of(self, row: int) -> tuple[str, Any] | None:
        """Return which of `CONSTRAINTS` the answers of the prompt with the number `row` follow, and its value."""
        for name in CONSTRAINTS:
            value = getattr(self, name)
            value = value[row] if isinstance(value, tuple) else value
            if value is not None:
                return name, value
        return None

    @property
    def fill(self) -> int:
        """The token (int) that fills finished rows."""
        return (*self.eos_token_id, 0)[0] if self.pad_token_id is None else self.pad_token_id

    def replace(self, **overrides: Any) -> "GenerationOptions":
        """Return new options: these, with the `overrides` (values by name) in place of some of them.

        None turns an option off. There is always a `max_new_tokens`: None leaves it as it is.

        Raises:
            TypeError: There is no such option; the message names the nearest one. Or a value has the wrong type.
            ValueError: A sampling option without `do_sample=True`, a beam option without beams, or as the class does.
        """
        known = [f.name for f in dataclasses.fields(self)]
        for name in overrides:
            if name not in known:
                raise TypeError(f"Received the unknown generation option {name!r}.{hint(name, known)}")
        if overrides.get("max_new_tokens", 0) is None:
            del overrides["max_new_tokens"]
        alone = overrides.get("num_beams") not in (None, 1)
        alone = alone or any(overrides.get(name) is not None for name in CONSTRAINTS)
        if alone and "prompt_lookup_num_tokens" not in overrides:  # nobody has asked for it in this call
            overrides["prompt_lookup_num_tokens"] = 0
        length = overrides.get("min_length")
        if overrides.get("min_new_tokens") is not None and not length:  # which comes before it, even 0
            overrides["min_length"] = None
        changed = dataclasses.replace(self, **overrides)
        if length and changed.min_new_tokens:
            raise ValueError(
                f"Received min_length={length!r} with min_new_tokens={changed.min_new_tokens}, which would ignore "
                "that. Pass min_new_tokens=None, or leave it out."
            )
        for names, used, fix in (
            (SAMPLING, changed.do_sample, "do_sample=True"),
            (BEAMS, changed.num_beams > 1, "num_beams=2 or more"),
        ):
            idle = [name for name in names if overrides.get(name) is not None]
            if idle and not used:
                without = "do_sample=False" if names is SAMPLING else "num_beams=1"
                raise ValueError(
                    f"Received {', '.join(f'{n}={overrides[n]!r}' for n in idle)} with {without}, which would ignore "
                    f"that. Pass {fix}, or leave it out."
                )
        return changed


def without_idle(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that the others make meaningless: many checkpoints tune modes that are off."""
    idle: tuple[str, ...] = () if options.get("do_sample") else SAMPLING
    idle += BEAMS if options.get("num_beams") in (None, 0, 1) else ()
    return {name: value for name, value in options.items() if name not in idle}


def checkpoint_defaults(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a `generation_config.json` into the options known here and what would change the output but is not.

    Returns:
        The known options, and `{name: value}` of those that are set but have no counterpart.
    """
    known = {f.name for f in dataclasses.fields(GenerationOptions)}
    harmless = {"bos_token_id", "transformers_version", "use_cache", "max_length"}
    harmless |= {"cache_implementation", "output_attentions", "output_hidden_states", "return_dict_in_generate"}
    harmless |= {"output_scores", "output_logits", "compile_config", "disable_compile", "prefill_chunk_size"}
    harmless |= {"max_cache_len", "cache_config", "continuous_batching_config", "low_memory"}
    guesses = {"prompt_lookup_num_tokens", "max_matching_ngram_size", "num_assistant_tokens", "assistant_lookbehind"}
    guesses |= {"num_assistant_tokens_schedule", "assistant_confidence_threshold", "target_lookbehind"}
    guesses |= {"assistant_early_exit", "is_assistant", "speculation_type", "use_mtp"}
    known, harmless = known - guesses, harmless | guesses  # they change no completion
    if values.get("cache_implementation") == "quantized":  # which rounds keys and values
        harmless.remove("cache_implementation")
    off = {"num_beam_groups": 1, "diversity_penalty": 0.0}
    options = {name: value for name, value in values.items() if name in known and value is not None}
    unknown = {
        name: value
        for name, value in values.items()
        if name not in known | harmless and not name.startswith("_") and value not in (None, 0, False, off.get(name))
    }
    return options, unknown
