"""A decoder of the user's own that returns something else than the engine needs: an error before anything compiles."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla import XLAGenerationLayer
from tests.engine.fake import Follow


class Keeps(Follow):
    """Has the last token for a cache."""

    def prefill(self, ids, starts, slots):
        return super().prefill(ids, starts, slots)[0], {"last": ops.cast(ids[:, -1:], "float32")}

    def step(self, tokens, slot, starts, cache):
        return super().step(tokens, slot, starts, cache)[0], {"last": ops.cast(tokens[:, None], "float32")}


class OfAllTokens(Keeps):
    def prefill(self, ids, starts, slots):
        logits, cache = super().prefill(ids, starts, slots)
        return logits[:, None], cache


class NoCache(Keeps):
    def step(self, tokens, slot, starts, cache):
        return super().step(tokens, slot, starts, cache)[0]


class Half(Keeps):
    def step(self, tokens, slot, starts, cache):
        logits, cache = super().step(tokens, slot, starts, cache)
        return logits, {"last": ops.cast(cache["last"], "float16")}


class Renamed(Keeps):
    def step(self, tokens, slot, starts, cache):
        logits, cache = super().step(tokens, slot, starts, cache)
        return logits, {"other": cache["last"]}


class Grows(Keeps):
    def step(self, tokens, slot, starts, cache):
        logits, _ = super().step(tokens, slot, starts, cache)
        return logits, {"last": ops.concatenate([cache["last"]] * 2, axis=1)}


class Listed(Keeps):
    """A tuple becomes a list, and a part is not used."""

    def prefill(self, ids, starts, slots):
        return Follow.prefill(self, ids, starts, slots)[0], (ops.cast(ids[:, -1:], "float32"),)

    def step(self, tokens, slot, starts, cache):
        return Follow.step(self, tokens, slot, starts, cache)[0], [ops.cast(tokens[:, None], "float32")]


WRONG = {
    OfAllTokens: r"OfAllTokens.prefill returned logits of the shape \(1, 1, 10\); expected \(1, 10\)",
    NoCache: r"NoCache.step returned a \w*Tensor; expected a pair|NoCache.step returned a \w+; expected a pair",
    Half: r"Half.step returned the cache .*float16 \(1, 1\).*, where it was given .*float32 \(1, 1\)",
    Renamed: r"Renamed.step returned the cache .*other.*, where it was given .*last",
    Grows: r"Grows.step returned the cache .*\(1, 2\).*, where it was given .*\(1, 1\)",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_what_is_wrong_is_named(kind, new_events):
    layer = XLAGenerationLayer(kind(), max_new_tokens=3)
    with pytest.raises((TypeError, ValueError), match=WRONG[kind]):
        layer.generate([[1, 2]])
    assert not [event for event in new_events() if event.kind == "decode"]


def test_a_list_may_become_a_tuple():
    assert XLAGenerationLayer(Listed(), max_new_tokens=3).generate([[1, 2]])["sequences"].tolist() == [[3, 4, 5]]


def test_a_right_one_is_left_alone():
    layer = XLAGenerationLayer(Keeps(), max_new_tokens=3)
    assert layer.generate([[1, 2]])["sequences"].tolist() == [[3, 4, 5]]
    assert layer.generate([[1, 2]], num_beams=2)["sequences"].tolist() == [[3, 4, 5]]
    assert isinstance(layer.model, Keeps)
    assert keras.Sequential([keras.Input((2,), dtype="int32"), layer]).predict(np.array([[1, 2]]), verbose=0)[
        "lengths"
    ] == [3]
