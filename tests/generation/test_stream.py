"""Streams: pieces that joined are what `generate` returns, for text and ids, one prompt and several."""

import functools
import gc
import itertools
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from keras_xla import XLAGenerationLayer
from keras_xla.generation.text import tokenizing
from keras_xla.generation.text.pieces import TextPieces
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

PROMPTS = ["abc", "So it goes", "x"]


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("llama-tied-gqa")))


@pytest.fixture(scope="module")
def layer(model):
    return XLAGenerationLayer(
        model, tiny(), max_new_tokens=20, eos_token_id=2, pad_token_id=0, cache_buckets=(32, 64, 128)
    )


MODES = [
    {},
    dict(do_sample=True, seed=3),
    dict(return_prompt=True),
    dict(eos_token_id=[50, 60, 70]),
    dict(max_new_tokens=1),
    dict(max_new_tokens=100),  # the cache grows
]


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.slow
def test_pieces_of_text_joined_are_the_text(layer, options):
    assert "".join(layer.stream(PROMPTS[1], **options)) == layer.generate(PROMPTS[1], **options)[0]
    joined = [""] * len(PROMPTS)
    for row, piece in layer.stream(PROMPTS, **options):
        assert piece
        joined[row] += piece
    assert joined == layer.generate(PROMPTS, **options)


@pytest.mark.quick_on_jax
@pytest.mark.parametrize("options", [o for o in MODES if "return_prompt" not in o], ids=str)
@pytest.mark.quick("{'do_sample': True, 'seed': 3}", "{}", "{'eos_token_id': [50, 60, 70]}", "{'max_new_tokens': 1}")
def test_ids_joined_are_the_sequences(layer, options):
    rows = [tiny()(prompt)["input_ids"] for prompt in PROMPTS]
    out = layer.generate(rows, **options)
    joined = [[] for _ in rows]
    for row, ids in layer.stream(rows, **options):
        joined[row] += ids.tolist()
    expected = [s[:n].tolist() for s, n in zip(out["sequences"], out["lengths"], strict=True)]
    assert joined == expected
    pieces = list(layer.stream(rows[:1], **options))
    assert np.concatenate(pieces).tolist() == expected[0]
    assert all(piece.base is None for piece in pieces)  # a view would keep the tokens of all rows in memory


def test_pieces_come_one_token_at_a_time_where_tokens_take_long_and_the_first_always(layer, monkeypatch):
    options = dict(eos_token_id=None, max_new_tokens=12)
    layer.generate([[5, 6, 7]], **options)
    assert len(next(layer.stream([[5, 6, 7]], **options))) == 1
    monkeypatch.setattr("keras_xla.engine.runs.generation.Pace.took", lambda self, seconds, tokens: None)
    for pace in layer._generator._starter._paces.values():
        pace._seconds = 0.06
    assert [len(ids) for ids in layer.stream([[5, 6, 7]], **options)] == [1] * 12


def test_a_stream_ends_with_the_weights_that_it_began_with(layer):
    options, embedding = dict(max_new_tokens=12, eos_token_id=None), layer.model.embedding.values
    before, expected = np.array(embedding), layer.generate([[5, 6, 7]], **options)["sequences"][0].tolist()
    stream = layer.stream([[5, 6, 7]], **options)
    made = [*next(stream).tolist()]
    embedding.assign(before[::-1])
    try:
        for ids in stream:
            made += ids.tolist()
        assert made == expected != layer.generate([[5, 6, 7]], **options)["sequences"][0].tolist()
    finally:
        embedding.assign(before)


def test_a_stream_compiles_nothing_of_its_own(model):
    layer = XLAGenerationLayer(model, tiny(), max_new_tokens=12)
    layer.generate("abc")
    before = layer.trace_count
    assert list(layer.stream("abc")) and layer.trace_count == before


def test_num_return_sequences_are_rows(layer):
    options = dict(do_sample=True, seed=1, num_return_sequences=3)
    joined = [""] * 3
    for row, piece in layer.stream("abc", **options):
        joined[row] += piece
    assert joined == layer.generate("abc", **options)


