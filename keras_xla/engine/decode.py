"""The decode loop: prefill once, then one token a row and step until every row is finished."""

from keras import ops

from keras_xla.engine import logits as processors
from keras_xla.engine import random, samplers
from keras_xla.engine.state import Request, Result
from keras_xla.models.interface import Decoder

# B batch, P prompt slots, N new-token slots, V vocabulary


def decode(model: Decoder, request: Request, new_tokens: int, sampling: bool) -> Result:
    """Generate; pure, of fixed shapes, and so compilable as one executable.

    Args:
        model: The `Decoder`.
        request: Bucketed tensors.
        new_tokens: N, the bucket; `request.max_new_tokens` is at most this.
        sampling: Whether tokens are drawn, or the most likely ones taken.
    """
    batch, prompt = request.ids.shape
    ends = processors.eos_mask(request.eos, model.vocab_size)  # [V]

    def choose(scores, step):
        """The next token of each row and its log-probability under the model itself."""
        allowed = processors.forbid_eos(scores, ends, step, request.min_new_tokens)
        if sampling:
            uniform = random.uniform(request.seed, batch, step)
            r = request
            token = samplers.sample(allowed, uniform, r.temperature, r.top_k, r.top_p, r.min_p)
        else:
            token = samplers.greedy(allowed)
        chosen = ops.take_along_axis(scores, token[:, None], axis=-1)[:, 0]
        return token, chosen - ops.logsumexp(scores, axis=-1)

    def emit(step, done, sequences, lengths, totals, scores):
        """Choose from `scores [B, V]`, write the choice at `step`, and see who is finished."""
        token, logprob = choose(scores, step)
        token = ops.where(done, request.pad, token)
        sequences = ops.slice_update(sequences, (0, step), token[:, None])
        lengths = ops.where(done, lengths, step + 1)
        totals = ops.where(done, totals, totals + logprob)
        done = ops.logical_or(done, ops.take(ends, token))
        return token, done, sequences, lengths, totals

    scores, cache = model.prefill(request.ids, request.starts, prompt + new_tokens)
    done = request.starts >= prompt  # rows that only fill the bucket
    sequences = ops.broadcast_to(request.pad, (batch, new_tokens))
    lengths, totals = ops.zeros((batch,), "int32"), ops.zeros((batch,), "float32")
    zero = ops.zeros((), "int32")
    emitted = emit(zero, done, sequences, lengths, totals, scores)

    def unfinished(step, token, done, *_):
        return ops.logical_and(step < request.max_new_tokens, ops.logical_not(ops.all(done)))

    def advance(step, token, done, sequences, lengths, totals, *flat):
        cache = list(zip(flat[::2], flat[1::2], strict=True))
        # The token made at step s - 1 goes into the slot behind the prompt and those before it.
        scores, cache = model.step(token, prompt + step - 1, request.starts, cache)
        return (step + 1, *emit(step, done, sequences, lengths, totals, scores), *_flat(cache))

    state = ops.while_loop(unfinished, advance, (zero + 1, *emitted, *_flat(cache)))
    return Result(*state[3:6])


def _flat(cache):
    return [array for layer in cache for array in layer]
