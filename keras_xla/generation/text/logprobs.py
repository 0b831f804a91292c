"""Log-probabilities beside text: of what was made, and of what was given."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_xla.engine.scorer import MOST_TOP, Logprobs
from keras_xla.troubleshooting import explained


class ScoredText(str):
    """A completion (a str) with the log-probabilities of its tokens; what `generate` returns with `output_logprobs`.

    Attributes:
        scored: A `keras_xla.engine.scorer.Logprobs`: the tokens, their log-probabilities in nats, and the likeliest
            tokens at each place.
    """

    scored: Logprobs

    def __new__(cls, text: str, scored: Logprobs):
        made = super().__new__(cls, text)
        made.scored = scored
        return made

    def __getnewargs__(self):
        return str(self), self.scored


@explained
def perplexity(scored: Iterable[Logprobs]) -> float:
    """Compute the perplexity of what `XLAGenerationLayer.score` returned.

    It is the exponential of minus the mean log-probability of all tokens.

    Args:
        scored: What `score` returned.

    Returns:
        The perplexity (float): 1 for texts that the model was sure of, and more the less it expected them.

    Raises:
        ValueError: There is no token among them.

    Example:
    ```python
    from keras_xla.generation.text.logprobs import perplexity

    print(perplexity(layer.score(["The sky is blue.", "The grass is green."])))
    ```
    """
    logprobs = [each.logprobs for each in scored]
    if not (count := sum(map(len, logprobs))):
        raise ValueError("Received no tokens; expected at least one with others before it.")
    with np.errstate(over="ignore"):
        return float(np.exp(-sum(each.sum(dtype=np.float64) for each in logprobs) / count))


def no_arrays(shape: tuple[int, int], top: int) -> dict[str, np.ndarray]:
    """The arrays of outputs of this shape, in which nothing stands yet, with the `top` likeliest tokens."""
    made = {"logprobs": np.zeros(shape, np.float32)}
    if top:
        made["top_tokens"] = np.zeros((*shape, top), np.int32)
        made["top_logprobs"] = np.zeros((*shape, top), np.float32)
    return made


def joined(parts: Sequence[Logprobs]) -> Logprobs:
    """One after the other."""
    fields = ("tokens", "logprobs", "top_tokens", "top_logprobs")
    return Logprobs(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


def check_top(top: int, vocab: int) -> None:
    """Raise for a number of likeliest tokens that no executable tells, or that a vocabulary of so many has not."""
    if isinstance(top, bool) or not isinstance(top, int):
        raise TypeError(f"Received top_logprobs={top!r}; expected an int.")
    if not 0 <= top <= MOST_TOP:
        raise ValueError(f"Received top_logprobs={top}; expected an int from 0 to {MOST_TOP}.")
    if top > vocab:
        raise ValueError(f"Received top_logprobs={top} for a vocabulary of {vocab} tokens; expected at most that.")


def check_logprobs(told: bool, top: int, vocab: int) -> None:
    """Raise for a bad number of likeliest tokens, and for one beside an answer that tells no log-probabilities."""
    check_top(top, vocab)
    if top and not told:
        raise ValueError(f"Received top_logprobs={top} without output_logprobs=True. Pass both.")


def windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Parts of a text of `length` tokens in which each but the first is scored once, behind as many as there is room.

    As in Hugging Face's guide to the perplexity of models of a fixed length.

    Args:
        length: Tokens of the text.
        window: Tokens of a part at most; above `stride`.
        stride: By how many tokens a part begins behind the one before.

    Returns:
        Where each begins and ends, and the first token that is scored in it, counted from its beginning.
    """
    scored = 1
    for begin in range(0, length, stride):
        end = min(begin + window, length)
        yield begin, end, scored - begin
        scored = end
        if end == length:
            return
