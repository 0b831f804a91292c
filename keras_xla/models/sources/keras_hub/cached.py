"""KerasHub causal language models that no spec describes, through their own cached call."""

import inspect
from typing import Any

import keras
from keras import ops

from keras_xla.backend.slices import slice_at, update_slice
from keras_xla.models.interface import Cache
from keras_xla.models.recompute import Recompute, to_beginning
from keras_xla.private.keras_hub import build_cache

# B batch, P prompt slots, T cache slots, V vocabulary


class CachedTask:
    """A KerasHub `CausalLM` with its own `call_with_cache`; implements the `Decoder` protocol.

    That call takes one index for the whole batch, where KerasHub keeps rows of unequal length in step by giving
    the longer ones their own prompt again. Here every row's tokens are moved to its own beginning. Rows of equal
    length run together; rows of unequal length one after the other, each at its own index.

    Args:
        task: One for which `fits` is true.
    """

    def __init__(self, task: Any):
        self.task = task
        self.vocab_size = task.backbone.vocabulary_size
        self.max_positions = _positions(task.backbone)
        self.variables = list(task.variables)

    def prefill(self, ids, starts, slots: int) -> tuple:
        """See `Decoder.prefill`."""
        prompt, room = ids.shape[1], min(slots, self.max_positions or slots)
        width = min(prompt, room)
        tokens = to_beginning(ids, starts, width)
        # What it computes behind a row's end is overwritten before it is seen.
        kv = build_cache(self.task, tokens)  # [B, layers, 2, width, heads, head size]
        kv = ops.pad(kv, ((0, 0), (0, 0), (0, 0), (0, room - width), (0, 0), (0, 0)))
        # A row that only fills the bucket goes along with the longest, not to keep others from running together.
        origin = ops.where(starts >= prompt, ops.min(starts), starts)
        last = ops.take_along_axis(tokens, (prompt - 1 - origin)[:, None], axis=1)[:, 0]
        return self.step(last, prompt - 1, starts, (kv, origin))

    def step(self, tokens, slot, starts, cache: Cache) -> tuple:
        """See `Decoder.step`."""
        kv, origin = cache
        position = slot - origin  # [B]

        def together():
            return self._call(tokens, kv, position[0])

        if tokens.shape[0] == 1:
            scores, kv = together()
        else:
            equal = ops.all(position == position[0])
            scores, kv = ops.cond(equal, together, lambda: self._one_by_one(tokens, kv, position))
        return scores, (kv, origin)

    def _one_by_one(self, tokens, kv, position):
        """Each row at its own position; logits `[B, V]` and the cache."""
        batch, one = tokens.shape[0], (1, *kv.shape[1:])

        def run(row, scores, kv):
            at = (row, *[0] * (len(one) - 1))
            token = slice_at(tokens, (row,), (1,))
            mine, update = self._call(token, slice_at(kv, at, one), ops.take(position, row))
            return row + 1, update_slice(scores, (row, 0), mine), update_slice(kv, at, update)

        start = ops.zeros((), "int32"), ops.zeros((batch, self.vocab_size), "float32"), kv
        return ops.while_loop(lambda row, *_: row < batch, run, start)[1:]

    def _call(self, tokens, kv, position):
        """One token a row, all at the same position."""
        scores, _, kv = self.task.call_with_cache(tokens[:, None], kv, position)
        return ops.cast(scores[:, 0], "float32"), kv


def fits(task: Any) -> bool:
    """Whether a task has KerasHub's usual cache, and a cached call that can be traced by XLA."""
    methods = {"_build_cache": ["token_ids"], "call_with_cache": ["token_ids", "cache", "cache_update_index"]}
    for name, expected in methods.items():
        method = getattr(task, name, None)
        if method is None or list(inspect.signature(method).parameters) != expected:
            return False
    try:
        _PromptAndStep(task).compute_output_spec(keras.KerasTensor((2, 3), "int32"))
    except Exception:  # of the backend's own kind: some read the index as a Python number
        return False
    return True


def own_decoder(task: Any) -> CachedTask | Recompute:
    """A task's own cached call, or else its own call again for every token.

    Raises:
        TypeError: for a task that takes more than tokens, such as images.
    """
    return CachedTask(task) if fits(task) else Recompute(task, _positions(task.backbone))


class _PromptAndStep(keras.layers.Layer):
    """A prompt and a step of two rows, to be traced and not run."""

    def __init__(self, task: Any):
        super().__init__()
        self._decoder = CachedTask(task)

    def call(self, ids):
        starts = ops.cast(ops.arange(ids.shape[0]), "int32")
        scores, cache = self._decoder.prefill(ids, starts, ids.shape[1] + 1)
        token = ops.cast(ops.argmax(scores, axis=-1), "int32")
        return self._decoder.step(token, ops.convert_to_tensor(ids.shape[1]), starts, cache)[0]


def _positions(backbone: Any) -> int | None:
    """The most tokens a backbone can read; None without a limit."""
    return getattr(backbone, "max_sequence_length", None)
