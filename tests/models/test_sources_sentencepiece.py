import io

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.gguf.tokenizer import gguf_tokenizer
from tests.models.test_sources_gguf import write_gguf
from tests.models.test_sources_tokenizer import SENTENCES, TEXTS


def sentencepiece_fields(**changes):
    """Llama's layout, small: unknown, bos, eos, 256 bytes, then pieces by falling score."""
    pieces = ["▁t", "he", "▁a", "▁the", "in", "ing", "▁▁", "▁▁▁▁", *"▁abceghintx", "é"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    fields = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": [0.0] * 259 + [float(-i) for i in range(len(pieces))],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("the thing", ["▁the", "▁t", "h", "ing"]),
        ("a  b", ["▁a", "▁▁", "b"]),
        ("bé", ["▁", "b", "é"]),
        ("bö", ["▁", "b", "<0xC3>", "<0xB6>"]),
        ("b\n", ["▁", "b", "<0x0A>"]),
        (" a", ["▁", "▁a"]),
        ("b</s>a", ["▁", "b", "</s>", "▁a"]),
        ("", []),
    ],
)
def test_sentencepiece(tmp_path, text, pieces):
    tokenizer = open_checkpoint(
        write_gguf(tmp_path / "m.gguf", fields=sentencepiece_fields(), tokens=False)
    ).read_tokenizer()
    assert tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) == ["<s>", *pieces]
    if "</s>" not in text:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<s>", "</s>", "<unk>")


def test_sentencepiece_without_space_before():
    tokenizer = gguf_tokenizer(sentencepiece_fields(add_space_prefix=False, add_bos_token=False), "m.gguf")
    assert tokenizer.convert_ids_to_tokens(tokenizer("the a").input_ids) == ["t", "he", "▁a"]
    assert tokenizer.decode(tokenizer(" the").input_ids) == " the"


def test_text_that_looks_like_a_byte_is_text():
    fields = sentencepiece_fields()
    more = ["<0", "x4", "x41", "x41>", "<", "0", "4", "1", ">"]
    fields["tokenizer.ggml.tokens"] += more
    fields["tokenizer.ggml.scores"] += [-100.0 - i for i in range(len(more))]
    fields["tokenizer.ggml.token_type"] += [1] * len(more)
    tokenizer = gguf_tokenizer(fields, "m.gguf")
    assert tokenizer.convert_ids_to_tokens(tokenizer("<0x41>A").input_ids) == [
        "<s>",
        "▁",
        "<0",
        "x41>",
        "<0x41>",
    ]


def test_sentencepiece_without_scores():
    fields = sentencepiece_fields()
    del fields["tokenizer.ggml.scores"]
    with pytest.raises(ValueError, match=r"m\.gguf has a sentencepiece vocabulary but no scores"):
        gguf_tokenizer(fields, "m.gguf")


@pytest.mark.parametrize(
    ("scores", "message"),
    [([0.0] * 9, "received 9 scores for [0-9]+ tokens"), ("high", "scores='high'; expected an array of numbers")],
)
def test_sentencepiece_with_other_scores(scores, message):
    with pytest.raises(ValueError, match=rf"m\.gguf: .*{message}"):
        gguf_tokenizer(sentencepiece_fields(scores=scores), "m.gguf")


@pytest.fixture(scope="module")
def sentencepiece_pair():
    stored = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_writer=stored,
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=stored.getvalue())
    ids = range(original.vocab_size())
    kinds = [
        2 if original.is_unknown(i) else 3 if original.is_control(i) else 6 if original.is_byte(i) else 1 for i in ids
    ]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [original.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
    }
    return original, gguf_tokenizer(fields, "m.gguf")


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("aehinst  ö日123\n.,-", max_size=40) | st.sampled_from(TEXTS).filter(lambda text: "\x00" not in text)
)
def test_ids_are_sentencepieces(sentencepiece_pair, text):
    original, tokenizer = sentencepiece_pair
    ids = tokenizer(text).input_ids
    assert ids == [1, *original.encode(text)]
    assert tokenizer.decode(ids, skip_special_tokens=True) == original.decode(ids[1:])
