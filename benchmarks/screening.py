"""Screening: how fast, how much memory, against Presidio and against the bare policy. Ratios within one run.

python benchmarks/screening.py [--quick] [--json] [--data FOLDER] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confide.experiments.customersim import dialogues, people
from confide.policies import load, merged
from confide.screening import screen

Numbers = dict[str, Any]


def best(work: Callable[[], object], repeat: int = 5) -> float:
    """The shortest of several times, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def each(find: Callable[[str], object], texts: Iterable[str]) -> Callable[[], None]:
    def run() -> None:
        for text in texts:
            find(text)

    return run


def write(path: Path, texts: Iterable[str]) -> int:
    with open(path, "w") as file:
        return sum(file.write(json.dumps({"text": text}) + "\n") for text in texts)


def against_presidio(count: int) -> Numbers:
    """`patterns` and Presidio's own pattern recognisers, called directly, without spaCy, on the same text."""
    import presidio_analyzer.predefined_recognizers as recognisers

    ids = ("UsSsn", "Nhs", "UkNino", "EsNif", "EsNie", "ItFiscalCode")  # of the national ids that `patterns` knows, too
    names = ("CreditCard", "Email", "Iban", "Ip", "Phone", "Date", *ids)
    made = [getattr(recognisers, f"{name}Recognizer")() for name in names]

    def presidio(text: str) -> list[Any]:
        return [found for one in made for found in one.analyze(text, one.supported_entities, None) or []]

    ours = load("patterns:CARD,EMAIL,IBAN,IP,PHONE,DATE,NATIONAL_ID").find
    every = load("patterns").find
    documents = [dialogue.text for dialogue in dialogues(count, crowd=people(0, 600))]
    turns = [line for text in documents for line in text.splitlines()]
    found: Numbers = {"recognisers": names}
    for unit, texts in (("documents", documents), ("turns", turns)):
        theirs = best(each(presidio, texts), 2)
        found[f"{unit}: times Presidio's throughput, same types"] = theirs / best(each(ours, texts))
        found[f"{unit}: times Presidio's throughput, all our types"] = theirs / best(each(every, texts))
    return found


def accuracy(count: int, data: Path | None) -> Numbers:
    """Precision and recall on the simulated ground truth, and of `customersim` on the original data if it is there."""
    found: Numbers = {}
    for name, claimed in (("patterns", {"phone", "order", "tracking", "address"}), ("customersim", None)):
        policy = load(name)
        right = given = 0
        covered: dict[str, list[int]] = {}
        for dialogue in dialogues(count, seed=11, split="test", crowd=people(11, 3000)):
            spans = merged(policy.find(dialogue.text))
            secrets = [s for s in dialogue.secrets if claimed is None or s[2] in claimed]
            for start, end, kind in secrets:
                covered.setdefault(kind, []).append(any(low <= start and end <= high for low, high in spans))
            given += len(spans)
            right += sum(any(low < end and start < high for start, end, _ in dialogue.secrets) for low, high in spans)
        found[f"{name}: precision"] = right / given
        found |= {f"{name}: recall of {kind}": sum(hits) / len(hits) for kind, hits in sorted(covered.items())}
    if data:
        found |= _original(data)
    return found


def _original(data: Path) -> Numbers:
    """`customersim` with the table of people on the S-DP paper's own dialogues; what else is a secret has a shape."""
    import csv
    import gzip
    import re

    with gzip.open(data / "customersim" / "database_20000.csv.gz", "rt") as file:
        people_table = list(csv.DictReader(file))
    names = {row["name"] for row in people_table}
    addresses = {row["address"].replace("\n", " ") for row in people_table}
    numbers = {row[key] for row in people_table for key in ("phone_number", "order_number")}
    tracking = re.compile(r"\b(?=[A-Z0-9]*[A-Z])[A-Z0-9]{10}\b")
    pairs = re.compile(r"(?=\b([A-Z][\w'.-]+ [A-Z][\w'-]+(?: [A-Z][\w'.-]+)?)\b)")
    policy = load(f"customersim:{data / 'customersim' / 'database_20000.csv.gz'}")
    hits: dict[str, list[bool]] = {}
    right = given = 0
    with gzip.open(data / "customersim" / "simdial_test.jsonl.gz", "rt") as file:
        for line in file:
            text = json.loads(line)["text"]
            truth = [
                (m.start(1), m.start(1) + len(n), "name")
                for m in pairs.finditer(text)
                for n in (m[1], " ".join(m[1].split()[:2]))
                if n in names
            ]
            truth += [(m.start(), m.end(), "tracking") for m in tracking.finditer(text)]
            for known, kind in ((addresses, "address"), (numbers, "number")):
                for value in _values(text, kind):
                    if value in known:
                        truth.append((text.index(value), text.index(value) + len(value), kind))
            spans = merged(policy.find(text))
            for start, end, kind in truth:
                hits.setdefault(kind, []).append(any(low <= start and end <= high for low, high in spans))
            given += len(spans)
            right += sum(any(low < end and start < high for start, end, _ in truth) for low, high in spans)
    found: Numbers = {
        f"customersim, original test split: recall of {kind}": sum(h) / len(h) for kind, h in sorted(hits.items())
    }
    return {**found, "customersim, original test split: precision": right / given}


def _values(text: str, kind: str) -> list[str]:
    import re

    shapes = {
        "number": r"[\d.-]{10,14}(?<![.-])",
        "address": r"(?:\d|USNV|USS|USNS|USCGC|Unit|PSC)[^\n]*? [A-Z]{2} \d{5}",
    }
    return re.findall(shapes[kind], text)


