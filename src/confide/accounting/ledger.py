"""The ledger: an append-only file of what was spent, written before it is spent.

Each line is one JSON object that carries the hash of the line before it. The first line holds the setting (what the
certificate may assume about screening and training) and the planned events; each further line holds one event, and the
last, once the run has ended, the digests of the model's files. Length and head (the last hash) go into the certificate and every checkpoint, so that a changed line and a cut-off end both
show. A hash chain is not a signature: whoever can rewrite ledger and certificate together can forge both.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput, ConfideError, Contradiction, Refused
from ..rundir import read_file, sync_folder
from .events import Event, Selection, Step, flatten, from_plain, to_plain, with_count

VERSION = 1
GENESIS = "0" * 64
_DIGEST = re.compile("[0-9a-f]{64}")


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _link(previous: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256((previous + canonical(body)).encode()).hexdigest()


Entry = tuple[str, Event]  # (phase, event)


@dataclass(frozen=True)
class Ledger:
    """A ledger as read: its setting, plan and events, and the length and head of its chain."""

    setting: dict[str, Any]
    planned: tuple[Entry, ...]
    spent: tuple[Entry, ...]
    length: int
    head: str
    model: Mapping[str, str] = field(default_factory=dict)  # digests of the files that came out; empty: none are named

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(phase for phase, _ in (*self.planned, *self.spent)))

    def charged(self, phase: str | None = None) -> tuple[Event, ...]:
        """What the certificate counts, in one phase or in all: everything that was planned.

        *Formal guarantees.* A run that stops early, or whose best checkpoint is chosen, is charged as if it had run to
        the end (guarantees §7), since when it stopped may depend on what it saw. For the same reason a ledger that went
        beyond its plan raises: a budget whose size depends on the data is an odometer, for which ε(T) is no bound. A
        selection over a random number of runs is one entry, because the number of runs must stay secret.
        """
        selection = self.planned[0][1] if len(self.planned) == 1 else None
        if isinstance(selection, Selection) and selection.mean_runs is not None:
            if self.spent not in ((), self.planned):
                raise Refused(
                    "no certificate: the ledger of a selection over a random number of runs must hold that selection as "
                    "its only entry; entries for each run would show how many there were, which must stay secret"
                )
            return (selection,) if phase in (None, self.planned[0][0]) else ()
        if phase is None:
            return tuple(event for name in self.phases for event in self.charged(name))
        planned = flatten(event for name, event in self.planned if name == phase)
        counts = {_one(step): step.count for step in planned}
        for step in flatten(event for name, event in self.spent if name == phase):
            if step.count > counts.get(_one(step), 0):
                raise Refused(
                    f"no certificate: phase {phase!r} took {step.count:,} steps of a kind of which "
                    f"{counts.get(_one(step), 0):,} were planned; a ledger must not exceed its plan"
                )
        return tuple(planned)


def _one(step: Step) -> Step:
    return with_count(step, 1)


def read_ledger(path: str | Path) -> Ledger:
    """Read a whole ledger and check its chain.

    *Formal guarantees.* Returns only if every line is the successor of the one before it. A changed, removed, doubled
    or reordered line raises `Contradiction` with its number; a torn last line (no line end) raises too, because only
    a writer may drop it (`LedgerWriter`).
    """
    return _parse(Path(path), _read(Path(path)))


def head_at(path: str | Path, length: int) -> str:
    """The head of the chain after its first `length` lines: what a checkpoint of that moment must have recorded.

    *Formal guarantees.* Returns only if every whole line of the file follows from the one before it and there are at
    least `length` of them; else raises `Contradiction`. If the head returned is the recorded one, the first `length`
    lines are the recorded ones, word for word. A torn last line is no line yet: only a writer may drop it.
    """
    if length < 1:
        raise BadInput(f"a ledger has at least one line, so its head after {length} lines is not defined")
    heads = [head for _, head in _chain(Path(path), _read(Path(path)))]
    if len(heads) < length:
        raise Contradiction(
            f"the ledger {path} has {len(heads):,} lines where {length:,} were recorded: it was cut off; bring it back from a backup"
        )
    return heads[length - 1]


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise BadInput(f"cannot read the ledger {path}: {error.strerror}; bring it back from a backup") from None


def _parse(path: Path, data: bytes) -> Ledger:
    if not data:
        raise BadInput(
            f"the ledger {path} is empty: the run did not get as far as writing its plan; bring it back from a backup, or start anew"
        )
    if not data.endswith(b"\n"):
        raise Contradiction(
            f"the ledger {path} ends in the middle of a line: it was cut off; `confide train --resume` mends that if the run was "
            "interrupted, else bring it back from a backup"
        )
    links = list(_chain(path, data))
    bodies, head = [body for body, _ in links], links[-1][1]
    return _interpret(path, bodies, head)


def _chain(path: Path, data: bytes) -> Iterator[tuple[dict[str, Any], str]]:
    """Each whole line's body and the chain's head after it; the first line that does not follow raises."""
    head = GENESIS
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
            exact = canonical(record).encode() == line  # one text a value: no doubled keys, no other spelling
            stated = record.pop("hash")
            true = _link(head, record)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise Contradiction(
                f"the ledger {path} is damaged at line {number}: not a ledger entry; bring it back from a backup"
            ) from None
        if not exact:
            raise Contradiction(
                f"the ledger {path} is damaged at line {number}: not written by confide; bring it back from a backup"
            )
        if stated != true:
            raise Contradiction(
                f"the ledger {path} is broken at line {number}: its hash does not follow from the line before; a line "
                "was changed, removed or moved; bring it back from a backup"
            )
        head = true
        yield record, head


def _interpret(path: Path, bodies: list[dict[str, Any]], head: str) -> Ledger:
    first = bodies[0]
    version = first.get("confide_ledger")
    if version != VERSION:
        raise BadInput(
            f"the ledger {path} has version {version!r}, this confide reads version {VERSION}; install a newer confide"
        )
    try:
        setting = dict(first["setting"])
        planned = tuple(_entry(entry) for entry in first["planned"])
        models = [_digests(body["model"]) for body in bodies[1:] if body.keys() == {"model"}]
        # What paid for nothing comes last: steps after a model was named would not be in it
        spent = tuple(_entry(body) for body in bodies[1 : len(bodies) - len(models)])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"the ledger {path} has a sound chain but an entry that cannot be read: {error}; install a newer confide"
        ) from None
    return Ledger(setting, planned, spent, len(bodies), head, models[-1] if models else {})


def _entry(plain: Mapping[str, Any]) -> Entry:
    if not isinstance(plain, dict) or plain.keys() != {"phase", "event"}:
        raise ValueError("an event with other fields, or behind the files of a model")
    return str(plain["phase"]), from_plain(plain["event"])


def _digests(plain: Any) -> dict[str, str]:
    if (
        not plain
        or not isinstance(plain, dict)
        or not all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in plain.values())
    ):
        raise TypeError("digests of a model's files")
    return plain


def _plain(phase: str, event: Event) -> dict[str, Any]:
    return {"phase": phase, "event": to_plain(event)}


class LedgerWriter:
    """Appends to a ledger; at most one writer holds a file at a time.

    *Formal guarantees.* `append` returns only after the entry is on disk (fsync), so that a step taken after it
    returns is always counted. A line torn by a crash is dropped on the next open: its `append` never returned, so the
    step it was to pay for never happened. Nothing that was acknowledged is ever dropped.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.length = 0
        self.head = GENESIS
        self.model: Mapping[str, str] = {}
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: str | Path, setting: Mapping[str, Any], planned: Iterable[Entry]) -> LedgerWriter:
        """Start a ledger with its setting and plan; an existing one is never overwritten."""
        path = Path(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            raise BadInput(
                f"{path} exists: a ledger is never started anew; resume it or choose another folder"
            ) from None
        except OSError as error:
            raise BadInput(f"cannot create the ledger {path}: {error.strerror}; name another folder") from None
        writer = cls(path, descriptor)
        writer._lock()
        try:
            plan = [_plain(phase, event) for phase, event in planned]
            writer._write({"confide_ledger": VERSION, "setting": dict(setting), "planned": plan})
            sync_folder(path.parent)  # the directory entry, else a crash could lose the whole file
        except BaseException:  # nothing was promised yet: an empty ledger would only be in the way
            path.unlink(missing_ok=True)
            writer.close()
            raise
        return writer

    @classmethod
    def resume(cls, path: str | Path) -> LedgerWriter:
        """Open an existing ledger for more entries, after checking its chain."""
        path = Path(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise BadInput(
                f"cannot open the ledger {path}: {error.strerror}; make it readable and writable, or bring it back from a backup"
            ) from None
        writer = cls(path, descriptor)
        try:
            writer._lock()
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            ledger = _parse(path, whole)
            writer.length, writer.head, writer.model = ledger.length, ledger.head, ledger.model
            if len(whole) < len(data):
                os.ftruncate(descriptor, len(whole))
                os.fsync(descriptor)
        except BaseException:
            writer.close()
            raise
        return writer

    def append(self, event: Event, phase: str = "train") -> None:
        """Write an event and wait until it is on disk. Call it before the noise takes effect, never after."""
        self._write(_plain(phase, event))

    def name_model(self, digests: Mapping[str, str]) -> None:
        """Write which files came out, unless the ledger says so already: what is named is released anyway."""
        if digests != self.model:
            self._write({"model": dict(digests)})
            self.model = digests

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise BadInput(f"another process is writing {self.path}; wait for it or choose another folder") from None

    def _write(self, body: dict[str, Any]) -> None:
        head = _link(self.head, body)
        rest = memoryview((canonical({**body, "hash": head}) + "\n").encode())
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):  # a torn line must not stay in front of later ones
                os.ftruncate(self._descriptor, end)
            raise ConfideError(
                f"cannot write the ledger {self.path}: {error.strerror}; no step was taken. Make room, then go on with --resume"
            ) from None
        self.length, self.head = self.length + 1, head
