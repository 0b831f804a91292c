"""What "auto" decides, given what it knows and measures."""

import contextlib
import dataclasses
import gc
import time
import weakref

import pytest

from keras_xla.backend.new_shapes import BlockingOp, NewShapes, StepProfile, Timing, TrialImpossible, WayFailed
from keras_xla.backend.signature import Leaf
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.training.decide import cost, decisions, trials
from keras_xla.training.decide import policy as policies
from keras_xla.training.decide.decisions import Decisions, Times
from keras_xla.training.decide.policy import MOST_TRIALS, SHARE_OF_STEPS_BEFORE, Policy, faster_way
from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session
from tests.training.helpers import classifier

pytestmark = pytest.mark.quick_on_jax  # the clock and the ways are stand-ins

DENSE = StepProfile(400, 0, 8, 0, 0, (), (), "CPU", "f00d", 0.001)


@pytest.fixture
def make(tmp_path):
    """`make(steps)`: a policy for a fit of so many steps."""

    def build(steps=100_000, jit_compile="auto", kind="train"):
        pace = Session(kind, steps=steps)
        return Policy(classifier(), kind, jit_compile, Decisions(tmp_path / "decisions"), Journal(), lambda: pace)

    return build


OTHER = (Leaf("x", (3, 4), "float32"),)


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
        return NewShapes(facts, blockers, (Leaf("x", (8, 4), "float32"),), self)


def test_the_faster_way_is_chosen_and_the_reason_kept(make):
    for seconds, way in ((0.005, "xla"), (0.02, "graph")):
        policy = make()
        assert policy.decide(Bench(graph=0.01, xla=seconds).new_shapes()) == way
        (decision,) = policy.journal.decisions
        assert (decision.way, decision.measured) == (way, {"graph": 10.0, "xla": seconds * 1e3})
        policy.decisions.clear()


def test_a_gain_within_the_noise_is_none(make):
    assert make().decide(Bench(graph=0.01, xla=0.0099).new_shapes()) == "graph"


def test_ways_that_are_close_are_measured_more_often_and_in_turns(make):
    far, close = Bench(graph=0.01, xla=0.001), Bench(graph=0.01, xla=0.009)
    assert make().decide(far.new_shapes()) == "xla"
    assert far.tried == ["graph", "xla"] * 2
    policy = make()
    policy.decisions.clear()
    assert policy.decide(close.new_shapes()) == "xla"
    assert close.tried == ["graph", "xla"] * (1 + trials.MOST_ROUNDS)
    policy = make(steps=1000)
    policy.decisions.clear()
    assert policy.decide(Bench(graph=0.01, xla=0.02).new_shapes()) == "graph"


def test_a_small_loss_may_be_the_machines_and_is_measured_again_later_once(make):
    for later, way in ((0.005, "xla"), (0.012, "graph")):
        policy, bench = make(steps=10_000), Bench(graph=0.01, xla=0.02)
        new_shapes = bench.new_shapes()
        assert policy.decide(new_shapes) == "graph" and not policy.again(new_shapes.shapes)
        policy.journal.ran("train", "graph", int(SHARE_OF_STEPS_BEFORE * 10_000) - 1, 10.0)
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
        policy.decisions.clear()


@pytest.mark.parametrize("reads", [True, False], ids=["in memory", "nowhere"])
def test_without_a_disk_it_is_measured_again_no_more_often(make, tmp_path, monkeypatch, reads):
    (tmp_path / "decisions").touch()  # a file, so that there is no such folder
    policy, bench = make(steps=10_000), Bench(graph=0.01, xla=0.02)
    if not reads:
        monkeypatch.setattr(policy.decisions, "get", lambda key: None)
    new_shapes = bench.new_shapes()
    with pytest.warns(UserWarning, match="cannot remember") if reads else contextlib.nullcontext():
        policy.decide(new_shapes)
    trials_made = []
    for _ in range(10):
        policy.journal.ran("train", "graph", 900, 9.0)
        if policy.again(new_shapes.shapes):
            trials_made.append(policy.decide(new_shapes))
    assert trials_made == ["graph"]


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
    policy, bench, session = make(steps=50), Bench(graph=0.001, xla=0.0001), Session("train", steps=50)
    policy.known(bench.new_shapes().shapes)
    policy.journal.ran("train", "graph", 50_000, 50.0)
    policy.pace = lambda: session
    assert policy.decide(bench.new_shapes()) == "xla"


