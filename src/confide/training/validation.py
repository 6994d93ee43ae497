"""What a model is judged by: a screened corpus, or documents from outside, come in; records that hold no secret go out.

By default these are records that neither policy flags: on any other text, secrets that were missed would steer the choice
of a model and stand in the perplexities that are published (guarantees §7).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from .. import readers
from ..errors import BadInput
from ..policies import Policy, load
from ..records import Chunk, Fields, Record, Turn, parse
from ..screening.screened import Screened
from ..screening.treatment import locate, treat
from ..sources import sources
from ..splitting import split

Span = tuple[int, int]
LIMIT = 2000  # records; more would make perplexities slower, hardly better
_TRUTH = ("secrets", "spans")  # where a JSONL row says where its secrets are


class Held(NamedTuple):
    """A validation record. `spans`: where its secrets are, if the corpus says so; None: nobody knows."""

    text: str
    spans: tuple[Span, ...] | None = None
    turns: tuple[Turn, ...] = ()
    label: str | None = None


def outside(
    screened: Screened,
    corpus: str | Path,
    *,
    limit: int = LIMIT,
    everything: bool = False,
    fields: Fields | None = None,
    text_as: str = "file",
) -> list[Held]:
    """The first records of a corpus that neither of the screening's policies flags, at most `limit`."""
    manifest = screened.manifest
    names = manifest["policy"]["spec"], manifest["conservative"]["spec"]
    if not everything and names[1] == "everything":
        raise BadInput(
            "the corpus was screened with --conservative everything, which flags every record, so that none is left to "
            "validate on. Validate on all records as they are with --validate-on all: their secrets, "
            "found or missed, then show in the perplexities, which no certificate covers. Or screen with a conservative "
            "policy such as allowlist"
        )
    policies = None if everything else (load(names[0]), load(names[1]))
    held: list[Held] = []
    seen = 0
    for record in _records(screened, str(corpus), fields or Fields(), text_as, policies):
        seen += 1
        held += [] if record is None else [record]
        if len(held) >= limit:
            break
    if not held and seen:
        raise BadInput(
            f"the policies flag each of the {seen} validation records, so that none is left. Name a larger corpus, or "
            "validate on all records as they are with --validate-on all: their secrets then show in "
            "the perplexities, which no certificate covers"
        )
    if not held:
        raise BadInput("the validation corpus is empty: none of its files holds a row; name another with --validation")
    return held


def _records(
    screened: Screened, corpus: str, fields: Fields, text_as: str, policies: tuple[Policy, Policy] | None
) -> Iterator[Held | None]:
    """The records of a corpus in order; None for one that is flagged."""
    manifest = screened.manifest
    for chunk in readers.chunks(sources([corpus]), fields, text_as):
        rows, bad = parse(chunk)
        if bad:
            raise BadInput(f"{bad[0]}; mend the validation corpus")
        truth = _truth(chunk)
        for row in rows:
            document = row.record
            records = split(document, manifest["unit"], manifest["max_words"])
            whole = policies is not None and manifest["context"] == "group"
            flagged = whole and any(policy.find(document.text) for policy in policies or ())
            spans = _spans(truth[row.row], document, f"{chunk.name}, row {row.row}") if row.row in truth else None
            places = locate(document, records) if spans is not None and not document.turns else []
            for i, record in enumerate(records):
                if flagged or (policies is not None and treat(record, *policies).private):
                    yield None
                else:
                    yield Held(record.text, _inside(spans, places[i]) if places else None, record.turns, row.label)


def _truth(chunk: Chunk) -> dict[int, Any]:
    """What rows of JSONL say about their secrets, by row."""
    found: dict[int, Any] = {}
    for row, line in enumerate(chunk.payload.split(b"\n") if chunk.kind == "jsonl" else (), chunk.first_row):
        if any(name.encode() in line for name in _TRUTH):
            values = orjson.loads(line)
            name = next((name for name in _TRUTH if name in values), None)
            if name is not None:
                found[row] = values[name]
    return found


def _spans(given: Any, document: Record, where: str) -> list[Span]:
    """Ground truth as places in a document; intake changes no lengths."""
    try:
        spans = [(int(one["start"]), int(one["end"])) for one in given]
    except (TypeError, KeyError, ValueError):
        spans = [(1, 0)]
    if document.turns:
        return []
    if any(not 0 <= start <= end <= len(document.text) for start, end in spans):
        raise BadInput(f"{where}: its secrets are not a list of spans, start and end, inside the text")
    return sorted(spans)


def _inside(spans: list[Span] | None, place: Span) -> tuple[Span, ...]:
    low, high = place
    return tuple(
        (max(start, low) - low, min(end, high) - low) for start, end in spans or () if max(start, low) < min(end, high)
    )
