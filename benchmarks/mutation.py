"""Mutation testing: a seeded sample of small mistakes in accounting/, screening/ and dp/; out comes the share that a test notices.

First the tests of each package run once under coverage, so that every line knows the tests that pass through it. Then each
mistake of the sample is written into a copy of the source, and those tests run on it, the quickest first, in a process forked
from one that has the libraries already. `--budget` bounds the seconds of tests a mistake gets: a share is a lower bound.
Needs `pip install --editable '.[dev]'` and no network; mutation.md explains the survivors. An interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import copy
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "confide"
TESTS = {
    "accounting": ["tests/accounting", "tests/guarantees/test_lemma_a.py", "tests/guarantees/test_errata.py"],
    "screening": [
        "tests/screening",
        "tests/guarantees/test_stability.py",
        "tests/guarantees/test_devil_in_the_details.py",
    ],
    "dp": ["tests/dp", "tests/guarantees/test_planted_bugs.py"],
}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


@dataclass(frozen=True)
class Mutant:
    """One mistake: the bytes from `start` to `end` of a file (relative to src/confide) become `text`."""

    file: str
    line: int
    column: int
    operator: str
    start: int
    end: int
    was: str
    text: str

    @property
    def package(self) -> str:
        return self.file.split("/")[0]

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.operator}: {self.was} -> {self.text}"

    def planted(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """Every mistake in a file, one node changed each; nothing in docstrings, annotations, decorators, messages and f-strings."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in _meant(ast.parse(source)):
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        was = source[start:end].decode()
        for operator, changed in _changes(node):
            text = "pass" if changed is None else ast.unparse(changed)
            if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant):
                text = f"({text})"
            ast.parse(source[:start] + text.encode() + source[end:])
            yield Mutant(file, node.lineno, node.col_offset, operator, start, end, " ".join(was.split()), text)


def _meant(tree: ast.AST) -> Iterator[Any]:
    """The statements and expressions that decide what happens, from the top down."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # a docstring, or the ... of a protocol
            if isinstance(node, ast.stmt | ast.expr):
                yield node
            if isinstance(node, ast.Assert):
                yield from _meant(ast.Expr(node.test))
            elif not isinstance(node, ast.Raise):  # what a refusal says is not what it decides
                yield from _meant(node)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """What each operator makes of a node; None is `pass`."""
    new: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARISONS:
            new.ops[0] = COMPARISONS[type(operator)]()
            yield "comparison", new
        case ast.BinOp() if type(node.op) in ARITHMETIC and not (_text(node.left) or _text(node.right)):
            new.op = ARITHMETIC[type(node.op)]()
            yield "arithmetic", new
        case ast.AugAssign() if type(node.op) in ARITHMETIC:
            new.op = ARITHMETIC[type(node.op)]()
            yield "arithmetic", new
            yield "statement", None
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield "constant", ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield "constant", ast.Constant(node.value * 2 if node.value else 1.0)
        case ast.BoolOp():
            new.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield "boolean", new
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", new.operand
        case ast.UnaryOp(op=ast.USub(), operand=inner) if not isinstance(inner, ast.Constant):
            yield "arithmetic", new.operand
        case ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), node.test)
            yield "boolean", new
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "return", ast.Return(None)
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Assert() | ast.Continue() | ast.Break():
            yield "statement", None


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def sampled(package: str, count: int, seed: int) -> list[Mutant]:
    """A sample without replacement of a package's mistakes, each as likely as any other."""
    every = [
        mutant
        for path in sorted((SOURCE / package).rglob("*.py"))
        for mutant in mutants(str(path.relative_to(SOURCE)), path.read_bytes())
    ]
    random.Random(f"{seed} {package}").shuffle(every)
    return every[:count]


@dataclass
class Tests:
    """The tests that pass through each line of a package: `seconds` of each, and (file, line) to tests; line 0 is the file."""

    seconds: dict[str, float]
    through: dict[tuple[str, int], list[str]]

    def of(self, mutant: Mutant, budget: float, past: int = 0) -> list[str]:
        """The quickest first, but for those that a mistake is `past` already. A line that only runs on import, or in another process, has the tests that touch its file, or all."""
        found = self.through.get((mutant.file, mutant.line)) or self.through.get((mutant.file, 0)) or list(self.seconds)
        ordered = sorted(found, key=lambda test: self.seconds[test])
        total, chosen = 0.0, []
        for test in ordered[past:]:
            total += self.seconds[test]
            if total > budget and chosen:
                break
            chosen.append(test)
        return chosen


class _Trace:
    """A pytest plugin that tells coverage which test runs, and keeps the seconds of those that pass."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def _trace(package: str, work: Path) -> None:
    """In a process of its own: the package's tests under coverage; seconds and lines as JSON."""
    import coverage
    import pytest

    _quiet(work / f"{package}.trace.log")
    cover = coverage.Coverage(
        data_file=str(work / f"{package}.coverage"), config_file=False, source=[str(SOURCE / package)]
    )
    seen = _Trace(cover)
    cover.start()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS[package]], plugins=[seen])
    cover.stop()
    data = cover.get_data()
    through: dict[str, set[str]] = defaultdict(set)
    passed = {test: round(seconds, 3) for test, seconds in seen.seconds.items() if test not in seen.failed}
    for name in data.measured_files():
        file = str(Path(name).relative_to(SOURCE))
        for line, tests in data.contexts_by_lineno(name).items():
            for test in passed.keys() & set(tests):
                through[f"{file}:{line}"].add(test)
                through[f"{file}:0"].add(test)
    told = {"seconds": passed, "through": {line: sorted(tests) for line, tests in through.items()}}
    (work / f"{package}.json").write_text(json.dumps(told))


