"""Chats: what generate would answer to the whole conversation, without computing its past again."""

import gc
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference
from tests.engine.fake import Follow
from tests.tokenizers import tiny


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("llama-tied-gqa")))


@pytest.fixture(scope="module")
def compiled(model):
    return XLAGenerationLayer(model, tiny(), max_new_tokens=10, eos_token_id=2, cache_buckets=(32, 64, 128))


@pytest.fixture
def layer(compiled):
    compiled._text._last_prompt = compiled._generator.prompt_cache()
    return compiled


@pytest.fixture
def chunks(layer, monkeypatch):
    """The slots at which chunks of prompts began to run."""
    ran, run = [], layer._generator.prompt_runner.prefill

    def prefill(key, state, ids, starts, known=0, *more):
        ran.append((known, ids.shape[1]))
        return run(key, state, ids, starts, known, *more)

    monkeypatch.setattr(layer._generator.prompt_runner, "prefill", prefill)
    return ran


@pytest.mark.slow
def test_turns_are_answered_as_the_whole_conversation_would_be(layer, chunks):
    chat = layer.chat(system="Be brief")
    first, second = chat.send("Hi"), "".join(chat.stream("And you"))
    said = [("system", "Be brief"), ("user", "Hi"), ("assistant", first), ("user", "And you"), ("assistant", second)]
    assert chat.messages == [{"role": role, "content": content} for role, content in said]
    known = [known for known, _ in chunks]
    assert known[0] == 0 and known[1] > 12  # the system's message and the first turn stand
    assert layer.generate(chat.messages[:2]) == [first] and layer.generate(chat.messages[:4]) == [second]


def test_an_earlier_turn_may_be_edited(layer, chunks):
    chat = layer.chat()
    chat.send("Hi there")
    chat.send("And you")
    chat.messages[0]["content"] = "Hi where"
    del chat.messages[3:]
    answer = chat.send()
    assert chunks[-1][0] == len(tiny()("<user>Hi ", add_special_tokens=False)["input_ids"])
    assert layer.generate(chat.messages[:-1]) == [answer]


def test_other_weights_compute_the_past_anew(layer, chunks):
    chat, before = layer.chat(), np.array(layer.model.embedding.values)
    chat.send("Hi there")
    other = reference.torch_model("llama-tied-gqa", seed=1).model.embed_tokens.weight.detach().numpy()
    layer.model.embedding.values.assign(other)
    try:
        answer = chat.send("And you")
        assert chunks[-1][0] == 0
        assert layer.generate(chat.messages[:-1]) == [answer]
    finally:
        layer.model.embedding.values.assign(before)


def test_two_chats_do_not_see_each_other(layer):
    alone = [layer.chat().send(text) for text in ("One", "Two")]
    chats = [layer.chat(), layer.chat()]
    assert [chat.send(text) for chat, text in zip(chats, ("One", "Two"), strict=True)] == alone
    again = [chat.send("More") for chat in chats]
    assert again == [layer.generate(chat.messages[:-1])[0] for chat in chats]


@pytest.mark.quick_on_jax
def test_a_long_chat_moves_to_larger_caches(layer):
    chat = layer.chat()
    for turn in range(4):
        answer = chat.send(f"Turn {turn}")
        assert layer.generate(chat.messages[:-1]) == [answer]


def test_options_of_the_chat_and_of_a_turn(layer):
    chat = layer.chat(max_new_tokens=3)
    chat.send("Hi")
    chat.send("Hi", max_new_tokens=1)
    lengths = [len(tiny()(m["content"])["input_ids"]) for m in chat.messages if m["role"] == "assistant"]
    assert lengths[0] <= 3 and lengths[1] <= 1


def test_a_stream_that_is_closed_leaves_its_part_of_the_answer(layer):
    chat = layer.chat(eos_token_id=None)
    stream = chat.stream("Hi")
    begun = next(stream)
    with pytest.raises(RuntimeError, match="answering one"):
        chat.send("Too early")
    stream.close()
    assert chat.messages[-1] == {"role": "assistant", "content": begun}
    chat.send("Go on")


