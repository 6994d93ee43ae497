"""A screened folder and an index come in; that one record goes out as the policy left it, read when it is asked for.

Records are numbered through both parts, the public one first, so that one uniform draw covers the whole corpus.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import BadInput
from ..policies import Finding
from ..records import MASK
from ..screening.screened import Screened

OPEN_FILES, KEPT = 32, 64  # Parquet files, and records, that are kept at hand
MOST_BLOCKS, MOST_ROWS = 64, 500  # of the private part, from which the usual number of secrets is taken


class Secret(NamedTuple):
    """A span of a record's text, and what kind of secret it holds."""

    start: int
    end: int
    type: str


class Shown(NamedTuple):
    """A record as a reviewer sees it: its text before redaction, and what the policy found there."""

    text: str
    private: bool
    found: tuple[Secret, ...]
    label: str | None
    chat: bool = True  # its text may have turns, which redaction treats one by one


class Block(NamedTuple):
    """A row group of one of the part's files."""

    path: Path
    group: int
    private: bool


class Records:
    """The records of a screened folder by index. Nothing but the row group that holds the record is read."""

    def __init__(self, screened: Screened) -> None:
        self._blocks: list[Block] = []
        sizes: list[int] = []
        self._labels = False
        for part in ("public", "private"):
            paths = screened.files(part)
            if not paths:
                raise BadInput(f"{screened.folder / part} holds no records; screen the corpus again")
            for path in paths:
                metadata = _metadata(path)
                self._labels = self._labels or "label" in metadata.schema.to_arrow_schema().names
                self._blocks += [Block(path, group, part == "private") for group in range(metadata.num_row_groups)]
                sizes += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._ends = list(accumulate(sizes))
        self.total = self._ends[-1] if self._ends else 0
        if self.total != screened.manifest["records"]:
            raise BadInput(f"{screened.folder} does not hold the records that its manifest counts; screen it again")
        # Caches of this object: another folder has others.
        self._file = functools.lru_cache(OPEN_FILES)(_open)
        self.read = functools.lru_cache(KEPT)(self._read)

    def _place(self, index: int) -> tuple[Block, int]:
        if not 0 <= index < self.total:
            raise BadInput(f"there is no record {index}: the corpus has {self.total:,}")
        block = bisect_right(self._ends, index)
        return self._blocks[block], index - (self._ends[block - 1] if block else 0)

    def _column(self, block: Block, columns: Sequence[str]) -> pa.Table:
        try:
            return self._file(block.path).read_row_group(block.group, columns=list(columns))
        except (OSError, pa.ArrowException, KeyError) as error:
            raise BadInput(f"{block.path} cannot be read ({type(error).__name__}); screen the corpus again") from None

    def _read(self, index: int) -> Shown:
        block, row = self._place(index)
        label = ("label",) if self._labels else ()
        table = self._column(block, ("text", "turns", "raw", "spans", *label) if block.private else ("text", *label))
        values = table.slice(row, 1).to_pylist()[0]
        text = values["raw"] if block.private else values["text"]
        # A duplicate is written as a mask alone, without its turns.
        chat = bool(values.get("turns")) or values["text"] == MASK
        return Shown(text, block.private, _found(values.get("spans"), text), values.get("label"), chat)

    def usual(self, share: float) -> int:
        """A number of secrets that the policy does not exceed in such a share of the records in which it found any.

        Of a large corpus rows at even distances are read.
        """
        blocks = [block for block in self._blocks if block.private]
        counts: list[int] = []
        for block in blocks[:: math.ceil(len(blocks) / MOST_BLOCKS) or 1]:
            table = self._column(block, ("raw", "spans"))
            some = table.take(pa.array(range(0, len(table), math.ceil(len(table) / MOST_ROWS) or 1), pa.int64()))
            counts += [len(_found(row["spans"], row["raw"])) for row in some.to_pylist()]
        counts = sorted(count for count in counts if count)
        return counts[min(len(counts) - 1, math.floor(share * len(counts)))] if counts else 0

    def planted(self, indices: Sequence[int], canaries: int, copies: int) -> set[int]:
        """Which of these records are canaries that screening has planted: invented secrets, no part of the corpus."""
        blocks: dict[Block, list[tuple[int, int]]] = {}
        for index in indices:
            block, row = self._place(index)
            blocks.setdefault(block, []).append((index, row))
        found = set()
        for block, rows in blocks.items():
            names = self._column(block, ("id",))["id"]
            for index, row in rows:
                match = re.fullmatch(r"canary-(\d+)-(\d+)(/\d+)*", names[row].as_py() or "")
                if match and int(match[1]) < canaries and int(match[2]) < copies:
                    found.add(index)
        return found


def _found(spans: Sequence[dict[str, Any]] | None, text: str) -> tuple[Secret, ...]:
    return joined([Finding(**finding) for finding in spans or ()], text)


def joined(findings: Sequence[Finding], text: str) -> tuple[Secret, ...]:
    """Findings as secrets: those that redaction gives one mask are one secret, with the type of the longest.

    These overlap, touch, or have nothing but blanks between them. Joining lowers the count of secrets that were found, never
    of those that were missed: it is on the safe side.

    >>> joined([Finding(5, 9, "DIGITS", "digits"), Finding(10, 14, "DIGITS", "digits")], "card 4111 1111")
    (Secret(start=5, end=14, type='DIGITS'),)
    """
    spans: list[tuple[int, int, Finding]] = []
    for finding in sorted(findings):
        if finding.end <= finding.start:
            continue
        if spans and not text[spans[-1][1] : finding.start].strip(" \t"):
            start, end, longest = spans[-1]
            if finding.end - finding.start > longest.end - longest.start:
                longest = finding
            spans[-1] = (start, max(end, finding.end), longest)
        else:
            spans.append((finding.start, finding.end, finding))
    return tuple(Secret(start, end, longest.type) for start, end, longest in spans)


def _metadata(path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        raise BadInput(f"{path} is damaged; screen the corpus again") from None


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path)
