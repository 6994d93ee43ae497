"""An open review: a screened folder and a reviewer's actions come in, everyone's answers go out.

Actions are only ever added; an undo is an action too. What a record holds is never stored: spans are places and types,
the text stays in the screened files.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..accounting.missrate import share_of_error
from ..errors import BadInput, ConfideError
from ..screening.screened import Screened
from .file import (
    FILE,
    KINDS,
    LARGEST_CAP,
    LARGEST_SAMPLE,
    MALFORMED,
    OTHER,
    begin,
    check_option,
    check_same,
    connect,
    damaged,
    draw,
    read_facts,
)
from .policies import Policies
from .records import Records, Secret, Shown


class Stale(ConfideError):
    """The page that asks has not seen the latest answers: nothing was saved."""


@dataclass(frozen=True)
class State:
    """What one reviewer says of one record. `version` counts all actions on it, undone ones and undos too."""

    status: str = "open"  # or answered, skipped
    missed: tuple[Secret, ...] = ()
    alarms: frozenset[tuple[int, int]] = frozenset()  # found spans that are no secrets
    version: int = 0


@dataclass(frozen=True)
class _Action:
    number: int
    reviewer: str
    record: int
    kind: str
    start: int
    stop: int
    type: str


class Store:
    """An open review. Several processes, and several pages, may have the same one open."""

    def __init__(self, screened: Screened, reviewer: str, connection: sqlite3.Connection) -> None:
        self.screened, self.reviewer, self._connection = screened, reviewer, connection
        self.records = Records(screened)
        self.policies = Policies(screened.manifest, screened.folder)
        self._lock = threading.RLock()
        facts = read_facts(connection)
        self.cap, self.confidence, self.begun = facts["cap"], facts["confidence"], facts.get("begun", 1)
        self._nonce: str = facts.get("nonce", "")
        self.beta = (1 - self.confidence) * share_of_error(self.begun)  # what this review's bounds may spend in all
        self.types: tuple[str, ...] = tuple(facts["types"])
        self.draws: list[tuple[int, bytes]] = []  # record and coin, in the order of the draw
        self.order: list[int] = []  # records by their first draw: what a reviewer goes through
        self.drawn_at: list[int] = []  # where each of them was drawn first
        self.times: Counter[int] = Counter()  # how often each was drawn
        self.first: dict[int, int] = {}  # the place of a record in that order
        self.counted: dict[int, Any] = {}  # of `counting`: forgotten when an action touches the record
        self._seen = 0
        self._live: dict[str, list[_Action]] = defaultdict(list)
        self._touched: dict[tuple[str, int], int] = defaultdict(int)
        self._states: dict[tuple[str, int], State] = {}
        self._frontiers: dict[str, int] = defaultdict(int)
        self.refresh()

    # -- reading ------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what other processes have added."""
        try:
            self._refresh()
        except BadInput:
            raise
        except MALFORMED:
            raise BadInput(damaged(self.screened)) from None

    def _refresh(self) -> None:
        with self._lock:
            more = "SELECT record, coin FROM draws WHERE place >= ? ORDER BY place"
            for record, coin in self._connection.execute(more, (len(self.draws),)).fetchall():
                if type(record) is not int or not 0 <= record < self.records.total or not isinstance(coin, bytes):
                    raise ValueError
                self.draws.append((record, coin))
                self.times[record] += 1
                if record not in self.first:
                    self.first[record] = len(self.order)
                    self.order.append(record)
                    self.drawn_at.append(len(self.draws) - 1)
            more = "SELECT number, reviewer, record, kind, start, stop, type, undoes FROM actions WHERE number > ?"
            for *row, undoes in self._connection.execute(more + " ORDER BY number", (self._seen,)).fetchall():
                self._take(_Action(*row), undoes)

    def _take(self, action: _Action, undoes: int | None) -> None:
        span = (action.start, action.stop)
        if (
            action.record not in self.first
            or action.kind not in KINDS
            or any(type(end) is not int or end < 0 for end in span)
        ):
            raise ValueError
        if not isinstance(action.reviewer, str) or not isinstance(action.type, str):
            raise ValueError
        live, key = self._live[action.reviewer], (action.reviewer, action.record)
        self._seen = action.number
        self._touched[key] += 1
        if action.kind == "undo":
            if live and live[-1].number == undoes:
                live.pop()
            self._frontiers[action.reviewer] = min(self._frontiers[action.reviewer], self.first[action.record])
        else:
            live.append(action)
        self.counted.pop(action.record, None)
        version = self._touched[key]
        if action.kind == "undo":
            mine = [one for one in live if one.record == action.record]
            self._states[key] = _fold(State(version=version), mine)
        else:
            before = self._states.get(key, State())
            self._states[key] = _fold(State(before.status, before.missed, before.alarms, version), [action])

    @property
    def nonce(self) -> str:
        """Random, and another one when the sample has grown: two that went on from copies of one review are told apart."""
        last = self.draws[-1][1] if self.draws else b""
        return blake2b(self._nonce.encode() + last, digest_size=16).hexdigest()

    def reviewers(self) -> list[str]:
        """Everyone who has done something, in the order of their names."""
        return sorted(self._live)

    def state(self, record: int, reviewer: str | None = None) -> State:
        return self._states.get((reviewer or self.reviewer, record), State())

    def frontier(self, reviewer: str | None = None) -> int:
        """The place of the first record that a reviewer has neither answered nor skipped; nobody goes beyond it."""
        who = reviewer or self.reviewer
        place = self._frontiers[who]
        while place < len(self.order) and self.state(self.order[place], who).status != "open":
            place += 1
        self._frontiers[who] = place
        return place

    def last(self) -> tuple[int, int] | None:
        """The action that an undo would take back: its number and its record's place."""
        live = self._live.get(self.reviewer, [])
        return (live[-1].number, self.first[live[-1].record]) if live else None

    def show(self, place: int) -> Shown:
        return self.records.read(self.order[place])

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self.refresh()
                    yield
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise ConfideError(
                    f"the answer was not saved: {self.screened.folder / FILE} cannot be written "
                    f"({error.sqlite_errorname}); make room or end the other process, and do it again"
                ) from None
            self.refresh()

    def act(self, place: int, kind: str, version: int, start: int = 0, end: int = 0, type: str = OTHER) -> None:  # noqa: A002
        """Save one action of this reviewer on the record at a place; on disk when this returns.

        "mark" a missed secret (it takes the place of own marks that it overlaps), "unmark" it, "flag" a found one as a
        false alarm, "unflag" it, "answer": all that was not flagged or marked is right, "skip". Raises `Stale` if the
        record has changed since `version`.
        """
        with self._transaction():
            if kind not in KINDS or kind == "undo":
                raise BadInput("no such action")
            if not 0 <= place <= min(self.frontier(), len(self.order) - 1):
                raise BadInput("records are answered in their order: this one is not reached yet")
            record = self.order[place]
            state = self.state(record)
            if state.version != version:
                raise Stale(
                    "This record was changed in another tab. Here is how it stands now; your last action was not saved: "
                    "do it again if it is still right."
                )
            if kind == "mark":
                start, end = self._checked(self.records.read(record), start, end)
                if type not in self.types:
                    raise BadInput("no such type of secret")
            elif kind == "unmark" and (start, end) not in {(one.start, one.end) for one in state.missed}:
                raise BadInput("there is no mark to remove there")
            elif kind in ("flag", "unflag"):
                if (start, end) not in {(one.start, one.end) for one in self.records.read(record).found}:
                    raise BadInput("the policy found nothing there")
                if ((start, end) in state.alarms) == (kind == "flag"):
                    raise BadInput("that is so already")
            spans = kind in ("mark", "unmark", "flag", "unflag")
            self._add(record, kind, (start, end) if spans else (0, 0), type if kind == "mark" else "", None)

    def _checked(self, shown: Shown, start: int, end: int) -> tuple[int, int]:
        """A selection without the blanks around it, if it can be a missed secret."""
        if not 0 <= start < end <= len(shown.text):
            raise BadInput("select some text of the record first")
        text = shown.text[start:end]
        start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        if start >= end:
            raise BadInput("the selection holds nothing but blanks")
        inside = any(one.start <= start and end <= one.end for one in shown.found)
        if inside and self.policies.hides(shown, start, end):
            raise BadInput("The policy has found that already, and redaction hides it whole: nothing to mark.")
        return start, end

    def undo(self, number: int) -> int:
        """Take back this reviewer's latest action, if it is still the one with this number. Out: its record's place."""
        with self._transaction():
            last = self.last()
            if last is None:
                raise BadInput("there is nothing to undo")
            if last[0] != number:
                raise Stale("Another tab has done something since. Nothing was undone; here is how it stands now.")
            self._add(self.order[last[1]], "undo", (0, 0), "", number)
        return last[1]

    def _add(self, record: int, kind: str, span: tuple[int, int], name: str, undoes: int | None) -> None:
        self._connection.execute(
            "INSERT INTO actions (reviewer, record, kind, start, stop, type, undoes, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.reviewer, record, kind, *span, name, undoes, time.time()),
        )

    def extend(self, sample: int) -> None:
        """Draw more records until there are so many."""
        check_option("sample", sample, LARGEST_SAMPLE)
        with self._transaction():
            draw(self._connection, self.screened, self.records, len(self.draws), sample)

    def close(self) -> None:
        with suppress(sqlite3.Error):  # of one that is only read, or in use elsewhere
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


