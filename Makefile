# Two commands on a fresh machine with Python 3.11+: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2
# What runs on the backend: the rest (files, names, options, what a host does, what is keras.ops alone) is the same on both.
ON_JAX := tests/private tests/training tests/functions tests/diagnosis $(addprefix tests/backend/test_,host_array.py jax_steps.py keras2.py weights.py) $(addprefix tests/engine/test_,kept.py decode.py decode_hlo.py checked_decoder.py executables.py filters.py random.py continuous_batching.py speculation.py starter.py warmup.py) \
	$(addprefix tests/models/test_,blockwise_attention.py cache.py encoder_decoder.py families.py matrices.py recompute.py sources_keras_hub.py stack.py) \
	$(addprefix tests/generation/,test_beams.py test_cold_start.py test_compiled.py test_stream.py test_in_graph.py test_chat.py test_assistant.py test_dtypes.py test_generate_samples.py test_guidance.py test_predict_draws.py test_prompt_lookup.py speech/test_layer.py)

# XLA compiles on one core: two tests at a time. What it compiled stays in a process until its end, each function in a
# few mappings of memory, of which Linux allows 65,530; behind them compiling is a segmentation fault. So: several runs.
# PyTorch, the reference, has one thread in each: two of its threads wait for each other by keeping a core busy.
PARALLEL := -n 2 --dist worksteal
test test-all coverage differential oldest transformers4 nightly: export OMP_NUM_THREADS := 1
# Models in tests are tiny, and take longer to compile than to run: LLVM's optimizations are left to `make test-all`, and
# XLA's way through MLIR to the code of a fusion, with which a first call takes 1.4 times as long. Not so where the real
# policy times both ways.
TIMED := tests/training/decide/test_real_choice.py
test coverage: UNOPTIMIZED := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false $$XLA_FLAGS"
# All tests in several runs: $(call in_runs,python,options)
define in_runs
	$(UNOPTIMIZED) $(1) -m pytest $(PARALLEL) tests --ignore tests/training --ignore tests/generation $(2)
	$(UNOPTIMIZED) $(1) -m pytest $(PARALLEL) $(wildcard tests/generation/test_[a-k]*.py) $(2)
	$(UNOPTIMIZED) $(1) -m pytest $(PARALLEL) $(wildcard tests/generation/test_[l-z]*.py) $(2)
	$(UNOPTIMIZED) $(1) -m pytest $(PARALLEL) tests/training tests/generation/speech --ignore $(TIMED) $(2)
	$(1) -m pytest $(TIMED) $(2)
endef

# The slow tests of several files, each file in processes of its own, as all of them need too many mappings for one. A file
# without slow tests ends with 5: $(call file_by_file,backend,files)
define file_by_file
	for file in $(2); do \
		KERAS_BACKEND=$(1) $(BIN)/python -m pytest $(PARALLEL) $$file -m slow || test $$? -eq 5 || exit 1; \
	done
endef

# Both backends, and the live TensorFlow models of transformers 4 in an environment of their own: $(call both_backends,python)
define both_backends
	$(call in_runs,$(BIN)/$(1),-m "not slow")
	$(UNOPTIMIZED) KERAS_BACKEND=jax $(BIN)/$(1) -m pytest $(PARALLEL) $(ON_JAX) -m "not slow"
	$(UNOPTIMIZED) .venv-transformers4/bin/$(1) -m pytest $(PARALLEL) tests/transformers4 -m "not slow"
endef

.PHONY: docs demo test test-all coverage differential keras-tests lint format bench bench-fit bench-live oldest nightly transformers4 ray clean

demo: $(VENV)/.base
	$(BIN)/python examples/demo.py

test: $(VENV)/.test .venv-transformers4/.installed
	$(call both_backends,python)

# And what takes longer, on both backends: before an issue is closed.
test-all: test
	$(BIN)/python -m pytest $(PARALLEL) tests $(addprefix --ignore tests/,training generation engine) -m slow
	$(call file_by_file,tensorflow,$(wildcard tests/engine/test_*.py tests/generation/test_*.py tests/generation/speech/test_*.py))
	$(BIN)/python -m pytest $(PARALLEL) tests/training -m slow
	KERAS_BACKEND=jax $(BIN)/python -m pytest $(PARALLEL) $(filter-out tests/generation/test_%,$(ON_JAX)) -m slow
	$(call file_by_file,jax,$(filter tests/generation/test_%,$(ON_JAX)))
	.venv-transformers4/bin/python -m pytest $(PARALLEL) tests/transformers4 -m slow
	$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile random $$(grep -rl "from hypothesis" tests)

# How much of keras_xla/ runs in `make test`, in the processes that tests start, too: build/coverage has it line by line.
coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: $(VENV)/.test .venv-transformers4/.installed
	rm -rf build/coverage && mkdir -p build/coverage
	$(call both_backends,coverage run)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --directory build/coverage/lines
	$(BIN)/coverage report --skip-covered --sort=cover > build/coverage/report.txt
	tail -n 1 build/coverage/report.txt

# Scripts of actions in plain Keras and in ours, whatever can be seen of them compared: an hour or so.
differential: $(VENV)/.test
	$(BIN)/python -m tests.differential --count 600

