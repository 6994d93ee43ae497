# Every target sets up what it needs from nothing: it creates .venv, installs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
WORKERS ?= 2
AXE := $(VENV)/axe

.PHONY: setup demo test lint fuzz bench clean

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

# Debian's Chromium and axe-core for the tests of the pages, where they can be had; without them these tests are skipped and say so
$(STAMPS)/browser: $(STAMPS)/dev
	@command -v chromium >/dev/null || apt-get install --yes --no-install-recommends chromium >/dev/null 2>&1 \
		|| { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 \
		|| echo "chromium cannot be installed: the tests of the pages are skipped"
	@npm install --silent --no-fund --no-audit --prefix $(AXE) axe-core@4.14.0 >/dev/null 2>&1 \
		|| echo "axe-core cannot be installed: the accessibility of the pages is not tested"
	@touch $@

demo: $(STAMPS)/train
	rm -rf demo
	$(BIN)/confide demo -o demo

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint $(STAMPS)/browser
	OMP_NUM_THREADS=1 CONFIDE_AXE=$$(ls $(AXE)/node_modules/axe-core/axe.min.js 2>/dev/null) $(BIN)/pytest -q -n $(WORKERS) --dist loadfile

# a hundred thousand hostile cases: corpora, policies, configurations, ledgers, certificates, reviews, options
fuzz: $(STAMPS)/dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/fuzz.py --cases 100000 --log fuzz.jsonl

bench: $(STAMPS)/bench
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/splitting.py
	$(BIN)/python benchmarks/screening.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/review.py
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
