"""A phase: which text is trained on without noise, which with noise, for how long. A method is one phase or two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .corpus import Source

BOTH = ("public", "private")


@dataclass(frozen=True)
class Phase:
    """What one part of a run trains on. All fields are public."""

    name: str
    epochs: int
    public: Source | None = None  # trained on without noise
    private: Source | None = None  # trained on with noise
    secrets_in_public: bool = False  # the text without noise may hold secrets: the ledger says so
    noise: float | None = None  # None: the run's own
    by_hand: bool = False  # `public` is a subset that people have screened
    whole_segments: bool = False  # sdp as in the paper: public and private segments stay one record
    ignore_mask: bool = False
    fill_masks: bool = False
    drop_masked: bool = False


class Slot(NamedTuple):
    """One thing to do: a step on public or private text, or the end of an epoch."""

    phase: int
    epoch: int
    kind: str  # public, private or epoch
    step: int  # of this kind in its phase, from 0


def slots(phase: int, epochs: int, public: int, private: int, order: str) -> Iterator[Slot]:
    """The slots of a phase with `public` steps an epoch and `private` steps in all.

    *Formal guarantees.* A function of public numbers only: when a private step is taken depends on no private record.
    """
    for epoch in range(epochs):
        noisy = [
            Slot(phase, epoch, "private", n) for n in range(private * epoch // epochs, private * (epoch + 1) // epochs)
        ]
        plain = [Slot(phase, epoch, "public", epoch * public + n) for n in range(public)]
        if order == "private-first":
            yield from noisy
            yield from plain
        elif order == "public-first" or not plain:
            yield from plain
            yield from noisy
        else:
            yield from _alternating(plain, noisy)
        yield Slot(phase, epoch, "epoch", epoch)


def _alternating(plain: list[Slot], noisy: list[Slot]) -> Iterator[Slot]:
    taken = 0
    for number, slot in enumerate(plain, start=1):
        yield slot
        due = len(noisy) * number // len(plain)
        yield from noisy[taken:due]
        taken = due
