"""Which records a step sees: the size of a corpus and a rate in, indices chosen by secret coins out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..accounting.events import MIN_RATE, check_count, check_number
from ..errors import BadInput, Refused
from .keystream import Keystream, Secretive, check_part

MOST_RECORDS = 10**9
CHUNK = 2**20  # records at a time
Indices = NDArray[np.int64]


class PoissonSampler(Secretive):
    """Includes every record independently with probability `sampling_rate`.

    *Formal guarantees.* With coins that are fair (`Keystream`), each draw includes each record independently of all
    others and of all other draws with probability floor(rate·2^64)/2^64: never above the rate that is accounted for, and
    below it by less than 2^-64. A record's coin is a byte compared with the threshold's first byte; a tie is decided by
    56 fresh bits, so that the comparison is that of a 64-bit uniform with the threshold. At rate 1 all are included. A
    draw may be empty. `part=(rank, world)` draws from the records rank, rank+world, ... only, so that the union over
    ranks is one draw from all records.
    """

    __slots__ = ("_part", "_rest", "_stream", "_top", "records", "sampling_rate")

    def __init__(self, records: int, sampling_rate: float, part: tuple[int, int] = (0, 1)) -> None:
        check_count("records", records, high=MOST_RECORDS)
        check_number("sampling rate", sampling_rate, MIN_RATE, 1, low_open=False)
        self.records, self.sampling_rate = records, sampling_rate
        self._part = check_part(part)
        threshold = int(Fraction(sampling_rate) * 2**64)
        self._top, self._rest = divmod(threshold, 2**56)
        self._stream = Keystream(CHUNK)

    def draw(self) -> Indices:
        """The indices of a fresh batch, ascending."""
        rank, world = self._part
        mine = len(range(rank, self.records, world))
        if self._top == 256:
            return np.arange(rank, self.records, world, dtype=np.int64)
        chosen = [self._chunk(min(CHUNK, mine - begin)) + begin for begin in range(0, mine, CHUNK)]
        indices: Indices = np.concatenate([np.empty(0, np.int64), *chosen])
        return indices * world + rank

    def _chunk(self, records: int) -> Indices:
        coins = self._stream.take(records)
        candidates = np.flatnonzero(coins <= self._top)
        ties = coins[candidates] == self._top  # a copy: the next take overwrites the coins
        keep = ~ties
        undecided = int(np.count_nonzero(ties))
        verdicts = np.empty(undecided, np.bool_)
        for begin in range(0, undecided, CHUNK // 8):
            verdict = verdicts[begin : begin + CHUNK // 8]
            words = self._stream.take(8 * len(verdict)).view(np.uint64)
            np.less(words >> np.uint64(8), np.uint64(self._rest), out=verdict)
        keep[ties] = verdicts
        chosen: Indices = candidates[keep]
        return chosen


class FixedSizeSampler(Secretive):
    """Draws exactly `batch` records without replacement. Its accounting is far worse than Poisson's (guarantees §1).

    *Formal guarantees.* With fair coins, every set of `batch` records is equally likely, independently of other draws:
    indices are uniform without modulo bias (a word beyond the largest multiple of the number is thrown away), repeated
    ones are thrown away, and for more than half of the records it is the rest that is drawn. Ranks cannot draw their
    shares independently, since the sizes of the shares are not independent: `part` with world > 1 is refused.
    """

    __slots__ = ("_stream", "batch", "records")

    def __init__(self, records: int, batch: int, part: tuple[int, int] = (0, 1)) -> None:
        check_count("records", records, high=MOST_RECORDS)
        check_count("batch", batch, high=records)
        if check_part(part)[1] > 1:
            raise Refused(
                "batches of fixed size cannot be drawn in shares: how many of them fall to one rank depends on the other "
                "ranks' coins, which are secret; use the Poisson sampler, or one process"
            )
        self.records, self.batch = records, batch
        self._stream = Keystream(CHUNK)

    def draw(self) -> Indices:
        """The indices of a fresh batch, ascending."""
        if 2 * self.batch <= self.records:
            return np.sort(self._distinct(self.batch))
        kept = np.ones(self.records, np.bool_)
        kept[self._distinct(self.records - self.batch)] = False
        return np.flatnonzero(kept)

    def _distinct(self, count: int) -> Indices:
        found = np.empty(0, np.int64)
        while len(found) < count:
            found = np.concatenate([found, self._uniform(min(count - len(found) + 16, CHUNK // 8))])
            _, first = np.unique(found, return_index=True)
            found = found[np.sort(first)]
        return found[:count]

    def _uniform(self, count: int) -> Indices:
        words = self._stream.take(8 * count).view(np.uint64)
        last = np.uint64(2**64 // self.records * self.records - 1)
        return (words[words <= last] % np.uint64(self.records)).astype(np.int64)


def sampler_for(kind: str, records: int, rate: float, part: tuple[int, int]) -> PoissonSampler | FixedSizeSampler:
    """The sampler that an accounting event of this kind assumes."""
    if kind == "poisson":
        return PoissonSampler(records, rate, part)
    if kind == "fixed-size":
        return FixedSizeSampler(records, round(rate * records), part)
    raise BadInput(f"the sampler is poisson or fixed-size, got {kind!r:.40}")
