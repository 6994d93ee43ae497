"""Which records train and which are held out: groups and a share in, two lists of row numbers out."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..screening.screened import Screened

Rows = NDArray[np.int64]


def split_rows(screened: Screened, part: str, share: float) -> tuple[Rows, Rows]:
    """The rows of a part that train, and those of dialogues that are held out.

    *Formal guarantees.* Whether a record is held out depends on its group's name and the share alone: not on its text, on
    its part or on any other record. Masking a secret therefore changes neither who trains nor how many do, also for
    methods to which every record is private and a masked one changes its part.
    """
    return _split(screened.folder, screened.manifest["digest"], part, share)


@lru_cache(maxsize=16)
def _split(folder: Path, digest: str, part: str, share: float) -> tuple[Rows, Rows]:
    screened = Screened.open(folder)
    groups = (group for batch in screened.batches(part, ("group",)) for group in batch["group"].to_pylist())
    held = np.fromiter((_place(group) < share * 2**64 for group in groups), bool)
    if len(held) != screened.manifest[part]:
        raise BadInput(f"{folder / part} has not as many records as its manifest says; screen the corpus again")
    return np.flatnonzero(~held), np.flatnonzero(held)


def _place(group: str) -> int:
    return int.from_bytes(blake2b(group.encode(), digest_size=8, person=b"validation").digest(), "big")