@pytest.mark.quick_on_jax
def test_more_prompts_than_run_at_once(model):
    layer = XLAGenerationLayer(model, tiny(), max_new_tokens=4, batch_buckets=[2])
    joined = [""] * len(PROMPTS)
    for row, piece in layer.stream(PROMPTS):
        joined[row] += piece
    assert joined == layer.generate(PROMPTS) == [layer.generate(prompt)[0] for prompt in PROMPTS]


def test_characters_of_several_tokens_come_whole():
    tokens = [bytes([b]) for b in "aé€😀b".encode()]

    def decode(ids):
        return b"".join(tokens[i] for i in ids).decode("utf-8", errors="replace")

    pieces = TextPieces(decode)
    made = [pieces.add(np.arange(n + 1), n + 1 == len(tokens)) for n in range(len(tokens))]
    assert made == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]


@functools.cache
def with_byte_tokens():
    """A tokenizer as Llama 2 and Mistral have it: what is not in its vocabulary is written in bytes."""
    names = ["<unk>", "\u2581", "a", "b", "\u2581a", *(f"<0x{byte:02X}>" for byte in "é€😀".encode())]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [("\u2581", "a")], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(list(parts))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@settings(deadline=None)
@given(st.lists(st.integers(1, 13), min_size=1, max_size=12))
def test_pieces_joined_are_the_text_wherever_it_ends_among_tokens_of_one_byte(ids):
    tokenizer = with_byte_tokens()
    decode = tokenizing.decoder(tokenizer, np.array(tokenizer("a b")["input_ids"]))
    pieces, ids = TextPieces(decode, tokenizing.byte_tokens(tokenizer)), np.array(ids)
    made = [pieces.add(ids[: n + 1], n + 1 == len(ids)) for n in range(len(ids))]
    assert "".join(made) == decode(ids)


def test_tokens_of_one_byte_are_shown_with_the_token_behind_them():
    tokenizer = with_byte_tokens()
    assert tokenizing.byte_tokens(tokenizer) == dict(enumerate("é€😀".encode(), 5))
    ids = np.array([2, 5, 6, 7, 8, 9, 3, 2])  # aé€ba
    pieces = TextPieces(tokenizing.decoder(tokenizer, ids[:0]), tokenizing.byte_tokens(tokenizer))
    made = [pieces.add(ids[: n + 1], n + 1 == len(ids)) for n in range(len(ids))]
    assert made == ["a", "", "", "", "", "", "é€b", "a"]


def test_bytes_that_never_become_a_character_are_shown_at_the_end():
    pieces = TextPieces(lambda ids: (b"a" + b"\xc3" * (len(ids) - 1)).decode("utf-8", errors="replace"))
    assert [pieces.add(np.arange(1), False), pieces.add(np.arange(2), True)] == ["a", "\ufffd"]


def test_a_stream_that_is_closed_leaves_the_layer_as_good_as_new(layer):
    expected = layer.generate("abc")
    stream = layer.stream("abc")
    next(stream)
    stream.close()
    assert layer.generate("abc") == expected


@pytest.mark.parametrize("end", ["close", "let go"])
def test_a_stream_that_nobody_reads_any_further_hands_its_state_back(layer, end):
    pool = layer._generator.pool
    layer.generate("abc")
    idle, stream = pool.nbytes, layer.stream("abc")
    next(stream)
    assert pool.nbytes < idle
    if end == "close":
        stream.close()
    del stream
    gc.collect()
    assert pool.nbytes == idle


def test_a_stream_that_is_collected_while_something_is_traced_hands_its_state_back(model, monkeypatch):
    collects, problems = [], []

    def processor(tokens, logits, step):
        if collects:
            gc.collect()
        return logits

    monkeypatch.setattr(sys, "unraisablehook", problems.append)
    layer = XLAGenerationLayer(model, max_new_tokens=20, logits_processors=[processor], cache_buckets=(32,))
    layer.generate([[5, 6, 7]])
    idle = layer._generator.pool.nbytes
    with_stream = {"stream": layer.stream([[5, 6, 7]])}
    with_stream["itself"] = with_stream
    next(with_stream["stream"])
    gc.collect()
    del with_stream
    collects.append(True)
    assert len(layer.generate([[5, 6, 7], [7, 8, 9]], max_new_tokens=6)["sequences"]) == 2  # it compiles
    assert not problems and layer._generator.pool.nbytes > idle


