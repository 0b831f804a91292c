"""Which executables are found again: those of the same computation, and none of code that is not ours."""

import keras
import pytest

from keras_xla.backend.executable_cache import cache as module
from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.engine.kept import KeptExecutables, computed_with, what_is_computed
from keras_xla.engine.keys import AdvanceKey, PrefillKey, SpeculateKey
from keras_xla.engine.search.own_processors import own_processors
from keras_xla.engine.search.processors import PROCESSORS
from keras_xla.models.build import build, quantize
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint("gpt2")))


def computes(model, processors=PROCESSORS, processed=False):
    return what_is_computed(model, processors, processed)


def test_weights_change_nothing_and_all_else_does(model, checkpoint):
    same = build(model.spec)  # with other weights, under another name
    assert computes(same) == computes(model) is not None
    others = [
        build(model.spec, "bfloat16"),
        build(model.spec, "mixed_bfloat16"),
        quantize(model, "int8"),
        quantize(model, "int4"),
    ]
    others.append(load_model(open_checkpoint(checkpoint("opt-125m"))))
    made = [computes(other) for other in others]
    made += [computes(model, processed=True), computes(model, dict(list(PROCESSORS.items())[1:]))]
    assert len({computes(model), *made}) == len(made) + 1 and None not in made


def test_code_of_ones_own_is_not_known(model):
    def forbid(tokens, logits, step):
        return logits

    class Own(type(model)):
        pass

    assert computes(model, {**PROCESSORS, **own_processors([forbid])}) is None
    assert computes(Own(model.spec)) is None
    assert computes(keras.layers.Dense(3)) is None


def test_a_layer_of_ones_own_inside_is_not_known(model):
    class Norm(keras.layers.LayerNormalization):
        pass

    made = build(model.spec)
    made.blocks[0].own = Norm()
    assert computes(made) is None


def test_versions_settings_and_the_source_count():
    before = computed_with()
    assert {"backend", "versions", "device", "processor", "settings", "keras_xla"} <= before.keys()
    epsilon = keras.config.epsilon()
    try:
        keras.config.set_epsilon(1e-3)
        assert computed_with() != before
    finally:
        keras.config.set_epsilon(epsilon)
    assert computed_with() == before


def test_an_assistants_executables_and_unknown_ones_have_no_name(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_settings", module.CacheSettings(str(tmp_path), enabled=True))

    class Compiled:
        def keep(self, name, cache):
            names.append(name)
            return cache.put(name, b"x")

    names: list[str] = []
    kept = KeptExecutables(lambda: "a model", [])
    keys = AdvanceKey(1, 128), AdvanceKey(2, 128), PrefillKey(1, 128, 32), SpeculateKey(1, 128, guesses=3)
    for key in keys:
        assert not kept.holds(key)
        kept.keep(key, Compiled())
        assert kept.holds(key)
    assert len(set(names)) == len(keys)
    kept.keep(SpeculateKey(1, 128, guesses=3, assistant=1), Compiled())
    KeptExecutables(lambda: None, []).keep(keys[0], Compiled())
    assert len(names) == len(keys)
    assert not KeptExecutables(lambda: "another", []).holds(keys[0])


def test_what_could_not_be_saved_is_named(tmp_path):
    class Compiled:
        def __init__(self, can):
            self.can = can

        def keep(self, name, cache):
            return self.can

    kept = KeptExecutables(lambda: "a model", [])
    compiled = {AdvanceKey(1, 128): Compiled(True), AdvanceKey(2, 128): Compiled(False)}
    compiled[SpeculateKey(1, 128, assistant=1)] = Compiled(True)
    assert list(kept.save(compiled, ExecutableCache(tmp_path, 10)).values()) == [True, False, False]


def test_what_was_read_and_failed_is_not_read_again(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_settings", module.CacheSettings(str(tmp_path), enabled=True))
    bundle = ExecutableCache(tmp_path / "bundle", 100, keeps_all=True)
    kept, key = KeptExecutables(lambda: "a model", []), AdvanceKey(1, 128)

    class Compiled:
        def keep(self, name, cache):
            return cache.put(name, b"x")

    kept.keep(key, Compiled())
    kept.save({key: Compiled()}, bundle)
    kept.bundle = bundle
    assert kept.holds(key)
    kept.refuse(key)
    assert not kept.holds(key) and kept.read(key, ()) is None
    assert list(bundle.folder.glob("*.xla")) and not list(tmp_path.glob("*.xla"))


def test_flags_that_cannot_be_read_are_an_error_of_nobodys(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_settings", module.CacheSettings(str(tmp_path), enabled=True))
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "gone"))
    kept = KeptExecutables(lambda: "a model", [])
    assert not kept.holds(AdvanceKey(1, 128)) and kept.read(AdvanceKey(1, 128), ()) is None


def test_off_is_off():
    assert KeptExecutables(lambda: pytest.fail("asked"), []).read(AdvanceKey(1, 128), ()) is None
