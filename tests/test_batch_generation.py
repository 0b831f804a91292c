"""The recipe for batch generation: what a worker does, and the whole script on Ray's local runner."""

import copy
import importlib.util
import json
import re
import subprocess
import sys
import types

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests import reference
from tests.test_examples import EXAMPLES, ROOT, run
from tests.tokenizers import tiny

SCRIPT = EXAMPLES / "batch_generation.py"
no_ray = importlib.util.find_spec("ray") is None
needs_ray = pytest.mark.skipif(no_ray, reason="Ray Data (330 MB) is not installed: make ray")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A tiny GPT-2 of 128 positions, with one token a letter."""
    folder = reference.folder("gpt2", tmp_path_factory.mktemp("model"))
    tokenizer = copy.deepcopy(tiny())  # which all tests share
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("batch_generation", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(*prompts):
    return pa.table({"id": list(range(len(prompts))), "prompt": list(prompts), "other": [0.0] * len(prompts)})


def rows(answers: pa.Table) -> dict[str, dict]:
    found = {row["id"]: row for row in answers.to_pylist()}
    assert len(found) == len(answers)
    return found


def test_ids_stay_as_they_are_written(recipe):
    lines = [
        '{"id": "007", "prompt": "a"}',
        '{"id": "1.10", "prompt": "b", "more": 1}',
        '{"prompt": null, "id": 7}',
        '{"id": ""}',
    ]
    assert recipe.parsed(pa.table({"text": lines})).to_pylist() == [
        {"id": "007", "prompt": "a"},
        {"id": "1.10", "prompt": "b"},
        {"id": "7", "prompt": None},
        {"id": "", "prompt": None},
    ]


def test_only_a_new_line_ends_a_prompt_of_a_text_file(recipe, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\u2028still one\n\ntwo\x0c\n", encoding="utf-8")
    ray = types.SimpleNamespace(data=types.SimpleNamespace(from_items=list))
    made = recipe.prompts_of(ray, str(tmp_path / "prompts.txt"))
    assert [(row["id"], row["prompt"]) for row in made] == [("1", "one\u2028still one"), ("2", ""), ("3", "two\x0c")]


@pytest.mark.slow
def test_a_worker_answers_as_the_layer_does_whatever_the_batch(recipe, model):
    from keras_xla import XLAGenerationLayer

    worker = recipe.Generate(model, 4, [16, 64], 8)
    prompts = ["one", "a prompt of many more letters", "two", "three", "four", "five", "and six"]
    answers = worker(table(*prompts))
    assert answers.schema == recipe.ANSWERS
    layer = XLAGenerationLayer.from_pretrained(model, max_new_tokens=8)
    for i, prompt in enumerate(prompts):
        row = rows(answers)[str(i)]
        assert (row["prompt"], row["error"]) == (prompt, None)
        assert row["text"] == layer.generate(prompt)[0]
        assert row["tokens"] == len(layer.tokenizer(row["text"], add_special_tokens=False)["input_ids"])


@pytest.mark.slow
def test_a_worker_compiles_two_executables_for_each_prompt_bucket(recipe, model):
    worker = recipe.Generate(model, 4, [16, 64], 8)
    counts = []
    for prompts in (["short"] * 4, ["short"], ["x" * 40] * 3, ["short", "x" * 40], ["x" * 60] * 9):
        counts.append(worker(table(*prompts))["compilations"][-1].as_py())
    assert counts == [2, 2, 4, 4, 4]


def test_rows_that_fail_leave_the_others_alone(recipe, model):
    worker = recipe.Generate(model, 4, [16, 64], 8)
    answers = rows(worker(table("good", "", "x" * 65, "fine", None)))
    assert [answers[i]["error"] is None for i in "01234"] == [True, False, False, True, False]
    assert "empty" in answers["1"]["error"] and "the largest of cache_buckets" in answers["2"]["error"]
    assert answers["2"]["text"] is None and answers["2"]["tokens"] == 0
    assert answers["0"]["text"] == rows(worker(table("good")))["0"]["text"]
    assert worker.layer.trace_count == 2


@pytest.mark.slow
def test_a_chat_model_is_asked_in_its_template(recipe, tmp_path):
    folder = reference.folder("gpt2", tmp_path)
    tiny().save_pretrained(folder)
    worker = recipe.Generate(folder, 2, [64], 8)
    (answer,) = rows(worker(table("hello"))).values()
    assert answer["text"] == worker.layer.generate([[{"role": "user", "content": "hello"}]])[0]
    assert answer["text"] != worker.layer.generate("hello")[0]


def test_what_is_answered_is_left_out_and_what_failed_is_not(recipe, tmp_path, capsys):
    assert recipe.answered(str(tmp_path / "nothing")) == set()
    for run_, ids, errors in (("1", ["a", "b"], [None, "too long"]), ("2", ["c"], [None])):
        empty = {name: [None] * len(ids) for name in recipe.ANSWERS.names}
        (tmp_path / run_).mkdir()
        pyarrow.parquet.write_table(
            pa.table({**empty, "id": ids, "error": errors}, recipe.ANSWERS), tmp_path / run_ / "x.parquet"
        )
    assert recipe.answered(str(tmp_path)) == {"a", "c"}
    (tmp_path / "1" / "broken.parquet").write_bytes((tmp_path / "1" / "x.parquet").read_bytes()[:200])
    assert recipe.answered(str(tmp_path)) == {"a", "c"}
    assert "broken.parquet is broken" in capsys.readouterr().out
    assert recipe.without(pa.table({"id": ["a", "b", "d"]}), {"a", "c"})["id"].to_pylist() == ["b", "d"]


def test_without_ray_it_says_what_to_install(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python -m pip install 'ray[data]>=2.60'" in done.stderr and "Traceback" not in done.stderr


def test_the_page_quotes_the_script():
    quoted = re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "batch_generation.md").read_text(), re.DOTALL)
    lines = [line for block in quoted for line in block.splitlines()]
    assert lines and set(lines) <= set(SCRIPT.read_text().splitlines())


@needs_ray
@pytest.mark.slow
def test_the_whole_script_on_the_local_runner_and_again(model, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers"
    asked = [{"id": f"q{i}", "prompt": "word " * (1 + i % 5)} for i in range(21)] + [{"id": "long", "prompt": "x" * 70}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in asked))
    options = ["--model", model, "--batch", "4", "--prompt-buckets", "16", "64", "--max-new-tokens", "8"]
    command = [str(SCRIPT), str(prompts), "--out", str(out), *options, "--rows-per-task", "6"]
    printed = run(*command)
    assert re.search(r"^22 rows, 1 failed, \d+ tokens in \d+\.\d s: \d+\.\d tokens/s$", printed, re.MULTILINE)
    workers = re.findall(r"^  \S+:\d+: (\d+) rows, \d+\.\d tokens/s, (\d) compilations$", printed, re.MULTILINE)
    assert sum(int(count) for count, _ in workers) == 22
    assert {int(compiled) for _, compiled in workers} <= {2, 4}  # two for each prompt bucket that it has met
    assert re.search(r"^  failed: long: .*the largest of cache_buckets", printed, re.MULTILINE)
    written = pyarrow.parquet.read_table(out).to_pylist()
    assert sorted(row["id"] for row in written) == sorted(row["id"] for row in asked)
    assert {row["prompt"]: row["text"] for row in written if row["error"] is None}.keys() == {
        row["prompt"] for row in asked[:-1]
    }

    prompts.write_text(prompts.read_text() + json.dumps({"id": "new", "prompt": "another"}) + "\n")
    printed = run(*command, "--workers", "1")
    assert "21 prompts have an answer" in printed and "\n2 rows, 1 failed" in printed
    answers = [row["id"] for row in pyarrow.parquet.read_table(out).to_pylist() if row["error"] is None]
    assert sorted(answers) == sorted([*(f"q{i}" for i in range(21)), "new"])