def open_store(
    folder: str | Path,
    *,
    sample: int | None = None,
    reviewer: str = "reviewer",
    cap: int | None = None,
    confidence: float | None = None,
) -> Store:
    """Open the review of a screened folder, or begin one.

    `cap`: the largest number of secrets that count in a record, fixed for the review before anyone looks; by default one
    that leaves 95 % of the records in which the policy found something whole. `sample`: draws in all; a larger number adds to them.
    """
    screened = Screened.open(folder)
    if not reviewer.strip() or len(reviewer) > 40 or not reviewer.isprintable():
        raise BadInput("a reviewer's name has 1 to 40 printable characters; give another with --reviewer")
    for name, number, most in (("sample", sample, LARGEST_SAMPLE), ("cap", cap, LARGEST_CAP)):
        if number is not None:
            check_option(name, number, most)
    if confidence is not None and not 0.5 <= confidence <= 0.9999:
        raise BadInput("--confidence must be from 0.5 to 0.9999")
    path = screened.folder / FILE
    try:
        connection = connect(path)
        begin(connection, screened, sample, cap, confidence)
        store = Store(screened, reviewer.strip(), connection)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "sqlite_errorname", type(error).__name__)
        raise ConfideError(
            f"cannot open the review {path}: {reason}; free the file, or put it back from a copy"
        ) from None
    except BadInput:
        raise
    except MALFORMED:
        raise BadInput(damaged(screened)) from None
    if sample is not None and sample > len(store.draws):
        store.extend(sample)
    return store


