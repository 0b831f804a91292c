"""A checkpoint of random weights in the shape of Llama 3.2 1B, in bfloat16, for transformers and for llama.cpp.

python benchmarks/llama_checkpoint.py FOLDER
"""

import pathlib
import sys

SHAPE = dict(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=True,
)
# What llama.cpp calls the parts of a block.
BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save(folder, shard="530MB"):
    """The checkpoint in several files, as transformers saves it. Returns the model."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def save_gguf(model, path):
    """The same weights, in float32, as a file of llama.cpp without a tokenizer."""
    import gguf

    config, file = model.config, gguf.GGUFWriter(path, "llama")
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_rope_dimension_count(config.head_dim)
    file.add_vocab_size(config.vocab_size)
    file.add_tokenizer_model("no_vocab")
    for name, weight in model.model.state_dict().items():
        values = weight.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp rotates neighbours, Llama rotates halves
            heads = len(values) // config.head_dim
            values = values.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(values.shape)
        file.add_tensor(llama_cpp_name(name), values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def llama_cpp_name(name):
    """What llama.cpp calls a weight of transformers' `model.`."""
    if not name.startswith("layers."):
        return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name]
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    return f"blk.{layer}.{BLOCK[part]}.weight"


def main(folder):
    from smollm2_checkpoint import save_vocabulary

    model = save(folder)
    save_vocabulary(folder, SHAPE["vocab_size"])
    save_gguf(model, pathlib.Path(folder, "llama-1b-F32.gguf"))


if __name__ == "__main__":
    main(sys.argv[1])
