# Two commands on a fresh machine with Python 3.11+: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test lint format bench oldest clean

demo: $(VENV)/.base
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest tests
	KERAS_BACKEND=jax $(BIN)/python -m pytest tests/engine tests/models tests/generation tests/training -m "not slow"

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The peers need transformers 4 and Keras 2: an environment of their own.
bench: $(VENV)/.test .venv-peer/.installed
	$(BIN)/python benchmarks/decode.py --peer .venv-peer/bin/python

# The lower end of the stated version range.
oldest: .venv-oldest/.installed
	.venv-oldest/bin/python -m pytest tests -m "not slow"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.base: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e ".[demo]"
	touch $@

$(VENV)/.test: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e ".[test]"
	touch $@ $(VENV)/.base

$(VENV)/.lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt "ruff"
	touch $@

.venv-peer/.installed: benchmarks/peer-requirements.txt
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/python -m pip install --quiet -r benchmarks/peer-requirements.txt
	touch $@

.venv-oldest/.installed: .ci/oldest.txt pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -c .ci/oldest.txt -e ".[test]"
	touch $@

clean:
	rm -rf .venv .venv-peer .venv-oldest .pytest_cache .ruff_cache .hypothesis
