"""What a layer with a text model has beside its generator: from text or ids to a completion, ready to run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.config.values import as_integer
from keras_xla.engine.call import Call
from keras_xla.engine.checks import check_assisted
from keras_xla.engine.generator import Generator
from keras_xla.engine.padding import Rows
from keras_xla.engine.scorer import Logprobs, Scorer
from keras_xla.engine.states.prompt_cache import PromptCache, SavedPrompt
from keras_xla.engine.warmup import FirstCall
from keras_xla.generation.columns import as_list
from keras_xla.generation.text import datasets, prompts, tokenizing
from keras_xla.generation.text.completion import Completion
from keras_xla.generation.text.grammar import Grammars
from keras_xla.generation.text.logprobs import check_logprobs, check_top, joined, windows
from keras_xla.generation.text.options import TextOptions, check_chats, split_text
from keras_xla.generation.tokenizer import LazyTokenizer


@dataclass(frozen=True)
class TextCall:
    """What a call asks for.

    Attributes:
        inputs: Prompts as they came, those of a dataset in a list.
        rows: From such inputs, and what errors call one, to rows of ids, and those that an encoder-decoder's
            completions begin with or None.
        options: What to generate.
        negative: Negative prompts as they came, or None.
        given: Other fields of the `Call` of the generator.
        told: What is made of its outputs: the other fields of the `Completion`.
    """

    inputs: Any
    rows: Callable[..., tuple[Rows, Rows | None]]
    options: GenerationOptions
    negative: Any
    given: dict[str, Any]
    told: dict[str, Any]

    def negative_rows(self) -> Rows | None:
        """The ids of the negative prompts."""
        return None if self.negative is None else self.rows(self.negative, "Negative prompt")[0]


class TextPipeline:
    """Completions with a generator.

    Args:
        generator: Runs the model.
        return_prompt: Whether text begins with its prompt unless a call says otherwise.
    """

    def __init__(self, generator: Generator, return_prompt: bool):
        self.generator, self.return_prompt = generator, return_prompt
        self._last_prompt = generator.prompt_cache()
        self._grammars: tuple[Any, tuple[int, ...], Grammars] | None = None
        self._assisted: tuple[Any, Any] | None = None

    def completion(
        self,
        inputs: Any,
        tokenizer: LazyTokenizer | None,
        options: GenerationOptions,
        overrides: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Completion:
        """What a call with these inputs completes; arguments and errors as for `asked`."""
        asked = self.asked(inputs, tokenizer, options, overrides, **more)
        rows, decoder = asked.rows(asked.inputs)
        call = Call(rows, asked.options, decoder, negative=asked.negative_rows(), **asked.given)
        return Completion(self.generator, call, **asked.told)

    def asked(
        self,
        inputs: Any,
        tokenizer: LazyTokenizer | None,
        options: GenerationOptions,
        overrides: Mapping[str, Any] | None = None,
        reuse_prompt: bool | SavedPrompt | PromptCache = False,
        negative_prompt: Any = None,
        assistant: Generator | None = None,
        skip_broken: bool = False,
        **told: Any,
    ) -> "TextCall":
        """What a call with these inputs asks for, its prompts still as they came.

        Args:
            inputs: Text, chats, ids or a dataset of them; see `XLAGenerationLayer`.
            tokenizer: That of the layer, or None.
            options: What to generate.
            overrides: Fields of `GenerationOptions` and `TextOptions` that come first.
            reuse_prompt: Whether to use the prompt of the last call that said so, or where else prompts are kept.
            negative_prompt: What completions are led away from, of the kind of the inputs.
            assistant: As for `Call`.
            skip_broken: As for `Call`.
            **told: Other fields of `Completion`.

        Raises:
            TypeError, ValueError: for bad inputs or options; before anything compiles.
        """
        inputs = datasets.listed(inputs) if datasets.has_prompts(inputs) else as_list(inputs)
        negative_prompt = as_list(negative_prompt)
        own, rest = split_text(overrides or {})
        options = options.replace(**_with_assistant(assistant, rest))
        text = TextOptions(**{"return_prompt": self.return_prompt, **own})
        is_text = prompts.is_text(inputs)
        if negative_prompt is not None and prompts.is_text(negative_prompt) != is_text:
            raise TypeError(f"Received negative_prompt={negative_prompt!r}; expected text with text, and ids with ids.")
        if is_text:
            tokenizing.encode(tokenizer, [], text)  # raises without a tokenizer
            check_chats(own, inputs)
        elif own:
            raise ValueError(f"Received {', '.join(own)} with token ids; expected that with text only.")

        def rows(given: Any, kind: str = "Prompt") -> tuple[Rows, Rows | None]:
            decoder = None
            if is_text:
                return tokenizing.encode(tokenizer, prompts.texts(given, kind), text), None
            if self.generator.has_encoder:
                given, decoder = prompts.split_decoder(given)
            if decoder is not None:
                decoder = prompts.decoder_rows(decoder, options.decoder_start_token_id)
            return prompts.rows(given, _padding(options), holes=not self.generator.has_encoder), decoder

        given = dict(reuse=self._reuse(reuse_prompt), assistant=assistant, skip_broken=skip_broken)
        told |= dict(tokenizer=tokenizer, text=text if is_text else None, grammars=self._grammars_of(tokenizer))
        return TextCall(inputs, rows, options, negative_prompt, given, told)

    def assisted_by(
        self, pipeline: "TextPipeline", tokenizer: LazyTokenizer | None, own: LazyTokenizer | None
    ) -> Generator:
        """The generator of another pipeline whose model is to guess.

        Raises:
            ValueError: where its tokenizer knows other tokens than the `own` one.
        """
        if tokenizer is not None and own is not None and tokenizer is not own and self._assisted != (tokenizer, own):
            theirs, ours = tokenizer.get().get_vocab(), own.get().get_vocab()
            if theirs != ours:
                raise ValueError(
                    f"Received an assistant whose tokenizer knows {len(theirs)} tokens, which are not the {len(ours)} "
                    "of the layer's own; expected a smaller model of the same family, with the same tokenizer."
                )
            self._assisted = tokenizer, own
        return pipeline.generator

    def save_prompt(
        self, inputs: Any, tokenizer: LazyTokenizer | None, options: GenerationOptions, overrides: Mapping[str, Any]
    ) -> SavedPrompt:
        """See `XLAGenerationLayer.save_prompt`."""
        _, others = split_text(overrides)
        if others:
            raise TypeError(f"Received {', '.join(others)} for a prompt to save; expected options of text only.")
        return self.generator.save_prompt(self.completion(inputs, tokenizer, options, overrides).call.prompts)

    def first_calls(
        self,
        batch: int,
        length: int,
        options: GenerationOptions,
        output_logprobs: bool = False,
        top_logprobs: int = 0,
        assistant: Generator | None = None,
        **overrides: Any,
    ) -> Iterator[FirstCall]:
        """Of what calls with `batch` prompts of `length` tokens need."""
        check_logprobs(output_logprobs, top_logprobs, self.generator.model.vocab_size)
        options = options.replace(**_with_assistant(assistant, overrides))
        rows = [np.zeros((length,), np.int32)] * batch
        if options.per_row:
            raise ValueError(
                f"Received lists for {', '.join(options.per_row)}; expected one value, which compiles the same."
            )
        if assistant is not None:
            check_assisted(self.generator, assistant, options)
        yield from self.generator.first_calls(Call(rows, options, assistant=assistant))
        if output_logprobs:
            rows = rows * options.num_return_sequences
            begun = self.generator.decoder_prompts(Call(rows, options))
            whole = [np.pad(row, (0, options.most_new_tokens)) for row in begun]
            reads = rows if self.generator.has_encoder else None
            yield from Scorer(self.generator).first_calls(whole, [len(row) for row in begun], reads, top_logprobs)

    def score(
        self,
        inputs: Any,
        answers: Any,
        tokenizer: LazyTokenizer | None,
        options: GenerationOptions,
        overrides: Mapping[str, Any],
        top: int,
        window: int | None,
        stride: int | None,
    ) -> list[Logprobs]:
        """See `XLAGenerationLayer.score`."""
        own, others = split_text(overrides)
        if others:
            raise TypeError(f"Received {', '.join(others)} for scores; expected options of text only.")
        check_top(top, self.generator.model.vocab_size)
        scorer = Scorer(self.generator)
        scorer.check()
        inputs = datasets.listed(inputs) if datasets.has_prompts(inputs) else as_list(inputs)
        call = self.completion(inputs, tokenizer, options, overrides).call
        rows = call.prompts
        if answers is None:
            if self.generator.has_encoder:
                raise ValueError("Received no answers; an encoder-decoder scores answers to what it reads. Pass them.")
            return self._windows(scorer, rows, top, window, stride)
        if window is not None or stride is not None:
            raise ValueError("Received window or stride with answers; expected that with whole texts only.")
        given = TextOptions(**{**own, "add_special_tokens": self.generator.has_encoder})
        if prompts.is_text(answers):
            texts = prompts.texts(answers, "Answer")
            after = tokenizing.encode(tokenizer, texts, given, target=self.generator.has_encoder)
            after = self._behind(inputs, tokenizer, rows, texts, after, TextOptions(**own))
        else:
            after = prompts.rows(answers, _padding(options))
        if len(after) != len(rows):
            raise ValueError(f"Received {len(after)} answers for {len(rows)} inputs; expected one for each.")
        begun = self.generator.decoder_prompts(call)
        _refuse_empty(begun)
        whole = [np.concatenate(pair) for pair in zip(begun, after, strict=True)]
        reads = rows if self.generator.has_encoder else None
        return scorer(whole, [len(row) for row in begun], reads, top)

    def _behind(
        self, inputs: Any, tokenizer: Any, rows: Rows, texts: list, alone: list[np.ndarray], given: TextOptions
    ) -> list[np.ndarray]:
        """The ids of answers behind their prompts; those that they have `alone`, where both are not one text."""
        chats = not all(isinstance(text, str) for text in texts)
        if self.generator.has_encoder or chats or not prompts.is_text(inputs) or len(rows) != len(texts):
            return alone
        found = tokenizing.behind(tokenizer, prompts.texts(inputs), rows, texts, given)
        return [one if ids is None else ids for ids, one in zip(found, alone, strict=True)]

    def _windows(self, scorer: Scorer, rows: Rows, top: int, window: int | None, stride: int | None) -> list[Logprobs]:
        """Scores of texts, those of long ones in parts."""
        room = self.generator.model.max_positions
        # Only the types: what is too small is told below.
        window = None if window is None else as_integer("window", window, -(2**31))
        stride = None if stride is None else as_integer("stride", stride, -(2**31))
        if window is not None and (window < 2 or (room is not None and window > room)):
            most = "" if room is None else f", at most the model's {room} positions"
            raise ValueError(f"Received window={window}; expected 2 or more tokens{most}.")
        window = window or room or max(2, *map(len, rows))
        stride = max(window // 2, 1) if stride is None else stride
        if not 0 < stride < window:
            raise ValueError(
                f"Received stride={stride}; expected at least 1, and less than the window's {window} tokens."
            )
        parts, of, first = [], [], []
        _refuse_empty(rows)
        for i, row in enumerate(rows):
            for begin, end, n in windows(len(row), window, stride):
                parts.append(row[begin:end])
                first.append(n)
                of.append(i)
        each: list[list[Logprobs]] = [[] for _ in rows]
        for i, scored in zip(of, scorer(parts, first, top=top, numbers=of), strict=True):
            each[i].append(scored)
        return [joined(scored) for scored in each]

    def chat_cache(self, saved: SavedPrompt | None) -> PromptCache | bool:
        """What the turns of a chat, the first one beginning with a saved prompt, take as `reuse_prompt`."""
        if not isinstance(saved, SavedPrompt | None):
            raise TypeError(f"Received reuse_prompt={saved!r}; expected what save_prompt returned.")
        return self.generator.prompt_cache(saved) or False

    def _grammars_of(self, tokenizer: Any) -> Callable[[tuple[int, ...]], Grammars]:
        """What reads grammars for a tokenizer, made once."""

        def grammars(eos: tuple[int, ...]) -> Grammars:
            kept = self._grammars
            if kept is None or kept[0] is not tokenizer or kept[1] != eos:
                kept = self._grammars = tokenizer, eos, Grammars(tokenizer.get(), self.generator.model.vocab_size, eos)
            return kept[2]

        return grammars

    def _reuse(self, reuse_prompt: bool | SavedPrompt | PromptCache) -> SavedPrompt | PromptCache | None:
        if isinstance(reuse_prompt, (PromptCache, SavedPrompt)):
            self.generator.use(reuse_prompt)
            return reuse_prompt
        if not isinstance(reuse_prompt, bool):
            raise TypeError(f"Received reuse_prompt={reuse_prompt!r}; expected a bool, or what save_prompt returned.")
        return self._last_prompt if reuse_prompt else None


def _with_assistant(assistant: Generator | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides of a call with an assistant, or without one."""
    if assistant is not None:  # guesses from the prompt are off then, which a layer may have on
        return {"prompt_lookup_num_tokens": 0, **overrides}
    if "num_assistant_tokens" in overrides:
        raise ValueError("Received num_assistant_tokens without an assistant. Pass assistant=..., or leave it out.")
    return dict(overrides)


def _refuse_empty(rows: Rows) -> None:
    for i, row in enumerate(rows):
        if not len(row):
            raise ValueError(f"Prompt {i} is empty; expected at least one token.")


def _padding(options: GenerationOptions) -> int | None:
    """The token that is padding even without a mask, if there is one."""
    return None if options.pad_token_id in options.eos_token_id else options.pad_token_id
