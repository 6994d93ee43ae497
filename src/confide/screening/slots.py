"""Slots: the place of each unit in the corpus as one number, and what is entered into a shuffle for each chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BadInput
from .batches import DIGEST
from .dedup import Shuffle, Slots

PUBLIC, PRIVATE, IDENTITY = 0, 1, 2
RECORD_BITS, UNIT_BITS = 22, 20  # the chunk's number stands above both

Marked = dict[int, frozenset[int]]  # in one chunk: the record's place, and its units


def slots(chunk: int, records: NDArray[np.int64], units: NDArray[np.int64]) -> Slots:
    """The slots of units, in the order of the corpus."""
    if chunk >> (63 - RECORD_BITS - UNIT_BITS) or np.any(records >> RECORD_BITS) or np.any(units >> UNIT_BITS):
        raise BadInput("too many records for dedup in one go; screen the corpus in several parts, or use larger chunks")
    return (np.int64(chunk) << (RECORD_BITS + UNIT_BITS)) | records << UNIT_BITS | units


class Later:
    """Slots that come in order, handed out chunk by chunk."""

    def __init__(self, ordered: Iterator[int]) -> None:
        self._ordered, self._next = ordered, next(ordered, None)

    def of(self, chunk: int) -> Marked:
        """The records of this chunk, the next one, and their units."""
        found: dict[int, set[int]] = {}
        while self._next is not None and self._next >> (RECORD_BITS + UNIT_BITS) == chunk:
            record = self._next >> UNIT_BITS & (1 << RECORD_BITS) - 1
            found.setdefault(record, set()).add(self._next & (1 << UNIT_BITS) - 1)
            self._next = next(self._ordered, None)
        return {record: frozenset(units) for record, units in found.items()}


def flat_digests(digests: Sequence[Sequence[bytes]], chunk: int) -> tuple[NDArray[np.uint8], Slots]:
    """The digests of all units of a chunk's records, and their slots."""
    lengths = np.fromiter((len(units) for units in digests), np.int64, len(digests))
    flat = np.frombuffer(b"".join(chain.from_iterable(digests)), np.uint8).reshape(-1, DIGEST)
    return flat, slots(chunk, *_places(lengths))


def _places(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    records = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return records, np.arange(len(records)) - starts


def enter_ids(shuffle: Shuffle, table: pa.Table, chunk: int) -> None:
    """Enter the ids of a chunk's documents, where they come from the data; one entry a document."""
    identities = table["identity"].combine_chunks()
    if len(table) and identities.null_count == 0:
        first = np.flatnonzero(np.diff(table["row"].to_numpy(), prepend=-1))
        shuffle.add(IDENTITY, _rows(identities, np.uint8, DIGEST)[first], slots(chunk, first, np.zeros_like(first)))


def enter(shuffle: Shuffle, table: pa.Table, chunk: int) -> int:
    """Enter a chunk's digests and signatures. Out: how many private units it has."""
    private = table["private"].to_numpy(zero_copy_only=False)
    digests = table["digests"].combine_chunks()
    lengths = np.diff(digests.offsets.to_numpy()).astype(np.int64)
    flat = _rows(digests.flatten(), np.uint8, DIGEST)
    records, units = _places(lengths)
    where, mine = slots(chunk, records, units), private[records]
    shuffle.add(PUBLIC, flat[~mine], where[~mine])
    signatures = table["signature"].combine_chunks()
    signed = np.flatnonzero(signatures.is_valid().to_numpy(zero_copy_only=False))
    if len(signed):
        values = signatures.flatten().to_numpy().reshape(len(signed), -1)
        shuffle.add_signatures(values, slots(chunk, signed, np.zeros_like(signed)))
    return shuffle.add(PRIVATE, flat[mine], where[mine])


def _rows(array: pa.Array, kind: type, width: int) -> NDArray[np.uint8]:
    """The bytes of a fixed-size binary array, a row a value."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros((0, width), kind)
    return np.frombuffer(buffer, kind).reshape(-1, width)[array.offset : array.offset + len(array)]
