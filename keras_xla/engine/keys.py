"""What executables and states are for: the sizes and options that change a graph, or a state's shapes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StateKey:
    """What the shapes of a state depend on.

    Attributes:
        batch: Batch bucket.
        cache: Cache bucket.
        beams: Beams.
        source: Length of what an encoder-decoder reads; 0 without.
        assistant: The number of the smaller model that guesses; 0 for none.
        guided: Whether each prompt has a negative one beside it.
    """

    batch: int
    cache: int
    beams: int = 1
    source: int = 0
    assistant: int = 0
    guided: bool = False

    @property
    def rows(self) -> int:
        """Of the cache."""
        return self.batch * (2 if self.guided else 1)


@dataclass(frozen=True)
class PrefillKey:
    """What changes the graph of a prompt's run.

    Attributes:
        batch: Batch bucket.
        cache: Cache bucket.
        chunk: Tokens a row at once.
        source: Length of what an encoder-decoder reads; 0 without.
    """

    batch: int
    cache: int
    chunk: int
    source: int = 0

    def __str__(self):
        return ", ".join(["prefill", *_shown(self)])


@dataclass(frozen=True)
class LogitsKey:
    """What changes the graph of the logits behind a prompt.

    Attributes:
        batch: Batch bucket.
        cache: Cache bucket.
        source: Length of what an encoder-decoder reads; 0 without.
    """

    batch: int
    cache: int
    source: int = 0

    def __str__(self):
        return ", ".join(["score", *_shown(self)])


@dataclass(frozen=True)
class LogprobKey(PrefillKey):
    """What changes the graph of the log-probabilities of given tokens.

    Attributes:
        top: How many of the likeliest tokens come with them.
    """

    top: int = 0

    def __str__(self):
        what = f"log-probabilities{f' and top {self.top}' if self.top else ''}, {self.chunk} at once"
        return ", ".join([what, *_shown(self)])


@dataclass(frozen=True)
class AdvanceKey:
    """What changes the graph of the loop over new tokens; everything else is a tensor.

    Attributes:
        batch: Batch bucket.
        cache: Cache bucket.
        source: Length of what an encoder-decoder reads; 0 without.
        beams: Beams.
        eos_room: Room for end-of-sequence ids.
        words: Room for bad words, and for biased sequences: how many, how long.
        guided: Whether each prompt has a negative one beside it.
    """

    batch: int
    cache: int
    source: int = 0
    beams: int = 1
    eos_room: int = 8
    words: tuple[int, ...] = ()
    guided: bool = False

    def __str__(self):
        more = [f"{self.beams} beams"] if self.beams > 1 else ["guided"] if self.guided else []
        return ", ".join(["advance", *more, *_shown(self)])


@dataclass(frozen=True)
class SpeculateKey(AdvanceKey):
    """What changes the graph of a loop over new tokens that checks guesses.

    Attributes:
        guesses: Tokens a row that are guessed at once.
        assistant: The number of the smaller model that guesses; 0 for none.
    """

    guesses: int = 0
    assistant: int = 0

    def __str__(self):
        return f"{super().__str__()}, {self.guesses} guesses{' of an assistant' if self.assistant else ''}"


@dataclass(frozen=True)
class ContinuousKey(AdvanceKey):
    """What changes the graph of a loop over new tokens whose rows began at different times."""

    def __str__(self):
        return super().__str__().replace("advance", "advance, continuous", 1)


@dataclass(frozen=True)
class PrefillWholeKey(AdvanceKey):
    """What changes the graph that runs prompts whole, where they cannot come in chunks, and chooses the first token.

    Attributes:
        prompt: Prompt bucket.
    """

    prompt: int = 0

    def __str__(self):
        return f"prefill {self.prompt}, " + super().__str__().removeprefix("advance, ")


@dataclass(frozen=True)
class EncodeKey:
    """What changes the graph of an encoder."""

    batch: int
    source: tuple[int, ...]

    def __str__(self):
        return f"encode, batch {self.batch}, source {' x '.join(map(str, self.source))}"


@dataclass(frozen=True)
class RememberKey:
    """What changes the graph of what a decoder keeps of its source."""

    batch: int
    source: int
    encoded: bool

    def __str__(self):
        return f"remember, batch {self.batch}, source {self.source}"


def _shown(key: PrefillKey | AdvanceKey | LogitsKey) -> list[str]:
    return [f"batch {key.batch}", f"cache {key.cache}", *([f"source {key.source}"] if key.source else [])]
