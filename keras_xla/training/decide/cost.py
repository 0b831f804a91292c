"""What a try of XLA costs, and what may be hoped from it, before it was tried."""

from keras_xla.backend.new_shapes import StepProfile

# Processor seconds of the first step through XLA, fitted to 22 train steps of 370 to 12,000 operations (dense,
# recurrent, transformers, convolutions; TensorFlow 2.21 on two cores). Off by a third, at most.
SECONDS_AT_LEAST = 1.0
SECONDS_AN_OPERATION = 0.001
SECONDS_A_LOOP = 0.12  # its gradient is traced again for XLA
SECONDS_A_CONVOLUTION = 0.1  # each cuts the step into parts, which are compiled one by one
SECONDS_A_FINGERPRINTED_OPERATION = 26e-6  # on the same machine with nobody else at work: the scale of those above
LEAST_SLOWNESS = 0.5  # of a faster machine. One with 0.63 to 0.75 took 0.35 to 0.65 of those seconds, for 8 models

STEPS_OF_A_TRIAL = 10  # in both ways together, where a step is slow; of quick ones there are more, which cost nothing

HOPED_SHARE_SAVED = 0.3  # of the plain graph's time, of a step without convolutions
HOPED_SHARE_SAVED_OF_LOOPS = 0.5  # of a recurrent step: LSTMs saved 0.42 and a GRU 0.63 in benchmarks/fit_suite
# Where 0.02 to 0.44 of the heavy operations were no convolutions, a step in parts saved 0.06 at most; where 0.91 were
# none (a transformer on top of a few), 0.13 to 0.25. Each convolution cuts what XLA could fuse.
LEAST_SHARE_WITHOUT_CONVOLUTIONS = 0.1  # of what else may be hoped for


def estimated_compile(facts: StepProfile) -> float:
    """Seconds that a compilation will take, roughly, on this machine as fast and as busy as it is."""
    seconds = SECONDS_AT_LEAST + SECONDS_AN_OPERATION * facts.ops
    return _slowed_down_by(facts) * (seconds + SECONDS_A_LOOP * facts.loops + SECONDS_A_CONVOLUTION * facts.tower)


def estimated_cost(facts: StepProfile, graph: float) -> float:
    """Seconds that it will cost to find out, for a step that takes the plain graph `graph` seconds."""
    return estimated_compile(facts) + STEPS_OF_A_TRIAL * graph


def gain_hoped(facts: StepProfile) -> float:
    """The part of the plain graph's time that XLA may save: little where most is convolutions, which stay there."""
    rest = 1 - facts.tower / max(facts.heavy, 1)
    saved = HOPED_SHARE_SAVED_OF_LOOPS if facts.loops else HOPED_SHARE_SAVED
    return saved * max(rest**2, LEAST_SHARE_WITHOUT_CONVOLUTIONS)


def _slowed_down_by(facts: StepProfile) -> float:
    """How many times longer work takes here and now: another machine, or others at work on it, on whatever system."""
    return max(LEAST_SLOWNESS, facts.fingerprint_seconds / (SECONDS_A_FINGERPRINTED_OPERATION * facts.ops))