# The tests that the Keras wheel ships, plainly and with ours: more than an hour, half of it the first time only.
keras-tests: $(VENV)/.keras-tests
	$(BIN)/python -m tests.keras_suite

# The documentation as a site, in build/docs; a broken link or an undocumented page is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file .ci/mkdocs.yml

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The peers need transformers 4 and Keras 2: an environment of their own.
bench: $(VENV)/.test .venv-peer/.installed
	$(BIN)/python benchmarks/decode.py --peer .venv-peer/bin/python

# Keras models trained by plain Keras, by its variants and with ours: hours, in parts; see its --help for less.
bench-fit: $(VENV)/.test
	$(BIN)/python benchmarks/fit_suite/run.py
	$(BIN)/python benchmarks/fit_suite/report.py benchmarks/results/fit_suite.jsonl > benchmarks/results/fit_suite.md

# The lower end of the stated version range.
oldest: .venv-oldest/.installed
	$(call in_runs,.venv-oldest/bin/python,-m "not slow")

# What comes next: the training tests on Keras' development version. `tests/private` names what it has no longer.
# KerasHub cannot be imported with it; docs/keras_tests.md has the reason of what else fails there.
nightly: .venv-nightly/.installed
	.venv-nightly/bin/python -m pytest $(PARALLEL) $(addprefix tests/,private training backend functions diagnosis) -m "not slow" \
		--ignore tests/private/test_hubs.py
	KERAS_BACKEND=jax .venv-nightly/bin/python -m pytest $(PARALLEL) tests/private tests/training -m "not slow" \
		--ignore tests/private/test_hubs.py

# The recipe for many machines, end to end on Ray's local runner; Ray alone is 330 MB.
ray: .venv-ray/.installed
	.venv-ray/bin/python -m pytest tests/test_batch_generation.py

# Live TensorFlow models: eager, their XLA and ours.
bench-live: .venv-transformers4/.installed
	.venv-transformers4/bin/python benchmarks/live.py

# Everything that does not take minutes, with the TensorFlow line of Hugging Face: transformers 4, whose models are Keras 2's.
transformers4: .venv-transformers4/.installed
	$(call in_runs,.venv-transformers4/bin/python,-m "not slow" $(addprefix --ignore tests/test_,examples.py docs.py real_checkpoint.py real_seq2seq.py))

$(BIN)/python:
	@echo "Making an environment in $(VENV)."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.base: pyproject.toml .ci/constraints.txt | $(BIN)/python
	@echo "Installing keras_xla, TensorFlow and what else they need into $(VENV): some minutes, the first time only."
	$(BIN)/python .ci/install.py -c .ci/constraints.txt -e ".[demo]"
	touch $@

$(VENV)/.test: pyproject.toml .ci/constraints.txt | $(BIN)/python
	@echo "Installing keras_xla, TensorFlow and what the tests need into $(VENV): some minutes, the first time only."
	$(BIN)/python .ci/install.py -c .ci/constraints.txt -e ".[test]"
	touch $@ $(VENV)/.base

$(VENV)/.keras-tests: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(BIN)/python .ci/install.py -c .ci/constraints.txt -e ".[test,kerastests]"
	touch $@ $(VENV)/.base $(VENV)/.test

$(VENV)/.docs: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(BIN)/python .ci/install.py -c .ci/constraints.txt -e ".[docs]"
	touch $@ $(VENV)/.base

$(VENV)/.lint: pyproject.toml | $(BIN)/python
	$(BIN)/python .ci/install.py -c .ci/constraints.txt ruff mypy pre-commit
	touch $@

# llama.cpp is compiled here: for AVX-512, and without AMX, which few machines have.
.venv-peer/.installed: benchmarks/peer-requirements.txt
	$(PYTHON) -m venv .venv-peer
	CMAKE_ARGS="-DGGML_NATIVE=OFF $(addprefix -DGGML_,$(addsuffix =ON,AVX AVX2 FMA F16C AVX512 AVX512_VNNI AVX512_VBMI AVX512_BF16))" \
		.venv-peer/bin/python .ci/install.py -r benchmarks/peer-requirements.txt
	touch $@

.venv-oldest/.installed: .ci/oldest.txt pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python .ci/install.py -c .ci/oldest.txt -e ".[test,transformers4]"
	touch $@

# keras-nightly is the package `keras` under another name, so TensorFlow's own has to go first.
.venv-nightly/.installed: .ci/nightly.txt .ci/constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-nightly
	.venv-nightly/bin/python .ci/install.py -c .ci/constraints.txt -e ".[test]"
	.venv-nightly/bin/python -m pip uninstall --quiet --yes keras
	.venv-nightly/bin/python .ci/install.py --no-deps --force-reinstall -r .ci/nightly.txt
	touch $@

.venv-ray/.installed: .ci/constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python .ci/install.py -c .ci/constraints.txt -e ".[test,ray]"
	touch $@

.venv-transformers4/.installed: .ci/transformers4.txt pyproject.toml
	@echo "Installing transformers 4 and tf-keras into .venv-transformers4: some minutes, the first time only."
	$(PYTHON) -m venv .venv-transformers4
	.venv-transformers4/bin/python .ci/install.py -c .ci/transformers4.txt -e ".[test,transformers4]"
	touch $@

clean:
	rm -rf .venv* .pytest_cache .mypy_cache .ruff_cache .hypothesis
