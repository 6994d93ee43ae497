"""A study is one figure or table of a paper, described and not programmed: rows, a sweep and seeds in; jobs out.

What a row does is the sum of what its model, its method and its corpus say at a scale (scales.py), and of its own options. The
same description serves every scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .jobs import UNTRAINED, Job
from .scales import ATTACKED, Scale

OURS = "Ours"  # in place of a paper's figure or table


@dataclass(frozen=True)
class Row:
    """A line of a figure, or of a table."""

    name: str
    corpus: str
    model: str
    method: str
    screen: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = (
        None  # "public lines": a model that was trained without noise on the lines that neither policy flags
    )
    swept: bool = True  # False: it does not depend on what is swept
    size: str = "part"  # of the corpus: the scale's part of it, a "small" or a "large" one, or "all"
    documents: int | None = None  # so many, at every scale


@dataclass(frozen=True)
class Sweep:
    """What varies along a figure. `option` of training is set to each value, or {value} in a policy is replaced by it."""

    name: str
    values: tuple[float, ...]
    option: str | None = None
    every: bool = False  # no value is left out, but at the scale smoke


@dataclass(frozen=True)
class Check:
    """A claim about the shape of a figure, to be held against what was measured.

    `kind`: "below" (the first row lies below the second, at every value), "rises" or "falls" (from the first value to the last), "over"
    (the row lies above `level` at the last value), "under" (it lies below `level`, at every value), "chance" (it lies above `level` at no
    value, and below `level` + `margin` at all), "paper chance" (the same of a paper's own game, by its own upper limit), "within" (the
    first row is at most `level` times the second), "exceeds" (the first row lies above the second by at least `level`).
    """

    kind: str
    rows: tuple[str, ...]
    column: str
    says: str
    level: float = 0.0
    margin: float = 0.0
    ours: bool = False  # a claim, or an aim, that is not the paper's


@dataclass(frozen=True)
class Study:
    """A figure or a table. `columns` are names of numbers.py; `y` is drawn over the sweep, or over the column `x`."""

    name: str
    paper: str
    title: str
    claim: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    sweep: Sweep | None = None
    x: str | None = None
    y: str | None = None
    checks: tuple[Check, ...] = ()
    published: tuple[Mapping[str, Any], ...] = ()
    attack: tuple[str, ...] = ()
    each_epoch: bool = False
    split: str = "test"  # what models are judged on; a search for options is judged on "valid"
    computed: Callable[[], list[dict[str, Any]]] | None = None  # rows that need no run
    notes: str = ""


@dataclass(frozen=True)
class Planned:
    """A job of a study: of which row it is, at which value of the sweep, with which seed."""

    row: Row
    value: float | None
    seed: int
    job: Job


def jobs(study: Study, scale: Scale) -> list[Planned]:
    """All jobs of a study; rows that no sweep touches are done once a seed. First seeds come first."""
    values: tuple[float | None, ...] = (None,)
    if study.sweep is not None:
        values = scale.thinned(study.sweep.values, study.sweep.every)
    return [
        Planned(row, value, seed, _job(study, row, value, seed, scale))
        for seed in range(scale.seeds)
        for row in study.rows
        for value in (values if row.swept else (None,))
    ]


def _job(study: Study, row: Row, value: float | None, seed: int, scale: Scale) -> Job:
    train = scale.training(row.model, row.method, row.corpus, row.size) | dict(row.train) | {"seed": seed}
    if study.sweep is not None and study.sweep.option is not None and value is not None:
        train[study.sweep.option] = value
    if scale.name == "smoke" and "private_batch_size" in train:  # a row's own would be more than there are records
        train["private_batch_size"] = scale.methods[row.method]["private_batch_size"]
    screen = scale.screening(row.corpus) | dict(row.screen)
    missed = (
        value
        if study.sweep is not None and study.sweep.option is None and value is not None
        else screen.pop("missed", 0)
    )
    screen.pop("missed", None)
    if missed:
        screen["policy"] = f"miss({screen['policy']}, {missed:g}, {seed})"
    attack = {"only": list(study.attack), "seed": seed, **ATTACKED, "samples": scale.samples} if study.attack else None
    if "canaries" in screen and scale.canaries is not None:
        kept = "policy=missed," if "policy=missed" in screen["canaries"] else ""
        screen["canaries"] = f"{kept}{scale.canaries}"
    if row.method == UNTRAINED:
        attack = None
    documents, tests = (
        row.documents or scale.part(row.model, row.corpus, row.size),
        scale.judged.get(row.model, scale.tests),
    )
    vocabulary = scale.vocabulary(row.model, row.corpus)
    start = None
    if row.start == "public lines":
        first = scale.training(row.model, "public lines", row.corpus, row.size) | {"method": "plain", "seed": seed}
        lines = {**screen, "unit": "turn", "dedup": "off"} | {"canaries": None}
        start = Job(
            row.corpus,
            {k: v for k, v in lines.items() if v is not None},
            first,
            None,
            documents,
            tests,
            vocabulary=vocabulary,
            public_only=True,
        )
        train.pop("vocabulary_size", None)
        train["weights_from"] = "unflagged-lines"
    return Job(
        row.corpus, screen, train, attack, documents, tests, study.split, vocabulary, start, each_epoch=study.each_epoch
    )
