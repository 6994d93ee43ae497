"""Near-duplicates by MinHash, for the public part only: there any dedup is free (guarantees §2).

In the private part masking one record could free any number of others, so that no certificate would hold.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

WORDS = 3  # of a shingle
HASHES = 64
BANDS = 16
BLOCK = 4096  # shingles at a time
SIMILAR = 0.8  # share of equal hashes from which two records count as near-duplicates: an estimate of their overlap

_PRIME = (1 << 61) - 1
_COINS = np.random.default_rng(20240229).integers(1, 1 << 31, size=(2, HASHES), dtype=np.uint64)


def signature(text: str) -> NDArray[np.uint32]:
    """The MinHash signature of a text's shingles."""
    words = text.casefold().split()
    last = max(1, len(words) - WORDS + 1)
    shingles = {zlib.crc32(" ".join(words[i : i + WORDS]).encode()) for i in range(last)}
    values = np.fromiter(shingles, dtype=np.uint64, count=len(shingles))
    least = np.full(HASHES, _PRIME, dtype=np.uint64)
    for start in range(0, len(values), BLOCK):
        hashes = (values[start : start + BLOCK, None] * _COINS[0] + _COINS[1]) % _PRIME
        least = np.minimum(least, hashes.min(axis=0))
    return np.asarray(least & 0xFFFFFFFF, dtype=np.uint32)


def bands(signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """One key a band: near-duplicates are likely to share one of them."""
    rows = signatures.reshape(len(signatures), BANDS, HASHES // BANDS).astype(np.uint64)
    key = np.zeros(rows.shape[:2], dtype=np.uint64)
    for column in range(rows.shape[2]):
        key = key * np.uint64(0x9E3779B97F4A7C15) + rows[:, :, column]
    return key


def alike(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether the signatures, row by row, are those of near-duplicates."""
    return np.asarray((first == second).mean(axis=-1) >= SIMILAR)
