"""What values the generation options may have, by name; and what None means. Standard library only."""

import math

OFF = {  # what None means, as generation_config.json writes it
    "min_new_tokens": 0,
    "min_length": 0,
    "num_beams": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
    "do_sample": False,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "encoder_repetition_penalty": 1.0,
    "sequence_bias": (),
    "guidance_scale": 1.0,
    "renormalize_logits": False,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": (),
    "stop_strings": (),
    "prompt_lookup_num_tokens": 0,
}
INTEGERS = {  # smallest values
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "min_length": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "top_k": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
}
NUMBERS = (
    ("temperature", lambda v: v > 0, "above 0"),
    ("top_p", lambda v: 0 <= v <= 1, "from 0 to 1"),
    ("min_p", lambda v: 0 <= v <= 1, "from 0 to 1"),
    ("typical_p", lambda v: 0 < v <= 1, "above 0 and at most 1"),
    ("epsilon_cutoff", lambda v: 0 <= v < 1, "at least 0 and below 1"),
    ("eta_cutoff", lambda v: 0 <= v < 1, "at least 0 and below 1"),
    ("repetition_penalty", lambda v: v > 0, "above 0"),
    ("encoder_repetition_penalty", lambda v: v > 0, "above 0"),
    ("presence_penalty", math.isfinite, "that is finite"),
    ("frequency_penalty", math.isfinite, "that is finite"),
    ("length_penalty", math.isfinite, "that is finite"),
    ("guidance_scale", math.isfinite, "that is finite"),
)
TOKENS = ("eos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")
TOKEN = ("pad_token_id", "forced_bos_token_id", "decoder_start_token_id")
