"""`assistant=` of a layer: a smaller model guesses, and every token stays what it was."""

import numpy as np
import pytest

from keras_xla.engine.call import Call
from keras_xla.engine.runs.deadline import Deadline
from keras_xla.engine.runs.speculation import RunTimes
from tests.engine.prices import check_always, set_to
from tests.generation.guessing import layer_of, runs_of, same
from tests.reference import VOCAB
from tests.tokenizers import tiny

ROWS = [[5, 6, 7], [8], list(range(20, 40)) * 2]
MODES = {
    "greedy": {},
    "sampled": dict(do_sample=True, temperature=0.7, seed=1),
    "ends": dict(eos_token_id=[5, 50, 60], repetition_penalty=1.3),
    "each its own": dict(max_new_tokens=[3, 50, 20], do_sample=True, temperature=[0.5, 1.0, 0.1], seed=7),
}


@pytest.fixture(autouse=True)
def always(monkeypatch):
    check_always(monkeypatch)


@pytest.fixture(scope="module")
def layer(checkpoint):
    return layer_of(checkpoint, "llama-tied-gqa")


@pytest.fixture(scope="module")
def assistant(checkpoint):
    """A model of another kind, which hardly ever guesses right."""
    return layer_of(checkpoint, "gpt2")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
def test_tokens_stay_the_same(layer, assistant, mode):
    plain = layer.generate(ROWS, **MODES[mode])
    same(layer.generate(ROWS, assistant=assistant, **MODES[mode]), plain)
    same(layer.generate(ROWS, assistant=layer, **MODES[mode]), plain)  # which guesses right each time


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gpt2", "opt-350m", "llama3", "mistral", "qwen2-window", "qwen3"])
def test_tokens_of_every_family_stay_the_same(checkpoint, assistant, variant):
    layer = layer_of(checkpoint, variant)
    for mode in ("sampled", "ends"):
        same(layer.generate(ROWS, assistant=assistant, **MODES[mode]), layer.generate(ROWS, **MODES[mode]))


@pytest.mark.quick_on_jax
@pytest.mark.parametrize("options", [{}, dict(do_sample=True, seed=1)], ids=str)
def test_a_model_that_thinks_alike_guesses_all_tokens(layer, options):
    """Draws, too: both draw with the same numbers."""
    options = dict(num_assistant_tokens=4, max_new_tokens=30, **options)
    for row in ([8], ROWS[0], [30, 31], ROWS[0]):  # one after the other in the same state: each is read anew
        assert runs_of(layer, [row], assistant=layer, **options) == [0, 6]


def test_an_assistant_that_may_not_read_is_asked_for_what_a_check_costs_only(layer, monkeypatch):
    options = dict(num_assistant_tokens=4, max_new_tokens=30)
    monkeypatch.setattr(RunTimes, "may_read", False)
    assert runs_of(layer, [ROWS[0]], assistant=layer, **options) == [30, 0]
    monkeypatch.setattr(RunTimes, "tried", 0)
    monkeypatch.setattr(RunTimes, "unmixed", 1)
    monkeypatch.setattr(RunTimes, "read", lambda times, *runs: pytest.fail("it has read"))
    assert runs_of(layer, [ROWS[0]], assistant=layer, **options)[1] > 0


@pytest.mark.slow
def test_what_a_check_costs_is_told_without_reading(layer, monkeypatch):
    """Such guesses are worthless. They leave nothing behind, and the next ones are as good as ever."""
    plain, generator = layer.generate(ROWS[2:]), layer._generator
    learned = []
    monkeypatch.setattr(RunTimes, "read", lambda times, *runs: learned.append("a reading"))
    monkeypatch.setattr(RunTimes, "left", lambda times, *left: learned.append("what guesses bring"))
    layer.generate(ROWS[2:], assistant=layer)  # a call that compiles tells nothing
    learned.clear()
    for name, value in dict(tried=0, unmixed=1).items():
        monkeypatch.setattr(RunTimes, name, value)
    set_to(monkeypatch, 1e9, "price")
    run = generator.start(Call([np.array(ROWS[2], np.int32)], layer.options, assistant=generator))
    for checks in (1, 2, 3):
        run.generation.advance(1)
        assert run.generation.runs.tolist() == [0, checks]
    assert np.array(run.generation._state["draft"].known).tolist() == [0]
    assert not learned
    for name, value in dict(tried=None, unmixed=0).items():
        monkeypatch.setattr(RunTimes, name, value)
    set_to(monkeypatch, 0.01, "price")
    for _ in run.advance(Deadline()):
        pass
    same(run.outputs(), plain)
    assert run.generation.runs[0] <= 1 and run.generation.runs[1] < 14  # for 50 tokens
    assert learned[:2] == ["a reading", "what guesses bring"]
    run.close()