def read_store(screened: Screened, path: Path) -> Store:
    """The review in a file as it stands, to be counted again; nothing is written."""
    # SQLite wants a file beside it even for reading; in a folder that cannot be written it reads only what is whole.
    later = path.with_name(path.name + "-wal")
    whole = [] if later.exists() and later.stat().st_size else ["mode=ro&immutable=1"]
    failed = ""
    for mode in ["mode=ro", *whole]:
        try:
            connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?{mode}", timeout=10, uri=True, check_same_thread=False
            )
            check_same(screened, read_facts(connection), None, None)
            return Store(screened, "reviewer", connection)
        except sqlite3.Error as error:
            failed = error.sqlite_errorname
        except BadInput:
            raise
        except MALFORMED:
            raise BadInput(damaged(screened)) from None
    raise BadInput(f"cannot read the review {path} ({failed}); put it back from a copy")


def _fold(state: State, actions: list[_Action]) -> State:
    """A reviewer's actions on a record, one after the other."""
    status, missed, alarms = state.status, list(state.missed), set(state.alarms)
    for action in actions:
        span = (action.start, action.stop)
        if action.kind == "mark":
            missed = [one for one in missed if one.end <= action.start or action.stop <= one.start]
            missed = sorted([*missed, Secret(*span, action.type)])
        elif action.kind == "unmark":
            missed = [one for one in missed if (one.start, one.end) != span]
        elif action.kind == "flag":
            alarms.add(span)
        elif action.kind == "unflag":
            alarms.discard(span)
        else:
            status = {"answer": "answered", "skip": "skipped"}[action.kind]
    return State(status, tuple(missed), frozenset(alarms), state.version)
