"""Small screened corpora with known secrets, and their reviews.

The toy policy finds K1, K2, … (KEY) and P1, P2, … (PIN); it misses Q1, Q2, … Its conservative partner flags every digit
but says nothing about a class of its own, so that misses can be private (Q1) or public ("zebra").
"""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from types import ModuleType

import pytest

from confide.review import open_store
from confide.screening import screen


def find(text):
    kinds = {"K": "KEY", "P": "PIN"}
    return [(*match.span(), kinds[match[0][0]]) for match in re.finditer(r"\b[KP]\d+\b", text)]


def digits(text):
    return [(*match.span(), "DIGIT") for match in re.finditer(r"\d+", text)]


@pytest.fixture(scope="session")
def screened_before(tmp_path_factory):
    """Folders that were screened once, by texts and options; tests get copies."""
    return tmp_path_factory.mktemp("screened"), {}


@pytest.fixture
def folder_of(tmp_path, monkeypatch, screened_before):
    """A function from texts to a screened folder."""
    module = ModuleType("toy_review")
    module.find, module.digits = find, digits
    monkeypatch.setitem(sys.modules, "toy_review", module)
    home, known = screened_before

    def make(texts, **options):
        choices = {"conservative": "python:toy_review:digits", "unit": "document", "dedup": "off", **options}
        key = (tuple(texts), tuple(sorted(choices.items())))
        if key not in known:
            known[key] = home / str(len(known))
            path = home / f"{len(known)}.jsonl"
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            screen(str(path), "python:toy_review:find", known[key], workers=1, **choices)
        return shutil.copytree(known[key], tmp_path / f"screened{len(list(tmp_path.iterdir()))}")

    return make


@pytest.fixture
def store_of(folder_of):
    """A function from texts, or a screened folder, to a review that is open."""
    opened = []

    def make(texts=None, folder=None, **options):
        opened.append(open_store(folder or folder_of(texts), **options))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def label():
    """A function that answers the next record of a review rightly: everything with a Q and a digit, and "zebra", is a secret."""

    def answer(store):
        place = store.frontier()
        text = store.show(place).text
        for version, match in enumerate(re.finditer(r"\bQ\d+\b|zebra", text)):
            store.act(place, "mark", version, *match.span())
        store.act(place, "answer", store.state(store.order[place]).version)
        return place

    return answer


SERVER = f"""
import re, sys
from types import ModuleType
{inspect.getsource(find)}
{inspect.getsource(digits)}
toy = sys.modules["toy_review"] = ModuleType("toy_review")
toy.find, toy.digits = find, digits
from confide.review import serve
"""
ALONE = SERVER + "serve(sys.argv[1], say=lambda text: print(text, flush=True), open_browser=sys.argv[2] == 'True')"
FORKED = SERVER + "serve(folder, port=port, say=said.send, open_browser=False)"


@pytest.fixture
def server_of():
    """A function that starts a server on a folder, in a Python of its own. Out: the process and its link."""
    running = []

    def start(folder, browser=False):
        command = [sys.executable, "-c", ALONE, str(folder), str(browser)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "BROWSER": "true"}
        )
        running.append(process)
        return process, re.search(r"http\S+", process.stdout.readline())[0]

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def forked_server_of(forks):
    """As `server_of`, in a fork, at once."""
    running = []

    def start(folder, port=0):
        here, there = forks.Pipe()
        process = forks.Process(target=exec, args=(FORKED, {"folder": str(folder), "port": port, "said": there}))
        process.start()
        running.append((process, here))
        return process, re.search(r"http\S+", here.recv())[0]

    yield start
    for process, _ in running:
        process.kill()
        process.join()
