PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
BENCHMARKS := $(wildcard benchmarks/*.py)
OLDEST_TORCH := $(shell sed -n 's/^dependencies = .*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test oldest ray explore pictures lint format docs report bench examples clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Each target makes .venv and installs what it needs. ARGS='...' is handed on to demo, test and examples."

demo: .venv/.paper ## Run the short demonstration, `igr demo`
	$(BIN)/igr demo $(ARGS)

test: .venv/.dev ## Run the tests and doctests (ARGS='-m slow' for those that take minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -m "not slow" $(ARGS)

oldest: .venv-oldest/.dev ## Run the tests with the oldest PyTorch that igr supports, in .venv-oldest (6 GB)
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n auto --maxprocesses 8 -m "not slow" --ignore tests/test_docs.py $(ARGS)

ray: .venv/.dev .venv/.ray .venv/.tensorboard ## Run the tests of igr run on a Ray cluster and of its event files
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/paper/test_ray.py tests/paper/test_events.py $(ARGS)

explore: .venv/.dev .venv/.browser ## Run the tests of igr explore, in Chromium if that and its driver are installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/explorer src/igr/explorer $(ARGS)

pictures: .venv/.browser ## Make the pictures of docs/explorer.md anew; needs Chromium and its driver
	$(BIN)/python tests/explorer/browser.py docs/images

lint: .venv/.dev ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev ## Mend style and formatting where that is safe
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.docs ## Build the site, warnings being errors
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	@echo "The site is in docs/_build/html: open docs/_build/html/index.html"

report: .venv/.paper ## Write the pages of the reproduction and of claims from results/ours
	$(BIN)/igr report --records results/ours --page docs/reproduction.md

bench: .venv/.dev ## Run every script in benchmarks/, one after another
	@test -n "$(BENCHMARKS)" || echo "benchmarks/ holds no Python script, so there is nothing to run"
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

examples: .venv/.dev .venv/.examples ## Run every script in examples/, shortened, and look at what it prints
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v tests/test_examples.py $(ARGS)

clean: ## Remove built files and caches, but neither .venv nor results
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache
	find src tests docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is touched only after its install has succeeded, so an interrupted install is done again.
.venv/.created .venv-oldest/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "igr needs Python 3.11 or newer, but PYTHON=$(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name a newer one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(@D)
	@touch $@

.venv/.%: pyproject.toml constraints.txt | .venv/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

.venv-oldest/.%: pyproject.toml | .venv-oldest/.created
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(OLDEST_TORCH).*' -e '.[$*]'
	@touch $@