@pytest.mark.slow
def test_what_was_nan_in_an_assistant_reaches_no_later_answer(checkpoint, layer):
    helper = layer_of(checkpoint, "llama-tied-gqa")
    table = next(v for v in helper.model.variables if v.shape[0] == VOCAB)
    whole = np.array(table)
    broken = whole.copy()
    broken[9] = np.nan
    table.assign(broken)
    row = [*[5] * 35, 9, *[5] * 4]
    same(layer.generate([row], assistant=helper), layer.generate([row]))
    table.assign(whole)
    # In a cache of the same size, beyond what this answer has written by its first guesses.
    assert runs_of(layer, [ROWS[0] * 10], assistant=helper, num_assistant_tokens=4, max_new_tokens=30) == [0, 6]


def test_what_it_gains_is_counted_with_what_it_reads(layer, monkeypatch):
    monkeypatch.setattr(RunTimes, "reading", 5.0)
    earned = []
    monkeypatch.setattr(RunTimes, "earn", lambda times, steps: earned.append(steps))
    options = dict(num_assistant_tokens=4, max_new_tokens=30)
    runs_of(layer, [ROWS[0]], assistant=layer, **options)  # a call that compiles tells nothing
    earned.clear()
    assert runs_of(layer, [ROWS[0]], assistant=layer, **options) == [0, 6]
    assert sum(earned) == pytest.approx(30 - 6 * 1.01 - 5, abs=1e-4)


@pytest.mark.slow
def test_what_an_assistant_has_shown_holds_for_the_next_answer(layer, monkeypatch):
    """Checks that have to bring more than is thought of an assistant that nobody knows."""
    options = dict(num_assistant_tokens=3, max_new_tokens=30)
    set_to(monkeypatch, 2.0, "least")
    assert runs_of(layer, [ROWS[0]], assistant=layer, **options) == [30, 0]
    set_to(monkeypatch, 0.01, "least")
    assert runs_of(layer, [ROWS[0]], assistant=layer, **options) == [0, 8]
    set_to(monkeypatch, 2.0, "least")
    assert runs_of(layer, [ROWS[0]], assistant=layer, **options) == [0, 8]


@pytest.mark.slow
def test_what_an_assistant_has_missed_it_reads(layer, assistant, monkeypatch):
    """Guesses are too dear for a while, and then cost nothing."""
    plain, generator = layer.generate(ROWS[2:]), layer._generator
    run = generator.start(Call([np.array(ROWS[2], np.int32)], layer.options, assistant=generator))
    set_to(monkeypatch, 1e9, "price", "least")
    run.generation.advance(20)
    assert run.generation.runs.tolist() == [20, 0]
    set_to(monkeypatch, 0.01, "price", "least")
    for _ in run.advance(Deadline(), count=20):
        pass
    out = run.outputs()
    same(out, plain)
    assert run.generation.runs[1] < 10  # it has guessed right from then on
    run.close()


@pytest.mark.slow
def test_an_assistant_that_is_never_asked_reads_nothing(layer, assistant, monkeypatch):
    set_to(monkeypatch, 1e9, "price", "least")
    run = layer._generator.start(Call([np.array(ROWS[2], np.int32)], layer.options, assistant=assistant._generator))
    run.generation.advance(20)
    assert run.generation.runs.tolist() == [20, 0]
    assert np.array(run.generation._state["draft"].known).tolist() == [0]
    run.close()