@pytest.mark.slow
def test_a_turn_says_nothing_but_the_answer_and_has_one(model):
    layer = XLAGenerationLayer(model, tiny(), max_new_tokens=10, return_prompt=True)
    chat = layer.chat()
    answer = chat.send("Hi")
    assert answer == layer.generate(chat.messages[:-1], return_prompt=False)[0]
    with pytest.raises(ValueError, match="num_return_sequences=2; a chat goes on with one answer"):
        chat.send("Hi", do_sample=True, num_return_sequences=2)
    more = chat.send(continue_final_message=True)
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    assert chat.messages[-1]["content"] == answer + more


def test_the_token_that_ends_an_answer_is_shown_but_is_no_part_of_the_message(compiled):
    options = dict(skip_special_tokens=False, forced_eos_token_id=2, max_new_tokens=4)
    chat = compiled.chat(**options)
    for answer in (chat.send("Hi"), "".join(chat.stream("And you"))):
        assert answer.endswith("</s>")
        assert answer.removesuffix("</s>") in [message["content"] for message in chat.messages]
    assert not any("</s>" in message["content"] for message in chat.messages)
    assert compiled.chat(**{**options, "eos_token_id": None}).send("Hi").endswith("</s>")


@pytest.mark.slow
def test_a_special_token_that_has_no_name_ends_an_answer_too(layer):
    """As `<|eom_id|>` of Llama 3."""
    options = dict(skip_special_tokens=False, eos_token_id=[3], forced_eos_token_id=3, max_new_tokens=4)
    chat = layer.chat(**options)
    assert chat.send("Hi").endswith("<user>") and not chat.messages[-1]["content"].endswith("<user>")


def test_a_failed_turn_leaves_the_messages_as_they_were(layer):
    chat = layer.chat()
    with pytest.raises(ValueError, match="token"):
        chat.send("x" * 200)  # more than the model's positions
    assert chat.messages == []
    assert chat.send("Hi") == layer.generate([{"role": "user", "content": "Hi"}])[0]


@pytest.mark.quick_on_jax
def test_template_arguments_reach_the_template(model):
    tokenizer = tiny()
    template = "{% if enable_thinking %}T{% endif %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}G{% endif %}"
    )
    layer = XLAGenerationLayer(model, tokenizer, max_new_tokens=4)
    messages = [{"role": "user", "content": "Hi"}]

    def add(a: int):
        """Adds.

        Args:
            a: A number.
        """

    for options, text in (
        ({}, "HiG"),
        (dict(enable_thinking=True), "THiG"),
        (dict(tools=[add]), "addHiG"),
        (dict(add_generation_prompt=False), "Hi"),
        (dict(continue_final_message=True), "Hi"),
    ):
        expected = layer.generate(text, return_prompt=True)
        assert layer.generate(messages, chat_template=template, return_prompt=True, **options) == expected


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(bogus=1), TypeError, "unknown generation option 'bogus'"),
        (dict(do_sample=True, temperature="hot"), TypeError, "temperature='hot'"),
        (dict(enable_thinking="yes"), TypeError, "enable_thinking='yes'"),
    ],
)
def test_options_that_no_turn_can_have_are_refused_as_a_chat_begins(layer, options, error, text):
    with pytest.raises(error, match=text):
        layer.chat(**options)
    assert layer.chat(top_k=5, seed=1).send("a", do_sample=True, max_new_tokens=2) is not None
    layer.chat(verbose=0, assistant=None, cancel=threading.Event(), enable_thinking=False, max_new_tokens=3)


def test_options_of_a_template_are_refused_where_there_is_no_chat(layer):
    for options in (dict(enable_thinking=False), dict(tools=[{}]), dict(chat_template="{{ x }}", documents=[{}])):
        told = f"Received {', '.join(options)} with texts; expected that with a chat"
        for call in (layer.generate, layer.stream, layer.score):
            with pytest.raises(ValueError, match=told):
                call(["Hi", "Ho"], **options)
    assert len(layer.generate(["Hi", [{"role": "user", "content": "Hi"}]], continue_final_message=True)) == 2
    assert layer.generate("Hi", tools=[], enable_thinking=None) == layer.generate("Hi")


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([{"role": "user", "content": None}], TypeError, "content=None"),
        ([{"content": "Hi"}], ValueError, "expected 'role' and 'content'"),
        ([{"role": 1, "content": "Hi"}], TypeError, "role=1"),
        ([{"role": "user", "content": "\ud800"}], ValueError, "no Unicode text"),
    ],
)
def test_bad_messages_raise_our_errors(layer, messages, error, text):
    with pytest.raises(error, match=text):
        layer.generate(messages)


