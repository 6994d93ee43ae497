"""The file of a review: a screening comes in; what is fixed for the whole review, and the sample, drawn once, go out.

The sample is drawn from the operating system's entropy and only ever grows; triggers see to it that nothing in the file is changed.
"""

from __future__ import annotations

import json
import os
import secrets as entropy
import sqlite3
from pathlib import Path
from typing import Any

from ..errors import UNREADABLE, BadInput
from ..rundir import write_private
from ..screening.screened import Screened
from .records import Records

FILE, COUNTER, MOST_BEGUN = "review.sqlite", "review.begun", 10**6
SAMPLE, CONFIDENCE, OTHER = 200, 0.95, "OTHER"
LARGEST_SAMPLE, LARGEST_CAP = 1_000_000, 1000
USUAL = 0.95  # the share of records with findings that the default cap leaves whole
KINDS = ("mark", "unmark", "flag", "unflag", "answer", "skip", "undo")
_TABLES = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE draws (place INTEGER PRIMARY KEY, record INTEGER NOT NULL, coin BLOB NOT NULL);
CREATE TABLE actions (
  number INTEGER PRIMARY KEY AUTOINCREMENT, reviewer TEXT NOT NULL, record INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN {KINDS}), start INTEGER, stop INTEGER, type TEXT, undoes INTEGER UNIQUE, at REAL
);
"""
_FIXED = "".join(
    f"CREATE TRIGGER {table}_{verb} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'nothing is changed'); END;\n"
    for table in ("facts", "draws", "actions")
    for verb in ("UPDATE", "DELETE")
)
MALFORMED = (*UNREADABLE, RecursionError)  # what a file that others changed raises


def read_facts(connection: sqlite3.Connection) -> dict[str, Any]:
    """What is fixed for the whole review, each of its kind; raises one of `MALFORMED` for anything else."""
    facts: dict[str, Any] = {
        name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM facts")
    }
    if facts.get("confide_review") == 1:
        whole = all(type(facts.get(name, 1)) is int for name in ("cap", "begun"))
        named = isinstance(facts.get("nonce", ""), str) and all(isinstance(one, str) for one in facts["types"])
        within = 1 <= facts["cap"] <= LARGEST_CAP and 1 <= facts.get("begun", 1) <= MOST_BEGUN
        if not (whole and named and within and 0.5 <= facts["confidence"] <= 0.9999):
            raise ValueError
    return facts


def damaged(screened: Screened) -> str:
    """What is said of a file that others changed."""
    return f"the review {screened.folder / FILE} is damaged: something in it is not what a review writes; put it back from a copy"


def check_option(name: str, number: int, most: int) -> None:
    """Refuse a number that an option cannot have."""
    if not 1 <= number <= most:
        raise BadInput(f"--{name} must be a whole number from 1 to {most:,}")


def connect(path: Path) -> sqlite3.Connection:
    """The file, made if it is missing, ready to be written."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # an answer is on disk before the page says so
    return connection


def begin(
    connection: sqlite3.Connection, screened: Screened, sample: int | None, cap: int | None, confidence: float | None
) -> None:
    """Write what is fixed for the whole review and draw the sample, or check that it is this review."""
    manifest = screened.manifest
    connection.execute("BEGIN IMMEDIATE")
    try:
        begun = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'facts'").fetchone()[0]
        if not begun:
            for statement in (_TABLES + _FIXED).split(";\n"):
                # A trigger holds a semicolon of its own, but none at the end of a line.
                connection.execute(statement)
            found, records = manifest["findings"], Records(screened)
            facts = {
                "confide_review": 1,
                "digest": manifest["digest"],
                "cap": cap or min(LARGEST_CAP, max(1, records.usual(USUAL))),
                "confidence": CONFIDENCE if confidence is None else confidence,
                "types": [
                    *(name for name in sorted(found, key=lambda name: (-found[name], name)) if name != OTHER),
                    OTHER,
                ],
                "nonce": entropy.token_hex(16),
                "begun": _begun(screened) + 1,
            }
            rows = [(name, json.dumps(value)) for name, value in facts.items()]
            connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)
            draw(connection, screened, records, 0, sample or SAMPLE)
        facts = read_facts(connection)
        check_same(screened, facts, cap, confidence)
        if "nonce" not in facts:  # of a review that an older confide began
            connection.execute("INSERT INTO facts VALUES ('nonce', ?)", (json.dumps(entropy.token_hex(16)),))
        if _begun(screened) < facts.get("begun", 1):
            # Counted before the review is there: one that is lost in between counts too.
            write_private(screened.folder / COUNTER, f"{facts.get('begun', 1)}\n")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _begun(screened: Screened) -> int:
    """How many reviews of this screening were begun, as a file says that outlives them."""
    path = screened.folder / COUNTER
    try:
        number = int(path.read_text("ascii"))
    except FileNotFoundError:
        return 0
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_BEGUN:
        raise BadInput(f"{path} is damaged; write the number of reviews into it that were begun of this screening")
    return number


def check_same(screened: Screened, facts: dict[str, Any], cap: int | None, confidence: float | None) -> None:
    """Refuse the review of another screening, and another cap or confidence than it was begun with."""
    if facts.get("confide_review") != 1 or facts["digest"] != screened.manifest["digest"]:
        raise BadInput(f"{screened.folder / FILE} is a review of another screening; move it away")
    for name, given in (("cap", cap), ("confidence", confidence)):
        if given is not None and given != facts[name]:
            raise BadInput(
                f"this review was begun with --{name} {facts[name]:g}, and a bound holds only if that stays; leave --{name} out"
            )


def draw(connection: sqlite3.Connection, screened: Screened, records: Records, have: int, want: int) -> None:
    """Draw records uniformly with replacement, planted canaries apart, each with a coin for the cap.

    *Formal guarantees.* Draws are independent and uniform over the records that are no canaries (rejection). Coins are
    fresh for every draw, also for a record that was drawn before: the e-process needs each draw's count to be
    independent of the ones before it.
    """
    canaries = screened.manifest.get("canaries")
    drawn: list[int] = []
    tries = 0
    while have + len(drawn) < want:
        tries += 1
        if tries > 1000 and not drawn:
            raise BadInput(f"{screened.folder} holds no records but planted canaries; there is nothing to review")
        if not records.total:
            raise BadInput(f"{screened.folder} holds no records; there is nothing to review")
        some = [entropy.randbelow(records.total) for _ in range(want - have - len(drawn))]
        planted = records.planted(some, canaries["canaries"], canaries["copies"]) if canaries else set()
        drawn += [index for index in some if index not in planted]
    rows = [(have + place, index, entropy.token_bytes(16)) for place, index in enumerate(drawn)]
    connection.executemany("INSERT INTO draws VALUES (?, ?, ?)", rows)