def _quiet(log: Path) -> None:
    """Both outputs of this process, and of all that it starts, into a file; its own process group, so that all can be ended."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(ROOT)
    os.environ.update(CONFIDE_SHRINK="no", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True


def _run(where: Path, tests: list[str], seconds: int, log: Path) -> None:
    """In a process of its own: the tests on the copy of the source in `where`."""
    _quiet(log)
    os.environ.update(PYTHONPATH=str(where), HOME=str(where))
    sys.path.insert(0, str(where))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    import pytest

    import confide

    assert (confide.__file__ or "").startswith(str(where)), confide.__file__
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "transformers", "hypothesis", "pyarrow.parquet", "duckdb", "scipy.stats", "dp_accounting.pld", "pytest"]
)


def tests_of(package: str, work: Path) -> Tests:
    """Which tests pass through which line, traced once and kept."""
    told = work / f"{package}.json"
    if not told.exists():
        child = FORKS.Process(target=_trace, args=(package, work))
        child.start()
        child.join()
    plain = json.loads(told.read_text())
    through = {(key.rpartition(":")[0], int(key.rpartition(":")[2])): tests for key, tests in plain["through"].items()}
    return Tests(plain["seconds"], through)


def outcome(mutant: Mutant | None, tests: list[str], allowed: float, work: Path) -> str:
    """What the tests say of a mistake: "killed", "time" (killed by running on and on) or "survived"."""
    where = work / "copy"
    path = where / "confide" / mutant.file if mutant else None
    source, times = (path.read_bytes(), path.stat()) if path else (b"", None)
    child = FORKS.Process(target=_run, args=(where, tests, int(60 + 4 * allowed), work / "run.log"))
    try:
        if path and mutant:
            path.write_bytes(mutant.planted(source))
        child.start()
        child.join(300 + 20 * allowed)
        if child.is_alive():
            return "time"
        if child.exitcode == 0:
            return "survived"
        return "time" if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL) else "killed"
    finally:
        if path and times:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that its compiled form counts again
        if child.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # whatever a test had started
            child.join()


def wilson(killed: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, square = killed / total, z * z / total
    middle, half = share + square / 2, z * (share * (1 - share) / total + square / (4 * total)) ** 0.5
    return (middle - half) / (1 + square), (middle + half) / (1 + square)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for package in [*TESTS, "all"]:
        own = [row for row in rows if package in ("all", row["package"])]
        if own:
            killed = sum(row["outcome"] != "survived" for row in own)
            low, high = wilson(killed, len(own))
            told[package] = {"mutants": len(own), "killed": killed, "share": killed / len(own), "interval": [low, high]}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mistakes a package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of tests a mistake gets at the most")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after this time and sum up what is done")
    parser.add_argument(
        "--package", choices=list(TESTS), action="append", help="only this package (may be given again)"
    )
    parser.add_argument(
        "--only", default="", help="again, with further tests: those whose outcome and name hold this, as in survived"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "bench" / "mutation", help="what is kept between runs")
    parser.add_argument("--quick", action="store_true", help="five mistakes a package, ten seconds of tests each")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    if options.quick:
        options.count, options.budget = 5, 10.0
    began, work = time.monotonic(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(work / "copy", ignore_errors=True)
    shutil.copytree(SOURCE, work / "copy" / "confide", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    compileall.compile_dir(work / "copy", quiet=2)
    log = work / "mutants.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {row["name"]: row for row in rows}
    packages = options.package or list(TESTS)
    drawn = {package: sampled(package, options.count, options.seed) for package in packages}
    with open(log, "a") as file:
        for place in range(options.count):
            for package in packages:
                tests = tests_of(package, work)
                if place == 0:
                    quickest = sorted(tests.seconds, key=lambda test: tests.seconds[test])
                    if outcome(None, quickest[:20], 60, work) != "survived":
                        sys.exit(f"{package}: tests fail on the source as it is; see {work / 'run.log'}")
                if place >= len(drawn[package]) or time.monotonic() - began > 60 * options.minutes:
                    continue
                mutant = drawn[package][place]
                known = done.get(mutant.name)
                if known and (not options.only or options.only not in f"{known['outcome']} {mutant.name}"):
                    continue
                if options.only and not known:
                    continue
                past = known["tests"] if known and known["outcome"] == "survived" else 0
                chosen, start = tests.of(mutant, options.budget, past), time.monotonic()
                if not chosen:
                    continue
                found = outcome(mutant, chosen, sum(tests.seconds[test] for test in chosen), work)
                row = {
                    "package": package,
                    "name": mutant.name,
                    "file": mutant.file,
                    "line": mutant.line,
                    "operator": mutant.operator,
                    "outcome": found,
                    "tests": past + len(chosen),
                    "seconds": round(time.monotonic() - start, 1),
                }
                file.write(json.dumps(row) + "\n")
                file.flush()
                if not options.json:
                    print(f"{found:8}  {row['seconds']:6.1f} s  {len(chosen):4} tests  {mutant.name}", flush=True)
                rows.append(row)
    last = {row["name"]: row for row in rows}
    told = summary([row for row in last.values() if row["package"] in packages])
    if options.json:
        print(json.dumps(told))
    else:
        for package, line in told.items():
            low, high = line["interval"]
            print(
                f"{package}: {line['killed']} of {line['mutants']} killed, {line['share']:.0%} (95 %: {low:.0%} to {high:.0%})"
            )


if __name__ == "__main__":
    main()
