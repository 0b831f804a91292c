"""Answers follow their JSON schema, regular expression or grammar, whatever the model would say."""

import copy
import functools
import json
import re
import sys

import jsonschema
import llguidance
import numpy as np
import pytest
from keras import ops
from llguidance import hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keras_xla import XLAGenerationLayer
from keras_xla.generation.text.grammar import GrammarGuide, Grammars
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

letters = functools.partial(tiny, without="^`")  # so that there are braces

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "extra": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
REGEXES = [r"[a-c]{3}", r"(yes|no)", r"\d{4}-\d\d-\d\d", r"x*yz"]
HOLDS_ITSELF: dict = {}
HOLDS_ITSELF["not"] = HOLDS_ITSELF
GRAMMAR = r"""start: "go" ("left" | "right") /[0-9]{1,2}/ """


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("llama-tied-gqa")))


@pytest.fixture(scope="module")
def layer(model):
    """A model of random weights over a tokenizer of single characters."""
    options = dict(max_new_tokens=120, eos_token_id=2, pad_token_id=0, generation_config={})
    return XLAGenerationLayer(model, letters(), cache_buckets=(256,), **options)


def valid(text, schema):
    jsonschema.validate(json.loads(text), schema)
    return True


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_json_is_valid(layer, temperature):
    options = dict(do_sample=True, seed=1, num_return_sequences=4)
    texts = layer.generate(["a", "b c"], json_schema=PERSON, temperature=temperature, **options)
    assert all(valid(text, PERSON) for text in texts)
    assert len(set(texts)) > 1


def test_an_answer_of_a_bounded_schema_ends_whatever_the_model_likes(layer):
    """JSON may have any number of spaces between its parts, of which a small model makes no end."""
    (space,) = layer.tokenizer(" ")["input_ids"]
    (text,) = layer.generate(["a"], json_schema=PERSON, sequence_bias={(space,): 1e3})
    assert valid(text, PERSON) and text.count(" ") > 5


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a":1,"b":[2]}', True),
        ('{"a": 1, "b": [2, 3]}', True),
        ('{ "a" : 1, "b": [ ] }', True),
        ('{\n    "a": 1,\n    "b": [\n        2,\n        3\n    ]\n}', True),
        ('{  "a": 1, "b": []}', False),
        ('{\n\n"a": 1, "b": []}', False),
    ],
)
def test_json_has_the_spaces_of_usual_layouts(text, fits):
    integer = {"type": "integer"}
    schema = {"type": "object", "properties": {"a": integer, "b": {"type": "array", "items": integer}}}
    assert follows(text, schema) == fits
    assert follows(text, {**schema, "x-guidance": {"whitespace_pattern": r"[\x20\x0A]+"}})  # the schema's own
    assert follows(text, {**schema, "x-guidance": {"whitespace_flexible": True}})
    assert follows(text, {**schema, "x-guidance": {"whitespace_flexible": False}}) == (
        " " not in text and "\n" not in text
    )


def test_a_schema_may_allow_all_there_is():
    assert follows('{"a": [1, null]}', True) and follows('"b"', {})
    assert not follows('{"a": [1', {})


def follows(text, schema):
    tokenizer = tiny(vocab_size=261)  # with new lines
    guide = Grammars(tokenizer, 261, (2,)).guide("json_schema", json.dumps(schema))
    try:
        guide.follow(np.array(tokenizer(text, add_special_tokens=False)["input_ids"]))
    except ValueError:
        return False
    return guide.complete


@pytest.mark.parametrize("regex", REGEXES)
def test_whole_answers_match_a_regular_expression(layer, regex):
    texts = layer.generate(["a", "b c"], regex=regex, do_sample=True, seed=3, num_return_sequences=3, temperature=2.0)
    assert all(re.fullmatch(regex, text) for text in texts)


@pytest.mark.parametrize("options", [dict(regex="<user>[a-c]{3}"), dict(json_schema={"const": "</s><s>"})], ids=str)
def test_answers_may_have_to_spell_what_looks_like_a_special_token(layer, options):
    """As HTML does, or a tool call: the tokens are those of the letters, of which none is left out of the text."""
    (answer,) = layer.generate(["ab"], **options)
    assert answer == json.dumps("</s><s>") if "json_schema" in options else re.fullmatch("<user>[a-c]{3}", answer)


def may_follow(tokenizer, eos, regex, *tokens):
    """The tokens that may come behind others."""
    guide = Grammars(tokenizer, 97, eos).guide("regex", regex)
    guide.follow(np.array(tokens, int))
    allowed = np.flatnonzero(np.unpackbits(guide.allowed().view(np.uint8), bitorder="little"))
    return tokenizer.convert_ids_to_tokens(allowed)


