"""What the tests of guesses share."""

import numpy as np

from keras_xla import XLAGenerationLayer
from keras_xla.engine.call import Call
from keras_xla.engine.runs.deadline import Deadline
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

SEQ2SEQ = ["t5", "t5-gated", "bart", "mbart", "marian"]
NEW = 50  # tokens, for which caches have to grow


def layer_of(checkpoint, variant, tokenizer=None, **options):
    """A layer with a tiny random model."""
    start = dict(decoder_start_token_id=3) if variant in SEQ2SEQ else {}
    options = {"max_new_tokens": NEW, "generation_config": {}, "pad_token_id": 0, **start, **options}
    model = load_model(open_checkpoint(checkpoint(variant)))
    return XLAGenerationLayer(model, tokenizer or tiny(), cache_buckets=(40, 80, 128), **options)


def same(made, plain):
    """Assert that two outputs are those of the same completions."""
    for name in ("sequences", "lengths"):
        np.testing.assert_array_equal(made[name], plain[name])
    np.testing.assert_allclose(made["scores"], plain["scores"], rtol=1e-4)


def runs_of(layer, rows, assistant=None, **options):
    """How often the model runs: without guesses, and with them."""
    rows = [np.array(row, np.int32) for row in rows]
    helper = None if assistant is None else assistant._generator
    run = layer._generator.start(Call(rows, layer.options.replace(**options), assistant=helper))
    for _ in run.advance(Deadline(), count=NEW):
        pass
    run.close()
    return run.generation.runs.tolist()
