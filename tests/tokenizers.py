"""A tiny real tokenizer with a chat template, for a vocabulary of `reference.VOCAB`."""

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.reference import VOCAB

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.cache
def tiny(bos: bool = False, without: str = "", vocab_size: int = VOCAB) -> PreTrainedTokenizerFast:
    """One token a letter, but for those it is `without`; ids 0 to 4 are `<pad> <s> </s> <user> <assistant>`."""
    special = ["<pad>", "<s>", "</s>", "<user>", "<assistant>"]
    letters = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter not in without]
    letters = letters[: vocab_size - len(special)]
    if "Ġ" not in letters:  # the space
        letters[-1] = "Ġ"
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(special + letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
