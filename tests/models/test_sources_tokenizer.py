import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.gguf.tokenizer import gguf_tokenizer
from tests.models.test_sources_gguf import write_gguf

SENTENCES = [
    "Once upon a time there was a little girl named Lily. She's 12 years old, isn't she?",
    "In 2024, 1234567 people said: \"We've seen it!\" and I'LL go too.",
    "def f(x):\n    return x ** 2  # squared\n\n\nprint(f(10))\t\r\n",
    "Das Haus ist wunderbar. L'été à la plage, ça va? Привет, мир. 日本語の文です。 한국어 مرحبا",
    "snake_case camelCase HTTPServer XMLHttpRequest 3.14159 0x1F a+b=c",
]
TEXTS = [
    *SENTENCES,
    "",
    " ",
    "a",
    "  two  spaces  ",
    "\n\n \n",
    "12345678901",
    "don't DON'T 'tis",
    "e\u0301 is é, \ufb01 is fi",
    "😀👍🏽 \x00\x7f",
    "½ ٣٤٥ Ⅷ",
    "ǅ İstanbul ß",
    "x<|end|>y",
    "<|end|>",
    "<|begin|>user\nhi<|end|>\n",
    "<think>so</think>",
]
ANY_TEXT = st.text(max_size=40) | st.text("aeh'sSTL 0123\n\t.é<|end|>", max_size=60)
SPECIAL = ["<|end|>", "<|begin|>", "<|pad|>"]

# Copied from the tokenizer.json files of Llama 3, Qwen 2.5 and Mistral Nemo.
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def cutting(pre):
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    rules = {
        "gpt-2": gpt2,
        "smollm": smollm,
        "llama-bpe": split(LLAMA3),
        "qwen2": split(QWEN2),
        "tekken": split(TEKKEN),
    }
    return rules[pre]


def trained(pre):
    """A byte-level BPE tokenizer made by the tokenizers package, and its entries in a GGUF file."""
    backend = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    backend.pre_tokenizer, backend.decoder = cutting(pre), decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 2, trainer)
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    merges = json.loads(backend.to_str())["model"]["merges"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in SPECIAL else 4 if t == "<think>" else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    return backend, fields


@pytest.fixture(scope="module", params=["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
def pair(request, tmp_path_factory):
    backend, fields = trained(request.param)
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", fields=fields)
    return backend, open_checkpoint(path).read_tokenizer()


def assert_same(backend, tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids == backend.encode(text).ids
    assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == backend.decode(ids)


def test_byte_level_ids_are_those_of_the_original(pair):
    for text in TEXTS:
        assert_same(*pair, text)


@settings(max_examples=150, deadline=None)
@given(text=ANY_TEXT)
def test_byte_level_ids_of_any_text(pair, text):
    assert_same(*pair, text)


def test_a_distilled_qwen_normalizes_as_qwen_does(tmp_path):
    backend, fields = trained("qwen2")
    tokenizer = open_checkpoint(
        write_gguf(tmp_path / "m.gguf", fields={**fields, "tokenizer.ggml.pre": "deepseek-r1-qwen"})
    ).read_tokenizer()
    assert_same(backend, tokenizer, unicodedata.normalize("NFD", "Zürich"))


def test_text_is_cut_as_the_model_was_trained(pair):
    backend, tokenizer = pair
    cut = [
        piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("I'LL 12345 HTTPserver\n\n x")
    ]
    assert cut == [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("I'LL 12345 HTTPserver\n\n x")]


def test_special_tokens_and_padding(pair):
    _, tokenizer = pair
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == (
        "<|end|>",
        "<|begin|>",
        "<|pad|>",
    )
    assert tokenizer.model_max_length == 128
    assert tokenizer("<|begin|>a<|end|>").input_ids[::2] == [1, 0]
    assert tokenizer.decode(tokenizer("a<|end|>").input_ids, skip_special_tokens=True) == "a"
    batch = tokenizer(["a", "a a a"], padding=True)
    assert list(batch) == ["input_ids", "attention_mask"]
    assert batch["input_ids"][0][0] == 2
    assert batch["attention_mask"][0][0] == 0
    assert len(tokenizer) == len(tokenizer.get_vocab())


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (False, True), (True, True), (None, None)])
@pytest.mark.parametrize("pre", ["smollm", "llama-bpe"])
def test_bos_and_eos(pre, bos, eos):
    _, fields = trained(pre)
    fields |= {"tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos}
    tokenizer = gguf_tokenizer({key: value for key, value in fields.items() if value is not None}, "m.gguf")
    plain = tokenizer("a 1", add_special_tokens=False).input_ids
    expected_bos = pre == "llama-bpe" if bos is None else bos
    assert tokenizer("a 1").input_ids == [1] * expected_bos + plain + [0] * bool(eos)


def test_chat_template(tmp_path):
    _, fields = trained("smollm")
    template = "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    fields["tokenizer.chat_template"] = template
    tokenizer = open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=fields)).read_tokenizer()
    chat = [{"role": "user", "content": "a 12"}, {"role": "assistant", "content": "b"}]
    text = "<|begin|>user\na 12<|end|>\n<|begin|>assistant\nb<|end|>\n"
    assert tokenizer.apply_chat_template(chat, tokenize=False) == text
    ids = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    assert ids == tokenizer(text).input_ids
    assert [i for i in ids if i < 2] == [1, 0, 1, 0]
    fields["tokenizer.chat_template.tools"] = "tools"
    named = gguf_tokenizer(fields, "m.gguf")
    assert named.chat_template == {"default": template, "tools": "tools"}
    assert gguf_tokenizer(trained("smollm")[1], "m.gguf").chat_template is None


def test_default_rule_is_gpt_2s_with_a_warning():
    backend, fields = trained("gpt-2")
    with pytest.warns(UserWarning, match=r"m\.gguf does not say how its tokenizer cuts text"):
        tokenizer = gguf_tokenizer(fields | {"tokenizer.ggml.pre": "default"}, "m.gguf")
    assert_same(backend, tokenizer, SENTENCES[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "klingon"}, "tokenizer.ggml.pre 'klingon'; expected one of gpt-2, .*llama-bpe.*qwen2"),
        ({"pre": None}, "tokenizer.ggml.pre None"),
        ({"model": "rwkv"}, r"tokenizer.ggml.model 'rwkv'; expected 'gpt2'.*'llama'"),
        ({"merges": ["zzz qqq"]}, "1 merges, expected pairs of tokens"),
        ({"merges": None}, "0 merges"),
        ({"token_type": [1, 1]}, "and 2 token types"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "2 tokens, 1 of them different"),
        ({"tokens": "ab"}, "tokens='ab'; expected a list of strings"),
        ({"tokens": [1, 2]}, r"tokens=\[1, 2\]; expected a list of strings"),
        ({"token_type": "normal"}, "token_type='normal'; expected an array of numbers"),
        ({"merges": 5}, "merges=5; expected a list of strings"),
        ({"model": ["gpt2"]}, r"model=\['gpt2'\]; expected a string"),
        ({"pre": 5}, "pre=5; expected a string"),
        ({"add_bos_token": "yes"}, "add_bos_token='yes'; expected True or False"),
        ({"eos_token_id": "0"}, "eos_token_id='0'; expected a whole number of at least 0"),
    ],
)
def test_tokenizers_that_cannot_be_read_say_why(changes, message):
    fields = trained("smollm")[1] | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ValueError, match=message) as error:
        gguf_tokenizer({key: value for key, value in fields.items() if value is not None}, "m.gguf")
    assert "m.gguf" in str(error.value)
