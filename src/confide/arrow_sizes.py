"""An Arrow file in; how large each of its packed parts is, and would be unpacked, out. Nothing is unpacked, and of the parts nothing else is read.

pyarrow unpacks a part as a whole, as large as the part itself says. So the parts are gone through first, by their headers
(Arrow's columnar format, "Encapsulated message format"; the headers are flatbuffers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

MAGIC = b"ARROW1"
LARGEST_HEADER = 64 << 20
_GOES_ON = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3


def packed_parts(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """(packed, unpacked) bytes of each compressed part, from the beginning of a stream, or of a file with a footer."""
    stream.seek(0)
    place = 8 if stream.read(len(MAGIC)) == MAGIC else 0
    try:
        while True:
            stream.seek(place)
            length = int.from_bytes(stream.read(4), "little")
            place += 4
            if length == _GOES_ON:
                length = int.from_bytes(stream.read(4), "little")
                place += 4
            if not length:
                return
            if length > LARGEST_HEADER:
                raise pa.ArrowInvalid("header")
            header = _Header(stream.read(length))
            place += length
            kind, message = header.number("B", 0, header.root, 1), header.table(header.root, 2)
            if kind == _DICTIONARY:
                message = header.table(message, 1)
            if kind in (_DICTIONARY, _BATCH) and header.field(message, 3):
                sizes = [_unpacked(stream, place + start) for start, size in header.pairs(message, 2) if size]
                yield sum(size for _, size in header.pairs(message, 2)), sum(sizes)
            place += header.number("q", 0, header.root, 3)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise pa.ArrowInvalid("header") from error


def _unpacked(stream: IO[bytes], place: int) -> int:
    """What a buffer says of itself in its first eight bytes; -1, it is not packed."""
    stream.seek(place)
    return max(0, int.from_bytes(stream.read(8), "little", signed=True))


class _Header:
    """A flatbuffer: tables of fields, by number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.root = self._read("I", 0)

    def _read(self, kind: str, place: int) -> int:
        return int(struct.unpack_from(f"<{kind}", self._data, place)[0])

    def field(self, table: int, number: int) -> int:
        """Where a field of a table lies; 0, it is absent."""
        names = table - self._read("i", table)
        if 4 + 2 * number >= self._read("H", names):
            return 0
        offset = self._read("H", names + 4 + 2 * number)
        return table + offset if offset else 0

    def number(self, kind: str, absent: int, table: int, number: int) -> int:
        place = self.field(table, number)
        return self._read(kind, place) if place else absent

    def table(self, table: int, number: int) -> int:
        place = self.field(table, number)
        return place + self._read("I", place) if place else 0

    def pairs(self, table: int, number: int) -> list[tuple[int, int]]:
        """A vector of pairs of whole numbers."""
        start = self.table(table, number)
        if not start:
            return []
        return [
            (self._read("q", start + 4 + 16 * n), self._read("q", start + 12 + 16 * n))
            for n in range(min(self._read("I", start), len(self._data)))
        ]