def test_a_call_with_more_steps_asks_again(make):
    policy, bench = make(steps=50), Bench(graph=0.01, xla=0.001)
    shapes = bench.new_shapes().shapes
    assert policy.decide(bench.new_shapes()) == "graph" and bench.tried
    enough = cost.estimated_cost(DENSE, 0.01) / (cost.HOPED_SHARE_SAVED * 0.01)
    for steps, again in ((50, False), (int(enough) - 1, False), (int(enough) + 1, True)):
        session = Session("train", steps=steps)
        policy.pace = lambda session=session: session
        assert policy.again(shapes) == again
        if not again:
            policy.known(shapes)
    assert policy.decide(bench.new_shapes()) == "xla" and not policy.again(shapes)


def test_calls_that_come_again_and_again_ask_again(make):
    policy, bench = make(steps=50), Bench(graph=0.01, xla=0.001)
    shapes = bench.new_shapes().shapes
    assert policy.decide(bench.new_shapes()) == "graph"
    enough = cost.estimated_cost(DENSE, 0.01) / (cost.HOPED_SHARE_SAVED * 0.01)
    policy.journal.ran("train", "graph", int(enough) + 1, 1.0)
    assert not policy.again(shapes)  # of this call, hardly a step is left
    session = Session("train", steps=50)
    policy.pace = lambda: session
    assert policy.again(shapes) and policy.decide(bench.new_shapes()) == "xla"


@pytest.mark.parametrize("told", [False, True], ids=["steps run", "the length is known"])
def test_data_that_do_not_tell_their_length_ask_again_when_more_is_known(make, told):
    policy, bench = make(steps=None), Bench(graph=0.002, xla=0.001)
    shapes, session = bench.new_shapes().shapes, policy.pace()
    assert policy.decide(bench.new_shapes()) == "graph" and "200 steps to come" in policy.journal.decisions[0].reason
    assert not policy.again(shapes)
    if told:
        session.steps = 20_000
    else:
        policy.journal.ran("train", "graph", 20_000, 40.0)
    assert policy.again(shapes) and policy.decide(bench.new_shapes()) == "xla"


def test_steps_without_a_call_ask_again_when_there_were_enough(make):
    """As in a loop around `train_on_batch`."""
    policy, bench = make(), Bench(graph=0.002, xla=0.001)
    policy.pace = lambda: None
    assert policy.decide(bench.new_shapes()) == "graph"
    policy.journal.ran("train", "graph", 20_000, 40.0)
    assert policy.again(bench.new_shapes().shapes) and policy.decide(bench.new_shapes()) == "xla"


def test_each_of_many_sizes_is_expected_as_often_as_they_came_on_average(make):
    policy, bench = make(kind="predict"), Bench(graph=0.01, xla=0.001)
    for size in range(1, 21):
        session = Session("predict", steps=50)
        policy.pace = lambda session=session: session
        leaves = (Leaf("x", (size, 4), "float32"),)
        assert policy.decide(dataclasses.replace(bench.new_shapes(), leaves=leaves)) == "graph"
        policy.journal.ran("predict", "graph", 50, 0.5)
    assert "xla" not in bench.tried