def test_template_arguments_of_a_chat_hold_for_every_turn_unless_one_has_its_own(model):
    layer = XLAGenerationLayer(model, tiny(), max_new_tokens=4, eos_token_id=2)
    template = "{% if enable_thinking %}T{% endif %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    chat = layer.chat(tools=[tool], enable_thinking=True, chat_template=template)
    (first,) = layer.generate("TaddHi")
    assert chat.send("Hi") == first
    (second,) = layer.generate(f"addHi{first}x")
    assert chat.send("x", enable_thinking=False) == second
    assert chat.send("y") == layer.generate(f"TaddHi{first}x{second}y")[0]


@pytest.mark.parametrize("messages", ["Hi", {"role": "user", "content": "Hi"}, None, 5, ["Hi"]], ids=str)
def test_a_chat_takes_a_list_of_messages_and_says_so(layer, messages):
    chat = layer.chat()
    chat.messages = messages
    for make in (lambda: layer.chat(messages=messages), lambda: chat.send("Hi"), lambda: list(chat.stream("Hi"))):
        with pytest.raises(
            TypeError, match=r"Received messages=.*; expected a list of dicts with 'role' and 'content'"
        ):
            make()
    chat.messages = []
    assert chat.send("Hi") == chat.messages[-1]["content"]


def test_options_of_a_chat_that_say_nothing_of_a_stream(layer):
    options = dict(verbose=0, on_error="raise", output_logprobs=False, top_logprobs=0)
    chat, other = layer.chat(**options), layer.chat(**options)
    assert "".join(chat.stream("Hi")) == other.send("Hi")


@pytest.mark.parametrize("option", [dict(reuse_prompt=True), dict(return_prompt=True)], ids=str)
def test_options_that_a_turn_cannot_have_are_refused(layer, option):
    with pytest.raises(ValueError, match=next(iter(option))):
        layer.chat().send("Hi", **option)


PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
EACH = "{% for m in messages %}<{{ m.role }}>{{ CONTENT }}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("raise_exception('only users')", "TemplateError: only users"),
        ("m.content + ''", "TypeError: can only concatenate list"),
        ("m.content.strip()", "UndefinedError: 'list object' has no attribute 'strip'"),
        ("'%d' % m.content", "TypeError: %d format"),
        ("m.content | items | list", "TypeError: Can only get item pairs from a mapping"),
    ],
)
def test_what_a_template_refuses_is_told(layer, content, reason):
    template = EACH.replace("CONTENT", content)
    told = rf"template refused chat 0: {re.escape(reason)}.* the roles \['user'\], with content in parts"
    with pytest.raises(ValueError, match=told):
        layer.generate(PARTS, chat_template=template)
    chat = layer.chat(messages=PARTS, chat_template=template)
    for answer in (chat.send, lambda text: list(chat.stream(text))):
        with pytest.raises(ValueError, match="template refused chat 0"):
            answer("And you")
    assert chat.messages == PARTS
    with pytest.raises(ValueError, match=r"the roles \['user'\]\. Change them"):
        layer.generate([{"role": "user", "content": "Hi"}], chat_template="{{ raise_exception('no') }}")
    with pytest.raises(ValueError, match=r"chat_template='tool_use', which is neither .* Its names: none"):
        layer.generate([{"role": "user", "content": "Hi"}], chat_template="tool_use")


def test_a_template_that_takes_parts_gets_them(layer):
    template = EACH.replace("CONTENT", "m.content[0].text")
    assert layer.generate(PARTS, chat_template=template) == layer.generate("<user>Hi</s>", add_special_tokens=False)


