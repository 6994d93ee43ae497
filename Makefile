# Every target sets up what it needs from nothing: it creates .venv, installs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
WORKERS ?= 2

.PHONY: setup demo test lint bench clean

setup: $(STAMPS)/dev

$(STAMPS)/base: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("confide needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/train: $(STAMPS)/base
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,report]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/base
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(STAMPS)/bench: $(STAMPS)/dev
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@touch $@

demo: $(STAMPS)/train
	rm -rf demo
	$(BIN)/confide demo -o demo

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -q -n $(WORKERS)

bench: $(STAMPS)/bench
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/splitting.py
	$(BIN)/python benchmarks/screening.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/attacks.py

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
