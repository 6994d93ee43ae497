# Every target sets up what it needs from nothing: it creates .venv, installs, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
WORKERS ?= 2
AXE := $(VENV)/axe

PIP := $(BIN)/pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --require-hashes --no-deps --requirement

.PHONY: setup demo test long lint coverage mutate faults fuzz bench lock clean

setup: $(STAMPS)/dev

# The layers of requirements/ on one another, every file by its hash; torch, of which indexes have different builds, by its version
$(STAMPS)/base: pyproject.toml requirements/base.txt
	$(PYTHON) -c 'import sys; sys.exit("confide needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) requirements/base.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/train: $(STAMPS)/base requirements/train.txt constraints.txt
	$(LOCKED) requirements/train.txt
	$(PIP) --constraint constraints.txt torch
	@touch $@

$(STAMPS)/dev: $(STAMPS)/train requirements/dev.txt
	$(LOCKED) requirements/dev.txt
	@touch $@

$(STAMPS)/bench: $(STAMPS)/dev requirements/bench.txt
	$(LOCKED) requirements/bench.txt
	@touch $@

# Debian's Chromium and axe-core for the tests of the pages, where they can be had; without them these tests are skipped and say so
$(STAMPS)/browser: $(STAMPS)/dev requirements/package-lock.json
	@command -v chromium >/dev/null || apt-get install --yes --no-install-recommends chromium >/dev/null 2>&1 \
		|| { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 \
		|| echo "chromium cannot be installed: the tests of the pages are skipped"
	@mkdir -p $(AXE) && cp requirements/package.json requirements/package-lock.json $(AXE)/
	@npm ci --silent --no-fund --no-audit --ignore-scripts --prefix $(AXE) >/dev/null 2>&1 \
		|| echo "axe-core cannot be installed: the accessibility of the pages is not tested"
	@touch $@

demo: $(STAMPS)/train
	rm -rf demo
	$(BIN)/confide demo -o demo

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

PYTEST = OMP_NUM_THREADS=1 CONFIDE_AXE=$$(ls $(AXE)/node_modules/axe-core/axe.min.js 2>/dev/null) $(BIN)/pytest -q -n $(WORKERS)

test: lint $(STAMPS)/browser
	$(PYTEST) --dist loadfile -m "not long"

# Pages followed to the letter, every command searched for leaks, and planted mistakes that a test must catch; with `make test` these are all tests
long: $(STAMPS)/browser
	$(PYTEST) --dist loadfile -m long

# Lines and branches, also those that only the tests' own processes reach
coverage: $(STAMPS)/browser
	rm -rf .coverage .coverage.*
	-OMP_NUM_THREADS=1 CONFIDE_AXE=$$(ls $(AXE)/node_modules/axe-core/axe.min.js 2>/dev/null) $(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist loadfile --deselect tests/guarantees/test_mutations.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# A sample of small mistakes in the source, each of which a test should notice; hours
mutate: $(STAMPS)/dev
	$(BIN)/python benchmarks/mutation.py

# Faults of the disk and of the process at random moments of five commands; half an hour
faults: $(STAMPS)/dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/harness.py --points 250 --seed 1 --log faults.jsonl

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
	$(BIN)/python benchmarks/scale.py

# Hashes and licences again, at the versions that are locked; `make lock UPGRADE=--upgrade` takes the newest that pyproject.toml allows
lock:
	$(PYTHON) requirements/lock.py $(UPGRADE)
	$(MAKE) $(STAMPS)/bench
	$(BIN)/python requirements/lock.py --licences

clean:
	rm -rf $(VENV) demo build dist bench faults.jsonl fuzz.jsonl .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find src -name "*.so" -delete