def test_steps_before_the_model_was_compiled_again_do_not_count(make):
    policy = make(steps=50)
    policy.journal.ran("train", "graph", 50_000, 50.0)
    again = Policy(policy.model, "train", "auto", policy.decisions, policy.journal, policy.pace)
    assert again.decide(Bench(graph=0.001, xla=0.0001).new_shapes()) == "graph"


def other_shapes(policy, bench):
    """Has batches of other shapes than the usual ones wait in a call, and returns them."""
    other = dataclasses.replace(bench.new_shapes(), leaves=OTHER)
    assert policy.decide(other) == "graph"
    assert "other shapes" in policy.journal.decisions[-1].reason
    return other


def test_shapes_that_come_often_enough_for_a_question_are_not_taken_for_the_usual_ones(make):
    """The last batch of an epoch, asked about after four of them: few are to come, whatever is left of the fit."""
    policy, bench = make(steps=20_000), Bench(graph=1.0, xla=0.1)
    policy.decide(bench.new_shapes())
    other, bench.seconds = other_shapes(policy, bench), dict(graph=0.001, xla=0.0001)
    policy.journal.ran("train", "xla", 1_000, 1.0)
    for _ in range(4):
        asked = policy.again(other.shapes)
    tried = list(bench.tried)
    assert asked and policy.decide(other) == "graph" and "80 steps to come" in policy.journal.decisions[-1].reason
    assert "xla" not in bench.tried[len(tried) :]
    assert not any(policy.again(other.shapes) for _ in range(50))


def test_shapes_that_waited_are_asked_about_when_calls_begin_with_them_again_and_again(make):
    """As in a service: a rest of 4 rows first, then many calls with 4 rows."""
    policy, bench = make(kind="predict", steps=4), Bench(graph=0.5, xla=0.01)
    policy.decide(bench.new_shapes())
    other, asked = other_shapes(policy, bench), 0
    for _ in range(100):
        session = Session("predict", steps=1)
        policy.pace = lambda session=session: session
        if policy.again(other.shapes):
            asked += 1
            assert policy.decide(other) in ("graph", "xla")
        else:
            policy.known(other.shapes)
        policy.journal.ran("predict", "graph", 1, 0.5)
        if policy.journal.decisions[-1].way == "xla":
            break
    assert policy.journal.decisions[-1].way == "xla" and asked <= 3


def test_a_call_that_begins_with_shapes_that_hardly_come_does_not_ask_about_them(make):
    policy, bench = make(steps=1_000), Bench(graph=0.01, xla=0.001)
    policy.decide(bench.new_shapes())
    other = other_shapes(policy, bench)
    policy.journal.ran("train", "xla", 1_000, 1.0)
    session = Session("train", steps=1_000)
    policy.pace = lambda: session
    assert not policy.again(other.shapes)


def test_a_call_within_a_call_changes_nothing_of_what_is_usual_in_that(make):
    policy, bench = make(steps=50), Bench(graph=0.01, xla=0.001)
    outer, inner = policy.pace(), Session("train", steps=5)
    policy.decide(bench.new_shapes())
    policy.pace = lambda: inner
    policy.known(bench.new_shapes().shapes)
    policy.pace = lambda: outer
    policy.journal.ran("train", "graph", 5_000, 50.0)
    assert not policy.again(bench.new_shapes().shapes)
    other_shapes(policy, bench)


def test_shapes_without_end_are_forgotten(make, monkeypatch):
    monkeypatch.setattr(policies, "MOST_SHAPES", 10)
    policy, bench = make(steps=50), Bench(graph=0.001, xla=0.001)
    policy.pace = lambda: None
    for size in range(100):
        policy.decide(dataclasses.replace(bench.new_shapes(), leaves=(Leaf("x", (size, 4), "float32"),)))
    assert len(policy._enough) == len(policy._begun) == 10


def test_it_keeps_no_call_alive(make):
    policy = make()
    policy.decide(Bench(graph=0.01, xla=0.02).new_shapes())
    session = weakref.ref(policy.pace())
    policy.pace = lambda: None
    gc.collect()
    assert session() is None


