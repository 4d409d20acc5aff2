# Every target sets up what it needs by itself: Python 3.11 or newer with pip is enough.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin
STAMP := .venv/.installed
# Of the numeric libraries' threads more than the machine has only slow each other down.
export OMP_NUM_THREADS ?= 2

.PHONY: help demo test fuzz oldest lint format types docs chromium constraints bench-help clean

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target what; do printf '  %-18s%s\n' "$$target" "$$what"; done

$(STAMP): pyproject.toml constraints.txt tools/setup.sh
	@echo "installing into .venv (a few minutes the first time)"
	@tools/setup.sh
	@touch $@

demo: $(STAMP) ## fit real runs, print the sampling ratios, write the report page, train a mini-sweep
	$(BIN)/python examples/demo.py

test: $(STAMP) lint types docs chromium ## lint, types, docs, then every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

fuzz: $(STAMP) ## the long counts (FUZZ_MINUTES=10 limits the time, default 50)
	APPORTION_FUZZ=$${APPORTION_FUZZ:-10000} $(BIN)/python -m pytest -m fuzz

oldest: $(STAMP) ## what depends on transformers, with the oldest release of the range
	tools/oldest.sh

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(STAMP) ## ruff: format, and mend what can be mended
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

types: $(STAMP) ## basedpyright, strict on src
	$(BIN)/basedpyright

docs: $(STAMP) ## the docs site into site/, warnings are errors
	$(BIN)/mkdocs build --strict

chromium:
	@tools/chromium.sh

constraints: $(STAMP) ## write constraints.txt from what .venv has
	$(BIN)/python tools/constraints.py
	@touch $(STAMP)

bench-help: $(STAMP) ## the benchmarks, to run by hand
	@$(BIN)/python benchmarks/harness.py

clean: ## remove .venv and everything built
	rm -rf .venv .venv-oldest site dist build demo-output .pytest_cache .ruff_cache .hypothesis
