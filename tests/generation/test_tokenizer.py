"""What may be the tokenizer of a layer, and what is said of others."""

import keras
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from keras_xla import XLAGenerationLayer
from tests.tokenizers import tiny

WORDS = ["[UNK]", "the", "sky", "is", "blue"]


def model(vocabulary):
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.GRU(8, return_sequences=True)(keras.layers.Embedding(vocabulary, 8)(inputs))
    return keras.Model(inputs, keras.layers.Dense(vocabulary)(x))


class Letters:
    letters = " abcdefghijklmnopqrstuvwxyz"

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [self.letters.index(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens=True, **options):
        return "".join(self.letters[i] for i in ids)

    def get_vocab(self):
        return {letter: i for i, letter in enumerate(self.letters)}


class LettersOfBoth(Letters):
    def detokenize(self, ids):
        return self.decode(ids)


def of_tokenizers():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def of_keras_hub(name, **options):
    hub = pytest.importorskip("keras_hub", reason="the extra kerashub is not installed")
    return getattr(hub.tokenizers, name)(**options)


@pytest.mark.parametrize(
    ("make", "ids"),
    [
        (Letters, [20, 8, 5]),
        (LettersOfBoth, [20, 8, 5]),
        (of_tokenizers, [1]),
        (lambda: of_keras_hub("WordPieceTokenizer", vocabulary=WORDS), [1]),
        (lambda: of_keras_hub("ByteTokenizer"), list(b"the")),
    ],
    ids=["own", "own with detokenize", "tokenizers", "word pieces", "bytes"],
)
@pytest.mark.quick("own with detokenize", "word pieces")
def test_texts_go_through_any_kind(make, ids):
    tokenizer = make()
    words = tokenizer.get_vocabulary() if hasattr(tokenizer, "get_vocabulary") else tokenizer.get_vocab()
    layer = XLAGenerationLayer(model(len(words)), tokenizer, max_new_tokens=4)
    assert list(layer.tokenizer("the", add_special_tokens=False)["input_ids"]) == ids
    expected = layer.generate([ids])["sequences"][0]
    (made,) = layer.generate("the", skip_special_tokens=False)
    assert made.strip() == layer.tokenizer.decode(expected, skip_special_tokens=False).strip()


def test_a_model_may_have_room_for_more_tokens():
    layer = XLAGenerationLayer(model(64), of_keras_hub("WordPieceTokenizer", vocabulary=WORDS), max_new_tokens=20)
    assert isinstance(layer.generate("the sky", do_sample=True, seed=0)[0], str)


def test_what_a_tokenizer_returned_is_one_argument():
    layer = XLAGenerationLayer(model(300), max_new_tokens=4)
    for method in (layer.generate, layer.stream):
        with pytest.raises(TypeError, match=r"received no inputs; .* not \*\*inputs"):
            method(input_ids=[[1, 2]], attention_mask=[[1, 1]])
        with pytest.raises(TypeError, match=r"received no inputs; expected texts, chats, token ids or speech\."):
            method()


def test_that_of_transformers_stays_what_it_is():
    tokenizer = tiny()
    assert XLAGenerationLayer(model(300), tokenizer).tokenizer is tokenizer


@pytest.mark.parametrize("given", ["gpt2", Letters, len, {"a": 1}, keras.layers.TextVectorization()], ids=repr)
def test_what_cannot_be_one_is_refused(given):
    with pytest.raises(TypeError, match=r"as the tokenizer; expected one of transformers"):
        XLAGenerationLayer(model(300), given)


def test_one_that_pads_is_refused():
    tokenizer = of_keras_hub("WordPieceTokenizer", vocabulary=WORDS, sequence_length=4)
    with pytest.raises(ValueError, match=r"sequence_length=4; expected one that gives each text the tokens"):
        XLAGenerationLayer(model(300), tokenizer)
