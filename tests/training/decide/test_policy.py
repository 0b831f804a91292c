"""What "auto" decides, given what it knows and measures."""

import dataclasses
import warnings

import pytest

from keras_xla.backend.blocking_op import BlockingOp
from keras_xla.backend.new_shapes import NewShapes, StepProfile, Timing, WayFailed
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.decide import policy as policies
from keras_xla.training.decide.decisions import Decisions
from keras_xla.training.decide.policy import Policy
from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session
from tests.training.helpers import classifier

DENSE = StepProfile(400, 0, 8, 0, 0, (), (), "CPU", "f00d")


@pytest.fixture
def make(tmp_path):
    """`make(steps)`: a policy for a fit of so many steps."""

    def build(steps=100_000, jit_compile="auto", kind="train"):
        pace = Session(kind, steps=steps)
        return Policy(classifier(), kind, jit_compile, Decisions(tmp_path / "memory.json"), Journal(), lambda: pace)

    return build


class Bench:
    """Trials with made-up seconds; counts them."""

    def __init__(self, **seconds):
        self.seconds, self.tried = seconds, []

    def __call__(self, way, repeats, limit):
        self.tried.append(way)
        if isinstance(self.seconds[way], Exception):
            raise self.seconds[way]
        return Timing(1.0, (self.seconds[way] * 1.5, self.seconds[way], self.seconds[way]))

    def new_shapes(self, facts=DENSE, blockers=()):
        return NewShapes(facts, blockers, (("x", (8, 4), "float32"),), self)


def test_the_faster_way_is_chosen_and_the_reason_kept(make):
    for seconds, way in ((0.005, "xla"), (0.02, "graph")):
        policy = make()
        assert policy.decide(Bench(graph=0.01, xla=seconds).new_shapes()) == way
        (decision,) = policy.journal.decisions
        assert (decision.way, decision.measured) == (way, {"graph": 10.0, "xla": seconds * 1e3})
        policy.memory.path.unlink()


def test_a_gain_within_the_noise_is_none(make):
    assert make().decide(Bench(graph=0.01, xla=0.0099).new_shapes()) == "graph"


def test_ways_that_are_close_are_measured_more_often_and_in_turns(make):
    far, close = Bench(graph=0.01, xla=0.001), Bench(graph=0.01, xla=0.009)
    assert make().decide(far.new_shapes()) == "xla"
    assert far.tried == ["graph", "xla"] * 2
    policy = make()
    policy.memory.path.unlink()
    assert policy.decide(close.new_shapes()) == "xla"
    assert close.tried == ["graph", "xla"] * (1 + policies.AGAIN)
    policy = make(steps=1000)
    policy.memory.path.unlink()
    assert policy.decide(Bench(graph=0.01, xla=0.02).new_shapes()) == "graph"


def test_a_small_loss_may_be_the_machines_and_is_measured_again_later_once(make):
    for later, way in ((0.005, "xla"), (0.012, "graph")):
        policy, bench = make(steps=10_000), Bench(graph=0.01, xla=0.02)
        new_shapes = bench.new_shapes()
        assert policy.decide(new_shapes) == "graph" and not policy.again(new_shapes.shapes)
        policy.journal.ran("train", "graph", int(policies.LATER * 10_000) - 1, 10.0)
        assert not policy.again(new_shapes.shapes)
        policy.journal.ran("train", "graph", 2, 0.02)
        assert policy.again(new_shapes.shapes) and not policy.again(((4, 4),))
        bench.seconds["xla"] = later
        assert policy.decide(new_shapes) == way and not policy.again(new_shapes.shapes)
        assert policy.journal.decisions[-1].reason.startswith("measured again")
        assert policy.journal.decisions[-1].measured == {"graph": 10.0, "xla": later * 1e3}
        policy.journal.ran("train", "graph", 5_000, 50.0)
        assert not policy.again(new_shapes.shapes)
        assert make().decide(Bench().new_shapes()) == way  # and remembered
        policy.memory.path.unlink()


@pytest.mark.parametrize(("steps", "xla"), [(700, 0.02), (10_000, 0.03)], ids=["few steps", "a clear loss"])
def test_no_second_opinion_where_it_is_dear_or_useless(make, steps, xla):
    policy, new_shapes = make(steps=steps), Bench(graph=0.01, xla=xla).new_shapes()
    assert policy.decide(new_shapes) == "graph" and "xla" in new_shapes.trial.tried
    policy.journal.ran("train", "graph", steps, 5.0)
    assert not policy.again(new_shapes.shapes)


def test_xla_that_fails_in_the_second_trial(make):
    policy, bench = make(steps=10_000), Bench(graph=0.01, xla=0.011)
    assert policy.decide(bench.new_shapes()) == "graph"
    policy.journal.ran("train", "graph", 5_000, 50.0)
    bench.seconds["xla"] = WayFailed("no memory left")
    assert policy.again(bench.new_shapes().shapes) and policy.decide(bench.new_shapes()) == "graph"
    assert "no memory left" in policy.journal.decisions[-1].reason


def test_few_steps_are_not_worth_a_compilation(make):
    bench = Bench(graph=0.001, xla=0.0001)
    policy = make(steps=50)
    assert policy.decide(bench.new_shapes()) == "graph"
    assert bench.tried == ["graph"]
    assert "50 steps to come" in policy.journal.decisions[0].reason


def test_who_came_often_will_come_again(make):
    policy = make(steps=50)
    policy.journal.ran("train", "graph", 50_000, 50.0)
    assert policy.decide(Bench(graph=0.001, xla=0.0001).new_shapes()) == "xla"


