"""Several continuations of one prompt side by side, in "lanes": how their caches are kept apart.

A model that can run several tokens a row (`TreeDecoder`) keeps one cache a row: the prompt once, and behind it
a slot for every lane and step. Who descends from whom is a small table of numbers that becomes the attention
mask; the keys and values themselves are written once and never move. For other models the lanes are rows of
the batch, and the cache is gathered anew whenever lanes change places, as everyone else does it.
"""

import keras
from keras import ops

from keras_xla.models.interface import Decoder, TreeDecoder, View

# B batch, K lanes, P prompt slots, N new-token slots, T = P + K N cache slots, V vocabulary


def lanes_for(model: Decoder, starts, prompt: int, new_tokens: int, width: int):
    """The cheapest way for a model to run `width` lanes; each has `slots`, `begin` and `forward`."""
    if width == 1:
        return OneLane(model, starts, prompt, new_tokens)
    kind = SharedLanes if hasattr(model, "extend") else GatheredLanes
    return kind(model, starts, prompt, new_tokens, width)


class OneLane:
    """A single continuation."""

    def __init__(self, model: Decoder, starts, prompt: int, new_tokens: int):
        self.model, self.starts, self.prompt = model, starts, prompt
        self.slots = prompt + new_tokens

    def begin(self, cache):
        return cache

    def forward(self, tokens, parents, at, cache):
        """Run the `tokens [B, K]` made at step `at` by continuing the lanes `parents [B, K]`.

        Returns:
            Logits `[B, K, V]`, and the state to pass next.
        """
        scores, cache = self.model.step(tokens[:, 0], self.prompt + at, self.starts, cache)
        return scores[:, None], cache


class SharedLanes:
    """Lanes over one cache a row, told apart by the attention mask."""

    def __init__(self, model: TreeDecoder, starts, prompt: int, new_tokens: int, width: int):
        self.model, self.starts, self.prompt, self.new, self.width = model, starts, prompt, new_tokens, width
        self.slots = prompt + width * new_tokens
        order = ops.repeat(ops.arange(new_tokens, dtype="int32"), width)
        slots = ops.concatenate([ops.arange(prompt, dtype="int32"), prompt + order])
        self.slot_positions = slots[None] - starts[:, None]  # [B, T]

    def begin(self, cache):
        """The state: the cache, and the lane in which each lane's token of each step was run `[B, K, N]`."""
        return cache, ops.zeros((self.starts.shape[0], self.width, self.new), "int32")

    def forward(self, tokens, parents, at, state):
        cache, ran = state
        batch, lanes = self.starts.shape[0], ops.arange(self.width, dtype="int32")
        ran = ops.take_along_axis(ran, parents[:, :, None], axis=1)
        ran = ops.slice_update(ran, (0, 0, at), ops.tile(lanes[None, :, None], (batch, 1, 1)))
        past = (ops.arange(self.new, dtype="int32") <= at)[None, None, :, None]
        mine = ops.logical_and(ran[..., None] == lanes, past)  # [B, K, N, K]
        prompt = ops.arange(self.prompt, dtype="int32")[None] >= self.starts[:, None]
        prompt = ops.tile(prompt[:, None], (1, self.width, 1))  # [B, K, P]
        seen = ops.concatenate([prompt, ops.reshape(mine, (batch, self.width, -1))], axis=-1)
        positions = ops.tile((self.prompt + at - self.starts)[:, None], (1, self.width))
        view = View(positions, self.slot_positions, seen)
        scores, cache = self.model.extend(tokens, self.prompt + self.width * at, view, cache)
        return scores, (cache, ran)


class GatheredLanes:
    """Lanes as rows of the batch; the cache is gathered when they change places."""

    def __init__(self, model: Decoder, starts, prompt: int, new_tokens: int, width: int):
        self.model, self.prompt, self.width = model, prompt, width
        self.batch, self.starts = starts.shape[0], ops.repeat(starts, width)
        self.slots = prompt + new_tokens

    def begin(self, cache):
        return self._rows(cache, self.batch, ops.repeat(ops.arange(self.batch, dtype="int32"), self.width))

    def forward(self, tokens, parents, at, cache):
        first = ops.arange(self.batch, dtype="int32")[:, None] * self.width
        cache = self._rows(cache, self.batch * self.width, ops.reshape(first + parents, (-1,)))
        scores, cache = self.model.step(ops.reshape(tokens, (-1,)), self.prompt + at, self.starts, cache)
        return ops.reshape(scores, (self.batch, self.width, -1)), cache

    @staticmethod
    def _rows(cache, rows: int, which):
        """The rows `which` of every array, whose first axis is `rows` or a multiple of it."""

        def take(x):
            groups = ops.take(ops.reshape(x, (rows, x.shape[0] // rows, *x.shape[1:])), which, axis=0)
            return ops.reshape(groups, (-1, *x.shape[1:]))

        return keras.tree.map_structure(take, cache)