def known_lists(count: int) -> Numbers:
    """The cost of a megabyte by the length of the list of known secrets."""
    coins = random.Random(1)
    texts = [dialogue.text for dialogue in dialogues(count, crowd=people(0, 600))]
    letters = "abcdefghijklmnopqrstuvwxyz"
    secrets = [f"{''.join(coins.choices(letters, k=6))} {''.join(coins.choices(letters, k=7))}" for _ in range(10**6)]
    policies = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (10**4, 10**5, 10**6):
            path = Path(folder) / f"{size}.txt"
            path.write_text("\n".join(secrets[:size]))
            policies[size] = load(f"known:{path}").find
    times = {size: best(each(find, texts), 7) for size, find in policies.items()}
    megabytes = sum(map(len, texts)) / 1e6
    return {
        "10^6 entries: times the cost of 10^4": times[10**6] / times[10**4],
        "10^5 entries: times the cost of 10^4": times[10**5] / times[10**4],
        "megabytes a second at 10^6": megabytes / times[10**6],
    }


def whole_screen(count: int) -> Numbers:
    """All of screening as a multiple of its policy alone in one process; and how time grows with the text."""
    find = load("patterns").find
    texts = [dialogue.text for dialogue in dialogues(10 * count, crowd=people(0, 600))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = folder / "small.jsonl", folder / "large.jsonl"
        write(small, texts[:count])
        write(large, texts)
        numbers = iter(range(10**6))

        def seconds(path: Path, repeat: int = 3, **options: Any) -> float:
            return best(lambda: screen(str(path), "patterns", folder / f"out{next(numbers)}", **options), repeat)

        alone = best(each(find, texts), 3)
        del texts
        one = seconds(large, workers=1)
        return {
            "megabytes": large.stat().st_size / 1e6,
            "one process: times the bare policy": one / alone,
            "one process, dedup off: times the bare policy": seconds(large, workers=1, dedup="off") / alone,
            "two processes (the default on two cores): times the bare policy in one": seconds(large, workers=2) / alone,
            "one process, ten times the text: times the time": one / seconds(small, workers=1),
        }


MEMORY = """
import resource, sys
from confide.screening import screen
screen(sys.argv[1], "patterns", sys.argv[2], workers=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(sizes: tuple[float, ...]) -> Numbers:
    """Peak memory of the main process by the size of the corpus, in one process."""
    texts = [dialogue.text for dialogue in dialogues(20_000, crowd=people(0, 600))]
    found: Numbers = {}
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name) / "corpus.jsonl"
        for gigabytes in sizes:
            written = copy = 0
            with open(corpus, "w") as file:
                while written < gigabytes * 1e9:
                    for i, text in enumerate(texts):
                        written += file.write(json.dumps({"text": f"{text} {copy} {i}"}) + "\n")
                    copy += 1
            out = str(Path(name) / f"out-{gigabytes}")
            start = time.perf_counter()
            peak = subprocess.run(
                [sys.executable, "-c", MEMORY, str(corpus), out], capture_output=True, text=True, check=True
            )
            found[f"{gigabytes:g} GB: peak MB"] = int(peak.stdout) / 1024
            found[f"{gigabytes:g} GB: seconds"] = time.perf_counter() - start
            subprocess.run(["rm", "-rf", out], check=True)
    peaks = [value for key, value in found.items() if key.endswith("peak MB")]
    return {**found, "largest peak as a multiple of the smallest": max(peaks) / min(peaks)}


def parallel(count: int, cluster: bool) -> Numbers:
    """Two processes against one on a policy that computes (spaCy), and two Ray workers against two processes."""
    texts = [dialogue.text for dialogue in dialogues(count, crowd=people(0, 600))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "corpus.jsonl", texts)
        numbers = iter(range(10**6))

        def seconds(**options: Any) -> float:
            corpus, out = str(folder / "corpus.jsonl"), lambda: folder / f"out{next(numbers)}"
            return best(lambda: screen(corpus, "low-entity", out(), chunk=1 << 15, **options), 1)

        one, two = seconds(workers=1), seconds(workers=2)
        found = {"two processes: times as fast as one": one / two}
        if cluster:
            found["two Ray workers: times the time of two processes"] = _with_ray(seconds) / two
        return found


def _with_ray(seconds: Callable[..., float]) -> float:
    ray = str(Path(sys.executable).with_name("ray"))
    options = ["start", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    head = subprocess.Popen([ray, *options, "--head", "--port=6390", "--include-dashboard=false"], **quiet)
    time.sleep(8)
    node = subprocess.Popen([ray, *options, "--address=127.0.0.1:6390"], **quiet)
    time.sleep(8)
    try:
        return seconds(cluster="127.0.0.1:6390")
    finally:
        node.terminate()
        head.terminate()
        node.wait(30)
        head.wait(30)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="small sizes, for a first look")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--data", type=Path, help="the folder with customersim/, for the original dialogues")
    arguments.add_argument("--only", help="one part by name")
    given = arguments.parse_args()
    quick = given.quick
    parts: dict[str, Callable[[], Numbers]] = {
        "against Presidio": lambda: against_presidio(50 if quick else 300),
        "accuracy": lambda: accuracy(300 if quick else 2000, given.data),
        "known": lambda: known_lists(500 if quick else 3000),
        "whole screening": lambda: whole_screen(500 if quick else 12_000),
        "memory": lambda: memory((0.01, 0.04) if quick else (0.5, 1, 2, 4)),
        "parallel": lambda: parallel(150 if quick else 1500, cluster=not quick),
    }
    found = {name: part() for name, part in parts.items() if given.only in (None, name)}
    found["this process"] = {"peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if given.json:
        print(json.dumps(found))
        return
    for name, numbers in found.items():
        print(name)
        for key, value in numbers.items():
            print(f"  {key}: {value:.3g}" if isinstance(value, float) else f"  {key}: {value}")


if __name__ == "__main__":
    main()
