"""t(s): what screening makes of one record, looking at nothing but that record (guarantees §2-3).

In: a split record. Out: its redacted text, whether it is private, and the findings that say why.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..policies import Finding, Policy, merged
from ..records import MARK, MASK, Record, Turn
from ..splitting import split

Span = tuple[int, int]
_MARK = re.compile(MARK)


class Treated(NamedTuple):
    """A record as screened. `units` are the spans of `text` that dedup compares."""

    text: str
    turns: tuple[Turn, ...]
    units: Sequence[Span]
    findings: list[Finding]
    private: bool


def treat(
    record: Record,
    policy: Policy,
    conservative: Policy | None = None,
    findings: list[Finding] | None = None,
    units: Sequence[Span] | None = None,
) -> Treated:
    """Route and redact one record. No conservative policy: every record is private.

    `findings` replace the policy's own (those of the whole dialogue, or of a planted canary); `units` are the spans that
    dedup compares, if a record has several.

    *Formal guarantees.* A record that holds the mark or a finding of either policy is private, so that D_pub never holds
    one (guarantees §3). The text holds one mask for each span found, runs of them collapsed, and no mark. If the
    policy is mask-consistent and c is a maximal span that it finds in s, then treat(s).text = treat(s[c→MARK]).text.
    """
    text = record.text
    whole = ((0, len(text)),)
    pieces = units or ([(turn.start, turn.end) for turn in record.turns] if record.turns else whole)
    found = findings
    if found is None:
        found = policy.find(text) if pieces is whole else find(policy, text, pieces)
    masked = MARK in text
    private = masked or bool(found) or conservative is None or bool(conservative.find(text))
    if not found and not masked:
        return Treated(text, record.turns, units or whole, found, private)
    marks = [Finding(*mark.span(), "", "") for mark in _MARK.finditer(text)] if masked else []
    spans = merged(found + marks)
    if pieces is whole:
        redacted = _masked(text, 0, len(text), spans, MASK)
        return Treated(redacted, (), ((0, len(redacted)),), found, private)
    redacted, moved = redact(text, spans, pieces)
    return Treated(
        redacted, _turns(record.turns, pieces, moved), moved if units else ((0, len(redacted)),), found, private
    )


def find(policy: Policy, text: str, pieces: Sequence[Span]) -> list[Finding]:
    """A policy's findings in a record of one or several pieces.

    *Formal guarantees.* A policy that claims to be mask-consistent sees each piece alone, so that no finding is cut at a
    border, where masking one side of it could change the other.
    """
    if policy.consistency == "none":
        return policy.find(text)
    return [
        finding._replace(start=finding.start + low, end=finding.end + low)
        for low, high in pieces
        for finding in policy.find(text[low:high])
    ]


def redact(text: str, spans: Sequence[Span], pieces: Sequence[Span], mask: str = MASK) -> tuple[str, list[Span]]:
    """Put a mask in the place of each span inside a piece, one for spans that only blanks separate.

    Out: the text, and where its pieces are now.

    *Formal guarantees.* Outside the pieces nothing changes. A mark that takes the place of a span, and is a span itself,
    gives the same text: masks depend on where spans begin and end, never on what they hold.
    """
    out: list[str] = []
    moved: list[Span] = []
    place = length = 0
    for low, high in pieces:
        inside = [(max(start, low), min(end, high)) for start, end in spans if start < high and end > low]
        masked = _masked(text, low, high, inside, mask)
        out += (text[place:low], masked)
        length += low - place
        moved.append((length, length + len(masked)))
        length += len(masked)
        place = high
    out.append(text[place:])
    return "".join(out), moved


def _masked(text: str, low: int, high: int, spans: Sequence[Span], mask: str) -> str:
    out: list[str] = []
    place, last = low, -1
    for start, end in spans:
        if last < 0 or text[last:start].strip(" \t"):
            out += (text[place:start], mask)
        place = last = end
    out.append(text[place:high])
    return "".join(out)


def _turns(turns: Sequence[Turn], pieces: Sequence[Span], moved: Sequence[Span]) -> tuple[Turn, ...]:
    """Where the words of each turn are after its pieces have moved."""
    found = []
    for turn in turns:
        new = [m for (start, end), m in zip(pieces, moved, strict=True) if turn.start <= start and end <= turn.end]
        if new:
            found.append(Turn(turn.role, new[0][0], new[-1][1]))
    return tuple(found)


def units_of(record: Record, unit: str) -> list[Span]:
    """The spans of a record that dedup compares when a record has several units; they are fixed before redaction."""
    return locate(record, split(record, unit))


def locate(record: Record, parts: Sequence[Record]) -> list[Span]:
    """Where the words of each part lie in the record that it was split from; of a chat, never in the name of a role."""
    pieces = [(turn.start, turn.end) for turn in record.turns] or [(0, len(record.text))]
    spans: list[Span] = []
    low, high = pieces.pop(0)
    for part in parts:
        words = part.text[part.turns[0].start : part.turns[-1].end] if part.turns else part.text
        while (place := record.text.find(words, low, high)) < 0:
            low, high = pieces.pop(0)
        low = place + len(words)
        spans.append((place, low))
    return spans


def blank(record: Record, units: Sequence[Span], duplicates: Collection[int], mask: str) -> tuple[Record, list[Span]]:
    """The record with a mask in the place of its duplicate units, and where its units are now.

    *Formal guarantees.* The record keeps its place, id and group; one whose units are all duplicates is one mask and
    nothing else, the same that redaction uses (CRT A.6, rule 4).
    """
    if len(duplicates) == len(units):
        return record._replace(text=mask, turns=()), [(0, len(mask))]
    text, moved = redact(record.text, [units[i] for i in sorted(duplicates)], units, mask)
    return record._replace(text=text, turns=_turns(record.turns, units, moved)), moved