class TestMemory:
    """What chats keep is bounded, and a chat that is let go of keeps nothing."""

    @pytest.fixture
    def small(self, model):
        """Keeps the state of one chat."""
        return XLAGenerationLayer(model, tiny(), max_new_tokens=4, eos_token_id=2, cache_buckets=(64,), cache_bytes=1)

    @staticmethod
    def kept(layer):
        return len(layer._generator.pool._kept)

    def test_a_chat_that_is_let_go_of_keeps_nothing(self, layer):
        before, chat = self.kept(layer), layer.chat()
        chat.send("Hi")
        state = weakref.ref(layer._generator.pool._kept[weakref.ref(chat._reuse)].state)
        assert self.kept(layer) == before + 1
        del chat
        gc.collect()
        assert self.kept(layer) == before and state() is None

    def test_weights_of_then_are_let_go_of_when_a_chat_goes_on_with_others(self, layer):
        old, other = layer.chat(), layer.chat()
        old.send("Hi")
        other.send("Hi")
        weights = weakref.ref(layer._generator.pool._kept[weakref.ref(old._reuse)])
        layer.model.embedding.values.assign(np.array(layer.model.embedding.values))
        other.send("And you")
        gc.collect()
        assert weights() is None
        assert [old.send("And you")] == [layer.generate(old.messages[:-1])[0]]

    @pytest.mark.quick_on_jax
    def test_the_one_used_longest_ago_is_computed_again(self, small, monkeypatch):
        ran, run = [], small._generator.prompt_runner.prefill
        monkeypatch.setattr(
            small._generator.prompt_runner, "prefill", lambda *args: ran.append(args[4]) or run(*args)
        )  # the slot of the first chunk
        chats = [small.chat(), small.chat()]
        for chat in chats:
            chat.send("Hi there")
        answers = [chats[1].send("And you"), chats[0].send("And you")]
        assert ran[:2] == [0, 0] and ran[2] > 10 and ran[3] == 0
        assert self.kept(small) == 1
        assert answers == [small.generate(chats[i].messages[:-1])[0] for i in (1, 0)]


class TestReusePrompt:
    def test_a_prompt_that_begins_as_the_last_one(self, layer, chunks):
        rows = [np.arange(5, 35).tolist(), np.arange(5, 45).tolist(), [9, *np.arange(6, 45).tolist()]]
        expected = [layer.generate([row])["sequences"].tolist() for row in rows]
        chunks.clear()
        got = [layer.generate([row], reuse_prompt=True)["sequences"].tolist() for row in rows]
        assert got == expected
        assert [known for known, _ in chunks] == [0, 30, 0]

    @pytest.mark.quick_on_jax
    def test_rows_that_begin_at_the_same_slots(self, layer, chunks):
        rows = [[5, 6, 7, 8, 9], [5, 6, 7, 10]]
        expected = layer.generate(rows)["sequences"].tolist()
        chunks.clear()
        for _ in range(2):
            assert layer.generate(rows, reuse_prompt=True)["sequences"].tolist() == expected
        assert [known for known, _ in chunks] == [0, 4]
        other = [[5, 6, 7, 8, 9], [5, 6, 7]]
        assert (layer.generate(other, reuse_prompt=True)["sequences"] == layer.generate(other)["sequences"]).all()

    def test_nothing_compiles_for_it(self, layer):
        layer.generate([[5, 6, 7]])
        before = layer.trace_count
        for n in range(3, 9):
            layer.generate([list(range(5, 5 + n))], reuse_prompt=True)
        assert layer.trace_count == before

    @pytest.mark.quick_on_jax
    def test_beams_compute_their_prompts(self, layer):
        row = list(range(5, 20))
        expected = layer.generate([row], num_beams=2)["sequences"].tolist()
        layer.generate([row], reuse_prompt=True)
        assert layer.generate([row], num_beams=2, reuse_prompt=True)["sequences"].tolist() == expected

    @pytest.mark.slow
    def test_rows_that_begin_elsewhere_move(self, layer, chunks):
        """What several prompts begin with serves others, fewer or more of them, and of other lengths."""
        begun = list(range(5, 45))
        first = [[*begun, 50, 51, 52], [*begun, 60], [7, 8, 9]]
        others = [[*begun, 70], [*begun[:30], 71, 72], [*begun, 50, 51, 52, 53, 54]]
        for rows in (others, others[:1], [*others, *others]):
            expected = layer.generate(rows)["sequences"].tolist()
            layer.generate(first, reuse_prompt=True)
            chunks.clear()
            assert layer.generate(rows, reuse_prompt=True)["sequences"].tolist() == expected
            assert chunks[0][0] >= 30

    @pytest.mark.quick_on_jax
    def test_rows_do_not_move_for_nothing(self, layer, chunks):
        layer.generate([[5, 6, 7, 8]], reuse_prompt=True)
        layer.generate([[5, *range(20, 60)], [5, 9]], reuse_prompt=True)
        assert chunks[-1][0] == 0  # one token in common