def test_a_streamer_that_raises_in_the_middle_leaves_the_layer_as_good_as_new(layer):
    class Raising:
        told = 0

        def put(self, ids):
            self.told += 1
            if self.told == 4:
                raise RuntimeError("the line is closed")

        def end(self):
            pass

    expected, compiled = layer.generate("abc"), layer.trace_count
    with pytest.raises(RuntimeError, match="the line is closed"):
        layer.generate("abc", streamer=Raising())
    assert layer.generate("abc") == expected == ["".join(layer.stream("abc"))] and layer.trace_count == compiled


def test_two_streams_at_once_have_a_state_of_their_own(layer):
    whole = [layer.generate(prompt)[0] for prompt in PROMPTS[:2]]
    streams = [layer.stream(prompt) for prompt in PROMPTS[:2]]
    made = ["", ""]
    for pair in itertools.zip_longest(*streams, fillvalue=""):  # a piece has as many tokens as time allows
        made = [text + piece for text, piece in zip(made, pair, strict=True)]
    assert made == whole


def test_an_event_ends_a_call_which_returns_what_there_is(layer):
    whole = layer.generate([[5, 6, 7]], eos_token_id=None)["sequences"][0].tolist()
    cancel, made = threading.Event(), []
    for ids in layer.stream([[5, 6, 7]], eos_token_id=None, cancel=cancel):
        made += ids.tolist()
        cancel.set()
    assert made == whole[:1]
    out = layer.generate([[5, 6, 7]], eos_token_id=None, cancel=cancel)
    assert out["lengths"].tolist() == [0] and out["sequences"].shape == (1, 20)


def test_max_time_ends_a_call(layer):
    layer.generate([[5, 6, 7]], eos_token_id=None)
    pieces = []
    for ids in layer.stream([[5, 6, 7]], eos_token_id=None, max_time=0.1):
        pieces.append(ids)
        time.sleep(0.2)
    assert len(pieces) == 1


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_beams_that_are_cut_off_return_the_running_ones(layer):
    layer.generate([[5, 6, 7]], num_beams=3, eos_token_id=None)
    out = layer.generate([[5, 6, 7]], num_beams=3, eos_token_id=None, max_new_tokens=30, max_time=1e-4)
    assert 0 <= out["lengths"][0] < 30 and np.isfinite(out["scores"]).all()


def test_a_model_that_takes_prompts_whole_tells_its_first_token(layer):
    from tests.engine.fake import Follow, encode

    fake = XLAGenerationLayer(Follow(), max_new_tokens=1)
    assert [ids.tolist() for ids in fake.stream([encode("ab")])] == [encode("c").tolist()]


def test_a_hugging_face_streamer_is_told_of_every_token(layer, capsys):
    from transformers import TextStreamer

    text = layer.generate("So it goes", streamer=TextStreamer(tiny(), skip_prompt=True, skip_special_tokens=True))
    assert capsys.readouterr().out == text[0] + "\n"


@pytest.mark.slow
@pytest.mark.quick_on_jax
def test_a_streamer_of_several_rows_gets_a_token_of_each():
    class Streamer:
        def __init__(self):
            self.given, self.ended = [], False

        def put(self, ids):
            self.given.append(ids)

        def end(self):
            self.ended = True

    from tests.engine.fake import EOS, Follow, encode

    layer = XLAGenerationLayer(Follow(), max_new_tokens=4, eos_token_id=EOS, pad_token_id=0)
    streamer = Streamer()
    out = layer.generate([encode("ab"), encode("h")], streamer=streamer)
    assert streamer.ended and streamer.given[0].tolist() == [encode("ab").tolist(), [0, *encode("h")]]
    assert np.stack(streamer.given[1:], axis=1).tolist() == out["sequences"].tolist()


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ("abc", dict(num_beams=2), "num_beams=1"),
        ("", {}, "Prompt 0 is empty"),
        ([[5, 99]], {}, "token id 99"),
        ([[5]], dict(skip_special_tokens=False), "skip_special_tokens with token ids"),
        ([list(range(5, 95))], dict(max_new_tokens=39), "with max_new_tokens=39 is more than the model's 128"),
    ],
)
def test_bad_input_raises_before_the_first_piece(layer, inputs, options, text):
    with pytest.raises(ValueError, match=text):
        layer.stream(inputs, **options)
