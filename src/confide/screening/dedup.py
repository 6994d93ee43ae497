"""Duplicates: only keyed digests and places (slots) are compared, never text. Out: the slots that hold later copies.

A slot numbers a unit of the corpus in its order, so that the same copy survives however the work was cut up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from hashlib import shake_256
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BadInput
from .near import BANDS, alike, bands

Slots = NDArray[np.int64]
MEMORY = "64MB"  # beyond it DuckDB spills to the work folder, so that memory does not grow with the corpus
LARGEST_FILTER = 1 << 34  # bits


class Shuffle:
    """A table of keyed digests on disk, grouped in bounded memory."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        settings: dict[str, Any] = {"memory_limit": MEMORY, "threads": 1, "temp_directory": str(folder / "spill")}
        settings["autoinstall_known_extensions"] = False  # nothing is ever downloaded
        self._db = duckdb.connect(str(folder / "digests.duckdb"), config=settings)
        self._db.execute("CREATE TABLE digests (part TINYINT, high UBIGINT, low UBIGINT, slot BIGINT)")
        self._db.execute("CREATE TABLE signatures (slot BIGINT, signature BLOB)")
        self._db.execute("CREATE TABLE bands (band TINYINT, key UBIGINT, slot BIGINT)")

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, part: int, digests: NDArray[np.uint8], slots: Slots) -> int:
        """Enter digests (rows of 16 bytes) of one part of the corpus with their slots. Out: how many."""
        if not len(slots):
            return 0
        halves = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)
        part_column = np.full(len(slots), part, dtype=np.int8)
        self._insert("digests", part=part_column, high=halves[:, 0], low=halves[:, 1], slot=slots)
        return len(slots)

    def add_signatures(self, signatures: NDArray[np.uint32], slots: Slots) -> None:
        """Enter the MinHash signatures of public records."""
        blobs = pa.array([row.tobytes() for row in signatures], pa.binary())
        self._insert("signatures", slot=slots, signature=blobs)
        band = np.tile(np.arange(BANDS, dtype=np.int8), len(slots))
        self._insert("bands", band=band, key=bands(signatures).ravel(), slot=np.repeat(slots, BANDS))

    def _insert(self, table: str, **columns: object) -> None:
        rows = pa.table(
            {name: pa.array(np.ascontiguousarray(c)) if isinstance(c, np.ndarray) else c for name, c in columns.items()}
        )
        self._db.register("rows", rows)
        self._db.execute(f"INSERT INTO {table} SELECT * FROM rows")
        self._db.unregister("rows")

    def later_copies(self, part: int, copies: int = 1) -> Iterator[int]:
        """The slots of a part, in order, that hold a copy beyond the first `copies` of their digest.

        *Formal guarantees.* A function of the digests in slot order alone (keyed BLAKE2b of 128 bits:
        two different units collide with probability below n²/2^129 over the key).
        """
        return self._slots(
            "SELECT slot FROM (SELECT slot, row_number() OVER (PARTITION BY high, low ORDER BY slot) AS copy "
            f"FROM digests WHERE part = {int(part)}) WHERE copy > {int(copies)} ORDER BY slot"
        )

    def near_copies(self) -> Iterator[int]:
        """The slots of public records, in order, that are near-duplicates of an earlier one."""
        last = -1
        for rows in self._fetch(
            "SELECT p.slot, a.signature, b.signature FROM (SELECT DISTINCT slot, first FROM (SELECT slot, "
            "min(slot) OVER (PARTITION BY band, key) AS first FROM bands) WHERE slot > first) p "
            "JOIN signatures a ON a.slot = p.slot JOIN signatures b ON b.slot = p.first ORDER BY p.slot"
        ):
            places, *pairs = zip(*rows, strict=True)
            mine, other = (np.frombuffer(b"".join(blobs), np.uint32).reshape(len(rows), -1) for blobs in pairs)
            for slot in np.array(places)[alike(mine, other)].tolist():
                if slot != last:
                    yield slot
                last = slot

    def ordered(self, part: int) -> Iterator[tuple[int, bytes]]:
        """The slots of a part in order, with their digests."""
        for rows in self._fetch(f"SELECT slot, high, low FROM digests WHERE part = {int(part)} ORDER BY slot"):
            for slot, high, low in rows:
                yield slot, high.to_bytes(8, "little") + low.to_bytes(8, "little")

    def _slots(self, query: str) -> Iterator[int]:
        for rows in self._fetch(query):
            yield from (slot for (slot,) in rows)

    def _fetch(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._db.cursor().execute(query)
        while rows := cursor.fetchmany(1 << 14):
            yield rows


class Bloom:
    """A Bloom filter with a secret random key.

    *Formal guarantees.* With n entries at most h·n of m bits are set, and the h positions of a new unit are independent
    of them over the key, so that each unit is a false positive with probability at most (h·n/m)^h. Two neighbouring
    corpora are treated alike unless one of their n+1 units is a false positive: `delta` = (n+1)(h·n/m)^h (guarantees §2).
    """

    def __init__(self, entries: int, delta: float, key: bytes, bits: int | None = None) -> None:
        if not 0 < delta < 1:
            raise BadInput(f"the Bloom filter's delta must lie between 0 and 1, got {delta:g}")
        per_entry = math.e * math.log((entries + 1) / delta)
        self.bits = bits or 1 << math.ceil(math.log2(max(64.0, per_entry * entries)))
        if self.bits > LARGEST_FILTER:
            raise BadInput("a Bloom filter for so many records would not fit into memory; use exact dedup")
        self.hashes = max(1, min(256, round(self.bits / (math.e * max(1, entries)))))
        self.delta = min(1.0, (entries + 1) * (self.hashes * entries / self.bits) ** self.hashes)
        self._key = key
        self._set = np.zeros((self.bits + 7) // 8, dtype=np.uint8)

    def add(self, digest: bytes) -> bool:
        """Enter a digest; out: whether it seemed to be there already."""
        drawn = shake_256(self._key + digest).digest(8 * self.hashes)
        places = np.frombuffer(drawn, np.uint64) % np.uint64(self.bits)
        byte, bit = places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)
        seen = bool(np.all(self._set[byte] & bit))
        np.bitwise_or.at(self._set, byte, bit)
        return seen


def bloom_copies(digests: Iterable[tuple[int, bytes]], bloom: Bloom) -> Iterator[int]:
    """The slots, in order, whose digest seems to have been seen; false positives included."""
    return (slot for slot, digest in digests if bloom.add(digest))


def verified_copies(
    first: Iterable[tuple[int, bytes]], again: Iterable[tuple[int, bytes]], bloom: Bloom
) -> Iterator[int]:
    """The slots of later copies, exactly: the filter names candidates, a second pass counts them.

    *Formal guarantees.* A filter has no false negatives: each digest that occurs twice is a candidate at its second
    occurrence. So the output is that of exact dedup, whatever the filter's size (guarantees §2).
    """
    candidates = {digest for _, digest in first if bloom.add(digest)}
    seen: set[bytes] = set()
    for slot, digest in again:
        if digest in seen:
            yield slot
        elif digest in candidates:
            seen.add(digest)