def test_convolutions_on_cpu_stay_in_the_plain_graph(make):
    facts, policy = dataclasses.replace(DENSE, convolutions=6), make()
    assert policy.decide(Bench(graph=0.01, partial=0.001).new_shapes(facts)) == "partial"
    assert "6 convolutions, which XLA is slow at on CPU, run plainly" in policy.journal.decisions[0].reason
    on_gpu = dataclasses.replace(facts, device="GPU")
    assert make().decide(Bench(graph=0.01, xla=0.001).new_shapes(on_gpu)) == "xla"


def test_the_more_convolutions_the_less_may_be_hoped_for(make):
    stem, tower = (dataclasses.replace(DENSE, convolutions=n, heavy=50) for n in (1, 49))
    assert cost.gain_hoped(DENSE) == cost.HOPED_SHARE_SAVED < cost.gain_hoped(dataclasses.replace(DENSE, loops=2))
    assert cost.gain_hoped(stem) == pytest.approx(0.98**2 * cost.HOPED_SHARE_SAVED)
    assert cost.gain_hoped(tower) == cost.LEAST_SHARE_WITHOUT_CONVOLUTIONS * cost.HOPED_SHARE_SAVED
    steps = int(2 * cost.estimated_cost(stem, 0.01) / (cost.gain_hoped(stem) * 0.01))
    assert make(steps=steps).decide(Bench(graph=0.01, partial=0.001).new_shapes(stem)) == "partial"
    bench = Bench(graph=0.01, partial=0.001)
    make(steps=steps).decisions.clear()
    assert make(steps=steps).decide(bench.new_shapes(tower)) == "graph"
    assert "partial" not in bench.tried


def test_nothing_is_tried_that_cannot_be_undone(make):
    bench = Bench(graph=0.01, xla=0.001)
    assert make().decide(bench.new_shapes(dataclasses.replace(DENSE, unsafe=("RandomUniform",)))) == "graph"
    assert bench.tried == []


def test_the_clock_decides_nothing_where_every_run_has_to_give_the_same_bits(make):
    bench, facts = Bench(graph=0.01, xla=0.001), dataclasses.replace(DENSE, deterministic=True)
    policy = make()
    assert policy.decide(bench.new_shapes(facts)) == "graph" and bench.tried == []
    assert "op determinism is on" in policy.journal.decisions[0].reason
    assert make(jit_compile=True).decide(bench.new_shapes(facts)) == "xla"
    assert make().decide(bench.new_shapes()) == "xla"
    assert make().decide(bench.new_shapes(facts)) == "graph"  # though it is known that XLA is faster


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
        before, other = list(bench.tried), dataclasses.replace(bench.new_shapes(), leaves=OTHER)
        assert policy.decide(other) == "graph"
        assert bench.tried == before
        policy.decisions.clear()


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


def test_what_another_model_of_this_run_measured_is_said_to_be_of_this_run(make, monkeypatch):
    make().decide(Bench(graph=0.01, xla=0.001).new_shapes())
    for run, source in ((decisions.THIS_RUN, "measured before in this run"), ("another", "measured in an earlier run")):
        policy = make()
        (known,) = policy.decisions.all()
        policy.decisions.put(known.key, dataclasses.replace(known.times, run=run), known.name, known.chosen)
        policy.decide(Bench().new_shapes())
        assert policy.journal.decisions[-1].reason == source


def test_a_lack_of_memory_is_not_remembered(make):
    for error in (WayFailed("no memory left", lasting=False), TrialImpossible("no memory left")):
        policy = make()
        assert policy.decide(Bench(graph=0.01, xla=error).new_shapes()) == "graph"
        assert "no memory left" in policy.journal.decisions[0].reason
        assert policy.decisions.all() == []
        assert make().decide(Bench(graph=0.01, xla=0.001).new_shapes()) == "xla"
        policy.decisions.clear()


