"""The listings for transformers 4, and the two scripts that show how to leave it, which write the same."""

import json
import re

import pytest

from tests.pages import listings
from tests.test_examples import EXAMPLES, ROOT, run
from tests.tokenizers import tiny
from tests.transformers4.models import live


@pytest.fixture
def folder(tmp_path):
    model = live("gpt2")
    model.generation_config.eos_token_id = None  # the guide's script does not tell a pad from an end
    model.save_pretrained(tmp_path / "gpt2")
    tiny().save_pretrained(tmp_path / "gpt2")
    config = tmp_path / "gpt2" / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}  # as GPT-2's
    config.write_text(json.dumps({**json.loads(config.read_text()), **names}))
    return str(tmp_path / "gpt2")


@pytest.mark.slow
def test_the_guides_listings_and_ours_write_the_same(folder, tmp_path):
    found = listings(ROOT / "docs" / "xla_guide.md", 'python title="transformers 4"')
    code = "\n".join(["import keras_xla", *(each.code for each in found)])
    assert code.count("from_pretrained") == code.count("openai-community/gpt2") == 2
    script = tmp_path / "page.py"
    script.write_text(code.replace("openai-community/gpt2", folder))
    out = run(str(script))
    assert out.count("Execution time -- ") == 3
    unpadded, padded, jitted, layer = re.findall("Generated -- (.*)", out)
    assert unpadded == padded == jitted == layer != "TensorFlow is"


@pytest.mark.slow
def test_the_script_moved_over_writes_what_it_wrote_before(folder):
    before, after = (run(str(EXAMPLES / f"migrate_{name}.py"), folder) for name in ("before", "after"))
    assert before.count(" -> ") == 3
    assert before == after