def test_when_it_asks_again(make):
    policy = make(steps=50)
    assert not policy.wants_again()
    policy.decide(Bench(graph=0.01, xla=0.001).new_shapes())
    enough = policies.estimated_compile(DENSE) / ((1 - policies.BEST) * 0.01)
    policy.journal.ran("train", "graph", int(enough) - 1, 1.0)
    assert not policy.wants_again()
    policy.journal.ran("train", "graph", 2, 1.0)
    assert policy.wants_again()
    assert policy.decide(Bench(graph=0.01, xla=0.001).new_shapes()) == "graph"  # the same fit: a last batch
    policy.pace = lambda: None
    assert policy.decide(Bench(graph=0.01, xla=0.001).new_shapes()) == "xla"
    assert not policy.wants_again()


def test_convolutions_on_cpu_stay_in_the_plain_graph(make):
    facts, policy = dataclasses.replace(DENSE, convolutions=6), make()
    assert policy.decide(Bench(graph=0.01, partial=0.001).new_shapes(facts)) == "partial"
    assert "6 convolutions, which XLA is slow at on CPU, run plainly" in policy.journal.decisions[0].reason
    on_gpu = dataclasses.replace(facts, device="GPU")
    assert make().decide(Bench(graph=0.01, xla=0.001).new_shapes(on_gpu)) == "xla"


def test_the_more_convolutions_the_less_may_be_hoped_for(make):
    stem, tower = (dataclasses.replace(DENSE, convolutions=n, heavy=50) for n in (1, 49))
    assert policies.gain_hoped(DENSE) == 1 - policies.BEST
    assert policies.gain_hoped(stem) == pytest.approx(0.98 * (1 - policies.BEST))
    assert policies.gain_hoped(tower) == policies.FEWEST * (1 - policies.BEST)
    steps = int(2 * policies.estimated_compile(DENSE) / (policies.gain_hoped(stem) * 0.01))
    assert make(steps=steps).decide(Bench(graph=0.01, partial=0.001).new_shapes(stem)) == "partial"
    bench = Bench(graph=0.01, partial=0.001)
    make(steps=steps).memory.path.unlink()
    assert make(steps=steps).decide(bench.new_shapes(tower)) == "graph"
    assert "partial" not in bench.tried


def test_nothing_is_tried_that_cannot_be_undone(make):
    bench = Bench(graph=0.01, xla=0.001)
    assert make().decide(bench.new_shapes(dataclasses.replace(DENSE, unsafe=("RandomUniform",)))) == "graph"
    assert bench.tried == []


def test_what_was_measured_is_remembered(make):
    assert make().decide(Bench(graph=0.01, xla=0.001).new_shapes()) == "xla"
    bench = Bench()
    assert make().decide(bench.new_shapes()) == "xla"
    assert bench.tried == []
    assert make(steps=20).decide(bench.new_shapes()) == "graph"  # as fast as it is, it cannot repay compiling
    with pytest.raises(KeyError):
        make().decide(bench.new_shapes(dataclasses.replace(DENSE, fingerprint="beef")))


def test_the_other_kinds_of_step_have_answers_of_their_own(make):
    make().decide(Bench(graph=0.01, xla=0.001).new_shapes())
    bench = Bench(graph=0.01, xla=0.02)
    assert make(kind="test").decide(bench.new_shapes()) == "graph"
    assert set(bench.tried) == {"graph", "xla"}


def test_operations_without_a_kernel_make_it_partial(make):
    facts = dataclasses.replace(DENSE, blocked=("LookupTableFindV2",))
    assert make().decide(Bench(graph=0.01, partial=0.001).new_shapes(facts)) == "partial"


def test_xla_that_fails_leaves_the_graph_and_is_not_tried_again(make):
    policy = make()
    assert policy.decide(Bench(graph=0.01, xla=WayFailed("no kernel")).new_shapes()) == "graph"
    assert "no kernel" in policy.journal.decisions[0].reason
    assert make().decide(Bench().new_shapes()) == "graph"


def test_batches_of_other_shapes_in_the_same_fit_do_not_compile_again(make):
    for seconds in (0.001, 0.1):
        policy, bench = make(), Bench(graph=0.01, xla=seconds)
        policy.decide(bench.new_shapes())
        before = list(bench.tried)
        assert policy.decide(bench.new_shapes()) == "graph"
        assert bench.tried == before
        policy.memory.path.unlink()


def test_true_is_xla_or_an_error(make):
    policy, bench = make(jit_compile=True), Bench()
    assert policy.decide(bench.new_shapes()) == "xla"
    blocker = BlockingOp("StringUpper", "sequential/dense/StringUpper", "script.py:3")
    with pytest.raises(XLAUnsupportedError, match=r"StringUpper.*script\.py:3"):
        policy.decide(bench.new_shapes(blockers=(blocker,)))
    with pytest.raises(XLAUnsupportedError, match=r'boom(.|\n)*jit_compile="auto"'):
        policy.failed(bench.new_shapes(), "xla", "boom")


def test_a_failure_outside_of_a_trial_falls_back(make):
    policy = make()
    assert policy.failed(Bench().new_shapes(), "xla", "boom") == "graph"
    assert policy.journal.decisions[-1].reason == "XLA failed: boom"


def test_a_memory_that_cannot_be_read_or_written_is_said_and_does_no_harm(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.warns(UserWarning, match="could not read"):
        assert Decisions(broken).get("key") is None
    with warnings.catch_warnings(record=True):
        Decisions(broken).put("key", {"graph": 1.0})
    assert Decisions(broken).get("key") == {"graph": 1.0}
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="could not"):
        Decisions(tmp_path / "file" / "below.json").put("key", {})


def test_the_estimate_grows_with_the_graph():
    assert policies.estimated_compile(DENSE) < policies.estimated_compile(dataclasses.replace(DENSE, loops=2))
