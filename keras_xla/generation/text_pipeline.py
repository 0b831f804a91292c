"""What a layer with a text model has beside its generator: from text or ids to a completion, ready to run."""

from collections.abc import Mapping
from typing import Any

from keras_xla.config import GenerationOptions
from keras_xla.engine.generator import Generator
from keras_xla.engine.prompt_cache import PromptCache
from keras_xla.generation import prompts, tokenizing
from keras_xla.generation.completion import Completion
from keras_xla.generation.text_options import TextOptions, split_text


class TextPipeline:
    """Completions with a generator.

    Args:
        generator: Runs the model.
        return_prompt: Whether text begins with its prompt unless a call says otherwise.
    """

    def __init__(self, generator: Generator, return_prompt: bool):
        self.generator, self.return_prompt = generator, return_prompt
        self._last_prompt = generator.prompt_cache()

    def completion(
        self,
        inputs: Any,
        tokenizer: Any,
        options: GenerationOptions,
        overrides: Mapping[str, Any] | None = None,
        reuse_prompt: bool | PromptCache = False,
        **call: Any,
    ) -> Completion:
        """What a call with these inputs asks for.

        Args:
            inputs: Text, chats or ids; see `XLAGenerationLayer`.
            tokenizer: A Hugging Face tokenizer, or None.
            options: What to generate.
            overrides: Fields of `GenerationOptions` and `TextOptions` that come first.
            reuse_prompt: Whether to use the prompt of the last call that said so, or where else prompts are kept.
            **call: Other fields of `Completion`.

        Raises:
            TypeError, ValueError: for bad inputs or options; before anything compiles.
        """
        own, rest = split_text(overrides or {})
        text, options = TextOptions(**{"return_prompt": self.return_prompt, **own}), options.replace(**rest)
        call |= dict(tokenizer=tokenizer, reuse=self._reuse(reuse_prompt))
        if prompts.is_text(inputs):
            rows = tokenizing.encode(tokenizer, prompts.texts(inputs), text)
            return Completion(self.generator, options, rows, text=text, **call)
        if own:
            raise ValueError(f"Received {', '.join(own)} with token ids; expected that with text only.")
        decoder = None
        if self.generator.has_encoder:
            inputs, decoder = prompts.split_decoder(inputs)
        if decoder is not None:
            decoder = prompts.decoder_rows(decoder, options.decoder_start_token_id)
        return Completion(self.generator, options, prompts.rows(inputs, _padding(options)), decoder, **call)

    def _reuse(self, reuse_prompt: bool | PromptCache) -> PromptCache | None:
        if isinstance(reuse_prompt, PromptCache):
            return reuse_prompt
        if not isinstance(reuse_prompt, bool):
            raise TypeError(f"Received reuse_prompt={reuse_prompt!r}; expected True or False.")
        return self._last_prompt if reuse_prompt else None


def _padding(options: GenerationOptions) -> int | None:
    """The token that is padding even without a mask, if there is one."""
    return None if options.pad_token_id in options.eos_token_id else options.pad_token_id