def test_added_tokens_that_are_text_may_be_made():
    tokenizer = copy.deepcopy(letters(vocab_size=90))
    tokenizer.add_tokens(["<think>", "</think>", "<a b>"])
    assert not tokenizer.added_tokens_decoder[91].special
    assert may_follow(tokenizer, (2,), "[ab]*</think>[ab]") == ["<", "a", "b", "</think>"]
    assert may_follow(tokenizer, (2,), "[ab]*</think>[ab]", 91) == ["a", "b"]
    assert may_follow(tokenizer, (2,), "</s>") == ["<"]


def test_added_tokens_that_end_answers_are_no_text():
    tokenizer = copy.deepcopy(letters(vocab_size=90))
    tokenizer.add_tokens(["<end>"])
    assert "<end>" in may_follow(tokenizer, (90,), "a[^b]?", tokenizer.convert_tokens_to_ids("a"))
    assert "<end>" not in may_follow(tokenizer, (90,), "[^b]{3}")


def test_special_tokens_that_others_are_made_of_keep_their_names():
    """As `pad_token="!"` does, or a token that merges lead to."""
    names = ["!", *"ab<s>", "<s", "<s>", "ab"]
    merges = [("<", "s"), ("<s", ">"), ("a", "b")]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["!", "<s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="!", eos_token="<s>")
    assert may_follow(tokenizer, (7,), "(ab|a<)") == ["a", "ab"]


def test_a_token_of_text_that_ends_answers_follows_the_expression_too():
    tokenizer = letters()
    dot = tokenizer.convert_tokens_to_ids(".")
    a = tokenizer.convert_tokens_to_ids("a")
    assert may_follow(tokenizer, (dot,), "a[b]?", a) == ["</s>", "b"]
    first = copy.deepcopy(tokenizer)
    first.eos_token = "<pad>"  # whose id is 0
    assert may_follow(first, (dot,), "a[b]?", a) == ["<pad>", "b"]
    assert may_follow(tokenizer, (dot,), "a[.]", a) == ["."]


def test_a_grammar_in_larks_language(layer):
    texts = layer.generate(["a"] * 4, grammar=GRAMMAR, do_sample=True, seed=3)
    assert all(re.fullmatch(r"go(left|right)\d{1,2}", text) for text in texts)


def test_each_prompt_has_its_own(layer):
    first, second, third = layer.generate(
        ["a", "b", "c"], regex=[r"[a-c]{5}", None, r"\d\dx"], max_new_tokens=[9, 6, 9]
    )
    assert re.fullmatch(r"[a-c]{5}", first) and re.fullmatch(r"\d\dx", third)
    assert second == layer.generate("b", max_new_tokens=6)[0]


@pytest.mark.slow
def test_a_token_that_is_forced_gives_way(layer, checkpoint):
    """Checkpoints such as BART's force a first and a last token."""
    with pytest.warns(UserWarning, match="ended before they had followed"):
        (text,) = layer.generate(["a"], regex="[a-c]{20}", max_new_tokens=6, forced_eos_token_id=2)
    assert re.fullmatch("[a-c]{6}", text)
    forced = dict(forced_bos_token_id=7, forced_eos_token_id=2, decoder_start_token_id=3)
    model = load_model(open_checkpoint(checkpoint("bart")))
    options = dict(max_new_tokens=8, eos_token_id=2, pad_token_id=0)
    bart = XLAGenerationLayer(model, letters(), generation_config=forced, **options)
    first, second, third = bart.generate(["abc", "de", "f"], regex=["[a-c]{3}", "x", None])
    assert re.fullmatch("[a-c]{3}", first) and second == "x"
    assert third == bart.generate(["f"])[0]


def smoothed(tokens, logits, step):
    """A mixture with equal probabilities for all tokens."""
    probabilities = ops.softmax(logits)
    return ops.log(0.5 * probabilities + 0.5 / probabilities.shape[-1])


@pytest.mark.slow
def test_a_rule_of_the_users_own_does_not_allow_what_the_grammar_forbids(model):
    options = dict(max_new_tokens=20, eos_token_id=2, pad_token_id=0, generation_config={}, cache_buckets=(256,))
    layer = XLAGenerationLayer(model, letters(), logits_processors=[smoothed], **options)
    texts = layer.generate(["a"] * 4, regex="[a-c]{12}", do_sample=True, seed=1)
    assert all(re.fullmatch("[a-c]{12}", text) for text in texts)


@pytest.mark.slow
def test_a_tokenizer_may_have_more_tokens_than_the_model(model):
    tokenizer = copy.deepcopy(letters())
    tokenizer.add_tokens([f"<more {i}>" for i in range(100)])
    layer = XLAGenerationLayer(model, tokenizer, max_new_tokens=12, eos_token_id=2, pad_token_id=0)
    assert len(tokenizer) > model.vocab_size
    assert re.fullmatch(REGEXES[0], layer.generate(["a"], regex=REGEXES[0])[0])


def test_tokens_that_are_not_made_of_bytes_are_refused(model):
    tokenizer = copy.deepcopy(letters())
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()  # as T5's
    layer = XLAGenerationLayer(model, tokenizer, max_new_tokens=12, eos_token_id=2, pad_token_id=0)
    with pytest.raises(ValueError, match=r"whose tokens llguidance cannot read as bytes: .* T5 and mBART have none"):
        layer.generate(["a"], regex="a")
    assert layer.trace_count == 0


def test_streams_and_ids_follow_too(layer):
    assert re.fullmatch(REGEXES[2], "".join(layer.stream("a", regex=REGEXES[2])))
    out = layer.generate([[5, 6, 7]], regex=r"[a-c]{3}")
    assert re.fullmatch(r"[a-c]{3}", layer.tokenizer.decode(out["sequences"][0, :3].tolist()))


@pytest.mark.slow
def test_answers_without_an_end_token_end_with_the_grammar(model):
    layer = XLAGenerationLayer(
        model, letters(), max_new_tokens=20, generation_config={}, pad_token_id=0, cache_buckets=(256,)
    )
    out = layer.generate([[5, 6, 7], [8]], regex=r"[a-c]{3}")
    assert set(out["lengths"].tolist()) <= {3, 4}


@pytest.mark.slow
def test_nothing_compiles_for_it(layer):
    layer.generate(["a", "b"])
    before = layer.trace_count
    layer.generate(["a", "b"], regex=r"[a-c]{3}")
    layer.generate(["a", "b"], json_schema=PERSON)
    assert layer.trace_count == before
    plain = layer.generate(["a", "b"])
    assert plain == layer.generate(["a", "b"]) and layer.trace_count == before


def test_what_is_cut_off_is_said(layer):
    with pytest.warns(UserWarning, match=r"answers \[0\] ended before"):
        layer.generate(["a"], regex=r"[a-c]{30}", max_new_tokens=5)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(json_schema="{"), ValueError, "json_schema=.{.; expected a schema written in JSON"),
        (dict(json_schema={"type": "nonsense"}), ValueError, "nonsense"),
        (dict(json_schema=3), TypeError, "a dict, a string"),
        (dict(json_schema={"enum": {"a"}}), TypeError, "json_schema={'enum': {'a'}}, which JSON cannot hold: .* set"),
        (dict(json_schema=HOLDS_ITSELF), ValueError, "which JSON cannot hold: Circular"),
        (dict(regex="("), ValueError, "regex="),
        (dict(regex="(?x)[0-9]{3} # area\n-[0-9]{4}"), ValueError, "whose flag x .verbose."),
        (dict(regex="(?ix: a b)"), ValueError, "whose flag x .verbose."),
        (dict(regex=[["x"]]), TypeError, "regex=.'x'.; expected a string"),
        (dict(grammar="start: nothing"), ValueError, "grammar="),
        (dict(regex="a", grammar="start: /a/"), ValueError, "at most one"),
        (dict(regex="a", num_beams=2), ValueError, "without beams"),
        (dict(regex=["a", "b"]), ValueError, "regex with 2 values for 1 prompts"),
        (dict(regex="[ab]", suppress_tokens=list(range(3, 97))), ValueError, "Does another option forbid"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_ones(layer, options, error, text):
    with pytest.raises(error, match=text):
        layer.generate(["a"], **options)


def test_without_the_package(layer, monkeypatch, model):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    other = XLAGenerationLayer(model, letters(), max_new_tokens=4)
    with pytest.raises(ImportError, match="Install the extra grammar: python -m pip install 'llguidance"):
        other.generate("a", regex="a")


def test_without_a_tokenizer(model):
    with pytest.raises(ValueError, match="no tokenizer"):
        XLAGenerationLayer(model, max_new_tokens=4).generate([[5]], regex="a")


def test_tokens_beyond_the_tokenizers_are_never_made(layer):
    """Nor special ones, although a model of random weights likes them as much as others."""
    out = layer.generate([[5]] * 3, regex=r"[^q]{20}", do_sample=True, temperature=50.0, top_k=0, seed=1)
    assert (out["sequences"][:, :20] >= 5).all() and out["sequences"].max() < len(letters())


def test_a_grammar_that_grows_too_large_is_an_error():
    """And no answer that looks complete: llguidance calls such a matcher stopped."""
    limits = llguidance.LLParserLimits(step_max_items=1)
    lark = llguidance.LLMatcher.grammar_from_lark('start: x+\nx: "a" x "b" | "c"')
    matcher = llguidance.LLMatcher(hf.from_tokenizer(letters(), n_vocab=97), lark, limits=limits, log_level=0)
    with pytest.raises(ValueError, match=r"could not go on .*Too many items"):
        GrammarGuide(matcher, 4).allowed()
