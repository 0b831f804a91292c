"""Names that other packages have for options, and what to pass here. Standard library only."""

import difflib

_ELSEWHERE = {
    "assistant_model": "assistant, an XLAGenerationLayer",
    "batch_size": "batch_buckets of the layer: its largest size is how many prompts run at once",
    "beam_size": "num_beams",
    "device_map": "the device that the Keras backend uses by default",
    "generate_kwargs": "the options themselves, by their names",
    "logits_processor": "logits_processors of the layer",
    "logprobs": "output_logprobs=True, with top_logprobs=5 for the likeliest tokens of each place",
    "max_length": "max_new_tokens: it does not count the prompt",
    "max_tokens": "max_new_tokens",
    "n": "num_return_sequences",
    "generation_config": "generation_config of the layer or of from_pretrained, or pass its options by name",
    "load_in_4bit": 'quantization="int4" of from_pretrained',
    "load_in_8bit": 'quantization="int8" of from_pretrained',
    "response_format": "json_schema",
    "return_token_timestamps": "return_timestamps=True: times are those of segments, not of words",
    "sampler": "do_sample=True with top_k, top_p or temperature; num_beams for a beam search",
    "stop": "stop_strings",
    "stop_token_ids": "eos_token_id, which takes a list, too",
    "stopping_criteria": "stop_strings, max_time or cancel",
    "torch_dtype": "dtype of from_pretrained",
    **dict.fromkeys(("cache_dir", "revision", "token"), "the folder that huggingface_hub.snapshot_download returns"),
}

# What other packages need to be told, and why it is not needed here.
_NOT_NEEDED = {
    "attention_mask": "pass what the tokenizer returned as it is, layer.generate(inputs), with the mask in it",
    "chunk_length_s": "long sound is cut into windows by itself",
    "from_pt": "weights of PyTorch and of TensorFlow are read alike",
    "input_ids": "pass what the tokenizer returned as it is, layer.generate(inputs)",
    "monitor_progress": "transcripts come as a whole",
    "padding_side": "padding may be on either side",
    "return_dict_in_generate": "for ids the answer is a dict",
    "strip_prompt": "answers come without their prompts, unless return_prompt=True",
    "use_cache": "there always is a cache",
}


def hint(name: str, known: list[str]) -> str:
    """What to do in place of an option that there is not, as the end of a message; `known` are those that there are."""
    if name in _ELSEWHERE:
        return f" Use {_ELSEWHERE[name]}."
    if name in _NOT_NEEDED:
        return f" Leave it out: {_NOT_NEEDED[name]}."
    near = difflib.get_close_matches(name, known, 1, 0.7)
    return f" Did you mean {near[0]!r}?" if near else f" The known ones: {', '.join(known)}."
