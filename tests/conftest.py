"""Property tests draw the same examples everywhere, so that a failure is a failure for everyone; and corpora of split
records, marks included, are screened by the real pipeline."""

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

from confide import readers
from confide.experiments.customersim import dialogues, people
from confide.policies import Finding
from confide.records import Record, Row
from confide.screening import screen
from confide.screening.canaries import CanaryChunk

phases = [phase for phase in Phase if phase != Phase.shrink or os.environ.get("CONFIDE_SHRINK") != "no"]
settings.register_profile("same everywhere", derandomize=True, deadline=None, phases=phases)
settings.load_profile("same everywhere")

# Processes that fork from one that has imported what takes long; confide itself is not among it, since some import a copy of it
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch",
        "transformers",
        "hypothesis",
        "pyarrow.parquet",
        "duckdb",
        "scipy.stats",
        "dp_accounting",
        "pytest",
        "starlette.applications",
        "uvicorn",
    ]
)

KEY = b"k" * 32


@pytest.fixture(scope="session")
def forks():
    return FORKS


@pytest.fixture
def screened(tmp_path, monkeypatch):
    """A function from split texts (they may hold the mark) and options to the rows of (public, private)."""
    numbers = itertools.count()

    def run(texts, policy, per_chunk=3, **options):
        rows = [Row(i + 1, Record(f"r{i}", text, f"r{i}")) for i, text in enumerate(texts)]
        cut = [rows[i : i + per_chunk] for i in range(0, len(rows), per_chunk)]
        monkeypatch.setattr("confide.screening.pipeline.sources", lambda corpus: [])
        monkeypatch.setattr(
            readers,
            "chunks",
            lambda *_: (CanaryChunk(n, part, {}, payload=repr(part).encode()) for n, part in enumerate(cut)),
        )
        done = screen("corpus", policy, tmp_path / f"out{next(numbers)}", key=KEY, workers=1, **options)
        columns = {"public": ("id", "text", "group"), "private": ("id", "text", "group", "raw")}
        parts = {
            part: [row for b in done.batches(part, names) for row in b.to_pylist()] for part, names in columns.items()
        }
        return parts["public"], parts["private"], done.manifest

    return run


@pytest.fixture
def policy(monkeypatch):
    """A function that makes a policy of a Python function: text in, spans out."""
    numbers = itertools.count()

    def make(function, whole_group=False):
        module = ModuleType(f"toy_policy_{next(numbers)}")

        def find(text):
            return [(start, end, "TOY") for start, end in function(text)]

        find.whole_group = whole_group
        module.find = find
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return f"python:{module.__name__}:find"

    return make


ELSEWHERE = """
import json, sys
from confide.policies import load
specs, texts = json.load(sys.stdin)
print(json.dumps([load(spec).find(text) for text in texts for spec in specs]))
"""


@pytest.fixture
def elsewhere():
    """A function from policies and texts to the findings, text by text, in a process of its own."""

    def find(specs, texts):
        given = json.dumps([specs, texts])
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE], input=given, capture_output=True, text=True, check=True, timeout=120
        )
        return [[Finding(*finding) for finding in findings] for findings in json.loads(done.stdout)]

    return find


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A file of 120 simulated dialogues."""
    path = tmp_path_factory.mktemp("corpus") / "chats.jsonl"
    with open(path, "w") as file:
        for dialogue in dialogues(120, crowd=people(0, 60)):
            file.write(json.dumps({"id": dialogue.id, "text": dialogue.text}) + "\n")
    return path


def lacking(what):
    """Skip a test for lack of something, or fail it where CONFIDE_BROWSER says that nothing may be lacking."""
    (pytest.fail if os.environ.get("CONFIDE_BROWSER") == "required" else pytest.skip)(f"tests of the pages need {what}")


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by Playwright."""
    chromium = Path(os.environ.get("CONFIDE_CHROMIUM", "/usr/bin/chromium"))
    if not chromium.exists():
        lacking(f"Chromium: there is no {chromium}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("Playwright")
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def faults():
    """A function from a page to the serious faults of accessibility that axe-core (npm) finds in it; CONFIDE_AXE names axe.min.js."""
    named = os.environ.get("CONFIDE_AXE")
    if not named:
        lacking("axe-core: CONFIDE_AXE does not name axe.min.js")
    script = Path(named).read_text()

    def find(page):
        page.evaluate(script)
        found = page.evaluate("async () => (await axe.run()).violations.map((v) => [v.impact, v.id, v.nodes[0].html])")
        return [one for one in found if one[0] in ("serious", "critical")]

    return find
