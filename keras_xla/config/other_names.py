"""Names that other packages have for options, and what to pass here. Standard library only."""

import difflib

_OF_THE_HUB = ("cache_dir", "revision", "token")
_ELSEWHERE = {
    "assistant_model": "assistant, an XLAGenerationLayer",
    "batch_size": "batch_buckets of the layer: its largest size is how many prompts run at once",
    "beam_size": "num_beams",
    "device_map": "the device that the Keras backend uses by default",
    "generate_kwargs": "the options themselves, by their names",
    "ignore_eos": "eos_token_id=None",
    "logits_processor": "logits_processors of the layer",
    "logprobs": "output_logprobs=True, with top_logprobs=5 for the likeliest tokens of each place",
    "max_length": "max_new_tokens: it does not count the prompt",
    "max_tokens": "max_new_tokens",
    "n": "num_return_sequences",
    "negative_prompt_ids": "negative_prompt",
    "output_logits": "output_logprobs=True",
    "output_scores": "output_logprobs=True",
    "past_key_values": "reuse_prompt",
    "prefix_allowed_tokens_fn": "json_schema, regex or grammar, or logits_processors of the layer",
    "generation_config": "generation_config of the layer or of from_pretrained, or pass its options by name",
    "load_in_4bit": 'quantization="int4" of from_pretrained',
    "load_in_8bit": 'quantization="int8" of from_pretrained',
    "response_format": "json_schema",
    "return_full_text": "return_prompt",
    "return_token_timestamps": "return_timestamps=True: times are those of segments, not of words",
    "sampler": "do_sample=True with top_k, top_p or temperature; num_beams for a beam search",
    "stop": "stop_strings",
    "stop_token_ids": "eos_token_id, which takes a list, too",
    "stopping_criteria": "stop_strings, max_time or cancel",
    "torch_dtype": "dtype of from_pretrained",
    "truncation": "truncation=True of the tokenizer: nothing is cut off here",
    **dict.fromkeys(_OF_THE_HUB, "the folder that huggingface_hub.snapshot_download returns"),
}

# What other packages need to be told, and why it is not needed here.
_NOT_NEEDED = {
    "attention_mask": "pass what the tokenizer returned as it is, layer.generate(inputs), with the mask in it",
    "bos_token_id": "the tokenizer puts it in front of a prompt",
    "cache_implementation": "the cache has a fixed size",
    "chunk_length_s": "long sound is cut into windows by itself",
    "from_pt": "weights of PyTorch and of TensorFlow are read alike",
    "input_ids": "pass what the tokenizer returned as it is, layer.generate(inputs)",
    "monitor_progress": "transcripts come as a whole",
    "padding_side": "padding may be on either side",
    "remove_invalid_values": 'logits that are NaN are an error, unless on_error="skip"',
    "return_dict_in_generate": "for ids the answer is a dict",
    "tokenizer": "the layer has its own",
    "strip_prompt": "answers come without their prompts, unless return_prompt=True",
    "use_cache": "there always is a cache",
}

# Arguments that are no options: of `generate` alone, and of all that takes prompts.
OF_GENERATE = ("output_logprobs", "top_logprobs", "verbose", "on_error", "streamer")
OF_CALLS = ("assistant", "cancel", "negative_prompt", "reuse_prompt")
OF_TEXT = (  # `TextOptions`, which only calls with text have
    *("return_prompt", "add_special_tokens", "skip_special_tokens", "chat_template", "tools", "documents"),
    *("add_generation_prompt", "continue_final_message", "enable_thinking", "chat_template_kwargs"),
)

# What nothing here does, though another option has a name like it.
_NOT_HERE = ("constraints", "diversity_penalty", "force_words_ids", "inputs_embeds", "num_beam_groups", "top_h")


def hint(name: str, known: list[str]) -> str:
    """What to do in place of an option that there is not, as the end of a message; `known` are those that there are."""
    if name in _ELSEWHERE:
        return f" Use {_ELSEWHERE[name]}."
    if name in _NOT_NEEDED:
        return f" Leave it out: {_NOT_NEEDED[name]}."
    if name in OF_GENERATE:
        return " It is an argument of generate alone."
    if name in (*OF_CALLS, *OF_TEXT):
        return " It is an argument of calls with prompts, such as generate and stream, and compiles nothing."
    if name in _NOT_HERE:
        return " keras_xla has nothing like it."
    near = difflib.get_close_matches(name, [*known, *(each for each in _ELSEWHERE if each not in _OF_THE_HUB)], 1, 0.7)
    if near and near[0] in _ELSEWHERE:
        return f" Use {_ELSEWHERE[near[0]]}."
    return f" Did you mean {near[0]!r}?" if near else f" The known ones: {', '.join(known)}."