class TestSavedPrompts:
    BEGUN = list(range(5, 45))

    @pytest.fixture
    def saved(self, layer):
        return layer.save_prompt([self.BEGUN])

    @pytest.mark.parametrize(
        ("rows", "known"),
        [
            ([[*BEGUN, 9]], 39),
            ([BEGUN], 39),
            ([[*BEGUN, 50], [*BEGUN, 51, 52], [*BEGUN, *range(50, 70)]], 39),
            ([[*BEGUN[:35], 3, 4]], 35),
        ],
        ids=["one", "itself", "several", "a part of it"],
    )
    @pytest.mark.quick_on_jax("one", "itself", "a part of it")
    def test_calls_begin_with_it(self, layer, saved, chunks, rows, known):
        expected = layer.generate(rows)["sequences"].tolist()
        chunks.clear()
        for _ in range(2):  # it stays as it is
            assert layer.generate(rows, reuse_prompt=saved)["sequences"].tolist() == expected
        assert [slot for slot, _ in chunks] == [known] * 2

    @pytest.mark.quick_on_jax
    def test_beams_streams_and_samples_begin_with_it(self, layer, saved, chunks):
        rows = [[*self.BEGUN, 50], [*self.BEGUN, 51, 52]]
        for options in ({"num_beams": 2}, {"do_sample": True, "seed": 3}):
            expected = layer.generate(rows, **options)["sequences"].tolist()
            assert layer.generate(rows, reuse_prompt=saved, **options)["sequences"].tolist() == expected
            assert chunks[-1][0] == 39
        pieces = list(layer.stream(rows[:1], reuse_prompt=saved))
        assert (
            np.concatenate(pieces).tolist()
            == layer.generate(rows[:1])["sequences"][0][: sum(map(len, pieces))].tolist()
        )

    def test_prompts_that_begin_otherwise_run_whole(self, layer, saved, chunks):
        rows = [[9, *self.BEGUN]]
        assert (
            layer.generate(rows, reuse_prompt=saved)["sequences"].tolist() == layer.generate(rows)["sequences"].tolist()
        )
        assert [known for known, _ in chunks] == [0, 0]

    @pytest.mark.slow
    def test_several_are_saved_together(self, layer, chunks):
        saved = layer.save_prompt([self.BEGUN, self.BEGUN[20:]])
        rows = [[*self.BEGUN[20:], 3], [*self.BEGUN, 4], [*self.BEGUN[20:], 5]]
        expected = layer.generate(rows)["sequences"].tolist()
        assert layer.generate(rows, reuse_prompt=saved)["sequences"].tolist() == expected
        assert chunks[-1][0] == 39

    def test_chats_begin_with_it(self, layer, chunks):
        system = [{"role": "system", "content": "Be brief and kind to all"}]
        expected = layer.chat("Be brief and kind to all").send("Hi")
        saved = layer.save_prompt(system)
        for _ in range(2):
            chat = layer.chat("Be brief and kind to all", reuse_prompt=saved)
            assert chat.send("Hi") == expected
            assert chunks[-1][0] > 15
            chat.send("And you")
            assert chunks[-1][0] > 20  # from the first turn

    def test_nothing_compiles_for_it(self, layer, saved):
        rows = [[*self.BEGUN, 9]]
        layer.generate(rows)
        before = layer.trace_count
        layer.generate(rows, reuse_prompt=saved)
        assert layer.trace_count == before

    def test_other_weights_compute_it_anew(self, layer, saved, chunks):
        rows, weight = [[*self.BEGUN, 9]], layer.model.variables[0]
        before = weight.numpy()
        try:
            weight.assign(before * 1.5)
            expected = layer.generate(rows)["sequences"].tolist()
            assert layer.generate(rows, reuse_prompt=saved)["sequences"].tolist() == expected
            assert chunks[-1][0] == 0
        finally:
            weight.assign(before)

    def test_once_it_is_of_no_use_it_holds_nothing(self, layer):
        saved, weight = layer.save_prompt([self.BEGUN]), layer.model.variables[0]
        kept = weakref.ref(saved._kept)
        weight.assign(weight.numpy())
        for _ in range(2):
            layer.generate([[*self.BEGUN, 9]], reuse_prompt=saved)
        gc.collect()
        assert kept() is None

    def test_threads_share_it(self, layer, saved):
        rows = [[[*self.BEGUN, i, i + 1]] for i in range(50, 66)]
        expected = [layer.generate(row)["sequences"].tolist() for row in rows]
        with ThreadPoolExecutor(8) as pool:
            made = pool.map(lambda row: layer.generate(row, reuse_prompt=saved)["sequences"].tolist(), rows)
            assert list(made) == expected

    def test_another_layer_refuses_it(self, model, saved):
        other = XLAGenerationLayer(model, tiny(), max_new_tokens=2)
        for call in (other.generate, other.stream):
            with pytest.raises(ValueError, match="another layer saved"):
                call([self.BEGUN], reuse_prompt=saved)
        with pytest.raises(ValueError, match="another layer saved"):
            other.chat(reuse_prompt=saved)

    @pytest.mark.parametrize(
        ("inputs", "options", "error", "text"),
        [
            ([[]], {}, ValueError, "empty"),
            ([[5]] * 65, {}, ValueError, "at most 64"),
            ("a b", {"temperature": 0.5}, TypeError, "temperature"),
            ([list(range(1000))], {}, ValueError, "expected ids"),
        ],
        ids=["no token", "too many", "an option of another kind", "bad ids"],
    )
    def test_what_cannot_be_saved_is_said(self, layer, inputs, options, error, text):
        with pytest.raises(error, match=text):
            layer.save_prompt(inputs, **options)

    @pytest.mark.parametrize("kind", ["an encoder-decoder", "a model with a cache of its own"])
    @pytest.mark.quick_on_jax
    @pytest.mark.quick("an encoder-decoder")
    def test_other_kinds_of_models_compute_their_prompts_again(self, kind, checkpoint):
        model = Follow() if "cache" in kind else load_model(open_checkpoint(checkpoint("t5")))
        start = {} if "cache" in kind else {"decoder_start_token_id": 3}
        other = XLAGenerationLayer(model, max_new_tokens=4, eos_token_id=None, **start)
        expected = other.generate([[5, 3]])["sequences"].tolist()
        for _ in range(2):
            assert other.generate([[5, 3]], reuse_prompt=True)["sequences"].tolist() == expected
        with pytest.raises(ValueError, match=f"a prompt to save for {kind}"):
            other.save_prompt([[5]])

    def test_bad_arguments(self, layer):
        with pytest.raises(TypeError, match="what save_prompt returned"):
            layer.generate([[5]], reuse_prompt="yes")
        with pytest.raises(TypeError, match="what save_prompt returned"):
            layer.chat(reuse_prompt=True)


@pytest.mark.quick_on_jax
def test_an_answer_goes_on_from_a_message_of_parts(layer):
    part = {"type": "text", "text": "a"}
    chat = layer.chat(messages=[{"role": "assistant", "content": [part]}])
    answer = chat.send(continue_final_message=True)
    assert chat.messages == [{"role": "assistant", "content": [part, {"type": "text", "text": answer}]}]