@pytest.mark.slow
def test_streams_chats_and_reused_prompts(layer, assistant):
    prompts, options = ["abcabc", "So it goes", "x"], dict(max_new_tokens=12)
    plain = layer.generate(prompts, **options)
    assert "".join(layer.stream(prompts[0], assistant=assistant, **options)) == plain[0]
    for helps in (assistant, None, layer, assistant):  # states of another kind each time
        assert layer.generate(prompts, assistant=helps, reuse_prompt=True, **options) == plain

    def said(**more):
        chat = layer.chat(**options, **more)
        return [chat.send(text) for text in ("abcabc", "again", "abcabc")]

    assert said(assistant=assistant) == said()


@pytest.mark.slow
def test_weights_are_those_of_now(checkpoint, layer):
    other = layer_of(checkpoint, "llama-tied-gqa")
    assert runs_of(layer, ROWS[:1], assistant=other, max_new_tokens=24) == [0, 4]  # six tokens each time
    for variable in other.model.variables:
        variable.assign(variable * 0)
    assert sum(runs_of(layer, ROWS[:1], assistant=other, max_new_tokens=24)) > 10


@pytest.mark.slow
def test_what_was_guessed_in_vain_is_read_anew(layer, assistant, monkeypatch):
    """Its keys and values are those of the text, whatever was guessed, and however often nobody asked for guesses."""
    generator, row = layer._generator, np.array(ROWS[0], np.int32)
    run = generator.start(Call([row], layer.options, assistant=assistant._generator))
    for count, price in enumerate((0.01, 1e9, 0.01), 1):
        set_to(monkeypatch, price, "price")
        while run.generation.runs.sum() < 3 * count:  # a call may make fewer than it is asked for
            run.generation.advance(3)
    draft, made = run.generation._state["draft"], run.rows()[0][0]
    known = int(draft.known[0])
    assert known > len(row) + 6
    again = generator.start(
        Call([np.concatenate([row, made])[: known + 1]], layer.options, assistant=assistant._generator)
    )
    set_to(monkeypatch, 0.01, "price")
    again.generation.advance(1)
    assert again.generation.runs.tolist() == [0, 1]
    for one, other in zip(draft.cache, again.generation._state["draft"].cache, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(np.array(a)[:, :known], np.array(b)[:, :known], atol=1e-5)
    run.close()
    again.close()


@pytest.mark.slow
def test_nothing_compiles_after_a_warmup(checkpoint, assistant):
    layer = layer_of(checkpoint, "llama-tied-gqa", on_recompile="raise")
    layer.warmup(batch_sizes=(1, 3), prompt_lengths=(12, 40), assistant=assistant)
    before, its = layer.trace_count, assistant.trace_count
    layer.generate(ROWS, assistant=assistant)
    layer.generate(ROWS[2:], assistant=assistant, do_sample=True, seed=1)
    chat = layer.chat(assistant=assistant, max_new_tokens=20)
    for text in ("abcabcabcabc", "and so it goes", "x"):  # the cache has grown, and is used again
        chat.send(text)
    assert layer.trace_count == before and assistant.trace_count == its


def test_what_does_not_go_together_is_refused(checkpoint, layer, assistant, new_events):
    with pytest.raises(ValueError, match="an assistant with num_beams"):
        layer.generate("abc", assistant=assistant, num_beams=2)
    with pytest.raises(ValueError, match="an assistant with prompt_lookup_num_tokens"):
        layer.generate("abc", assistant=assistant, prompt_lookup_num_tokens=2)
    with pytest.raises(ValueError, match="an assistant with regex"):
        layer.generate("abc", assistant=assistant, regex="a+")
    with pytest.raises(ValueError, match="num_assistant_tokens without an assistant"):
        layer.generate("abc", num_assistant_tokens=3)
    with pytest.raises(TypeError, match="expected an XLAGenerationLayer"):
        layer.generate("abc", assistant="gpt2")
    with pytest.raises(ValueError, match="the assistant is an encoder-decoder"):
        layer.generate("abc", assistant=layer_of(checkpoint, "t5"))
    with pytest.raises(ValueError, match="which are not the 97 of"):
        layer.generate("abc", assistant=layer_of(checkpoint, "gpt2", tokenizer=tiny(without="ab")))
    assert not new_events("generate")