def test_a_trial_that_is_impossible_now_is_tried_later(make):
    policy = make()
    assert policy.decide(Bench(graph=TrialImpossible("the plain graph failed")).new_shapes()) == "graph"
    assert policy.journal.decisions[0].reason == "no trial: the plain graph failed"
    assert not policy.again(Bench().new_shapes().shapes)
    policy.journal.ran("train", "graph", policies.STEPS_UNTIL_POSSIBLE, 1.0)
    assert policy.again(Bench().new_shapes().shapes)
    assert policy.decide(Bench(graph=1.0, xla=0.1).new_shapes()) == "xla"


def test_failures_expire(make):
    policy = make()
    policy.decide(Bench(graph=0.01, xla=WayFailed("the driver is too old")).new_shapes())
    (known,) = policy.decisions.all()
    earlier = time.time() - decisions.SECONDS_FAILURES_COUNT - 1
    policy.decisions.put(known.key, dataclasses.replace(known.times, time=earlier), known.name, known.chosen)
    assert make().decide(Bench(graph=0.01, xla=0.001).new_shapes()) == "xla"


def test_a_near_miss_of_an_earlier_run_is_measured_again_until_it_is_clear(make):
    make(steps=20).decide(Bench(graph=0.01).new_shapes())  # too few steps to come for a trial
    assert make().decide(Bench(graph=0.01, xla=0.02).new_shapes()) == "graph"
    for _ in range(MOST_TRIALS - 1):
        policy, bench = make(steps=10_000), Bench(graph=0.01, xla=0.02)
        assert policy.decide(bench.new_shapes()) == "graph" and not bench.tried  # known
        policy.journal.ran("train", "graph", 5_000, 50.0)
        assert policy.again(bench.new_shapes().shapes)
        assert policy.decide(bench.new_shapes()) == "graph" and bench.tried
    policy = make(steps=10_000)
    policy.decide(Bench().new_shapes())
    policy.journal.ran("train", "graph", 5_000, 50.0)
    assert not policy.again(Bench().new_shapes().shapes)


def test_slow_steps_are_not_tried_where_the_trial_itself_takes_what_could_be_gained(make):
    least = cost.STEPS_OF_A_TRIAL / cost.HOPED_SHARE_SAVED
    for steps, tried in ((int(least), []), (int(least) + 1, ["graph"])):
        policy, bench = make(steps=steps), Bench(graph=0.5, xla=0.05)
        assert policy.decide(bench.new_shapes()) == "graph" and bench.tried[:1] == tried
        assert f"{steps} steps to come cannot repay" in policy.journal.decisions[-1].reason
        assert not policy.again(bench.new_shapes().shapes)


def test_the_estimate_grows_with_the_graph_and_with_the_work_of_others():
    usual = cost.SECONDS_A_FINGERPRINTED_OPERATION * DENSE.ops

    def estimate(slowness, **facts):
        return cost.estimated_compile(dataclasses.replace(DENSE, fingerprint_seconds=slowness * usual, **facts))

    quiet = estimate(1)
    more = [dataclasses.replace(DENSE, **{name: 900}) for name in ("ops", "loops", "convolutions")]
    assert all(cost.estimated_compile(each) > cost.estimated_compile(DENSE) for each in more)
    assert estimate(4) == pytest.approx(4 * quiet)
    assert estimate(0.7) == pytest.approx(0.7 * quiet)  # a faster machine
    assert estimate(0.01) == pytest.approx(cost.LEAST_SLOWNESS * quiet)  # no machine is so fast


@pytest.mark.parametrize("way", ["xla", "partial"])
def test_another_way_has_to_be_faster_than_noise_would_make_it(way):
    for tried, expected in (0.96, way), (0.98, "graph"):
        assert faster_way(Times(1.0, way, tried, 1.0, trials=0)) == expected
