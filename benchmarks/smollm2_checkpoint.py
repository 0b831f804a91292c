"""SmolLM2-135M-Instruct as a folder of PyTorch transformers, of its GGUF file: needs the packages gguf and accelerate.

python benchmarks/smollm2_checkpoint.py FOLDER
"""

import json
import pathlib
import sys


def save_vocabulary(folder, size):
    """A tokenizer whose words are the ids: CTranslate2 takes words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(size)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(unk_token="0", bos_token="0", eos_token="0")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    path = pathlib.Path(folder, "tokenizer_config.json")
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}  # transformers 4 knows this
    path.write_text(json.dumps(config))


def main(folder):
    import torch
    from transformers import AutoModelForCausalLM

    sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
    import smollm2

    path = smollm2.fetch()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.save_pretrained(folder)
    save_vocabulary(folder, model.config.vocab_size)
    (pathlib.Path(folder) / path.name).symlink_to(path)  # llama.cpp reads the file itself


if __name__ == "__main__":
    main(sys.argv[1])
