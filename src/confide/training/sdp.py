"""Selective-DPSGD: public tokens without noise, private tokens with it. The sound variant, and the S-DP paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .corpus import Source
from .encoding import Tokens
from .options import Options
from .phases import BOTH, Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """Sound: one pass over public pieces, and Poisson batches of private tokens, from batches of their own (guarantees §5).

    *Formal guarantees.* Neighbours differ in the private tokens of one record and share lengths and mask pattern. Public
    pieces are tokenised by themselves and begin with an empty state, so that the pass without noise is the same for both.
    All private loss terms of a record make up one gradient, clipped once. Hence substitution accounting holds.
    """
    if options.variant == "paper":
        return (Phase("train", options.epochs, private=Source(BOTH, "segments"), whole_segments=True),)
    return (Phase("train", options.epochs, public=Source(BOTH, "segments"), private=Source(("private",), "segments")),)


def public_pieces(records: Iterable[Tokens]) -> Iterator[Tokens]:
    """The public pieces of records, each a sequence of its own behind the record's first token.

    The first token of a piece inside a record is no target: what comes before it is private.
    """
    for ids, target, private, label in records:
        edges = np.flatnonzero(np.diff(np.concatenate([[True], private, [True]]).astype(np.int8)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            piece, wanted = ids[begin:end], target[begin:end].copy()
            if begin:
                wanted[0] = False
                piece, wanted = np.concatenate([ids[:1], piece]), np.concatenate([[False], wanted])
            if wanted.any():
                yield Tokens(piece, wanted, np.zeros(len(piece), bool), label)


def private_targets(records: Iterable[Tokens]) -> Iterator[Tokens]:
    """Whole records in which only private tokens, and the token behind each, are targets: their context is private."""
    for ids, target, private, label in records:
        behind = np.concatenate([[False], private[:-1]])
        yield Tokens(ids, target & (private | behind), private, label)
