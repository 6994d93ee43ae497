"""One chunk of the corpus in, one Arrow batch of screened records out: the core that every executor runs.

The batch holds everything that later steps need, so that they never look at the corpus again.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from ..policies import Finding, Policy, load
from ..records import MARK, MASK, Bad, Chunk, Record, Row, Turn, parse, render
from ..splitting import split
from .canaries import Canary, CanaryChunk, hide
from .near import signature
from .options import Options
from .treatment import Span, Treated, blank, locate, treat, units_of

DIGEST, CONTENT = 16, 32  # bytes of keyed digests
_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("group", pa.string()),
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("start", pa.int32()), ("end", pa.int32())]))),
        ("private", pa.bool_()),
        ("raw", pa.string()),  # of private records, as read
        (
            "spans",
            pa.list_(
                pa.struct(
                    [
                        ("start", pa.int32()),
                        ("end", pa.int32()),
                        ("type", pa.string()),
                        ("policy", pa.string()),
                        ("score", pa.float32()),
                    ]
                )
            ),
        ),
        ("row", pa.int64()),  # of the file
        ("identity", pa.binary(DIGEST)),  # keyed digest of the document's id, where ids come from the data
        ("units", pa.list_(_SPAN)),  # what dedup compares; null: the whole record
        ("digests", pa.list_(pa.binary(DIGEST))),  # of the units, where dedup looks at them
        ("signature", pa.list_(pa.uint32())),  # of public records, for near-duplicates
        ("label", pa.string()),  # of the document, where the options name a column of labels
        ("content", pa.binary(CONTENT)),  # keyed digest of all that is written of the record
    ]
)


class Screener:
    """The policies, loaded once in a process, and what they make of a chunk."""

    def __init__(self, options: Options, key: bytes) -> None:
        self.options, self.key = options, key  # the key of all digests is secret
        self.policy = load(options.policy)
        self.conservative: Policy | None = None if options.conservative == "everything" else load(options.conservative)
        redact_first = options.order == "redact-dedup"
        self._compared = {
            True: redact_first and options.dedup != "off",
            False: redact_first and options.public_dedup == "exact",
        }
        self._simple = not (options.reads_groups or options.dedup_unit or options.order == "dedup-redact")

    def raw_digests(self, chunk: Chunk | CanaryChunk) -> list[list[bytes]]:
        """The digests of each record's units before redaction: what the paper's order compares."""
        rows, _ = _rows(chunk)
        return [
            self._digests(record.text, self._units(record) or [(0, len(record.text))], record.turns, row.label)
            for row in rows
            for record in split(row.record, self.options.unit, self.options.max_words)
        ]

    def screen(self, chunk: Chunk | CanaryChunk, duplicates: Mapping[int, frozenset[int]] | None = None) -> pa.Table:
        """Screen a chunk. `duplicates` (the paper's order): units to mask beforehand, by the record's place in the chunk.

        *Formal guarantees.* A pure function of the chunk, the options, the key and `duplicates`; each record's row depends on that
        record alone, or on its whole document where the options say so.
        """
        with no_collection():
            return self._screen(chunk, duplicates or {})

    def _screen(self, chunk: Chunk | CanaryChunk, duplicates: Mapping[int, frozenset[int]]) -> pa.Table:
        rows, bad = _rows(chunk)
        planted = chunk.planted if isinstance(chunk, CanaryChunk) else {}
        out: list[tuple[Any, ...]] = []
        kinds: list[str] = []
        largest = most = characters = 0
        for row in rows:
            records = split(row.record, self.options.unit, self.options.max_words)
            identity = self.digest(row.record.id) if chunk.ids_given else None
            largest = max(largest, len(records))
            characters += len(row.record.text)
            if self._simple and not planted:
                pairs: Iterable[tuple[Treated, Record]] = [
                    (treat(r, self.policy, self.conservative), r) for r in records
                ]
            else:
                pairs = self._document(row.record, records, planted, duplicates, len(out))
            for treated, record in pairs:
                out.append(self._row(treated, record, row, identity))
                most = max(most, len(treated.units))
                kinds += [finding.type for finding in treated.findings]
        counts = {f"type {kind}": count for kind, count in Counter(kinds).items()}
        counts |= {"characters": characters, "documents": 0 if isinstance(chunk, CanaryChunk) else len(rows)}
        notes = {"bad": bad, "counts": counts, "largest group": largest, "most units": most}
        metadata = {b"confide": json.dumps(notes).encode(), b"name": chunk.name.encode()}
        columns = zip(*out, strict=True) if out else [()] * len(SCHEMA)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        return pa.table(arrays, schema=SCHEMA.with_metadata(metadata))

    def _document(
        self,
        document: Record,
        records: list[Record],
        planted: Mapping[str, Canary],
        duplicates: Mapping[int, frozenset[int]],
        place: int,
    ) -> Iterable[tuple[Treated, Record]]:
        """What becomes of each record of a document."""
        canary = planted.get(document.id)
        if canary and not canary.present:
            document, *records = (hide(record, canary.secret) for record in (document, *records))
        given = self._dialogue(document, records) if self.options.reads_groups else None
        flagged = False
        if given is not None:
            flagged = any(given) or MARK in document.text
            flagged = flagged or self.conservative is None or bool(self.conservative.find(document.text))
        for i, record in enumerate(records):
            original, units = record, self._units(record)
            before = units or [(0, len(record.text))]
            if place + i in duplicates:
                record, units = blank(record, before, duplicates[place + i], MARK)
            findings = None if given is None else given[i]
            if canary and canary.policy != "as-is":
                findings = _at(record.text, canary.secret) if canary.policy == "found" else []
            treated = treat(
                record, self.policy, self.conservative, findings, units if self.options.dedup_unit else None
            )
            if (flagged or (canary and canary.policy != "as-is")) and not treated.private:
                treated = treated._replace(private=True)
            if record is not original:
                moved = _moved(treated.findings, units or [], before, original.text)
                treated = treated._replace(findings=moved)
            yield treated, original

    def _dialogue(self, document: Record, records: list[Record]) -> list[list[Finding]]:
        """The findings of the whole document, each in the record where it lies."""
        found = self.policy.find(document.text)
        places = locate(document, records)
        shares: list[list[Finding]] = []
        for record, (low, high) in zip(records, places, strict=True):
            shift = low - (record.turns[0].start if record.turns else 0)
            cut = [f._replace(start=max(f.start, low) - shift, end=min(f.end, high) - shift) for f in found]
            shares.append([f for f in cut if f.start < f.end])
        return shares

    def _units(self, record: Record) -> list[Span] | None:
        return units_of(record, self.options.dedup_unit) if self.options.dedup_unit else None

    def _digests(self, text: str, units: Iterable[Span], turns: Iterable[Turn], label: str | None) -> list[bytes]:
        """What dedup compares: units of the text, or whole records with all that makes them a training example.

        *Formal guarantees.* Without units two records have equal digests only if text, turns and label are equal (but for
        collisions): blanking one of them then leaves the same multiset of examples whichever it is, and masking a secret
        changes one example. If the text alone were compared, a label or the turns would show which copy was blanked
        (guarantees §2, "two change").
        """
        if self.options.dedup_unit is None and (turns or label is not None):
            return [self.digest(f"{text}\0{[tuple(turn) for turn in turns]}\0{label!r}")]
        return [self.digest(text[start:end]) for start, end in units]

    def digest(self, text: str) -> bytes:
        """A keyed digest: without the key it confirms no guess."""
        return blake2b(text.encode(), digest_size=DIGEST, key=self.key).digest()

    def _row(self, treated: Treated, record: Record, row: Row, identity: bytes | None) -> tuple[Any, ...]:
        """A row of the batch, in the order of the schema."""
        options, private = self.options, treated.private
        raw = render(record.text) if private else None
        findings = _rendered(treated.findings, record.text) if private else None
        screened = Record(record.id, treated.text, record.group, treated.turns)
        return (
            *screened[:3],
            treated.turns or None,
            private,
            raw,
            findings,
            row.row,
            identity,
            treated.units if options.dedup_unit else None,
            self._digests(treated.text, treated.units, treated.turns, row.label) if self._compared[private] else None,
            signature(treated.text) if options.public_dedup == "near" and not private else None,
            row.label,
            content_digest(self.key, screened, raw, len(findings or ()), row.label),
        )


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector, which would walk through a chunk's many small objects again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def content_digest(key: bytes, record: Record, raw: str | None, findings: int, label: str | None = None) -> bytes:
    """A keyed digest of a screened record: its id, group, text, turns and label, and how it came about."""
    name, text, group, turns = record
    content = f"{len(name)} {len(group)} {len(text)} {findings} {turns} {raw is None} {name}{group}{text}{raw}"
    if label is not None:
        content = f"label {len(label)} {label} {content}"
    return blake2b(content.encode(), digest_size=CONTENT, key=key).digest()


def notes_of(table: pa.Table) -> dict[str, Any]:
    """What the screener noted about a chunk: bad rows, counts, and the size of its largest document."""
    found: dict[str, Any] = json.loads(table.schema.metadata[b"confide"])
    return found


def _rendered(findings: list[Finding], text: str) -> list[Finding]:
    """Findings as spans of the text in which the mark is written as people see it."""
    if MARK not in text or not findings:
        return findings
    more = len(MASK) - len(MARK)

    def shift(place: int) -> int:
        return place + more * text.count(MARK, 0, place)

    return [f._replace(start=shift(f.start), end=shift(f.end)) for f in findings]


def _rows(chunk: Chunk | CanaryChunk) -> tuple[list[Row], list[Bad]]:
    return (chunk.rows, []) if isinstance(chunk, CanaryChunk) else parse(chunk)


def _at(text: str, secret: str) -> list[Finding]:
    start = text.find(secret)
    return [Finding(start, start + len(secret), "CANARY", "planted")] if start >= 0 else []


def _moved(findings: Iterable[Finding], units: list[Span], before: list[Span], raw: str) -> list[Finding]:
    """Findings in a record whose duplicate units are masked, as spans of the record as it was read."""

    def back(place: int) -> int:
        for (low, high), (start, end) in zip(units, before, strict=True):
            if place <= high:
                return min(start + max(0, place - low), end)
        return len(raw)

    return [f._replace(start=back(f.start), end=back(f.end)) for f in findings] if len(units) == len(before) else []
